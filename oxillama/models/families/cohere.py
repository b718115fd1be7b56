"""Command R: layer norms without bias, both branches from one norm, scaled logits.

Cohere, "Command R", 2024; "Command A", 2025: three of four layers have a window, the fourth sees all and has no
positions. North Mini Code, 2026: the same with experts, from a dense layer or two on that always rotate.
"""

from dataclasses import replace

from oxillama.models.decoder import Decoder
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits, all_but_each, all_but_first
from oxillama.models.weights import Weights

COMMAND_R = Traits(
    norm="layer_unbiased",
    ffn_norm=None,
    parallel="yes",
    qk_norm="each_head",
    logit_scale="multiplies",
    keys=frozenset({"logit_scale"}),
)
COHERE2 = replace(COMMAND_R, qk_norm="none", windows=all_but_each(4), rotates=all_but_each(4))

COHERE2MOE = replace(
    COHERE2, windows=all_but_first(4), whole_first=True, rotates="windows_and_dense", either_epsilon=True
)


def build_moe(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    """Norms are RMS norms where metadata have an epsilon of such ones."""
    if f"{spec.arch}.attention.layer_norm_rms_epsilon" in w.metadata:
        traits = replace(traits, norm="rms")
    return Decoder(spec, traits, w, context_size)


register(
    Architecture("command-r", "Command R, Command R+, Aya", COMMAND_R),
    Architecture("cohere2", "Command R7B, Command A", COHERE2),
    Architecture("cohere2moe", "North Mini Code", COHERE2MOE, build=build_moe),
)
