"""Recipes by name: that of the architecture, or for a further kind of file a name of its own."""

from dataclasses import replace

from . import layers as of
from . import recipes as r
from . import shape as t
from .recipes import Recipe, base

LLAMA = Recipe("llama", of.llama_layer, base(5e5), head_size=True)
QWEN2MOE = Recipe("qwen2moe", of.qwen2moe_layer, r.qwen2moe_keys)
GPT2 = Recipe("gpt2", of.gpt2_layer, rms=False, norm_bias=True, tied=True, extra=r.positions, kv_heads="no key")
FALCON = Recipe("falcon", of.falcon_layer, rms=False, norm_bias=True, tied=True)
NEOX_KEYS = r.all_of(r.partial, lambda s: {"use_parallel_residual": True})
STABLELM = Recipe("stablelm", of.stablelm_layer, r.partial, rms=False, norm_bias=True)
PHI3 = Recipe("phi3", of.phi3_layer, lambda s: {"attention.sliding_window": 0, "rope.dimension_count": s.head_dim})
GEMMA = Recipe("gemma", of.llama_layer, tied=True, head_size=True)
COHERE2_KEYS = r.all_of(r.window, lambda s: {"logit_scale": 0.3, "rope.dimension_count": s.head_dim})
COMMAND_R = Recipe("command-r", of.cohere_layer, base(8e6, logit_scale=0.3), rms=False, tied=True)
GRANITE = Recipe("granite", of.llama_layer, r.granite_keys, tied=True)
OLMO = Recipe("olmo", lambda s, i: t.qkv(s) | t.output(s) | t.gated(s), rms=False, final_norm="")
GPT_OSS = Recipe(
    "gpt-oss",
    of.gpt_oss_layer,
    r.all_of(r.moe_keys, r.window, lambda s: {"expert_feed_forward_length": s.n_ff}),
    head_size=True,
)
DEEPSEEK2 = Recipe("deepseek2", of.deepseek_layer, r.deepseek2_keys, head_size=True)
MAMBA = Recipe("mamba", lambda s, i: t.norms(s, "attn_norm") | t.mamba(s), r.mamba_keys, tied=True, kv_heads="no key")

MPT = Recipe("mpt", of.mpt_layer, lambda s: {"attention.max_alibi_bias": 8.0}, rms=False, tied=True, kv_heads="no key")

