"""RWKV-7: recurrent layers alone, in models of 0.1 to 13 billion parameters.

Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", 2025.
"""

from oxillama.models.registry import Architecture, register
from oxillama.models.rwkv import Rwkv, read_rwkv
from oxillama.models.traits import Traits

RWKV7 = Traits(rope="none", norm="layer", embedding_norm=True, recurrent=True, gated=False, activation="relu2")

register(Architecture("rwkv7", "RWKV-7 World, G1", RWKV7, build=Rwkv, read_spec=read_rwkv))
