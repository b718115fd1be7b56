"""Rejection sampling of draft tokens.

A draft token x, drawn from q, is kept with probability min(1, p(x) / q(x)), where p is what the model would draw
from; else a token is drawn from max(0, p - q) / Z. The result is distributed as p, whatever q is (Leviathan et al.
2023, "Fast inference from transformers via speculative decoding"; Chen et al. 2023, "Accelerating large language
model decoding with speculative sampling"). p and q are both of the same place, after all stages of the request's
chain.
"""

from collections.abc import Callable

import numpy as np

from oxillama.errors import ConfigError, GenerateError
from oxillama.sampling.chain import SamplerChain
from oxillama.sampling.distribution import Distribution, certain
from oxillama.sampling.stages import mirostat_v1, mirostat_v2

__all__ = [
    "check_chain",
    "check_probs",
    "chosen",
    "keeping",
    "residual",
]

# Tolerance of a sum of probabilities in double: the rounding of some hundred thousand of them.
SLACK = 1e-9


def keeping(p: Distribution, q: Distribution, token: int) -> float:
    """The probability with which a draft token that was drawn from q is accepted."""
    ours, theirs = p.probability(token), q.probability(token)
    return 1.0 if ours >= theirs else ours / theirs


def residual(p: Distribution, q: Distribution) -> Distribution:
    """The distribution of the token after a rejection: max(0, p - q) / Z.

    Where q equals p, but for rounding, nothing is left; then it is p.
    """
    at = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
    left = p.probs - np.where(q.ids[at] == p.ids, q.probs[at], 0.0)
    kept = left > 0.0
    return Distribution(p.ids[kept], left[kept] / left[kept].sum()) if kept.any() else p


def chosen(p: Distribution, token: int | None, q: Distribution | None, uniform: Callable[[], float]) -> int:
    """The next token: the draft token if it is accepted; without a draft token a draw from p.

    p: the model's distribution. q: the draft token's; None if it was not drawn: then it was the only possible one.
    uniform: the request's generator of numbers in [0, 1), of which one or two are used.
    """
    if token is None:
        return p.draw(uniform())
    q = certain(token) if q is None else q
    return token if uniform() < keeping(p, q, token) else residual(p, q).draw(uniform())


def check_chain(chain: SamplerChain) -> None:
    """Raises ConfigError for a chain whose next distribution depends on the token drawn before."""
    if mirostat_v1 in chain.stages or mirostat_v2 in chain.stages:
        raise ConfigError(
            "acceptance='rejection' keeps the distribution of each token, and mirostat has none that is known before "
            "the draw: use acceptance='match', or mirostat=0"
        )


def check_probs(tokens: list[int], probs: list[Distribution]) -> None:
    """Raises GenerateError unless each draft token can have been drawn from its distribution.

    Otherwise the text would not have the model's distribution. tokens: checked already. probs: one for each.
    """
    if len(probs) != len(tokens):
        raise GenerateError(f"a draft gave {len(tokens)} tokens and {len(probs)} distributions: it must give as many")
    for i, (token, q) in enumerate(zip(tokens, probs, strict=True)):
        if not isinstance(q, Distribution):
            raise GenerateError(f"a draft's probs[{i}] must be a Distribution, not {type(q).__name__}")
        if why := _flaw(q, token):
            raise GenerateError(f"a draft's probs[{i}] {why}")


def _flaw(q: Distribution, token: int) -> str:
    """Error in the distribution of a draft token; "" if there is none."""
    for name, array, dtype in (("ids", q.ids, np.int32), ("probs", q.probs, np.float64)):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            return f"must have {name} that are a {np.dtype(dtype).name} array of one dimension"
    if len(q.ids) != len(q.probs) or not (np.diff(q.ids) > 0).all():
        return "must have rising ids, and a probability for each"
    if not (q.probs > 0.0).all() or not abs(float(q.probs.sum()) - 1.0) < SLACK:
        return f"must have probabilities above 0 with the sum 1, not {float(q.probs.sum()):.9g}"
    return "" if q.probability(token) else f"has no probability for token {token}, which it was drawn from it"
