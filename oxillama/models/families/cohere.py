"""Command R: layer norms without bias, both branches from one norm, scaled logits.

Cohere, "Command R", 2024; "Command A", 2025: three of four layers have a window, the fourth sees all and has no
positions.
"""

from dataclasses import replace

from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Traits, all_but_each

COMMAND_R = Traits(
    norm="layer_unbiased",
    ffn_norm=None,
    parallel="yes",
    qk_norm="each_head",
    logit_scale="multiplies",
    keys=frozenset({"logit_scale"}),
)
COHERE2 = replace(COMMAND_R, qk_norm="none", windows=all_but_each(4), rotates=all_but_each(4))

register(
    Architecture("command-r", "Command R, Command R+, Aya", COMMAND_R),
    Architecture("cohere2", "Command R7B, Command A", COHERE2),
)
