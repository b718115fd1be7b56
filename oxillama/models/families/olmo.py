"""OLMo: Groeneveld et al., 2024 (norms without weights); "2 OLMo 2 Furious", 2025 (norms after the branches);
"OLMo 3", 2025 (windows, and positions stretched only where there is none).
"""

from oxillama.models.registry import TRANSFORMERS, Architecture, register
from oxillama.models.traits import Traits, all_but_each

OLMO = Traits(norm="layer_plain", keys=frozenset({"attention.clamp_kqv"}))
OLMO2 = Traits(  # with a window: OLMo 3
    rope="neox", pre_norms=False, post_norms=True, qk_norm="whole", windows=all_but_each(4), window_base=0.0
)

register(
    Architecture("olmo", "OLMo 1", OLMO),
    Architecture("olmo2", "OLMo 2, 3", OLMO2),
    Architecture("olmoe", "OLMoE", Traits(rope="neox", qk_norm="whole"), TRANSFORMERS),
)
