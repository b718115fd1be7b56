"""Decoders of attention and feed-forward parts: how each architecture puts them together.

Sources: the modelling files of Hugging Face transformers and the papers that they name; llama.cpp's converter for what
it folds into weights (Gemma's norms hold 1 + w) and for the order of rows (rotary pairs of Llama and its relatives).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .attention import (
    alibi_slopes,
    attend,
    hidden_past,
    layer_norm_each_head,
    norm_each_head,
    norm_projection,
    project,
    turn,
)
from .experts import SOFTMAX_OF_CHOSEN, experts, gated, gpt_oss_expert, plain
from .parts import gelu_erf, gelu_tanh, layer_norm, relu2, rms_norm, silu, softcap
from .rotary import HALVES, PAIRS

swiglu = gated(silu)


@dataclass(frozen=True)
class Arch:
    """What distinguishes an architecture and doesn't stand in metadata."""

    layer: Callable
    norm: Callable = rms_norm
    ffn: Callable = swiglu
    pairing: str | None = PAIRS  # None: no rotary positions
    qk_norm: Callable | None = None
    qk_norm_last: bool = False  # after the rotation
    alibi: bool = False
    window_every: int = 0  # of so many layers the last sees everything; 0: none does, if there is a window
    whole_first: bool = False  # not the last but the first
    n_rot: Callable | None = None  # rotated dimensions of a layer and its local base, where metadata's are not meant
    gate: Callable = lambda layer, h, out: out  # what becomes of attention's output before its last projection
    local_base: Callable | None = None  # rotary base of windowed layers, if no scaling touches them
    rotates: Callable = lambda layer: True
    scale: Callable = lambda layer: layer.get("attention.scale", 0.0) or layer.k_dim**-0.5
    cap: Callable = lambda layer: layer.get("attn_logit_softcapping", 0.0)
    embed: Callable = lambda file, tokens, arch: file.w["token_embd.weight"][tokens]
    final_norm: str = "output_norm"
    finish: Callable = lambda file, logits: logits
    causal: bool = True  # or every token sees all others


def decode(file, tokens, arch, options):
    x = arch.embed(file, tokens, arch)
    for layer in file.layers():
        x = arch.layer(arch, layer, x, options)
    h = arch.norm(file, arch.final_norm, x)
    output = "output" if "output.weight" in file.w else "token_embd"
    return arch.finish(file, file.linear(output, h))


# One layer.


def norm(arch, layer, name, x):
    return arch.norm(layer.file, f"blk.{layer.i}.{name}", x)


def self_attention(arch, layer, h, options):
    q, k, v = project(layer, h)
    if arch.qk_norm and not arch.qk_norm_last:
        q, k = arch.qk_norm(layer, "attn_q_norm", q), arch.qk_norm(layer, "attn_k_norm", k)
    if arch.pairing and arch.rotates(layer):
        local = arch.local_base(layer) if arch.local_base and window(arch, layer, options) else None
        n_rot = arch.n_rot(layer, local) if arch.n_rot else None
        q, k = (turn(layer, y, arch.pairing, options, local, n_rot) for y in (q, k))
    if arch.qk_norm and arch.qk_norm_last:
        q, k = arch.qk_norm(layer, "attn_q_norm", q), arch.qk_norm(layer, "attn_k_norm", k)
    out = attend(
        q,
        k,
        (layer.get("attention.value_scale", 0.0) or 1.0) * v,
        arch.scale(layer),
        hidden=hidden_past(len(h), window(arch, layer, options)) & arch.causal,
        cap=arch.cap(layer),
        slopes=alibi_slopes(layer.heads, layer.get("attention.max_alibi_bias", 8.0)) if arch.alibi else None,
        sinks=layer.tensor("attn_sinks.weight"),
    )
    return layer.linear("attn_output", arch.gate(layer, h, out))


def windowed(arch, layer):
    """``attention.sliding_window_pattern`` is a period, one of whose layers sees everything, or says it by layer."""
    pattern = layer.get("attention.sliding_window_pattern", arch.window_every)
    if isinstance(pattern, list):
        return bool(pattern[layer.i])
    return pattern == 0 or layer.i % pattern != (0 if arch.whole_first else pattern - 1)


