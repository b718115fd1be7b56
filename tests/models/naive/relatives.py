"""Relatives of the architectures of `dense`, of which only descriptions are at hand: what each has otherwise.

Sources: the technical reports and modelling files of their authors; llama.cpp's converter for names, for what it folds
into weights (Nemotron's norms hold 1 + w) and for which matrices stand in neighbouring pairs.
"""

import math
from dataclasses import replace

import numpy as np

from . import dense
from .attention import attend, hidden_past, norm_each_head, norm_projection, project, turn
from .dense import ARCHS as KNOWN
from .dense import GPT, LLAMA, QWEN, Arch, norm, norms_after, renamed, windowed
from .experts import SIGMOID, expert_linear, experts, plain, routing, swiglu_expert
from .parts import centred, layer_norm, relu2, rms, rms_norm, silu, softmax, xielu
from .recurrent import ARCHS as RECURRENT
from .recurrent import mamba2
from .rotary import HALVES, plain_frequencies, rotate, scaling_factor


def minicpm_layer(arch, layer, x, options):
    """Hu et al. 2024: what a part adds is scaled by 1.4 / sqrt(depth). Files before late 2024 don't say so."""
    factor = layer.get("residual_scale", 0.0) or 1.4 / math.sqrt(layer.file.n_layers)
    x = x + factor * dense.self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + factor * arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def minicpm_embed(file, tokens, arch):
    return file.w["token_embd.weight"][tokens] * (file.get("embedding_scale", 0.0) or 12.0)


def minicpm_finish(file, logits):
    """Divided by how many times wider the model is than the base of 256 that was tuned."""
    return logits / (file.get("logit_scale", 0.0) or file.n_embd / 256)


def deci_layer(arch, layer, x, options):
    """Bercovich et al. 2024: attention, one matrix, or nothing; then a feed-forward part, or nothing."""
    if layer.heads:
        h = norm(arch, layer, "attn_norm", x)
        x = x + (dense.self_attention(arch, layer, h, options) if layer.kv_heads else layer.linear("attn_output", h))
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x)) if layer.count("feed_forward_length") else x


def bitnet_layer(arch, layer, x, options):
    """Wang et al. 2023: a norm before the last matrix of each branch."""
    x = x + dense.self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    h = norm(arch, layer, "ffn_norm", x)
    hidden = silu(layer.linear("ffn_gate", h)) * layer.linear("ffn_up", h)
    return x + layer.linear("ffn_down", norm(arch, layer, "ffn_sub_norm", hidden))


def apertus_ffn(layer, h):
    """Each layer's activation has four numbers, in keys without the architecture's name."""
    numbers = (layer.file.metadata[f"xielu.{name}"][layer.i] for name in ("alpha_p", "alpha_n", "beta", "eps"))
    return layer.linear("ffn_down", xielu(layer.linear("ffn_up", h), *numbers))


def mistral3_layer(arch, layer, x, options):
    x = x + sharpened_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def sharpened_attention(arch, layer, h, options):
    """Queries grow with the logarithm of how many times the original context their position is away.

    With a log multiplier m, YaRN's magnitude 1 + 0.1 ln(factor) is divided by 1 + 0.1 m ln(factor).
    """
    q, k, v = project(layer, h)
    q, k = (turn(layer, y, arch.pairing, options, None) / taken_back(layer) for y in (q, k))
    length = layer.get("rope.scaling.original_context_length", layer.get("context_length"))
    times = np.arange(len(h)) // length
    q = q * (1 + layer.get("attention.temperature_scale", 0.0) * np.log(1 + times))[:, None, None]
    return layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=hidden_past(len(h), 0)))


def taken_back(layer):
    if layer.get("rope.scaling.type") != "yarn":
        return 1.0
    return 1 + 0.1 * layer.get("rope.scaling.yarn_log_multiplier", 0.0) * math.log(scaling_factor(layer.file))


def exaone4_rotates(layer):
    """Layers that see everything don't rotate, in models that have windows; in models without, all rotate."""
    return not layer.get("attention.sliding_window", 0) or windowed(ARCHS["exaone4"], layer)


def norm_each_head_if_there(layer, name, x):
    """GLM 4.5 has these norms, GLM 4.5 Air doesn't."""
    return norm_each_head(layer, name, x) if name + ".weight" in layer else x


def phimoe_norm(file, name, x):
    """A layer norm, whose epsilon stands under the name of the other norm's."""
    return centred(x, file.w[name + ".weight"], file.w[name + ".bias"], file.get("attention.layer_norm_rms_epsilon"))


