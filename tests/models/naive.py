"""A Llama in plain numpy, float64, one position's formula at a time: the slow twin of oxillama/models/llama.py."""

import numpy as np

import oxillama.gguf as gguf


def norm(x, w, eps):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * w


def rotate(x, angles, magnitude):
    """Pairs (2i, 2i + 1) of the first dimensions of each head, [tokens, heads, head_dim]."""
    n = 2 * angles.shape[1]
    turn = magnitude * np.exp(1j * angles)[:, None]
    pairs = (x[..., 0:n:2] + 1j * x[..., 1:n:2]) * turn
    out = x.copy()
    out[..., 0:n:2], out[..., 1:n:2] = pairs.real, pairs.imag
    return out


def attention(q, k, v, window):
    n, heads, dim = q.shape
    k, v = (np.repeat(a, heads // a.shape[1], 1) for a in (k, v))
    i = np.arange(n)
    hidden = i[None] > i[:, None]
    if window:
        hidden |= i[:, None] - i[None] >= window
    scores = np.where(hidden, -np.inf, np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)


def logits(path, tokens, *, window=0, factors=1.0, magnitude=1.0, frequencies=None, n_rot=None):
    """Logits of every position for a dense model with interleaved rotation, float64 [tokens, n_vocab]."""
    with gguf.open(path) as file:
        w = {k: v.dequantize().astype(np.float64) for k, v in file.tensors.items()}
        m = file.metadata
        arch = m.arch
        layers, heads = m.get_int(f"{arch}.block_count"), m.get_int(f"{arch}.attention.head_count")
        kv_heads, eps = (
            m.get_int(f"{arch}.attention.head_count_kv"),
            m.get_float(f"{arch}.attention.layer_norm_rms_epsilon"),
        )
        base = m.get_float(f"{arch}.rope.freq_base")
    x = w["token_embd.weight"][tokens]
    n, n_embd = x.shape
    n_rot = n_rot or n_embd // heads
    if frequencies is None:
        frequencies = base ** (-np.arange(0, n_rot, 2) / n_rot) / factors
    angles = np.outer(np.arange(n), frequencies)
    zero = np.zeros(1)
    for layer in range(layers):

        def linear(h, name, p=f"blk.{layer}."):
            return h @ w[p + name + ".weight"].T + w.get(p + name + ".bias", zero)

        h = norm(x, w[f"blk.{layer}.attn_norm.weight"], eps)
        q = linear(h, "attn_q").reshape(n, heads, -1)
        k, v = (linear(h, name).reshape(n, kv_heads, -1) for name in ("attn_k", "attn_v"))
        a = attention(rotate(q, angles, magnitude), rotate(k, angles, magnitude), v, window)
        x = x + linear(a, "attn_output")
        h = norm(x, w[f"blk.{layer}.ffn_norm.weight"], eps)
        gate = linear(h, "ffn_gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "ffn_up"), "ffn_down")
    return norm(x, w["output_norm.weight"], eps) @ w.get("output.weight", w["token_embd.weight"]).T
