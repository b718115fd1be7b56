"""BERT and its relatives in plain numpy, float64: Devlin et al., 2018; Nussbaum et al., "Nomic Embed", 2024."""

import math

import numpy as np

import oxillama.gguf as gguf

erf = np.vectorize(math.erf)


def layer_norm(x, w, b, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps) * w + b


def gelu(x):
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def turned(x, base):
    """Each head's halves are rotated against each other by the position, [tokens, heads, head_dim]."""
    half = x.shape[2] // 2
    turn = np.exp(1j * np.outer(np.arange(len(x)), base ** (-np.arange(half) / half)))[:, None]
    pairs = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([pairs.real, pairs.imag], 2)


def hidden_states(path, tokens):
    """float64 [tokens, n_embd]."""
    with gguf.open(path) as file:
        w = {k: v.dequantize().astype(np.float64) for k, v in file.tensors.items()}
        m, arch = dict(file.metadata), file.metadata.arch
    heads, eps, n = m[f"{arch}.attention.head_count"], m[f"{arch}.attention.layer_norm_epsilon"], len(tokens)
    base = m.get(f"{arch}.rope.freq_base")

    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"], eps)

    x = w["token_embd.weight"][tokens] + w["token_types.weight"][0]
    if base is None:
        x = x + w["position_embd.weight"][:n]
    x = norm(x, "token_embd_norm")
    for layer in range(m[f"{arch}.block_count"]):
        p = f"blk.{layer}."

        def linear(h, name, p=p):
            return h @ w[p + name + ".weight"].T + w.get(p + name + ".bias", 0.0)

        if p + "attn_qkv.weight" in w:
            qkv = np.split(linear(x, "attn_qkv"), 3, 1)
        else:
            qkv = [linear(x, name) for name in ("attn_q", "attn_k", "attn_v")]
        q, k, v = (a.reshape(n, heads, -1) for a in qkv)
        if base is not None:
            q, k = turned(q, base), turned(k, base)
        e = np.exp(np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[2]))
        mixed = np.einsum("hij,jhd->ihd", e / e.sum(2, keepdims=True), v).reshape(n, -1)
        x = norm(x + linear(mixed, "attn_output"), p + "attn_output_norm")
        up = linear(x, "ffn_up")
        if p + "ffn_gate.weight" in w:
            gate = linear(x, "ffn_gate")
            inner = gate / (1 + np.exp(-gate)) * up
        else:
            inner = gelu(up)
        x = norm(x + linear(inner, "ffn_down"), p + "layer_output_norm")
    return x
