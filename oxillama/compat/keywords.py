"""Keyword tables: each keyword of the replaced package's calls, its default, and what becomes of it here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from oxillama.compat.wording import own_words
from oxillama.errors import ConfigError

__all__ = ["REQUIRED", "Keyword", "bound", "check_defaults", "keywords", "rows"]

REQUIRED: Any = inspect.Parameter.empty
Treatment = Literal["honoured", "accepted", "refused"]


class Keyword(NamedTuple):
    """A keyword: honoured; accepted, which changes nothing on a CPU; or refused with another value than its default."""

    name: str
    default: Any
    treatment: Treatment
    meaning: str


def rows(table: Iterable[Keyword]) -> str:
    """A Markdown table of keywords."""
    head = ["| keyword | default | | |", "|---|---|---|---|"]
    lines = [
        f"| `{k.name}` | {'' if k.default is REQUIRED else f'`{k.default!r}`'} | {k.treatment} | {k.meaning} |"
        for k in table
    ]
    return "\n".join([*head, *lines])


def check_defaults(table: Iterable[Keyword], given: dict[str, Any]) -> None:
    """Raises ConfigError, which names the keyword, for a refused one with another value than its default."""
    for keyword in table:
        if keyword.treatment == "refused" and given[keyword.name] != keyword.default:
            raise ConfigError(
                f"{keyword.name} must be {keyword.default!r}, not {given[keyword.name]!r}: {keyword.meaning}"
            )


def bound(name: str, signature: inspect.Signature, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, defaults included. Raises TypeError, which names function and keyword."""
    try:
        arguments = signature.bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    arguments.apply_defaults()
    return dict(arguments.arguments)


def keywords(table: tuple[Keyword, ...], *, n_positional: int | None = None) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the method takes the keywords of a table, and gets them as one dict in the place of all.

    n_positional: how many of them may be positional arguments; None for all.
    """
    kinds = inspect.Parameter
    parameters = [
        kinds(
            k.name,
            kinds.POSITIONAL_OR_KEYWORD if n_positional is None or i < n_positional else kinds.KEYWORD_ONLY,
            default=k.default,
        )
        for i, k in enumerate(table)
    ]
    signature = inspect.Signature(parameters)
    own = inspect.Signature([kinds("self", kinds.POSITIONAL_OR_KEYWORD), *parameters])

    def decorate(method: Callable[..., Any]) -> Any:
        worded = own_words(method)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **given: Any) -> Any:
            options = bound(method.__name__, signature, args, given)
            check_defaults(table, options)
            return worded(self, options)

        call.__signature__ = own  # type: ignore[attr-defined]
        return call

    return decorate
