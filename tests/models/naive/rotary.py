"""Rotary positions (Su et al. 2021) and the ways of stretching them."""

import math

import numpy as np

PAIRS, HALVES = "neighbours turn together", "the first half of the dimensions turns with the second"


def rotate(x, angles, magnitude, pairing):
    """The first dimensions of each head of x [tokens, heads, dim] by angles [tokens, n / 2]; the others stay."""
    n = 2 * angles.shape[1]
    first, second = (slice(0, n, 2), slice(1, n, 2)) if pairing == PAIRS else (slice(0, n // 2), slice(n // 2, n))
    cos, sin = magnitude * np.cos(angles)[:, None], magnitude * np.sin(angles)[:, None]
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def plain_frequencies(n_rot, base):
    return base ** (-np.arange(0, n_rot, 2) / n_rot)


def global_frequencies(file, n_rot, context_size):
    """Radians per token, with the file's scaling."""
    plain = plain_frequencies(n_rot, file.get("rope.freq_base", 10000.0)) / divisors(file, context_size)
    kind = file.get("rope.scaling.type", "linear")
    if kind == "yarn":
        keep = yarn_kept(file, n_rot)
        return plain / scaling_factor(file) * (1 - keep) + plain * keep
    return plain / scaling_factor(file) if kind == "linear" else plain


def scaling_factor(file):
    return file.get("rope.scaling.factor", file.get("rope.scale_linear", 0.0)) or 1.0


def divisors(file, context_size):
    """Of each frequency: Llama 3's, or LongRoPE's of the context in use (Ding et al. 2024)."""
    if "rope_factors_long.weight" in file.w:
        context = context_size or file.get("context_length")
        long = context > file.get("rope.scaling.original_context_length", file.get("context_length"))
        return file.w["rope_factors_long.weight" if long else "rope_factors_short.weight"]
    return file.w.get("rope_freqs.weight", 1.0)


def yarn_ext(file):
    """A file without the key (or with a negative value) wants YaRN whole."""
    ext = file.get("rope.scaling.yarn_ext_factor", -1.0)
    return ext if ext >= 0 else 1.0


def yarn_kept(file, n_rot):
    """Share of each frequency that stays: all of those that turn beta_fast times within the original context, nothing
    of those that turn beta_slow times, a ramp between them (Peng et al. 2023).

    The ramp's ends are whole dimensions, but not in gpt-oss (``truncate`` in its configuration; no key says it).
    """
    base = file.get("rope.freq_base", 10000.0)
    original = file.get("rope.scaling.original_context_length", file.get("context_length"))

    def dimension(turns):
        return n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = dimension(file.get("rope.scaling.yarn_beta_fast", 32.0))
    high = dimension(file.get("rope.scaling.yarn_beta_slow", 1.0))
    if file.arch != "gpt-oss":
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0, low), min(n_rot - 1, high)
    ramp = np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)
    return yarn_ext(file) * (1 - ramp)


def magnitude(file):
    """What sines and cosines are multiplied by: 1 + 0.1 ln(factor) with YaRN, and the file's own factor."""
    own = file.get("rope.scaling.attn_factor", 1.0)
    if file.get("rope.scaling.type") == "yarn" and yarn_ext(file):
        if file.get("rope.scaling.yarn_attn_factor", 0.0):
            return own * file.get("rope.scaling.yarn_attn_factor")
        return own * (1 + 0.1 * math.log(scaling_factor(file)))
    return own
