"""Sparse models of one recipe: a sigmoid router with a correction of its choice, shared experts, norms of heads.

Sources: the modelling files of Hugging Face transformers, of SmallThinker the authors' paper; llama.cpp's converter for
names and for what it folds into weights.
"""

from dataclasses import replace

import numpy as np

from . import dense
from .attention import norm_each_head, norm_projection
from .dense import COHERE, LLAMA, QWEN, norm, windowed
from .experts import SIGMOID, SOFTMAX, expert_linear, experts, gate_and_up, swiglu_expert
from .parts import layer_norm, rms, rms_norm, sigmoid, silu, softcap, softplus

SIGMOID_EXPERTS = experts(normalise=False, gating=SIGMOID)
SPARSE = replace(QWEN, qk_norm=norm_each_head, ffn=SIGMOID_EXPERTS)


def gate(function):
    """Each of attention's outputs, or each head's, is multiplied by a function of a projection of the layer's input."""

    def gated(layer, h, out):
        g = function(layer.linear("attn_gate", h))
        return out * np.repeat(g, out.shape[1] // g.shape[1], axis=1)

    return gated


def gate_if_there(layer, h, out):
    return gate(sigmoid)(layer, h, out) if "attn_gate.weight" in layer else out


def own_base(layer):
    """Of layers with a window, which no scaling touches."""
    return layer.get("rope.freq_base_swa", layer.get("rope.freq_base", 10000.0))


def rotates_in_windows(name):
    return lambda layer: not layer.get("attention.sliding_window", 0) or windowed(ARCHS[name], layer)


# Command A's sparse relative.


def cohere_norm(file, name, x):
    rms = file.get("attention.layer_norm_rms_epsilon") is not None
    return (rms_norm if rms else layer_norm)(file, name, x)


def cohere_rotates(layer):
    """Layers with a window, and the dense ones at the beginning."""
    return windowed(ARCHS["cohere2moe"], layer) or layer.i < layer.get("leading_dense_block_count", 0)


def cohere_experts(layer, h):
    """The mean of what the chosen experts and the shared ones give."""
    y = SIGMOID_EXPERTS(layer, h)
    return y / 2 if "ffn_down_shexp.weight" in layer else y


# Step 3.5.


def half_if_whole(layer, local):
    """Layers that see everything rotate half of each head, those with a window all of it."""
    n_rot = layer.get("rope.dimension_count", layer.k_dim)
    return n_rot // 2 if local is None else n_rot


def limited(limit, gate, up):
    """SwiGLU with both factors bounded, the gate's after the activation and from above alone; 0: without bounds."""
    if not limit:
        return silu(gate) * up
    return np.minimum(silu(gate), limit) * np.clip(up, -limit, limit)


def limited_expert(layer, e, h):
    hidden = limited(layer.count("swiglu_clamp_exp", 0.0), *gate_and_up(layer, e, h))
    return expert_linear(layer, "ffn_down_exps", e, hidden)


def limited_network(suffix):
    def forward(layer, h):
        gate, up = (layer.linear(name + suffix, h) for name in ("ffn_gate", "ffn_up"))
        return layer.linear("ffn_down" + suffix, limited(layer.count("swiglu_clamp_shexp", 0.0), gate, up))

    return forward


LIMITED = experts(
    normalise=False,
    gating=SIGMOID,
    expert=limited_expert,
    dense=limited_network(""),
    shared=lambda layer, h: limited_network("_shexp")(layer, h) if "ffn_down_shexp.weight" in layer else 0.0,
)


def qk_norm_if_there(layer, name, x):
    return norm_each_head(layer, name, x) if name + ".weight" in layer else x


# Muse Glimmer, which is dense.


def embed_by_root_mean_square(file, tokens, arch):
    return rms(file.w["token_embd.weight"][tokens], 1.0, file.get("attention.layer_norm_rms_epsilon"))


def muse_layer(arch, layer, x, options):
    """Norms after the branches have an epsilon of their own."""

    def after(name, y):
        return rms(y, layer[name + ".weight"], 1e-8)

    h = dense.self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    x = x + after("post_attention_norm", h)
    return x + after("post_ffw_norm", arch.ffn(layer, norm(arch, layer, "ffn_norm", x)))


def muse_finish(file, logits):
    return softcap(logits * (file.get("logit_scale", 0.0) or 1.0), file.get("final_logit_softcapping", 0.0))


# SmallThinker.


def routed_first(arch, layer, x, options):
    """The router reads the stream before attention, without a norm."""
    a = x + dense.self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return a + arch.ffn(layer, norm(arch, layer, "ffn_norm", a), x)


def relu_expert(layer, e, h):
    return swiglu_expert(layer, e, h, activation=lambda g: np.maximum(g, 0))


ARCHS = {
    "minimax-m2": replace(SPARSE, qk_norm=norm_projection, ffn=experts(normalise=True, gating=SIGMOID)),
    "afmoe": replace(
        SPARSE,
        layer=dense.sandwich,
        window_every=4,
        rotates=rotates_in_windows("afmoe"),
        gate=gate(sigmoid),
        embed=dense.embed_times_root_of_width,
    ),
    "bailingmoe2": SPARSE,
    "laguna": replace(SPARSE, window_every=4, whole_first=True, local_base=own_base, gate=gate(softplus)),
    "exaone-moe": replace(SPARSE, window_every=4, rotates=rotates_in_windows("exaone-moe")),
    "hy_v3": SPARSE,
    "cohere2moe": replace(
        COHERE,
        norm=cohere_norm,
        qk_norm=None,
        ffn=cohere_experts,
        window_every=4,
        whole_first=True,
        rotates=cohere_rotates,
    ),
    "mellum": replace(SPARSE, window_every=4, local_base=own_base, ffn=experts(normalise=True, gating=SOFTMAX)),
    "step35": replace(
        SPARSE,
        qk_norm=qk_norm_if_there,
        local_base=own_base,
        n_rot=half_if_whole,
        gate=gate_if_there,
        ffn=LIMITED,
    ),
    "mimo2": replace(QWEN, local_base=own_base, ffn=experts(normalise=True, gating=SIGMOID)),
    "muse-glimmer": replace(
        LLAMA,
        layer=muse_layer,
        qk_norm=norm_each_head,
        window_every=4,
        rotates=rotates_in_windows("muse-glimmer"),
        gate=gate(sigmoid),
        embed=embed_by_root_mean_square,
        finish=muse_finish,
    ),
    "smallthinker": replace(
        QWEN,
        layer=routed_first,
        window_every=4,
        whole_first=True,
        rotates=rotates_in_windows("smallthinker"),
        ffn=experts(normalise=True, gating=SIGMOID, expert=relu_expert),
    ),
}
