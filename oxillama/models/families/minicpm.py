"""MiniCPM: Llama with scales on the embedding, on what branches add, and on logits. Hu et al., 2024."""

from dataclasses import replace

from oxillama.gguf import GGUFFile, Metadata
from oxillama.models.families.deepseek import build as build_latent
from oxillama.models.families.deepseek import read as read_latent
from oxillama.models.registry import UNVERIFIED, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits

TUNED_WIDTH = 256  # at which the authors tuned learning rates; wider models divide their logits accordingly


def read_minicpm(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Files from before November 2024 have no scales: theirs are those of the models there were."""
    return with_scales(read_spec(file, traits), file.metadata)


def read_minicpm3(file: GGUFFile, traits: Traits) -> ModelSpec:
    """DeepSeek's latent attention under the same scales, which are MiniCPM3-4B's too, and which no file holds."""
    return with_scales(read_latent(file, traits), file.metadata)


def with_scales(spec: ModelSpec, m: Metadata) -> ModelSpec:
    """The scales of 2024 for those that metadata don't say."""
    scales = spec.scales

    def missing(name: str) -> bool:
        return f"{m.arch}.{name}" not in m

    if missing("embedding_scale"):
        scales = replace(scales, embedding=12.0)
    if missing("residual_scale"):
        scales = replace(scales, residual=1.4 / spec.n_layers**0.5)
    if missing("logit_scale"):
        scales = replace(scales, logits=TUNED_WIDTH / spec.n_embd)
    return replace(spec, scales=scales)


MINICPM = Traits(logit_scale="divides", keys=frozenset({"embedding_scale", "residual_scale", "logit_scale"}))

register(
    Architecture("minicpm3", "MiniCPM3", replace(MINICPM, rope="neox"), build=build_latent, read_spec=read_minicpm3),
    Architecture("minicpm", "MiniCPM 1, 2, 4", MINICPM, UNVERIFIED, read_spec=read_minicpm),
)
