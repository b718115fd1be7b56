"""Layers that remember by a state instead of keys and values: Mamba, Mamba-2, short convolutions, and hybrids.

Gu and Dao 2023; Dao and Gu 2024. Time runs in a plain loop: one state update a token.
"""

import numpy as np

from .attention import norm_each_head
from .dense import Arch, embed_scaled, granite_rotates, logits_over_scale, norm, self_attention
from .experts import experts, gated
from .parts import rms, silu, softplus
from .rotary import HALVES, PAIRS


def causal_convolution(x, w, b=0.0):
    """Each channel's own filter over its last K values, zeros before the start.

    x [tokens, channels], w [channels, K].
    """
    k = w.shape[1]
    padded = np.concatenate([np.zeros((k - 1, x.shape[1])), x])
    return sum(padded[j : j + len(x)] * w[:, j] for j in range(k)) + b


def mamba(layer, h):
    """Selective scan, one decay per channel and state; ssm_a holds -exp(A_log) [channels, states]."""
    eps = layer.get("attention.layer_norm_rms_epsilon")
    n_state, dt_rank = layer.get("ssm.state_size"), layer.get("ssm.time_step_rank")
    x, z = np.split(layer.linear("ssm_in", h), 2, axis=1)
    x = silu(causal_convolution(x, layer["ssm_conv1d.weight"], layer["ssm_conv1d.bias"]))
    parts = np.split(layer.linear("ssm_x", x), [dt_rank, dt_rank + n_state], axis=1)
    dt, b, c = (norm_of_input(layer, name, y, eps) for name, y in zip(("dt", "b", "c"), parts, strict=True))
    y = scan(x, softplus(layer.linear("ssm_dt", dt)), b, c, layer["ssm_a"])
    return layer.linear("ssm_out", (y + layer["ssm_d"] * x) * silu(z))


def norm_of_input(layer, name, y, eps):
    """Jamba norms dt, B and C with weights, Falcon Mamba (ssm.dt_b_c_rms) without and with an epsilon of its own,
    Mamba not at all."""
    if f"ssm_{name}_norm.weight" in layer:
        return rms(y, layer[f"ssm_{name}_norm.weight"], eps)
    return rms(y, 1.0, 1e-6) if layer.get("ssm.dt_b_c_rms", False) else y


def scan(x, dt, b, c, a):
    """state = exp(dt a) state + dt x b; y = state . c, for every channel by itself."""
    state, out = np.zeros_like(a), np.empty_like(x)
    for t in range(len(x)):
        state = np.exp(dt[t][:, None] * a) * state + (dt[t] * x[t])[:, None] * b[t]
        out[t] = state @ c[t]
    return out


def mamba2(layer, h):
    """One decay per head; B and C of a group serve its heads. ssm.time_step_rank is the number of heads."""
    inner, n_state = layer.get("ssm.inner_size"), layer.get("ssm.state_size")
    heads, groups = layer.get("ssm.time_step_rank"), layer.get("ssm.group_count")
    z, xbc, dt = np.split(layer.linear("ssm_in", h), [inner, 2 * inner + 2 * groups * n_state], axis=1)
    xbc = silu(causal_convolution(xbc, layer["ssm_conv1d.weight"], layer["ssm_conv1d.bias"]))
    x, b, c = np.split(xbc, [inner, inner + groups * n_state], axis=1)
    x = x.reshape(len(h), heads, -1)
    b, c = (np.repeat(y.reshape(len(h), groups, n_state), heads // groups, axis=1) for y in (b, c))
    y = scan2(x, softplus(dt + layer["ssm_dt.bias"]), b, c, layer["ssm_a"].reshape(heads))
    y = (y + layer["ssm_d"].reshape(heads, 1) * x).reshape(len(h), inner)
    return layer.linear("ssm_out", gated_group_norm(layer, y * silu(z)))


def scan2(x, dt, b, c, a):
    """As scan, with a state [dim, states] per head: x [tokens, heads, dim], dt [tokens, heads]."""
    state, out = np.zeros((*x.shape[1:], b.shape[-1])), np.empty_like(x)
    for t in range(len(x)):
        decay = np.exp(dt[t] * a)[:, None, None]
        state = decay * state + np.einsum("h,hd,hs->hds", dt[t], x[t], b[t])
        out[t] = np.einsum("hds,hs->hd", state, c[t])
    return out


def gated_group_norm(layer, y):
    """RMS within each group, after the gate; Falcon-H1 may have none. ssm_norm [groups, width of one]."""
    if "ssm_norm.weight" not in layer:
        return y
    w = layer["ssm_norm.weight"].reshape(layer.get("ssm.group_count"), -1)
    eps = layer.get("attention.layer_norm_rms_epsilon") or layer.get("attention.layer_norm_epsilon")
    return rms(y.reshape(len(y), *w.shape), w, eps).reshape(y.shape)


def short_convolution(layer, h):
    """LFM 2: a convolution between two gates."""
    b, c, x = np.split(layer.linear("shortconv.in_proj", h), 3, axis=1)
    return layer.linear("shortconv.out_proj", c * causal_convolution(b * x, layer["shortconv.conv.weight"]))


def mamba_only(mixer):
    """One part a layer."""
    return lambda arch, layer, x, options: x + mixer(layer, norm(arch, layer, "attn_norm", x))


def either(mixer):
    """Attention in layers that have key/value heads, ``mixer`` in those that have none; then a feed-forward part."""

    def layer(arch, layer, x, options):
        h = norm(arch, layer, "attn_norm", x)
        h = self_attention(arch, layer, h, options) if layer.kv_heads else mixer(layer, h)
        factor = layer.get("residual_scale", 0.0) or 1.0
        x = x + factor * h
        return x + factor * arch.ffn(layer, norm(arch, layer, "ffn_norm", x))

    return layer


def falcon_h1_layer(arch, layer, x, options):
    """Attention and Mamba-2 side by side; the file's ffn_norm has no ``.weight``, multipliers are in the matrices."""
    h = norm(arch, layer, "attn_norm", x)
    x = x + self_attention(arch, layer, h, options) + mamba2(layer, h)
    name = "ffn_norm" if "ffn_norm" in layer else "ffn_norm.weight"
    return x + arch.ffn(layer, rms(x, layer[name], layer.get("attention.layer_norm_rms_epsilon")))


ARCHS = {
    "mamba": Arch(mamba_only(mamba)),
    "mamba2": Arch(mamba_only(mamba2)),
    "jamba": Arch(either(mamba), ffn=experts(normalise=False), pairing=None),
    "lfm2": Arch(either(short_convolution), pairing=HALVES, qk_norm=norm_each_head, final_norm="token_embd_norm"),
    "granitehybrid": Arch(
        either(mamba2),
        ffn=experts(normalise=True),
        pairing=PAIRS,
        rotates=granite_rotates,
        embed=embed_scaled,
        finish=logits_over_scale,
    ),
    "falcon-h1": Arch(falcon_h1_layer, ffn=gated(silu), pairing=HALVES),
}
