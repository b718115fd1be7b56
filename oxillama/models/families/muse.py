"""Muse Glimmer: Meta, 2026. Gated attention, embeddings and branches normalised, scaled logits with a cap."""

from oxillama.models.families.sparse import mixing
from oxillama.models.gated_attention import GatedAttention
from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Traits, all_but_each

MUSE = Traits(
    embedding_norm="plain",
    post_norms=True,
    post_epsilon=1e-8,
    qk_norm="head",
    windows=all_but_each(4),
    rotates="windows",
    gate="sigmoid",
    logit_scale="multiplies",
    keys=frozenset({"logit_scale", "final_logit_softcapping"}),
)

register(Architecture("muse-glimmer", "Muse Glimmer", MUSE, build=mixing(GatedAttention)))
