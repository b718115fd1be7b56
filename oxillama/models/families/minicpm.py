"""MiniCPM: Llama with scales on the embedding, on what branches add, and on logits. Hu et al., 2024."""

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.models.families.deepseek import build as build_latent
from oxillama.models.families.deepseek import read as read_latent
from oxillama.models.registry import UNVERIFIED, Architecture, register
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits

TUNED_WIDTH = 256  # at which the authors tuned learning rates; wider models divide their logits accordingly


def read_minicpm(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Files from before November 2024 have no scales: theirs are those of the models there were."""
    m, spec = file.metadata, read_spec(file, traits)

    def missing(name: str) -> bool:
        return f"{m.arch}.{name}" not in m

    scales = spec.scales
    if missing("embedding_scale"):
        scales = replace(scales, embedding=12.0)
    if missing("residual_scale"):
        scales = replace(scales, residual=1.4 / spec.n_layers**0.5)
    if missing("logit_scale"):
        scales = replace(scales, logits=TUNED_WIDTH / spec.n_embd)
    return replace(spec, scales=scales)


MINICPM = Traits(logit_scale="divides", keys=frozenset({"embedding_scale", "residual_scale", "logit_scale"}))

MINICPM3_EMBEDDING, MINICPM3_DEPTH = 12.0, 1.4  # of MiniCPM3-4B's configuration, which files don't hold


def read_minicpm3(file: GGUFFile, traits: Traits) -> ModelSpec:
    """DeepSeek's latent attention under MiniCPM's scales."""
    spec = read_latent(file, traits)
    residual, logits = MINICPM3_DEPTH / spec.n_layers**0.5, TUNED_WIDTH / spec.n_embd
    return replace(spec, scales=replace(spec.scales, embedding=MINICPM3_EMBEDDING, residual=residual, logits=logits))


register(
    Architecture("minicpm3", "MiniCPM3", Traits(rope="neox"), build=build_latent, read_spec=read_minicpm3),
    Architecture("minicpm", "MiniCPM 1, 2, 4", MINICPM, UNVERIFIED, read_spec=read_minicpm),
)
