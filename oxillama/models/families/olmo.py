"""OLMo: Groeneveld et al., 2024 (norms without weights); "2 OLMo 2 Furious", 2025 (norms after the branches)."""

from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.traits import Traits

OLMO = Traits(norm="layer_plain", keys=frozenset({"attention.clamp_kqv"}))
OLMO2 = Traits(rope="neox", pre_norms=False, post_norms=True, qk_norm="whole")

register(
    Architecture("olmo", "OLMo 1", OLMO),
    Architecture("olmo2", "OLMo 2", OLMO2),
    Architecture("olmoe", "OLMoE", Traits(rope="neox", qk_norm="whole"), TRANSFORMERS),
)
