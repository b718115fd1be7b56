"""The gated delta rule between layers of gated attention: Qwen3-Next and its successors.

Yang, Kautz and Hatamizadeh 2024; the modelling files of Hugging Face transformers; llama.cpp's converter for the order
of rows: heads of values that share one of keys are neighbours in Qwen3-Next's files, and apart in later ones.
"""

from dataclasses import replace

import numpy as np

from .attention import attend, hidden_past, norm_each_head, split_heads, turn
from .dense import Arch, norm
from .experts import experts
from .parts import rms, sigmoid, silu, softplus
from .recurrent import causal_convolution
from .rotary import HALVES


def unit(x):
    return x / np.sqrt(np.square(x).sum(-1, keepdims=True) + 1e-6)


def recurrence(q, k, v, forget, learn):
    """A matrix per head, from keys to values, that is corrected where it errs about a key.

    q, k [tokens, heads, keys' width], v [tokens, heads, values' width], learn [tokens, heads], forget
    [tokens, heads, keys' width or 1].
    """
    state, out = np.zeros((*k.shape[1:], v.shape[-1])), np.empty_like(v)
    for t in range(len(v)):
        state = forget[t][:, :, None] * state
        wrong = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + np.einsum("hk,hv->hkv", k[t], learn[t][:, None] * wrong)
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out


def time_steps(layer, h, n_keys):
    """What forgetting and learning are made of [tokens, heads]; Qwen3-Next has them side by side, head by head."""
    if "ssm_ba.weight" not in layer:
        return layer.linear("ssm_alpha", h), layer.linear("ssm_beta", h)
    learn, forget = np.split(layer.linear("ssm_ba", h).reshape(len(h), n_keys, -1), 2, axis=2)
    return forget.reshape(len(h), -1), learn.reshape(len(h), -1)


def projections(layer, h, sizes):
    """Queries, keys, values and gates side by side; in files of 2025, head of keys by head of keys."""
    if "ssm_in.weight" not in layer:
        return np.concatenate([layer.linear(name, h) for name in ("attn_qkv", "attn_gate")], axis=1)
    n_keys, parts = sizes[0], [size // sizes[0] for size in sizes[1:]]
    by_key = layer.linear("ssm_in", h).reshape(len(h), n_keys, -1)
    return np.concatenate([y.reshape(len(h), -1) for y in np.split(by_key, np.cumsum(parts), axis=2)], axis=1)


def gated_delta(layer, h, shared):
    """``shared``: from heads of keys to those of values."""
    n_keys, width, heads = (layer.get(f"ssm.{key}") for key in ("group_count", "state_size", "time_step_rank"))
    keys, inner = n_keys * width, layer.get("ssm.inner_size")
    qkv, z = np.split(projections(layer, h, (n_keys, keys, keys, inner)), [2 * keys + inner], axis=1)
    x = silu(causal_convolution(qkv, layer["ssm_conv1d.weight"]))
    q, k, v = (split_heads(y, n) for y, n in zip(
        np.split(x, [keys, 2 * keys], axis=1), (width, width, inner // heads), strict=True
    ))  # fmt: skip
    q, k = (shared(unit(y), heads // n_keys) for y in (q, k))
    forget, learn = time_steps(layer, h, n_keys)
    forget = np.exp(layer["ssm_a"] * softplus(forget + layer["ssm_dt.bias"]))
    y = recurrence(q / np.sqrt(width), k, v, forget[:, :, None], sigmoid(learn))
    y = rms(y, layer["ssm_norm.weight"], layer.get("attention.layer_norm_rms_epsilon")).reshape(len(h), -1)
    return layer.linear("ssm_out", y * silu(z))


def neighbours(x, n):
    return np.repeat(x, n, axis=1)


def apart(x, n):
    return np.tile(x, (1, n, 1))


def gated_attention(arch, layer, h, options):
    """Each head's queries and gates in one matrix."""
    q, gate = np.split(split_heads(layer.linear("attn_q", h), 2 * layer.k_dim), 2, axis=2)
    k, v = (split_heads(layer.linear(name, h), n) for name, n in (("attn_k", layer.k_dim), ("attn_v", layer.v_dim)))
    q, k = (norm_each_head(layer, f"attn_{name}_norm", y) for name, y in (("q", q), ("k", k)))
    q, k = (turn(layer, y, arch.pairing, options, None) for y in (q, k))
    out = attend(q, k, v, layer.k_dim**-0.5, hidden=hidden_past(len(h), 0))
    return layer.linear("attn_output", out * sigmoid(gate.reshape(len(h), -1)))


def is_recurrent(layer):
    listed, interval = layer.get("attention.recurrent_layers"), layer.get("full_attention_interval", 4)
    return bool(listed[layer.i]) if listed else (layer.i + 1) % interval != 0


def sequential(shared):
    def forward(arch, layer, x, options):
        h = norm(arch, layer, "attn_norm", x)
        recurrent = is_recurrent(layer)
        x = x + (gated_delta(layer, h, shared) if recurrent else gated_attention(arch, layer, h, options))
        return x + arch.ffn(layer, norm(arch, layer, "post_attention_norm", x))

    return forward


QWEN35 = Arch(sequential(apart), ffn=experts(normalise=True), pairing=HALVES)
ARCHS = {
    "qwen35": QWEN35,
    "qwen35moe": QWEN35,
    "qwen3next": replace(QWEN35, layer=sequential(neighbours)),
}
