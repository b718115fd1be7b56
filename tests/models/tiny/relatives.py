"""Recipes of architectures without a reference, as their converters write them."""

from dataclasses import replace

from . import layers as of
from . import recipes as r
from . import shape as t
from .recipes import Recipe, base
from .table import RECIPES as KNOWN


def with_names(layer, *names):
    """A layer whose norms stand under other names."""

    def renamed(s, i):
        shapes = {
            part: dims for part, dims in layer(s, i).items() if part not in ("attn_norm.weight", "ffn_norm.weight")
        }
        return shapes | t.norms(s, *names)

    return renamed


def chatglm_layer(s, i, qkv=t.fused_qkv):
    return t.norms(s, "attn_norm", "ffn_norm") | qkv(s, bias=True) | t.output(s) | t.gate_in_up(s)


def ungated_layer(s, i):
    return t.norms(s, "attn_norm", "ffn_norm") | t.qkv(s) | t.output(s) | t.plain(s, bias=False)


def deci_layer(s, i):
    """Attention alone, a feed-forward part alone, and one matrix in the place of attention before a wider one."""
    if i % 3 == 0:
        return t.norms(s, "attn_norm") | of.attention(s)
    if i % 3 == 1:
        return t.norms(s, "ffn_norm") | t.gated(s)
    return (
        t.norms(s, "attn_norm", "ffn_norm") | t.weights(attn_output=(s.n_embd, s.n_embd)) | t.gated(s, n_ff=2 * s.n_ff)
    )


def deci_keys(s):
    counts = {
        "attention.head_count": [s.n_heads, 0, s.n_heads],
        "attention.head_count_kv": [s.n_kv_heads, 0, 0],
        "feed_forward_length": [0, s.n_ff, 2 * s.n_ff],
    }
    return {key: [values[i % 3] for i in range(s.n_layers)] for key, values in counts.items()}


def nanbeige_keys(s):
    return {"rope.freq_base": 1e4, "num_loops": 3, "skip_loop_final_norm": False}


def denoising(arch, recipe):
    """A recipe of a model without a direction."""
    bare = {"diffusion.shift_logits": False} if arch.startswith("llada") else {}
    return replace(recipe, arch=arch, keys=lambda s: recipe.keys(s) | {"attention.causal": False}, bare=lambda s: bare)


def hrm_layer(s, i):
    return t.qkv(s) | t.output(s) | t.gated(s) | t.weights(attn_gate=(s.q_dim, s.n_embd))


def hrm_keys(s):
    """The count of blocks is that of all passes."""
    n = s.n_layers // 2
    return {
        "block_count": n * 2 * (2 + 1),
        "rope.freq_base": 1e4,
        "rope.dimension_count": s.head_dim,
        "embedding_scale": 8.0,
        "hrm.layers_per_stack": n,
        "hrm.h_cycles": 2,
        "hrm.l_cycles": 2,
        "hrm.prefix_lm": True,
    }


