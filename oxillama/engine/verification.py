"""Which guesses count, by the rows that the model computed for them."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from oxillama.engine.results import FinishReason
from oxillama.engine.stream import TextRequest
from oxillama.sampling import Distribution, Sampler
from oxillama.speculative.rejection import chosen

__all__ = ["RULES", "n_right", "verify"]


def verify(rows: NDArray[np.float32], ahead: list[int], request: TextRequest) -> FinishReason | None:
    """Draws what follows a text by the rows of its last token and of each guess after it, float32 [1 + k, n_vocab].

    Tokens go to the end of `request.sequence.tokens`: as long as they are those guessed, and one more. Returns why the
    request is finished, or None. Raises what drawing raises; the tokens before it are there then.
    """
    assert request.speculation is not None
    return RULES[request.speculation.acceptance](rows, ahead, request)


def match(rows: NDArray[np.float32], ahead: list[int], request: TextRequest) -> FinishReason | None:
    """A guess counts if the request's own sampler draws that token, as it would have without: so the text is the same.

    A row is of use only if all the guesses before it are what was drawn.
    """
    tokens = request.sequence.tokens
    for row, guess in zip(rows, [*ahead, -1], strict=True):
        reason = request.draw(row)
        if reason is not None or tokens[-1] != guess:
            return reason
    return None


def rejection(rows: NDArray[np.float32], ahead: list[int], request: TextRequest) -> FinishReason | None:
    """A guess counts as often as the distribution of what the request draws wants (`speculative/rejection.py`)."""
    assert request.speculation is not None
    tokens, sampler, probs = request.sequence.tokens, request.sampler, request.speculation.probs
    for i, row in enumerate(rows):
        guess = ahead[i] if i < len(ahead) else None
        q = probs[i] if probs is not None and guess is not None else None
        reason = request.draw(row, partial(_choose, sampler, guess, q))
        if reason is not None or tokens[-1] != guess:
            return reason
    return None


def _choose(sampler: Sampler, guess: int | None, q: Distribution | None, row: NDArray[np.float32]) -> int:
    p = sampler.distribution(row)
    return chosen(p, guess, q, lambda: sampler.memory.rng.uniform())


Rule = Callable[[NDArray[np.float32], list[int], TextRequest], FinishReason | None]
RULES: dict[str, Rule] = {"match": match, "rejection": rejection}


def n_right(new: list[int], ahead: list[int]) -> int:
    """Guesses that came true: with what follows the text now in common."""
    n = 0
    for token, guess in zip(new, ahead, strict=False):
        if token != guess:
            break
        n += 1
    return n