RECIPES = {
    "llama": LLAMA,
    "llama-biased": replace(
        LLAMA, layer=lambda s, i: of.llama_layer(s, i, bias=True) | t.biases(attn_output=(s.n_embd,)), tied=True
    ),
    "llama-window": replace(LLAMA, keys=r.window),
    "llama-partial": replace(LLAMA, keys=r.partial),
    "llama-yarn": replace(LLAMA, keys=r.yarn),
    "llama-linear": replace(LLAMA, keys=base(1e4, **{"rope.scaling.type": "linear", "rope.scaling.factor": 3.0})),
    "llama-3.1": replace(LLAMA, extra=lambda s: t.weights(rope_freqs=(s.head_dim // 2,))),
    "mixtral": Recipe("llama", of.moe_layer, r.moe_keys),
    "qwen2": Recipe("qwen2", of.qwen2_layer, base(1e6)),
    "qwen2moe": QWEN2MOE,
    "qwen3": Recipe("qwen3", of.qwen3_layer, base(1e6), head_size=True),
    "qwen3moe": Recipe(
        "qwen3moe",
        lambda s, i: of.moe_layer(s, i, s.n_ff - 32) | t.head_norms(s),
        r.all_of(r.moe_keys, lambda s: {"expert_feed_forward_length": s.n_ff - 32}),
        head_size=True,
    ),
    "smollm3": Recipe("smollm3", of.llama_layer, base(2e6)),
    "gpt2": GPT2,
    "starcoder": replace(GPT2, arch="starcoder", kv_heads="key"),
    "starcoder2": Recipe("starcoder2", of.starcoder2_layer, base(1e5), rms=False, norm_bias=True, tied=True),
    "jais2": Recipe("jais2", of.starcoder2_layer, base(5e5), rms=False, norm_bias=True, head_size=True),
    "mpt": MPT,
    "mpt-storywriter": replace(MPT, keys=lambda s: {"attention.max_alibi_bias": 16.0, "attention.clamp_kqv": 0.7}),
    "bloom": Recipe(
        "bloom",
        of.gpt2_layer,
        rms=False,
        norm_bias=True,
        tied=True,
        kv_heads="heads",
        extra=lambda s: t.norms(s, "token_embd_norm", bias=True),
    ),
    "falcon": FALCON,
    "falcon-40b": replace(FALCON, layer=lambda s, i: of.falcon_layer(s, i, "attn_norm_2")),
    "gptneox": Recipe("gptneox", of.gpt2_layer, NEOX_KEYS, rms=False, norm_bias=True, kv_heads="no key"),
    "gptneox-sequential": Recipe(
        "gptneox",
        of.gpt2_layer,
        r.all_of(r.partial, lambda s: {"use_parallel_residual": False}),
        rms=False,
        norm_bias=True,
        kv_heads="no key",
    ),
    "stablelm": replace(STABLELM, keys=r.all_of(r.partial, lambda s: {"use_parallel_residual": False})),
    "stablelm-12b": replace(
        STABLELM,
        layer=lambda s, i: of.stablelm_layer(s, i, large=True),
        keys=r.all_of(r.partial, lambda s: {"use_parallel_residual": True}),
    ),
    "phi2": Recipe(
        "phi2",
        of.phi2_layer,
        r.partial,
        rms=False,
        norm_bias=True,
        kv_heads="heads",
        extra=lambda s: t.biases(output=(s.n_vocab,)),
    ),
    "phi3": PHI3,
    "phi3-longrope": replace(PHI3, keys=r.longrope, extra=r.longrope_factors),
    "phi3-longrope-short": replace(
        PHI3, keys=lambda s: r.longrope(s) | {"context_length": s.context // 2}, extra=r.longrope_factors
    ),
    "command-r": COMMAND_R,
    "command-r-plus": replace(COMMAND_R, layer=lambda s, i: of.cohere_layer(s, i, large=True)),
    "cohere2": Recipe("cohere2", of.cohere_layer, COHERE2_KEYS, rms=False, tied=True, head_size=True),
    "dbrx": Recipe("dbrx", of.dbrx_layer, r.all_of(r.moe_keys, base(5e5, **{"attention.clamp_kqv": 1.5})), rms=False),
    "olmo": OLMO,
    "olmo-clamped": replace(OLMO, keys=base(1e4, **{"attention.clamp_kqv": 1.5})),
    "olmo2": Recipe("olmo2", of.olmo2_layer, base(5e5)),
    "olmo3": Recipe("olmo2", of.olmo2_layer, r.all_of(r.window, r.yarn)),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA,
        arch="gemma2",
        layer=of.gemma2_layer,
        keys=r.all_of(r.window, lambda s: {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 9.0}),
    ),
    "gemma3": replace(
        GEMMA, arch="gemma3", layer=of.gemma3_layer, keys=r.all_of(r.window, base(1e6, **{"rope.freq_base_swa": 1e4}))
    ),
    "gemma3-linear": replace(
        GEMMA,
        arch="gemma3",
        layer=of.gemma3_layer,
        keys=r.all_of(r.window, base(1e6, **{"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})),
    ),
    "glm4": Recipe("glm4", of.glm4_layer, r.partial, head_size=True),
    "granite": GRANITE,
    "granitemoe": replace(
        GRANITE, arch="granitemoe", layer=of.moe_layer, keys=lambda s: r.granite_keys(s) | r.moe_keys(s)
    ),
    "granitemoe-shared": replace(GRANITE, arch="granitemoe", layer=of.granitemoe_layer, keys=r.granitemoe_keys),
    "granite_swa": replace(GRANITE, arch="granite_swa", layer=of.granite_swa_layer, keys=r.granite_swa_keys),
    "granite_swa-moe": replace(
        GRANITE,
        arch="granite_swa",
        layer=of.granite_swa_moe_layer,
        keys=lambda s: r.granite_swa_keys(s) | r.granitemoe_keys(s),
    ),
    "gpt-oss": GPT_OSS,
    "gpt-oss-yarn": replace(GPT_OSS, keys=r.all_of(GPT_OSS.keys, r.yarn)),
    "deepseek2": DEEPSEEK2,
    "deepseek2-lite": replace(DEEPSEEK2, layer=lambda s, i: of.deepseek_layer(s, i, False), keys=r.deepseek_keys),
    "deepseek2-2024": replace(
        DEEPSEEK2, layer=lambda s, i: of.deepseek_layer(s, i, split=False), keys=r.deepseek2_keys_of_2024
    ),
    "minicpm3": Recipe("minicpm3", of.minicpm3_layer, r.minicpm3_keys, tied=True, kv_heads="heads"),
    "deepseek3": replace(
        DEEPSEEK2,
        layer=lambda s, i: of.deepseek_layer(s, i, correction=True),
        keys=r.deepseek3_keys,
        adapt=r.grouped_experts,
    ),
    "mamba": MAMBA,
    "falcon-mamba": replace(MAMBA, keys=r.falcon_mamba_keys),
    "mamba2": Recipe("mamba2", lambda s, i: t.norms(s, "attn_norm") | t.mamba2(s), r.mamba2_keys, kv_heads="no key"),
    "jamba": Recipe("jamba", of.jamba_layer, r.jamba_keys),
    "granitehybrid": Recipe("granitehybrid", of.granitehybrid_layer, r.granitehybrid_keys),
    "lfm2": Recipe("lfm2", of.lfm2_layer, r.lfm2_keys, final_norm="token_embd_norm"),
    "falcon-h1": Recipe("falcon-h1", of.falcon_h1_layer, r.falcon_h1_keys, head_size=True),
    "falcon-h1-normed": Recipe(
        "falcon-h1", lambda s, i: of.falcon_h1_layer(s, i, norm=True), r.falcon_h1_keys, head_size=True
    ),
    "bert": Recipe(
        "bert",
        of.bert_layer,
        lambda s: {"attention.causal": False},
        rms=False,
        tied=True,
        final_norm="",
        extra=r.bert_tensors,
        kv_heads="no key",
    ),
}
