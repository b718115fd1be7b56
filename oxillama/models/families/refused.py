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

PICTURES = "it reads pictures, and is of no use without the part that does, which files of language models lack"
SOUND = "it makes sound, which this package doesn't"
HIDDEN = "it drafts for another model from that model's hidden states, which drafts here don't get"
UNCHECKED = "no logits of its authors' code are there to check it against"
RWKV6 = "the time mix of RWKV-6, whose states change by other rules than RWKV-7's, is not computed"
for _names, _reason in (
    ("chameleon cogvlm deepseek2-ocr hunyuan_vl paddleocr", PICTURES),
    ("clip", "it is the part of another model that reads pictures: load that model's own file"),
    ("pockettts qwen3tts wavtokenizer-dec", SOUND),
    ("dflash eagle3 gemma4-assistant", HIDDEN),
    ("rwkv6 rwkv6qwen2", RWKV6),
    ("bailingmoe jais maincoder maple neo-bert plamo plamo3 plm spark2_5 talkie", UNCHECKED),
    ("arctic", "its dense networks beside experts that read a layer's input are not computed"),
    ("arwkv7", "RWKV-7's time mix beside Qwen's networks is not computed"),
    ("gptj", "no converter writes its files, so that the order of their tensors is not known"),
    ("graniteswitch", "its adapters, which the model chooses for each token, are not computed"),
    ("grovemoe", "its small experts, which groups of large ones share, are not computed"),
    ("plamo2", "its Mamba layers with norms of their own are not computed"),
):
    for _name in _names.split():
        refuse(_name, _reason)
