"""Gemma: "Gemma: Open Models Based on Gemini Research and Technology", 2024; Gemma 2, 2024; Gemma 3, 2025.

The files' RMS norm weights have their "1 +" added already.
"""

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.models.bidirectional import Bidirectional, read_bidirectional
from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits, all_but_each


def attention_scale(spec: ModelSpec) -> float:
    """1 / sqrt(head_dim), but for the models of 27B: 1 / sqrt(n_embd / n_heads). Metadata don't tell them apart."""
    large = spec.n_layers == {"gemma2": 46, "gemma3": 62}[spec.arch]
    return float((spec.n_embd / spec.n_heads if large else spec.head_dim) ** -0.5)


def read_gemma2(file: GGUFFile, traits: Traits) -> ModelSpec:
    """The first files have no keys for the caps, which all models have."""
    m, spec = file.metadata, read_spec(file, traits)
    scales = spec.scales
    if f"{m.arch}.attn_logit_softcapping" not in m:
        scales = replace(scales, attention_cap=50.0)
    if f"{m.arch}.final_logit_softcapping" not in m:
        scales = replace(scales, logit_cap=30.0)
    return replace(spec, scales=scales)


GEMMA = Traits(rope="neox", activation="gelu", embedding_scale="sqrt")
GEMMA2 = replace(
    GEMMA,
    post_norms=True,
    windows=all_but_each(2),
    attention_scale=attention_scale,
    keys=frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
)
GEMMA3 = replace(
    GEMMA2, windows=all_but_each(6), window_base=10000.0, qk_norm="head", keys=frozenset({"final_logit_softcapping"})
)
EMBEDDING = replace(GEMMA3, attention_scale=None, causal=False, keys=frozenset())

register(
    Architecture("gemma", "Gemma 1, CodeGemma", GEMMA),
    Architecture("gemma2", "Gemma 2", GEMMA2, read_spec=read_gemma2),
    Architecture("gemma3", "Gemma 3 (text)", GEMMA3),
    Architecture("gemma-embedding", "EmbeddingGemma", EMBEDDING, TRANSFORMERS, Bidirectional, read_bidirectional),
)
