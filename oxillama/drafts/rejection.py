"""Rejection sampling of draft tokens."""

from collections.abc import Callable

import numpy as np

from oxillama.errors import ConfigError, GenerateError
from oxillama.sampling import Distribution, SamplerChain
from oxillama.sampling.distribution import certain
from oxillama.sampling.stages import mirostat_v1, mirostat_v2

__all__ = [
    "check_chain",
    "check_probs",
    "chosen",
    "keeping",
    "residual",
]

# How far from 1 sums of probabilities in double may be: the rounding of some hundred thousand of them.
SLACK = 1e-9


def keeping(p: Distribution, q: Distribution, guess: int) -> float:
    """The probability with which a guess that was drawn from q is kept."""
    ours, theirs = p.probability(guess), q.probability(guess)
    return 1.0 if ours >= theirs else ours / theirs


def residual(p: Distribution, q: Distribution) -> Distribution:
    """What a token is drawn from after a guess was not kept: max(0, p - q) / Z.

    Where q is p, but for rounding, nothing is left; then it is p.
    """
    at = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
    left = p.probs - np.where(q.ids[at] == p.ids, q.probs[at], 0.0)
    kept = left > 0.0
    return Distribution(p.ids[kept], left[kept] / left[kept].sum()) if kept.any() else p


def chosen(p: Distribution, guess: int | None, q: Distribution | None, uniform: Callable[[], float]) -> int:
    """The token that follows, the guess itself if that is kept; without a guess a draw from p.

    p: of the model; q: what the guess was drawn from, None if nothing was drawn: then it is the only one that could
    have been. uniform: the request's generator of numbers in [0, 1), from which one or two are taken.
    """
    if guess is None:
        return p.draw(uniform())
    q = certain(guess) if q is None else q
    return guess if uniform() < keeping(p, q, guess) else residual(p, q).draw(uniform())


def check_chain(chain: SamplerChain) -> None:
    """Raises ConfigError for a chain whose next distribution depends on what was drawn from the one before."""
    if mirostat_v1 in chain.stages or mirostat_v2 in chain.stages:
        raise ConfigError(
            "acceptance='rejection' keeps the distribution of each token, and mirostat has none that is known before "
            "the draw: use acceptance='match', or mirostat=0"
        )


def check_probs(tokens: list[int], probs: list[Distribution]) -> None:
    """Raises GenerateError unless each guess can have been drawn from its distribution: the text would follow no law.

    tokens: guesses, checked themselves; probs: one for each.
    """
    if len(probs) != len(tokens):
        raise GenerateError(f"a draft gave {len(tokens)} tokens and {len(probs)} distributions: it must give as many")
    for i, (token, q) in enumerate(zip(tokens, probs, strict=True)):
        if not isinstance(q, Distribution):
            raise GenerateError(f"a draft's probs[{i}] must be a Distribution, not {type(q).__name__}")
        if why := _flaw(q, token):
            raise GenerateError(f"a draft's probs[{i}] {why}")


def _flaw(q: Distribution, token: int) -> str:
    """What is wrong with a distribution of a guess; "" if nothing is."""
    for name, array, dtype in (("ids", q.ids, np.int32), ("probs", q.probs, np.float64)):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            return f"must have {name} that are a {np.dtype(dtype).name} array of one dimension"
    if len(q.ids) != len(q.probs) or not (np.diff(q.ids) > 0).all():
        return "must have rising ids, and a probability for each"
    if not (q.probs > 0.0).all() or not abs(float(q.probs.sum()) - 1.0) < SLACK:
        return f"must have probabilities above 0 with the sum 1, not {float(q.probs.sum()):.9g}"
    return "" if q.probability(token) else f"has no probability for token {token}, which it was drawn from it"
