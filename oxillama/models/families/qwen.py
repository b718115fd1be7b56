"""Qwen: Yang et al., "Qwen2 Technical Report", 2024; "Qwen3 Technical Report", 2025."""

from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Traits

QWEN2 = Traits(rope="neox", biased=("q", "k", "v"))
QWEN3 = Traits(rope="neox", qk_norm="head")

register(
    Architecture("qwen2", "Qwen 1.5, Qwen 2, Qwen 2.5", QWEN2),
    Architecture("qwen2moe", "Qwen 1.5 MoE, Qwen 2 MoE", QWEN2),
    Architecture("qwen3", "Qwen 3", QWEN3),
    Architecture("qwen3moe", "Qwen 3 MoE", QWEN3),
)
