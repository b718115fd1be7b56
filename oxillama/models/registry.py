"""Architectures by the name that files give them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from oxillama.errors import UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.gguf.source import FileSource
from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows
from oxillama.models.adaptable import Adaptable
from oxillama.models.classifier import Classifier, read_classifier
from oxillama.models.decoder import Decoder
from oxillama.models.families import FAMILIES
from oxillama.models.layers import LayerSlabs
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


class Model(Protocol):
    """Interface of an architecture for the engine."""

    spec: ModelSpec
    n_weight_bytes: int  # held beside the file
    arithmetic: str  # what the bits depend on, beside the file: see `Weights.arithmetic`
    mapped: Sequence[FileSource]  # files whose bytes are multiplied by where they are mapped
    adaptable: Mapping[str, Adaptable]  # by the tensor's name
    classifier: Classifier | None  # what makes scores for labels of hidden states

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model, after the final norm: Rows [batch.outputs.n_rows, n_embd].

        ``states`` has, for each layer, the slabs of what ``spec.states`` says that it remembers.
        """

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Scores over the vocabulary of each row of a batch: Rows [hidden.n, n_vocab]."""


Build = Callable[[ModelSpec, Traits, Weights, int], Model]
ReadSpec = Callable[[GGUFFile, Traits], ModelSpec]

# How it is known that an architecture is computed right.
REFERENCE = "transformers, llama.cpp"
TRANSFORMERS = "transformers"
UNVERIFIED = "not verified"


@dataclass(frozen=True)
class Architecture:
    """A value of ``general.architecture``: what people call the models, and how files of it are read and built.

    verified: what its output was compared with, beside this project's own slow twin.
    """

    name: str
    models: str
    traits: Traits
    verified: str = REFERENCE
    build: Build = Decoder
    read_spec: ReadSpec = read_spec

    def read(self, file: GGUFFile) -> ModelSpec:
        return self.read_spec(file, self.traits)


_architectures: dict[str, Architecture] = {}
_refused: dict[str, str] = {}


def register(*architectures: Architecture) -> None:
    """Makes architectures loadable."""
    _architectures.update({architecture.name: architecture for architecture in architectures})


def refuse(name: str, reason: str) -> None:
    """An architecture that is known and not computed: its files are refused with the reason."""
    _refused[name] = reason


def all_architectures() -> dict[str, Architecture]:
    """The architectures that can be loaded, by name."""
    for family in FAMILIES:
        _import_family(family)
    return dict(sorted(_architectures.items()))


def _import_family(family: str) -> None:
    importlib.import_module(f"oxillama.models.families.{family}")


def refused_architectures() -> dict[str, str]:
    """The architectures that are known and refused, with the reasons."""
    all_architectures()
    return dict(sorted(_refused.items()))


def architectures() -> tuple[str, ...]:
    """Names of the architectures that can be loaded."""
    return tuple(all_architectures())


def read_model_spec(file: GGUFFile) -> ModelSpec:
    """Hyper-parameters from a file's metadata, as its architecture takes them.

    Raises UnsupportedModelError for an architecture that we don't have, LoadError that names the key and the values
    that contradict each other.
    """
    return find_architecture(file.metadata.arch).read(file)


def find_architecture(name: str) -> Architecture:
    """Raises UnsupportedModelError, which names it, unless files of this architecture can be loaded."""
    for family, names in FAMILIES.items():  # the others would take longer than the rest of loading a small model
        if name in names.split():
            _import_family(family)
    if name in _architectures:
        return _architectures[name]
    known = all_architectures()
    if name in known:
        return known[name]
    if name in _refused:
        raise UnsupportedModelError(f"architecture {name!r} is not supported: {_refused[name]}")
    raise UnsupportedModelError(f"architecture {name!r} is not supported; supported: {', '.join(known)}")


def load_model(
    file: GGUFFile,
    *,
    repack: bool = True,
    portable: bool = False,
    num_threads: int = 1,
    context_size: int | None = None,
    progress: Callable[[int], None] | None = None,
    place: Callable[[Weights], Sequence[FileSource]] | None = None,
) -> Model:
    """Build a file's model.

    ``context_size`` (default: what the model was trained for) chooses between the short and long factors of LongRoPE.
    Raises UnsupportedModelError for an architecture or tensor format we don't have, LoadError and its children for
    metadata and tensors that are missing or don't fit each other. ``progress`` gets the bytes of each matrix repacked.
    ``place`` decides where weights are, instead of ``repack``; it returns the files that stay mapped. ``portable`` as
    in `EngineConfig`.
    """
    architecture = find_architecture(file.metadata.arch)
    spec = architecture.read(file)
    weights = Weights(file, portable=portable)
    model = architecture.build(spec, architecture.traits, weights, context_size or spec.context_length)
    n_blocks = file.metadata.get_int(f"{spec.arch}.block_count")
    for i in range(n_blocks - file.metadata.get_int(f"{spec.arch}.nextn_predict_layers", 0), n_blocks):
        weights.leave_out(f"blk.{i}.")  # see read_spec
    model.classifier = read_classifier(spec, weights)
    weights.check_all_used()
    if place is not None:
        model.mapped = place(weights)
    elif repack:
        weights.repack(num_threads, progress)
    else:
        model.mapped = weights.sources
    model.n_weight_bytes, model.adaptable, model.arithmetic = weights.n_bytes, weights.adaptable, weights.arithmetic
    return model