def two_stacks(s):
    return replace(s, n_layers=2 * -(-s.n_layers // 2))


def bitnet_layer(s, i):
    return of.llama_layer(s, i) | t.weights(attn_sub_norm=(s.q_dim,), ffn_sub_norm=(s.n_ff,))


def apertus_layer(s, i):
    return ungated_layer(s, i) | t.head_norms(s)


def xielu_keys(s):
    """In every layer other numbers, of either sign."""
    numbers = {"alpha_p": (0.8, -0.3, 1.5), "alpha_n": (0.7, 0.2, -0.6), "beta": (0.5, 0.4, 0.6), "eps": (-1e-6,) * 3}
    return {f"xielu.{name}": [values[i % 3] for i in range(s.n_layers)] for name, values in numbers.items()}


def nemotron_layer(s, i):
    return ungated_layer(s, i) | t.norms(s, "attn_norm", "ffn_norm", bias=True)


def orion_layer(s, i):
    return of.llama_layer(s, i) | t.norms(s, "attn_norm", "ffn_norm", bias=True)


def qwen_layer(s, i):
    return t.norms(s, "attn_norm", "ffn_norm") | t.fused_qkv(s, bias=True) | t.output(s) | t.gated(s)


def shared_moe(s, i, attention, correction=False, first=1, step=1):
    """Experts with two shared ones, from layer ``first`` on in each ``step``-th, as deepseek and others have them."""
    shapes = t.norms(s, "attn_norm", "ffn_norm") | attention(s)
    if i < first or (i + 1) % step:
        return shapes | t.gated(s)
    shapes |= t.experts(s, s.n_ff - 32) | t.gated(s, "_shexp", 2 * (s.n_ff - 32))
    return shapes | (t.biases(exp_probs_b=(s.n_experts,)) if correction else {})


def shared_moe_keys(s):
    return r.moe_keys(s) | {
        "leading_dense_block_count": 1,
        "expert_feed_forward_length": s.n_ff - 32,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
    }


def sigmoid_keys(s):
    routing = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
    return shared_moe_keys(s) | routing


def ernie_moe_keys(s):
    """The width of shared experts is what the converter takes for it; another one counts."""
    shared = {"expert_shared_feed_forward_length": s.n_ff // s.n_kv_heads, "interleave_moe_layer_step": 2}
    return {key: value for key, value in shared_moe_keys(s).items() if key != "expert_weights_scale"} | shared


def ernie_moe_layer(s, i):
    """The correction bias keeps the authors' first dimension."""
    shapes = shared_moe(s, i, of.attention, correction=True, step=2)
    name = "exp_probs_b.bias"
    return shapes | {name: (1, s.n_experts)} if name in shapes else shapes


def biased(s):
    return t.qkv(s, bias=True) | t.output(s)


def biased_normed(s):
    return biased(s) | t.head_norms(s)


def glm4moe_layer(s, i, attention=biased_normed):
    return with_names(lambda s, i: shared_moe(s, i, attention, correction=True), "attn_norm", "post_attention_norm")(
        s, i
    )


def hunyuan_moe_layer(s, i):
    return of.moe_layer(s, i) | t.head_norms(s) | t.gated(s, "_shexp", s.n_ff + 32)


def hunyuan_moe_keys(s):
    return r.moe_keys(s) | {
        "expert_feed_forward_length": s.n_ff,
        "expert_shared_feed_forward_length": s.n_ff + 32,
    }


def exaone4_layer(s, i):
    return with_names(of.qwen3_layer, "post_attention_norm", "post_ffw_norm")(s, i)


def exaone4_keys(s):
    return {
        "attention.sliding_window": s.window,
        "attention.sliding_window_pattern": [i % 4 != 3 for i in range(s.n_layers)],
    }


def mistral3_keys(s):
    sharper = {"attention.temperature_scale": 0.3, "rope.scaling.original_context_length": 8}
    return r.yarn(s) | sharper | {"rope.scaling.yarn_log_multiplier": 1.0}


def minicpm_keys(s):
    return {"embedding_scale": 5.0, "residual_scale": 0.6, "logit_scale": 2.5}


def sections(s):
    """Of positions that are all equal for text."""
    n = s.head_dim // 2
    return {"rope.dimension_sections": [n - 2 * (n // 3), n // 3, n // 3, 0]}


def phimoe_layer(s, i):
    shapes = t.norms(s, "attn_norm", "ffn_norm", bias=True)
    return shapes | t.qkv(s, bias=True) | t.output(s, bias=True) | t.experts(s)


def phimoe_shape(s):
    """Two experts are used, whatever the shape says; and if it says all, there are two."""
    return replace(s, n_used=2, n_experts=2 if s.n_used == s.n_experts else max(2, s.n_experts))


def openelm_heads(s, i):
    """Other counts in every layer."""
    return replace(s, n_heads=s.n_heads * (1 + i % 2), n_kv_heads=s.n_kv_heads * (1 + i % 2), n_ff=s.n_ff + 32 * i)


def openelm_layer(s, i):
    s = openelm_heads(s, i)
    return t.norms(s, "attn_norm", "ffn_norm") | t.fused_qkv(s) | t.head_norms(s) | t.output(s) | t.gated(s)


def openelm_keys(s):
    layers = [openelm_heads(s, i) for i in range(s.n_layers)]
    return {
        "attention.head_count": [layer.n_heads for layer in layers],
        "attention.head_count_kv": [layer.n_kv_heads for layer in layers],
        "feed_forward_length": [layer.n_ff for layer in layers],
        "rope.dimension_count": s.head_dim,
    }


def lfm2moe_layer(s, i):
    """Experts from the second layer on, without shared ones."""
    shapes = of.lfm2_layer(s, i)
    if i < 1:
        return shapes
    dense = t.gated(s)
    return (
        {name: dims for name, dims in shapes.items() if name not in dense}
        | t.experts(s, s.n_ff - 32)
        | t.biases(exp_probs_b=(s.n_experts,))
    )


def lfm2moe_keys(s):
    return (
        r.lfm2_keys(s)
        | r.moe_keys(s)
        | {
            "expert_feed_forward_length": s.n_ff - 32,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
        }
    )


def nemotron_h_layer(s, i):
    """Mamba-2, feed-forward part, attention, and again."""
    part = (t.mamba2, lambda s: t.plain(s, bias=False), of.attention)[i % 3]
    return t.norms(s, "attn_norm") | part(s)


def nemotron_h_keys(s):
    return t.ssm_keys(s) | {
        "attention.head_count_kv": [s.n_kv_heads * (i % 3 == 2) for i in range(s.n_layers)],
        "feed_forward_length": [s.n_ff * (i % 3 == 1) for i in range(s.n_layers)],
    }


def nomic_layer(s, i):
    return t.norms(s, "attn_output_norm", "layer_output_norm", bias=True) | t.fused_qkv(s) | t.output(s) | t.gated(s)


def nomic_tensors(s):
    return {"token_types.weight": (2, s.n_embd)} | t.norms(s, "token_embd_norm", bias=True)


EXAONE4 = Recipe("exaone4", exaone4_layer, exaone4_keys, head_size=True)
GLM4MOE = Recipe("glm4moe", glm4moe_layer, r.all_of(sigmoid_keys, r.partial), head_size=True)
MINICPM = Recipe("minicpm", of.llama_layer, minicpm_keys, tied=True)
PHIMOE = Recipe(
    "phimoe",
    phimoe_layer,
    r.moe_keys,
    norm_bias=True,
    extra=lambda s: t.biases(output=(s.n_vocab,)),
    adapt=phimoe_shape,
)
QWEN3 = KNOWN["qwen3"]

BAICHUAN = Recipe(
    "baichuan",
    of.llama_layer,
    lambda s: {"rope.freq_base": 1e4, "rope.dimension_count": s.head_dim},
    head_size=True,
    kv_heads="heads",
    adapt=lambda s: replace(s, n_layers=32),
)

RECIPES = {
    "arcee": Recipe("arcee", ungated_layer, base(1e5), head_size=True),
    "chatglm": Recipe("chatglm", chatglm_layer, r.partial),
    "chatglm-split": Recipe("chatglm", lambda s, i: chatglm_layer(s, i, t.qkv), r.partial),
    "codeshell": Recipe("codeshell", of.gpt2_layer, rms=False, norm_bias=True),
    "deepseek": Recipe("deepseek", lambda s, i: shared_moe(s, i, of.attention), shared_moe_keys),
    "dots1": Recipe(
        "dots1", lambda s, i: shared_moe(s, i, of.normed_attention, correction=True), sigmoid_keys, head_size=True
    ),
    "ernie4_5": Recipe("ernie4_5", of.llama_layer, base(5e5), tied=True, head_size=True),
    "ernie4_5-moe": Recipe("ernie4_5-moe", ernie_moe_layer, ernie_moe_keys, tied=True),
    "exaone": Recipe(
        "exaone",
        of.llama_layer,
        lambda s: {"rope.dimension_count": s.head_dim},
        extra=lambda s: t.weights(rope_freqs=(s.head_dim // 2,)),
    ),
    "exaone4": EXAONE4,
    "exaone4-full": replace(EXAONE4, keys=base(1e6), tied=True),
    "gemma-embedding": Recipe(
        "gemma-embedding", of.gemma3_layer, r.all_of(r.window, base(1e6, pooling_type=1)), tied=True, head_size=True
    ),
    "glm4moe": GLM4MOE,
    "glm4moe-air": replace(GLM4MOE, layer=lambda s, i: glm4moe_layer(s, i, biased)),
    "hunyuan-dense": Recipe("hunyuan-dense", of.qwen3_layer, base(1e6), tied=True, head_size=True),
    "hunyuan-moe": Recipe("hunyuan-moe", hunyuan_moe_layer, hunyuan_moe_keys, head_size=True),
    "internlm2": Recipe("internlm2", of.llama_layer, base(1e6)),
    "lfm2moe": Recipe("lfm2moe", lfm2moe_layer, lfm2moe_keys, final_norm="token_embd_norm", tied=True),
    "minicpm": MINICPM,
    "nanbeige": Recipe("nanbeige", of.llama_layer, nanbeige_keys, head_size=True),
    "nanbeige-skip": Recipe(
        "nanbeige", of.llama_layer, lambda s: nanbeige_keys(s) | {"skip_loop_final_norm": True}, head_size=True
    ),
    "deci": Recipe("deci", deci_layer, deci_keys, head_size=True),
    "apertus": Recipe(
        "apertus", apertus_layer, base(1e4), bare=xielu_keys, extra=lambda s: t.weights(rope_freqs=(s.head_dim // 2,))
    ),
    "baichuan": BAICHUAN,
    "baichuan-13b": replace(BAICHUAN, adapt=lambda s: replace(s, n_layers=40)),
    "bitnet": Recipe("bitnet", bitnet_layer, base(1e4), tied=True),
    "minicpm-old": replace(MINICPM, keys=base(1e4)),
    "mistral3": Recipe("mistral3", of.llama_layer, mistral3_keys, head_size=True),
    "nemotron": Recipe("nemotron", nemotron_layer, r.partial, rms=False, norm_bias=True),
    "nomic-bert": Recipe(
        "nomic-bert",
        nomic_layer,
        base(1e3, **{"attention.causal": False, "pooling_type": 1}),
        rms=False,
        tied=True,
        final_norm="",
        extra=nomic_tensors,
        kv_heads="no key",
    ),
    "nemotron_h": Recipe("nemotron_h", nemotron_h_layer, nemotron_h_keys, head_size=True),
    "olmoe": Recipe("olmoe", lambda s, i: of.moe_layer(s, i) | t.projection_norms(s), r.moe_keys),
    "openelm": Recipe("openelm", openelm_layer, openelm_keys, tied=True, head_size=True),
    "orion": Recipe("orion", orion_layer, rms=False, norm_bias=True),
    "pangu-embedded": Recipe("pangu-embedded", lambda s, i: of.qwen2_layer(s, i) | t.output(s, bias=True), base(1.6e7)),
    "phimoe": PHIMOE,
    "phimoe-longrope": replace(
        PHIMOE,
        keys=r.all_of(r.moe_keys, r.longrope),
        extra=lambda s: t.biases(output=(s.n_vocab,)) | r.longrope_factors(s),
    ),
    "qwen": Recipe("qwen", qwen_layer, lambda s: {"feed_forward_length": 2 * s.n_ff}, kv_heads="no key"),
    "qwen2vl": Recipe("qwen2vl", of.qwen2_layer, sections),
    "qwen3vl": replace(QWEN3, arch="qwen3vl", keys=sections),
    "hrm_text": Recipe(
        "hrm_text",
        hrm_layer,
        hrm_keys,
        head_size=True,
        kv_heads="no key",
        final_norm="",
        extra=lambda s: {"hrm.z_l_init": (s.n_embd,)},
        adapt=two_stacks,
    ),
    "dream": denoising("dream", KNOWN["qwen2"]),
    "llada": denoising("llada", Recipe("llama", of.llama_layer, base(1e4), head_size=True)),
    "llada-moe": denoising("llada-moe", KNOWN["qwen3moe"]),
    "rnd1": denoising("rnd1", KNOWN["qwen3moe"]),
    "qwen3vlmoe": replace(KNOWN["qwen3moe"], arch="qwen3vlmoe", keys=lambda s: KNOWN["qwen3moe"].keys(s) | sections(s)),
    "refact": Recipe("refact", of.llama_layer),
    "seed_oss": Recipe(
        "seed_oss", with_names(of.qwen2_layer, "attn_norm", "post_attention_norm"), base(1e7), head_size=True
    ),
    "xverse": Recipe("xverse", of.llama_layer),
}