def sparse_mixer(scores, eps=0.01):
    """Weight of every expert: the best, then the best of the others. (Liu et al. 2024, "GRIN".)

    Each gets its share of a softmax over those that are not much smaller than it: (best - s) / max(|s|, best) <= 2 eps.
    """
    weights, left = np.zeros_like(scores), scores.copy()
    for _ in range(2):
        best, chosen = left.max(-1, keepdims=True), left.argmax(-1)[:, None]
        near = (best - scores) / np.maximum(abs(scores), best) <= 2 * eps
        share = softmax(np.where(near, left, -np.inf))
        np.put_along_axis(weights, chosen, np.take_along_axis(share, chosen, -1), -1)
        np.put_along_axis(left, chosen, -np.inf, -1)
    return weights


def phimoe_experts(layer, h):
    weights = sparse_mixer(layer.linear("ffn_gate_inp", h))
    return sum(weights[:, e : e + 1] * swiglu_expert(layer, e, h) for e in range(weights.shape[1]))


def phimoe_layer(arch, layer, x, options):
    """With long factors, sines and cosines are multiplied by the 1.2432 of the model's configuration.

    Files hold what Phi 3 computes instead, sqrt(1 + ln(scale) / ln(original context)), which is 1.1902.
    """
    h = norm(arch, layer, "attn_norm", x)
    q, k, v = project(layer, h)
    own = (
        1.243163121016122 / layer.get("rope.scaling.attn_factor") if "rope_factors_long.weight" in layer.file.w else 1.0
    )
    q, k = (own * turn(layer, y, arch.pairing, options, None) for y in (q, k))
    out = attend(q, k, v, layer.k_dim**-0.5, hidden=hidden_past(len(h), 0))
    x = x + layer.linear("attn_output", out)
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def nemotron_h_layer(arch, layer, x, options):
    """One part a layer: a feed-forward part where it has a width, attention where it has heads, Mamba-2 elsewhere."""
    h = norm(arch, layer, "attn_norm", x)
    if layer.count("feed_forward_length"):
        return x + arch.ffn(layer, h)
    return x + (dense.self_attention(arch, layer, h, options) if layer.kv_heads else mamba2(layer, h))


def nemotron_norm(file, name, x):
    """The epsilon stands under the name of another norm's in files of Nemotron Nano 2 and 3."""
    eps = file.get("attention.layer_norm_rms_epsilon") or file.get("attention.layer_norm_epsilon")
    return rms(x, file.w[name + ".weight"], eps)


def nemotron_experts(layer, h):
    """Experts without a gate, of a narrower stream where the file has one, beside a shared one; squared ReLU."""
    if "ffn_gate_inp.weight" not in layer:
        return plain(relu2)(layer, h)
    weights = routing(layer, layer.linear("ffn_gate_inp", h), SIGMOID, False)
    x = layer.linear("ffn_latent_down", h) if "ffn_latent_down.weight" in layer else h
    y = np.zeros_like(x)
    for e in range(weights.shape[1]):
        hidden = relu2(expert_linear(layer, "ffn_up_exps", e, x))
        y += weights[:, e : e + 1] * expert_linear(layer, "ffn_down_exps", e, hidden)
    if "ffn_latent_up.weight" in layer:
        y = layer.linear("ffn_latent_up", y)
    return y + layer.linear("ffn_down_shexp", relu2(layer.linear("ffn_up_shexp", h)))


def gemma_embedding(file, tokens):
    """Hidden states before pooling: Gemma 3 whose tokens see both ways, windows reaching half their size each way."""
    arch, n = KNOWN["gemma3"], len(tokens)
    x = arch.embed(file, tokens, arch)
    distance = abs(np.arange(n)[:, None] - np.arange(n))
    for layer in file.layers():
        local = windowed(arch, layer)
        hidden = distance > layer.get("attention.sliding_window") // 2 if local else np.zeros((n, n), bool)
        q, k, v = project(layer, norm(arch, layer, "attn_norm", x))
        q, k = norm_each_head(layer, "attn_q_norm", q), norm_each_head(layer, "attn_k_norm", k)
        base = layer.get("rope.freq_base_swa", 10000.0) if local else layer.get("rope.freq_base", 10000.0)
        angles = np.outer(np.arange(n), plain_frequencies(layer.k_dim, base))
        q, k = (rotate(y, angles, 1.0, HALVES) for y in (q, k))
        h = layer.linear("attn_output", attend(q, k, v, layer.k_dim**-0.5, hidden=hidden))
        x = x + norm(arch, layer, "post_attention_norm", h)
        h = arch.ffn(layer, norm(arch, layer, "ffn_norm", x))
        x = x + norm(arch, layer, "post_ffw_norm", h)
    return rms_norm(file, "output_norm", x)


