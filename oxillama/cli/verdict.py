"""Verdict of a file: whether its model can be computed, and what it is made for, by its header alone."""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.core.embedding import read_pooling
from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile
from oxillama.models.classifier import has_classifier
from oxillama.models.registry import UNVERIFIED, find_architecture, read_model_spec
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights
from oxillama.sampling.file_defaults import read_sampling_defaults

__all__ = ["Verdict", "purpose", "verdict_of"]


@dataclass(frozen=True)
class Verdict:
    """Whether a model runs. why: why not. verified: what its architecture was compared with. made_for: its purpose.
    spec: its hyper-parameters, where they can be read."""

    runs: bool
    why: str = ""
    verified: str = ""
    made_for: str = ""
    spec: ModelSpec | None = None

    def __str__(self) -> str:
        if not self.runs:
            return f"no: {self.why}"
        return f"yes, {self.verified if self.verified == UNVERIFIED else f'verified with {self.verified}'}"


def verdict_of(file: GGUFFile) -> Verdict:
    """Whether the model of an open file runs."""
    spec = None
    try:
        made_for, spec = purpose(file), read_model_spec(file)
        read_sampling_defaults(file.metadata, spec.context_length)
        return Verdict(True, "", find_architecture(file.metadata.arch).verified, made_for, spec)
    except LoadError as error:
        return Verdict(False, str(error), spec=spec)


def purpose(file: GGUFFile) -> str:
    """The purpose of a file's model: text, embeddings, or scores; and the commands for it."""
    spec, metadata = read_model_spec(file), file.metadata
    if has_classifier(spec, Weights(file)):
        return "ranking documents (oxillama rerank)"
    if spec.denoises:
        return "denoising texts (oxillama diffuse)"
    if not spec.causal or f"{metadata.arch}.pooling_type" in metadata:
        return f"embedding texts (oxillama embed), pooling {read_pooling(metadata)}"
    if spec.decoder_start is not None:
        return "generating text from a prompt that an encoder reads (oxillama run), embedding texts (oxillama embed)"
    return "generating text (oxillama run, chat)"
