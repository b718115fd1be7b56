"""Bounds of log-probabilities: as many of one answer as memory and other requests can bear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.server.errors import ApiError, bad_value

__all__ = ["MOST_ENTRIES", "bounded_tokens", "n_entries"]

MOST_ENTRIES = 1 << 20  # of one answer: each token's, and each of the likeliest beside it


def bounded_tokens(
    prompts: Sequence[Sequence[int]], n: int, options: Mapping[str, Any], room: int, name: str = "logprobs"
) -> int | None:
    """Number of tokens that may be generated for each of the n choices of each prompt, with the log-probabilities that
    are asked for; None: as many as `max_tokens` says.

    Raises ApiError where they, or the prompts, have more than MOST_ENTRIES. given: tokens that are wanted at most;
    None: as many as there is room for. room: tokens of a prompt and its output.
    """
    entries = _of_prompts(prompts, options)
    most: int | None = options.get("logprobs")
    given: int | None = options.get("max_tokens")
    if most is None:
        return None
    each = n * (1 + most)
    wanted = [room - len(ids) if given is None else min(given, room - len(ids)) for ids in prompts]
    if entries + each * sum(max(tokens, 0) for tokens in wanted) <= MOST_ENTRIES:
        return None
    left = (MOST_ENTRIES - entries) // (each * len(prompts))
    if given is not None or left < 1:
        raise _refused(
            "logprobs", f"{n * len(prompts)} choices of {max(wanted)} tokens with {most} of the likeliest each"
        )
    return left


def _of_prompts(prompts: Sequence[Sequence[int]], options: Mapping[str, Any]) -> int:
    """Log-probabilities of the prompts. Raises ApiError for too many."""
    most: int | None = options.get("prompt_logprobs")
    if most is None:
        return 0
    n_tokens = sum(map(len, prompts))
    if n_tokens * (1 + most) > MOST_ENTRIES:
        raise _refused("prompt_logprobs", f"{n_tokens} tokens of prompts with {most} of the likeliest each")
    return n_tokens * (1 + most)


def _refused(name: str, what: str) -> ApiError:
    text = f"{name}: {what} are more than the {MOST_ENTRIES} log-probabilities that one answer may have: ask for fewer"
    return bad_value(name, text)


def n_entries(chunks: Sequence[tuple[int, Any]]) -> int:
    """Log-probabilities that chunks have."""
    found = 0
    for _, chunk in chunks:
        for entries in (chunk.logprobs, chunk.prompt_logprobs):
            found += sum(1 + len(one.top) for one in entries or () if one is not None)
    return found
