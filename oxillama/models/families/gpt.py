"""GPT-2 and its descendants: layer norms with biases, one network without a gate after attention or beside it.

Radford et al., 2019 (GPT-2); Black et al., 2022 (GPT-NeoX); Li et al., 2023 (StarCoder); Lozhkov et al., 2024
(StarCoder 2); Almazrouei et al., 2023 (Falcon); Le Scao et al., 2022 (BLOOM); Tow et al., 2024 (StableLM 2);
MosaicML, 2023 (MPT); Inception and MBZUAI, 2025 (Jais 2).
"""

from dataclasses import replace

from oxillama.errors import UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Part, Traits

ALL: tuple[Part, ...] = ("q", "k", "v", "o", "ffn")

GPT2 = Traits(rope="none", norm="layer", positions=True, biased=ALL, activation="gelu", gated=False)
BLOOM = replace(GPT2, positions=False, embedding_norm=True, alibi=True)
NEOX = Traits(rope="neox", norm="layer", parallel="key", biased=ALL, activation="gelu_erf", gated=False,
              keys=frozenset({"use_parallel_residual"}))  # fmt: skip
FALCON = Traits(rope="neox", norm="layer", parallel="yes", ffn_norm=None, activation="gelu_erf", gated=False)
STARCODER2 = Traits(rope="neox", norm="layer", biased=ALL, activation="gelu", gated=False)
STABLELM = Traits(rope="neox", norm="layer", parallel="without_ffn_norm", qk_norm="each_head",
                  keys=frozenset({"use_parallel_residual"}))  # fmt: skip

MPT = Traits(rope="none", norm="layer_unbiased", alibi=True, activation="gelu_erf", gated=False,
             keys=frozenset({"attention.clamp_kqv", "attention.max_alibi_bias"}))  # fmt: skip
JAIS2 = replace(STARCODER2, activation="relu2")


def read_mpt(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Without slopes, positions would be learned ones."""
    key = f"{file.metadata.arch}.attention.max_alibi_bias"
    if not file.metadata.get_float(key, 0.0):
        raise UnsupportedModelError(f"{key} is 0 or missing; {file.metadata.arch} is only computed with ALiBi")
    return read_spec(file, traits)


register(
    Architecture("gpt2", "GPT-2", GPT2),
    Architecture("starcoder", "StarCoder", GPT2),
    Architecture("bloom", "BLOOM", BLOOM),
    Architecture("gptneox", "GPT-NeoX, Pythia", NEOX),
    Architecture("falcon", "Falcon 7B, 40B, 180B", FALCON),
    Architecture("starcoder2", "StarCoder 2", STARCODER2),
    Architecture("mpt", "MPT 7B, 30B", MPT, read_spec=read_mpt),
    Architecture("jais2", "Jais 2 8B, 70B", JAIS2),
    Architecture("stablelm", "StableLM, StableLM 2", STABLELM),
)
