"""Encoders: BERT and its descendants.

Devlin et al., "BERT", 2018; Nussbaum et al., "Nomic Embed", 2024, and Nussbaum and Duderstadt, "Training Sparse Mixture
of Experts Text Embedding Models", 2025; Guenther et al., "Jina Embeddings 2", 2023; Sturua et al.,
"jina-embeddings-v3", 2024; Warner et al., "Smarter, Better, Faster, Longer", 2024 (ModernBERT); Boizard et al.,
"EuroBERT", 2025.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.errors import UnsupportedModelError
from oxillama.models.bidirectional import Bidirectional, read_bidirectional
from oxillama.models.encoder import Encoder, read_encoder_spec
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Activation, Part, Traits, all_but_first
from oxillama.models.weights import Weights

ALL: tuple[Part, ...] = ("q", "k", "v", "o", "ffn")
ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu_erf", "geglu": "gelu_erf", "silu": "silu", "swiglu": "silu"}


def build_modern(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Bidirectional:
    """The activation is metadata's, and GELU where they don't say."""
    key = f"{spec.arch}.hidden_activation"
    name = w.metadata.get_str(key, "gelu")
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"{key} is {name!r}, which is not supported; supported: {', '.join(ACTIVATIONS)}")
    return Bidirectional(spec, replace(traits, activation=ACTIVATIONS[name]), w, context_size)


BERT = Traits(rope="none", norm="layer", pre_norms=False, positions=True, biased=ALL, activation="gelu_erf",
              gated=False, causal=False)  # fmt: skip
NOMIC = Traits(rope="neox", norm="layer", pre_norms=False, causal=False)
ROTATED = replace(BERT, rope="neox", positions=False)
JINA2 = Traits(rope="none", norm="layer", pre_norms=False, alibi=True, biased=("q", "k", "v", "o"),
               activation="gelu_erf", causal=False)  # fmt: skip
MODERN = Traits(
    rope="neox",
    norm="layer_unbiased",
    pre_norms="after_first",
    embedding_norm=True,
    activation="gelu_erf",
    windows=all_but_first(3),
    whole_first=True,
    window_base=10000.0,
    causal=False,
    keys=frozenset({"hidden_activation"}),
)
EURO = Traits(rope="neox", causal=False)

register(
    Architecture("bert", "BERT, BGE, E5, MiniLM", BERT, build=Encoder, read_spec=read_encoder_spec),
    Architecture("nomic-bert", "Nomic Embed v1", NOMIC, TRANSFORMERS, Encoder, read_encoder_spec),
    Architecture("nomic-bert-moe", "Nomic Embed v2", ROTATED, build=Encoder, read_spec=read_encoder_spec),
    Architecture("jina-bert-v2", "Jina Embeddings v2", JINA2, build=Encoder, read_spec=read_encoder_spec),
    Architecture("jina-bert-v3", "Jina Embeddings v3", ROTATED, build=Encoder, read_spec=read_encoder_spec),
    Architecture(
        "modern-bert", "ModernBERT, Granite Embedding R2", MODERN, build=build_modern, read_spec=read_bidirectional
    ),
    Architecture("eurobert", "EuroBERT", EURO, build=Bidirectional, read_spec=read_bidirectional),
    Architecture(
        "llama-embed",
        "Llama Embed Nemotron",
        Traits(causal=False),
        build=Bidirectional,
        read_spec=read_bidirectional,
    ),
)
