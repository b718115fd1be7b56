"""Mirostat (Basu et al. 2021, "Mirostat: a neural text decoding algorithm that directly controls perplexity").

`state.mu` is the highest surprise, in bits, that a token may have; after each token it moves by `mirostat_eta` times
the difference between that token's surprise and `mirostat_tau`. As in llama.cpp, which starts with mu = 2 tau too.
"""

import itertools
import math

from oxillama._util.rounded import expm1, log, log2, power
from oxillama.config import SamplerConfig
from oxillama.kernels.sampling import Candidates
from oxillama.sampling.state import SamplerState

__all__ = ["mirostat_v1", "mirostat_v2", "tokens_within"]

N_FITTED = 100  # tokens that version 1 fits Zipf's law to
STEPS = tuple(log((i + 2) / (i + 1)) for i in range(N_FITTED - 1))  # from one rank to the next


def mirostat_v1(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> int:
    """Chooses among as many of the likeliest tokens as have that surprise on average by Zipf's law (algorithm 1)."""
    best = [logit for _, logit in candidates.best(N_FITTED) if logit > -math.inf]
    candidates.top_k(tokens_within(best, candidates.n_tokens, state.mu))
    return _draw(candidates, config, state)


def mirostat_v2(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> int:
    """Chooses among the tokens whose own surprise is no higher (algorithm 2), or takes the likeliest if none is."""
    weight = power(2.0, -max(state.mu, -1000.0)) * candidates.total_weight()
    if weight > 1.0:
        candidates.top_k(1)
    else:
        candidates.min_weight(weight)
    return _draw(candidates, config, state)


def tokens_within(logits: list[float], n_vocab: int, mu: float) -> int:
    """Number of likeliest tokens that keep the average surprise at `mu` bits, if probabilities fall by Zipf's law with
    the exponent that fits the highest `logits`, which are given in order. At least 1."""
    fits = [(step, a - b) for step, (a, b) in zip(STEPS, itertools.pairwise(logits), strict=False)]
    if not fits:
        return 1
    exponent = sum(t * b for t, b in fits) / sum(t * t for t, _ in fits)
    excess = exponent - 1.0
    # k ** exponent = excess * 2 ** mu / (1 - n ** -excess), whose limit at excess = 0 is 2 ** mu / ln n; in log2 here,
    # where nothing overflows.
    share = 1.0 / log(n_vocab) if abs(excess) < 1e-9 else excess / -expm1(-excess * log(n_vocab))
    bits = mu + log2(share)
    if exponent * 31.0 <= abs(bits):  # all tokens alike, or nearly
        return n_vocab if bits > 0.0 else 1
    return max(1, int(power(2.0, bits / exponent)))


def _draw(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> int:
    token, probability = candidates.pick_at(state.rng.uniform())
    state.mu -= config.mirostat_eta * (-log2(probability) - config.mirostat_tau)
    return token