def window(arch, layer, options):
    size = layer.get("attention.sliding_window", 0) if options.window is None else options.window
    return size if windowed(arch, layer) else 0


def sequential(arch, layer, x, options):
    x = x + self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def parallel(arch, layer, x, options):
    """Both parts read one norm (Phi 2, Command R)."""
    h = norm(arch, layer, "attn_norm", x)
    return x + self_attention(arch, layer, h, options) + arch.ffn(layer, h)


def falcon_layer(arch, layer, x, options):
    """As parallel; the larger models' attention has a norm of its own, attn_norm_2."""
    h = norm(arch, layer, "attn_norm", x)
    own = norm(arch, layer, "attn_norm_2", x) if "attn_norm_2.weight" in layer else h
    return x + self_attention(arch, layer, own, options) + arch.ffn(layer, h)


def gptneox_layer(arch, layer, x, options):
    """In parallel, each part with its norm, or one after the other: use_parallel_residual says which."""
    if not layer.get("use_parallel_residual", True):
        return sequential(arch, layer, x, options)
    attention = self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + attention + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def stablelm_layer(arch, layer, x, options):
    """StableLM 2 12B is parallel and has no ffn_norm."""
    return (sequential if "ffn_norm.weight" in layer else parallel)(arch, layer, x, options)


def sandwich(arch, layer, x, options):
    """A norm before and one after each part (Gemma 2 and 3, GLM 4)."""
    h = self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    x = x + norm(arch, layer, "post_attention_norm", h)
    h = arch.ffn(layer, norm(arch, layer, "ffn_norm", x))
    return x + norm(arch, layer, "post_ffw_norm", h)


def norms_after(arch, layer, x, options):
    """Norms only after the parts (OLMo 2, EXAONE 4)."""
    x = x + norm(arch, layer, "post_attention_norm", self_attention(arch, layer, x, options))
    return x + norm(arch, layer, "post_ffw_norm", arch.ffn(layer, x))


def renamed(name):
    """Sequential, with another name for the norm before the feed-forward part."""

    def layer(arch, layer, x, options):
        x = x + self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
        return x + arch.ffn(layer, norm(arch, layer, name, x))

    return layer


def scaled_residual(arch, layer, x, options):
    """Granite, MiniCPM: what a part adds is multiplied by residual_scale."""
    factor = layer.get("residual_scale", 0.0) or 1.0
    x = x + factor * self_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + factor * arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


# Before the first layer and after the last.


def embed_learned_positions(file, tokens, arch):
    return file.w["token_embd.weight"][tokens] + file.w["position_embd.weight"][: len(tokens)]


def embed_normed(file, tokens, arch):
    return arch.norm(file, "token_embd_norm", file.w["token_embd.weight"][tokens])


def embed_times_root_of_width(file, tokens, arch):
    return file.w["token_embd.weight"][tokens] * math.sqrt(file.n_embd)


def embed_scaled(file, tokens, arch):
    return file.w["token_embd.weight"][tokens] * (file.get("embedding_scale", 0.0) or 1.0)


def capped(default):
    return lambda file, logits: softcap(logits, file.get("final_logit_softcapping", default))


def logits_times_scale(file, logits):
    """Cohere."""
    return logits * (file.get("logit_scale", 0.0) or 1.0)


def logits_over_scale(file, logits):
    """Granite's logits_scaling is a divisor."""
    return logits / (file.get("logit_scale", 0.0) or 1.0)


# Facts of single layers.


def granite_rotates(layer):
    """A switch in the key that once said whether scaling had been trained; and another one for each layer."""
    pattern = layer.get("attention.rope_pattern", None)
    return layer.get("rope.scaling.finetuned", True) and (pattern is None or bool(pattern[layer.i]))


def every_fourth_does_not_rotate(layer):
    return layer.i % 4 != 3


