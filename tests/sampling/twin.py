"""Sampling written down plainly, in the double arithmetic that the real thing promises: equal results, not close."""

import math

import numpy as np


def ordered(items):
    """(id, logit) pairs by falling logit, then rising id."""
    return sorted(items, key=lambda item: (-item[1], item[0]))


def weights(items):
    peak = max(logit for _, logit in items)
    return [math.exp(logit - peak) for _, logit in items]


def total(values):
    s = 0.0
    for v in values:
        s += v
    return s


def top_k(items, k):
    return items if k == 0 or k >= len(items) else ordered(items)[:k]


def top_p(items, p):
    if p >= 1.0:
        return items
    # The sum runs in the order that the candidates are in.
    bound = p * total(weights(items))
    kept, mass = [], 0.0
    best = ordered(items)
    for item, w in zip(best, weights(best), strict=True):
        kept.append(item)
        mass += w
        if mass >= bound:
            break
    return kept


def min_p(items, p):
    if p <= 0.0:
        return items
    return [item for item, w in zip(items, weights(items), strict=True) if w >= p]


def temperature(items, t):
    peak = max(logit for _, logit in items)
    return [(i, float(np.float32((logit - peak) / t))) for i, logit in items]


def penalize(items, tokens, penalty):
    penalty = np.float32(penalty)
    found = []
    for i, logit in items:
        x = np.float32(logit)
        if i in tokens:
            x = x / penalty if x > 0 else x * penalty
        found.append((i, float(x)))
    return found


def draw(items, u):
    w = weights(items)
    bound = u * total(w)
    mass, chosen = 0.0, None
    for (i, _), weight in zip(items, w, strict=True):
        if weight > 0:
            chosen = i
        mass += weight
        if mass > bound:
            return i
    return chosen


MASK = (1 << 64) - 1


def xorshift(x):
    x ^= x << 13 & MASK
    x ^= x >> 7
    x ^= x << 17 & MASK
    return x


def uniform(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return ((x ^ x >> 31) >> 11) / 2**53
