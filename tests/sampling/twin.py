"""Sampling written down plainly, in the double arithmetic that the real thing promises: equal results, not close.

Candidates are (id, logit) pairs. A stage takes and gives them; what it gives is in order after a cut by top_k, top_p or
typical_p, and in the order in which they came otherwise.
"""

import math

import numpy as np

from oxillama._util import rounded

LN2 = (0.6931471803691238, 1.9082149292705877e-10)
BLOCK = 256


def log(x):
    """log of x = 2^k m, m from sqrt(1/2) to sqrt(2): 2 atanh(s) with s = (m - 1) / (m + 1), by its series."""
    m, k = math.frexp(x)
    m, k = (m, k) if m > 1.4142135623730951 / 2 else (2 * m, k - 1)
    f = m - 1
    s = f / (2 + f)
    z, series = s * s, 1 / 23
    for n in range(21, 1, -2):
        series = series * z + 1 / n
    return k * LN2[0] + (f - (s * f - 2 * s * (series * z) - k * LN2[1]))


def exp(x):
    """exp of x <= 0 as x = k ln 2 + r: Taylor's series for exp(r), summed in fours, times 2^k."""
    if x < -708.0:
        return 0.0
    k = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0
    r = (x - k * LN2[0]) - k * LN2[1]
    c = [1.0 / math.factorial(i) for i in range(13)]
    r2, r4 = r * r, r * r * (r * r)

    def four(i):
        return (c[i] + r * c[i + 1]) + (c[i + 2] + r * c[i + 3]) * r2

    p = four(0) + (four(4) + (four(8) + r4 * c[12]) * r4) * r4
    return p * 2.0 ** int(k)


def ordered(items):
    """(id, logit) pairs by falling logit, then rising id."""
    return sorted(items, key=lambda item: (-item[1], item[0]))


def top(items):
    return max(logit for _, logit in items)


def weights(items):
    peak = top(items)
    return [exp(logit - peak) for _, logit in items]


def lanes(values):
    """The sum of a block, in eight lanes."""
    sums = [0.0] * 8
    for i, v in enumerate(values):
        sums[i % 8] += v
    return plain(sums)


def plain(values):
    s = 0.0
    for v in values:
        s += v
    return s


def blocks(values):
    return [lanes(values[i : i + BLOCK]) for i in range(0, len(values), BLOCK)]


def total(values):
    return plain(blocks(values))


def expected_distance(items):
    """The expectation of logit - highest logit."""
    peak, w = top(items), weights(items)
    products = [max(logit - peak, -708.0) * x if x else 0.0 for (_, logit), x in zip(items, w, strict=True)]
    # Lane sums go to one running sum, block after block.
    moment = 0.0
    for i in range(0, len(products), BLOCK):
        sums = [0.0] * 8
        for j, v in enumerate(products[i : i + BLOCK]):
            sums[j % 8] += v
        for s in sums:
            moment += s
    return moment / total(w)


def entropy(items):
    return log(total(weights(items))) - expected_distance(items)


# ---- what changes logits


def finite(x):
    return np.float32(min(max(x, np.float32(-3.4028234663852886e38)), np.float32(3.4028234663852886e38)))


def bias(items, values):
    found = []
    for i, logit in items:
        v = values.get(i, 0.0)
        if i in values and v == -math.inf:
            logit = -math.inf
        elif i in values and logit != -math.inf:
            with np.errstate(over="ignore"):
                logit = float(finite(np.float32(logit) + np.float32(v)))
        found.append((i, logit))
    return found


def penalize(items, counts, repetition, frequency=0.0, presence=0.0):
    repetition, frequency, presence = map(np.float32, (repetition, frequency, presence))
    found = []
    for i, logit in items:
        x = np.float32(logit)
        if i in counts and logit != -math.inf:
            with np.errstate(over="ignore", divide="ignore"):
                x = finite(x / repetition if x > 0 else x * repetition)
                x = finite(x - (np.float32(counts[i]) * frequency + presence))
        found.append((i, float(x)))
    return found


def temperature(items, t):
    peak = top(items)
    with np.errstate(over="ignore"):
        return [(i, float(np.float32((logit - peak) / t))) for i, logit in items]


def dynamic_temperature(items, t, spread, exponent):
    n = sum(logit > -math.inf for _, logit in items)
    if n > 1 and spread > 0:
        share = min(1.0, max(0.0, entropy(items) / rounded.log(n)))
        low = max(0.0, t - spread)
        t = low + (t + spread - low) * rounded.power(share, exponent)
    return temperature(items, t) if t > 0 else top_k(items, 1)