def olmo3_local_base(layer):
    """OLMo 3 comes as olmo2 with a window, and stretches positions only where there is none."""
    return layer.get("rope.freq_base_swa", layer.get("rope.freq_base", 10000.0))


def gemma_scale(layers_of_27b):
    """1 / sqrt(head), but the 27B models, which only their depth tells apart: 1 / sqrt(width / heads)."""

    def scale(layer):
        of_27b = layer.file.n_layers == layers_of_27b
        return (layer.file.n_embd / layer.heads if of_27b else layer.k_dim) ** -0.5

    return scale


LLAMA = Arch(sequential, ffn=experts(normalise=True))
QWEN = Arch(sequential, pairing=HALVES)
GPT = Arch(sequential, norm=layer_norm, ffn=plain(gelu_tanh), pairing=None)
COHERE = Arch(parallel, norm=layer_norm, qk_norm=layer_norm_each_head, finish=logits_times_scale)
GRANITE = Arch(
    scaled_residual,
    ffn=experts(normalise=True),
    rotates=granite_rotates,
    embed=embed_scaled,
    finish=logits_over_scale,
)
GEMMA = Arch(sequential, ffn=gated(gelu_tanh), pairing=HALVES, embed=embed_times_root_of_width)

ARCHS = {
    "llama": LLAMA,
    "qwen2": QWEN,
    "qwen2moe": replace(QWEN, ffn=experts(normalise=False)),
    "qwen3": replace(QWEN, qk_norm=norm_each_head),
    "qwen3moe": replace(QWEN, qk_norm=norm_each_head, ffn=experts(normalise=True)),
    "smollm3": replace(LLAMA, rotates=every_fourth_does_not_rotate),
    "gpt2": replace(GPT, embed=embed_learned_positions),
    "starcoder": replace(GPT, embed=embed_learned_positions),
    "starcoder2": replace(GPT, pairing=HALVES),
    "bloom": replace(GPT, embed=embed_normed, alibi=True),
    "mpt": replace(GPT, ffn=plain(gelu_erf), alibi=True),
    "jais2": replace(GPT, ffn=plain(relu2), pairing=HALVES),
    "falcon": replace(GPT, layer=falcon_layer, ffn=plain(gelu_erf), pairing=HALVES),
    "gptneox": replace(GPT, layer=gptneox_layer, ffn=plain(gelu_erf), pairing=HALVES),
    "phi2": replace(GPT, layer=parallel, pairing=HALVES),
    "phi3": QWEN,
    "stablelm": replace(QWEN, layer=stablelm_layer, norm=layer_norm, qk_norm=layer_norm_each_head),
    "command-r": COHERE,
    "cohere2": replace(COHERE, window_every=4, rotates=lambda layer: windowed(ARCHS["cohere2"], layer)),
    "dbrx": Arch(renamed("attn_output_norm"), norm=layer_norm, ffn=experts(normalise=True), pairing=HALVES),
    "olmo": replace(LLAMA, norm=layer_norm),
    "olmo2": replace(QWEN, layer=norms_after, qk_norm=norm_projection, window_every=4, local_base=olmo3_local_base),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA,
        layer=sandwich,
        window_every=2,
        scale=gemma_scale(46),
        cap=lambda layer: layer.get("attn_logit_softcapping", 50.0),
        finish=capped(30.0),
    ),
    "gemma3": replace(
        GEMMA,
        layer=sandwich,
        qk_norm=norm_each_head,
        window_every=6,
        local_base=lambda layer: layer.get("rope.freq_base_swa", 10000.0),
        scale=gemma_scale(62),
        finish=capped(0.0),
    ),
    "glm4": Arch(sandwich),
    "granite": GRANITE,
    "granitemoe": GRANITE,
    "granite_swa": GRANITE,
    "gpt-oss": Arch(
        renamed("post_attention_norm"),
        ffn=experts(normalise=False, gating=SOFTMAX_OF_CHOSEN, expert=gpt_oss_expert),
        pairing=HALVES,
        window_every=2,
    ),
    "nemotron": replace(GPT, ffn=plain(relu2), pairing=HALVES),
}
