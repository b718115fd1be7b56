"""Models that differ from Llama or from another family in a trait or two.

Cai et al., "InternLM2", 2024; Baidu, "ERNIE 4.5 Technical Report", 2025; LG AI Research, "EXAONE 3.5", 2024, and
"EXAONE 4.0", 2025; Tencent, "Hunyuan-A13B Technical Report", 2025; Parmar et al., "Nemotron-4", 2024; Arcee,
"AFM-4.5B", 2025; ByteDance, "Seed-OSS", 2025; OrionStar, "Orion-14B", 2024; Mehta et al., "OpenELM", 2024; Dai et al.,
"DeepSeekMoE", 2024; Huo et al., "dots.llm1", 2025; Xie et al., "CodeShell", 2024; Huawei, "openPangu
Embedded", 2025.
"""

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.models.registry import TRANSFORMERS, UNVERIFIED, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Part, Traits, all_but_each


def read_ernie_moe(file: GGUFFile, traits: Traits) -> ModelSpec:
    """The converter writes the width of a dense layer over the number of key heads for that of the shared experts.

    That is right for the models there are by chance. They are as wide as so many experts.
    """
    spec = read_spec(file, traits)
    if spec.experts is None or not spec.experts.n_shared:
        return spec
    return replace(spec, experts=replace(spec.experts, n_ff_shared=spec.experts.n_shared * spec.experts.n_ff))


ALL: tuple[Part, ...] = ("q", "k", "v", "o", "ffn")

LLAMA = Traits()
NEOX = Traits(rope="neox")
EXAONE4 = replace(NEOX, pre_norms=False, post_norms=True, qk_norm="head", windows=all_but_each(4), rotates="windows")
HUNYUAN = replace(NEOX, qk_norm="head", qk_norm_last=True)
NEMOTRON = replace(NEOX, norm="layer", activation="relu2", gated=False)
SEED_OSS = replace(NEOX, ffn_norm="post_attention_norm", biased=("q", "k", "v"))
CODESHELL = replace(NEOX, norm="layer", activation="gelu", gated=False, biased=ALL)

register(
    Architecture("internlm2", "InternLM 2, 2.5", LLAMA, UNVERIFIED),
    Architecture("xverse", "XVERSE", LLAMA, UNVERIFIED),
    Architecture("ernie4_5", "ERNIE 4.5 0.3B", LLAMA, TRANSFORMERS),
    Architecture("ernie4_5-moe", "ERNIE 4.5 21B, 300B", LLAMA, TRANSFORMERS, read_spec=read_ernie_moe),
    Architecture("arcee", "Arcee AFM", replace(LLAMA, activation="relu2", gated=False), TRANSFORMERS),
    Architecture("deepseek", "DeepSeekMoE 16B", LLAMA, UNVERIFIED),
    Architecture("refact", "Refact", Traits(rope="none", alibi=True), UNVERIFIED),
    Architecture("exaone", "EXAONE 3, 3.5", NEOX, UNVERIFIED),
    Architecture("exaone4", "EXAONE 4", EXAONE4, TRANSFORMERS),
    Architecture("hunyuan-dense", "Hunyuan 0.5B to 7B", HUNYUAN, TRANSFORMERS),
    Architecture("hunyuan-moe", "Hunyuan A13B", HUNYUAN, TRANSFORMERS),
    Architecture("nemotron", "Nemotron 4, Minitron", NEMOTRON, TRANSFORMERS),
    Architecture("seed_oss", "Seed-OSS", SEED_OSS, TRANSFORMERS),
    Architecture("orion", "Orion", replace(NEOX, norm="layer"), UNVERIFIED),
    Architecture("openelm", "OpenELM", replace(NEOX, qk_norm="head"), UNVERIFIED),
    Architecture("dots1", "dots.llm1", replace(NEOX, qk_norm="head"), TRANSFORMERS),
    Architecture("pangu-embedded", "openPangu Embedded", replace(NEOX, biased=("q", "k", "v", "o")), UNVERIFIED),
    Architecture("codeshell", "CodeShell", CODESHELL, UNVERIFIED),
)