def dry(tokens, limit, least, multiplier, base):
    """{token: penalty}: for every place, how much of the end of the text stands before it."""
    found = {}
    for place in range(1, len(tokens)):
        n = 0
        while n < limit and n < place and tokens[place - 1 - n] == tokens[len(tokens) - 1 - n]:
            n += 1
        if n >= least:
            token = tokens[place]
            found[token] = max(found.get(token, 0.0), multiplier * rounded.power(base, float(n - least)))
    return found


# ---- what cuts


def keep(items, allowed):
    return [(i, logit if i in allowed else -math.inf) for i, logit in items]


def top_n_sigma(items, n):
    alive = [logit for _, logit in items if logit > -math.inf]
    mean = plain(alive) / len(alive)
    bound = max(alive) - n * math.sqrt(plain([(x - mean) * (x - mean) for x in alive]) / len(alive))
    return [(i, logit if logit >= bound else -math.inf) for i, logit in items]


def top_k(items, k):
    return items if k == 0 or k >= len(items) else ordered(items)[:k]


def top_p(items, p):
    if p >= 1.0:
        return items
    # The total is of the candidates as they are; the mass grows in their order.
    bound = p * total(weights(items))
    kept, mass = [], 0.0
    best = ordered(items)
    for item, w in zip(best, weights(best), strict=True):
        kept.append(item)
        mass += w
        if mass >= bound:
            break
    return kept


def heavy(items, bound):
    return [item for item, w in zip(items, weights(items), strict=True) if w >= min(bound, 1.0)]


def min_p(items, p):
    return heavy(items, p) if p > 0.0 else items


def min_probability(items, p):
    return heavy(items, p * total(weights(items))) if p > 0.0 else items


def top_a(items, a):
    return min_probability(items, a / (total(weights(items)) * total(weights(items))))


def eta_cutoff(items, eta):
    return min_probability(items, min(eta, math.sqrt(eta) * rounded.exp(-entropy(items))))


def typical_p(items, p):
    if p >= 1.0:
        return items
    centre = top(items) + expected_distance(items)
    bound = p * total(weights(items))
    best = ordered(items)
    above = [i for i, (_, logit) in enumerate(best) if logit >= centre]
    below = [i for i, (_, logit) in enumerate(best) if logit < centre]
    # Nearest first; of equals those above, and of one side what is nearer in the order.
    places = [(best[i][1] - centre, 0, -i) for i in above] + [(centre - best[i][1], 1, i) for i in below]
    w, mass, kept = weights(best), 0.0, []
    for _, _, i in sorted(places):
        kept.append(abs(i))
        mass += w[abs(i)]
        if mass > bound:
            break
    return [best[i] for i in sorted(kept)]


def xtc(items, threshold):
    w = weights(items)
    bound = threshold * total(w)
    high = [item for item, x in zip(items, w, strict=True) if x >= bound and item[1] > -math.inf]
    gone = ordered(high)[:-1]
    return [item for item in items if item not in gone]


# ---- what chooses


def draw(items, u):
    w = weights(items)
    bound = u * total(w)
    mass, start = 0.0, 0
    masses = blocks(w)
    for block, m in enumerate(masses):
        if m > 0:
            start = block
        if m > 0 and mass + m > bound:
            break
        if any(masses[block + 1 :]):
            mass += m
    chosen = None
    for i in range(start * BLOCK, min(len(w), (start + 1) * BLOCK)):
        if w[i] > 0:
            chosen = i
        mass += w[i]
        if mass > bound:
            break
    return items[chosen][0]


def probability(items, token):
    w = weights(items)
    return next(x for (i, _), x in zip(items, w, strict=True) if i == token) / total(w)


def mirostat_v1(items, n_vocab, mu):
    best = [logit for _, logit in ordered(items)[:100] if logit > -math.inf]
    if len(best) < 2:
        return top_k(items, 1)
    t = [rounded.log((i + 2) / (i + 1)) for i in range(len(best) - 1)]
    b = [best[i] - best[i + 1] for i in range(len(best) - 1)]
    s = sum(x * y for x, y in zip(t, b, strict=True)) / sum(x * x for x in t)
    e = s - 1
    with np.errstate(all="ignore"):
        k = np.power(np.float64(e * 2.0**mu) / (1 - np.float64(n_vocab) ** -e), 1 / np.float64(s))
    return top_k(items, max(1, int(min(k, n_vocab))))


def mirostat_v2(items, mu):
    w = weights(items)
    bound = rounded.power(2.0, -mu) * total(w)
    return heavy(items, bound) if bound <= 1.0 else top_k(items, 1)


# ---- the generator


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
