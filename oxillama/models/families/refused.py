"""Architectures that are known and refused, because what would be computed is not what was published."""

from oxillama.models.registry import refuse

refuse(
    "deepseek4",
    "DeepSeek-V4 needs hyper-connections (several residual streams that each layer mixes anew), attention that joins a "
    "window with keys compressed from many, and experts chosen by token in the first layers, none of which is computed",
)
refuse(
    "dots3note",
    "dots 3 needs latent attention within windows beside layers whose index chooses keys, which is not computed",
)
refuse(
    "glm5-next",
    "GLM-5.3 needs hyper-connections (several residual streams that each layer mixes anew) and an index of pooled keys "
    "between layers of delta attention, which are not computed",
)
refuse(
    "grok",
    "its authors' code caps router scores, leaves the chosen experts' weights unnormalised and sharpens attention with "
    "distance, of which files say less than is needed",
)
refuse(
    "hy_v4",
    "Hy4 needs hyper-connections (several residual streams that each layer mixes anew), whose order of operations here "
    "is not known well enough to give its authors' logits",
)
refuse(
    "kimi-k3",
    "Kimi K3 needs residuals of attention across layers, gates on latent attention and an activation of its own "
    "(SiTU), which are not computed",
)
refuse(
    "qwen4exp",
    "Qwen 3.8 needs hyper-connections (several residual streams that each layer mixes anew), attention over blocks "
    "that are chosen by the mean of their keys, and a table of hashed n-grams, none of which is computed",
)
