"""Texts that are longer than the context, cut to fit it: their token ids at one end are left out."""

from __future__ import annotations

from typing import Any, Literal

from oxillama.errors import ConfigError, ContextOverflowError
from oxillama.tokenizer import Tokenizer

__all__ = ["Side", "Truncate", "check_truncate", "cut_ids", "cut_text"]

Side = Literal["end", "start"]  # the end of a text at which tokens are left out
Truncate = Literal["end", "start", False]

CHARACTERS = 8  # of a text for each token that is wanted: so many of a longer text are tokenised first
MARGIN = 64  # tokens by which the part of a text that is tokenised is longer than what is kept of it


def check_truncate(value: Any) -> Side | None:
    """The side at which texts are cut; None for False and None. Raises ConfigError for anything else."""
    if value is None or value is False:
        return None
    if value not in ("end", "start") or not isinstance(value, str):
        raise ConfigError(f'truncate must be "end", "start" or False, not {value!r:.60}')
    return "end" if value == "end" else "start"


def cut_ids(ids: list[int], size: int, side: Side, before: int = 0, after: int = 0) -> list[int]:
    """Token ids without those for which there is no room: the first `before` and the last `after` stay in any case.

    Raises ContextOverflowError if there is no room for more than these.
    """
    over, end = len(ids) - size, len(ids) - after
    if over <= 0:
        return ids
    if over >= end - before:
        text = f"{before + after} tokens that begin and end a text leave no room for it in {size}"
        raise ContextOverflowError(text, before + after)
    return ids[: end - over] + ids[end:] if side == "end" else ids[:before] + ids[before + over :]


def cut_text(tokenizer: Tokenizer, text: str, size: int, side: Side) -> tuple[list[int], bool]:
    """Token ids of a text, `size` of them at most, with the special tokens that begin and end it, and whether any are
    left out.

    Of a long text a part that is long enough is tokenised. Raises TokenizerError, ContextOverflowError.
    """
    n = CHARACTERS * size
    while True:
        part = text[:n] if side == "end" else text[max(0, len(text) - n) :]
        ids = tokenizer.encode(part)
        if n >= len(text) or len(ids) >= size + MARGIN:
            break
        n *= 2
    return cut_ids(ids, size, side, *tokenizer.n_special), len(ids) > size
