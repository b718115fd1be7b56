"""Verdict of a file: whether its model can be computed, by its header alone."""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile
from oxillama.models.registry import UNVERIFIED, find_architecture, read_model_spec
from oxillama.models.spec import ModelSpec
from oxillama.sampling.file_defaults import read_sampling_defaults

__all__ = ["Verdict", "verdict_of"]


@dataclass(frozen=True)
class Verdict:
    """Whether a model runs. why: why not. verified: what its architecture was compared with. spec: its
    hyper-parameters, where they can be read."""

    runs: bool
    why: str = ""
    verified: str = ""
    spec: ModelSpec | None = None

    def __str__(self) -> str:
        if not self.runs:
            return f"no: {self.why}"
        return f"yes, {self.verified if self.verified == UNVERIFIED else f'verified with {self.verified}'}"


def verdict_of(file: GGUFFile) -> Verdict:
    """Whether the model of an open file runs."""
    spec = None
    try:
        spec = read_model_spec(file)
        read_sampling_defaults(file.metadata, spec.context_length)
        return Verdict(True, "", find_architecture(file.metadata.arch).verified, spec)
    except LoadError as error:
        return Verdict(False, str(error), "", spec)