def baichuan_layer(arch, layer, x, options):
    """The model of 13B, which has 40 layers, knows positions by ALiBi alone."""
    falls = layer.file.n_layers == 40
    return dense.sequential(replace(arch, alibi=falls, pairing=None if falls else arch.pairing), layer, x, options)


def nanbeige_layers(arch, layer, x, options):
    """Nanbeige 2026: all layers, then all of them again, each time over the keys of that pass; a norm after each pass.

    The first layer stands for all of them.
    """
    layers = layer.file.layers()
    for i in range(layer.get("num_loops", 1) if layer.i == 0 else 0):
        if i and not layer.get("skip_loop_final_norm", False):
            x = arch.norm(layer.file, "output_norm", x)
        for each in layers:
            x = dense.sequential(arch, each, x, options)
    return x


ARCHS = {
    "nanbeige": replace(LLAMA, layer=nanbeige_layers),
    "dream": replace(QWEN, causal=False),
    "llada": replace(LLAMA, causal=False),
    "llada-moe": replace(QWEN, qk_norm=norm_each_head, ffn=experts(normalise=False), causal=False),
    "rnd1": replace(KNOWN["qwen3moe"], causal=False),
    "deci": replace(LLAMA, layer=deci_layer),
    "baichuan": replace(LLAMA, layer=baichuan_layer),
    "bitnet": replace(QWEN, layer=bitnet_layer, gate=lambda layer, h, out: norm(QWEN, layer, "attn_sub_norm", out)),
    "apertus": replace(QWEN, qk_norm=norm_each_head, ffn=apertus_ffn),
    "arcee": replace(LLAMA, ffn=plain(relu2)),
    "chatglm": LLAMA,
    "codeshell": replace(GPT, pairing=HALVES),
    "deepseek": replace(LLAMA, ffn=experts(normalise=False)),
    "dots1": replace(QWEN, qk_norm=norm_each_head, ffn=experts(normalise=False, gating=SIGMOID)),
    "ernie4_5": LLAMA,
    "ernie4_5-moe": LLAMA,
    "exaone": QWEN,
    "exaone4": replace(QWEN, layer=norms_after, qk_norm=norm_each_head, window_every=4, rotates=exaone4_rotates),
    "glm4moe": replace(
        QWEN,
        layer=renamed("post_attention_norm"),
        qk_norm=norm_each_head_if_there,
        ffn=experts(normalise=False, gating=SIGMOID),
    ),
    "hunyuan-dense": replace(QWEN, qk_norm=norm_each_head, qk_norm_last=True),
    "hunyuan-moe": replace(QWEN, qk_norm=norm_each_head, qk_norm_last=True, ffn=experts(normalise=True)),
    "internlm2": LLAMA,
    "lfm2moe": replace(RECURRENT["lfm2"], ffn=experts(normalise=True, gating=SIGMOID)),
    "minicpm": replace(LLAMA, layer=minicpm_layer, embed=minicpm_embed, finish=minicpm_finish),
    "mistral3": replace(LLAMA, layer=mistral3_layer),
    "nemotron": replace(GPT, ffn=plain(relu2), pairing=HALVES),
    "nemotron_h": Arch(nemotron_h_layer, norm=nemotron_norm, ffn=plain(relu2), pairing=None),
    "nemotron_h_moe": Arch(nemotron_h_layer, norm=nemotron_norm, ffn=nemotron_experts, pairing=None),
    "olmoe": replace(QWEN, qk_norm=norm_projection, ffn=experts(normalise=False)),
    "openelm": replace(QWEN, qk_norm=norm_each_head),
    "orion": replace(QWEN, norm=layer_norm),
    "pangu-embedded": QWEN,
    "phimoe": Arch(phimoe_layer, norm=phimoe_norm, ffn=phimoe_experts, pairing=HALVES),
    "qwen": QWEN,
    "qwen2vl": QWEN,
    "qwen3vl": KNOWN["qwen3"],
    "qwen3vlmoe": KNOWN["qwen3moe"],
    "refact": replace(LLAMA, pairing=None, alibi=True),
    "seed_oss": replace(QWEN, layer=renamed("post_attention_norm")),
    "xverse": LLAMA,
}

ENCODERS = {"gemma-embedding": gemma_embedding}
