"""Signatures of calls whose keywords are declared once, in a TypedDict."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["takes"]

F = TypeVar("F", bound=Callable[..., Any])


def takes(options: type, checked: Callable[..., Any], rest: type | None = None) -> Callable[[F], F]:
    """Decorator that spells out a function's `**options` in its signature and its docstring, for `help` and editors.

    options: the TypedDict of its keywords.
    checked: the dataclass or function that checks them: its parameters of these names have the defaults (None without
        such a parameter, and for () of a dataclass), and its docstring says after the first paragraph what they mean,
        up to what it raises.
    rest: a TypedDict whose keywords stay behind `**options`.
    """
    known = inspect.signature(checked).parameters
    hidden = getattr(rest, "__annotations__", {})

    def parameter(name: str, annotation: Any) -> inspect.Parameter:
        default = known[name].default if name in known else None
        kind = inspect.Parameter.KEYWORD_ONLY
        if default == () and isinstance(checked, type):
            default = None
        annotation = getattr(annotation, "__forward_arg__", annotation)
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    spelt = [parameter(name, given) for name, given in options.__annotations__.items() if name not in hidden]

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        others = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD and rest is not None]
        function.__signature__ = own.replace(parameters=[*kept, *spelt, *others])  # type: ignore[attr-defined]
        if function.__doc__:  # there are none with -OO
            _, _, meanings = (inspect.getdoc(checked) or "").partition("\n\n")
            meanings = re.split(r"\bRaises ", meanings)[0].rstrip()
            function.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:\n\n{meanings}"
        return function

    return decorate
