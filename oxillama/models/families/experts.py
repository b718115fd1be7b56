"""Mixtures of experts that are no relatives of a dense model: DBRX, gpt-oss.

Databricks, "Introducing DBRX", 2024; OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025.
"""

from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Traits, all_but_each

DBRX = Traits(rope="neox", norm="layer_unbiased", ffn_norm="attn_output_norm", keys=frozenset({"attention.clamp_kqv"}))
GPT_OSS = Traits(
    rope="neox", ffn_norm="post_attention_norm", windows=all_but_each(2), biased=("q", "k", "v", "o"), sinks=True
)

register(
    Architecture("dbrx", "DBRX", DBRX),
    Architecture("gpt-oss", "gpt-oss", GPT_OSS),
)
