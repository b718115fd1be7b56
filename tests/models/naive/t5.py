"""T5: an encoder, and a decoder that reads it (Raffel et al. 2020; Shazeer 2020; Chung et al. 2023)."""

import math

import numpy as np

from .parts import gelu_tanh, rms_norm


def encode(file, tokens):
    """Hidden states after the last norm."""
    x = file.w["token_embd.weight"][tokens]
    for i in range(file.get("block_count")):
        x = x + attend_to_itself(file, "enc", i, x, both_ways=True)
        x = x + feed_forward(file, f"enc.blk.{i}", x)
    return rms_norm(file, "enc.output_norm", x)


def decode(file, source, tokens):
    """Logits of every position of the decoder. A file without an output matrix has the table's, and d^-1/2."""
    x = file.w["token_embd.weight"][tokens]
    for i in range(file.get("decoder_block_count", file.get("block_count"))):
        x = x + attend_to_itself(file, "dec", i, x, both_ways=False)
        x = x + attend_to_source(file, f"dec.blk.{i}", x, source)
        x = x + feed_forward(file, f"dec.blk.{i}", x)
    x = rms_norm(file, "dec.output_norm", x)
    if "output.weight" in file.w:
        return file.linear("output", x)
    return file.linear("token_embd", x) * file.n_embd**-0.5


def attend_to_itself(file, part, i, x, *, both_ways):
    prefix = f"{part}.blk.{i}"
    h = rms_norm(file, f"{prefix}.attn_norm", x)
    own = f"{prefix}.attn_rel_b.weight"
    table = file.w[own if own in file.w else f"{part}.blk.0.attn_rel_b.weight"]
    n = len(x)
    bias = np.array([[table[bucket(j - i, len(table), both_ways)] for j in range(n)] for i in range(n)])
    scores = bias.transpose(2, 0, 1)
    if not both_ways:
        scores = np.where(np.arange(n) > np.arange(n)[:, None], -np.inf, scores)
    return attention(file, f"{prefix}.attn", h, h, scores)


def attend_to_source(file, prefix, x, source):
    return attention(file, f"{prefix}.cross_attn", rms_norm(file, f"{prefix}.cross_attn_norm", x), source, 0.0)


def attention(file, name, h, seen, added):
    """Scores are not scaled."""
    heads = file.get("attention.head_count")
    q, k, v = (
        file.linear(f"{name}_{part}", y).reshape(len(y), heads, -1) for part, y in (("q", h), ("k", seen), ("v", seen))
    )
    scores = np.einsum("ihd,jhd->hij", q, k) + added
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return file.linear(f"{name}_o", np.einsum("hij,jhd->ihd", p, v).reshape(len(h), -1))


def bucket(distance, n, both_ways):
    """Raffel et al. 2020, 2.1: of keys `distance` after the query; beyond half of the buckets, by its logarithm."""
    first = 0
    if both_ways:
        n //= 2
        first = n if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = n // 2
    if distance < exact:
        return first + distance
    return first + min(n - 1, exact + int(math.log(distance / exact) / math.log(128 / exact) * (n - exact) + 1e-9))


def feed_forward(file, prefix, x):
    h = rms_norm(file, f"{prefix}.ffn_norm", x)
    up = file.linear(f"{prefix}.ffn_up", h)
    gated = f"{prefix}.ffn_gate.weight" in file.w
    hidden = gelu_tanh(file.linear(f"{prefix}.ffn_gate", h)) * up if gated else np.maximum(up, 0)
    return file.linear(f"{prefix}.ffn_down", hidden)


def n_source(tokens):
    """Of tokens of an encoder-decoder's test, the first three quarters are the prompt."""
    return len(tokens) * 3 // 4


def both(file, tokens):
    """Logits of the decoder's tokens, which follow those of the prompt."""
    n = n_source(tokens)
    return decode(file, encode(file, tokens[:n]), tokens[n:])


ENCODERS = {"t5encoder": encode}
WHOLE = {"t5": both}
