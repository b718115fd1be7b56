"""Architectures by the name that files give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from oxillama.errors import UnsupportedModelError
from oxillama.gguf import GGUFFile
from oxillama.kernels.attention import KvSlab
from oxillama.kernels.batch import Batch
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights

LayerSlabs = tuple[KvSlab | RecurrentSlab, ...]


class Model(Protocol):
    """What the engine needs of an architecture."""

    spec: ModelSpec
    n_weight_bytes: int

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model, after the final norm: Rows [batch.outputs.n_rows, n_embd].

        `states` are the slabs of each layer, of the shapes that `spec.states` asks for.
        """

    def logits(self, hidden: Rows) -> Rows:
        """Scores over the vocabulary of each row: Rows [hidden.n, n_vocab]."""


Loader = Callable[[ModelSpec, Weights, int], Model]
_loaders: dict[str, Loader] = {}


def register(*archs: str) -> Callable[[Loader], Loader]:
    """Class decorator: this family loads files of these ``general.architecture`` names."""

    def add(loader: Loader) -> Loader:
        _loaders.update(dict.fromkeys(archs, loader))
        return loader

    return add


def architectures() -> tuple[str, ...]:
    """Names of the architectures that can be loaded."""
    from oxillama.models import llama  # noqa: F401  (registers itself)

    return tuple(sorted(_loaders))


def check_architecture(arch: str) -> None:
    """Raises UnsupportedModelError, which names `arch`, unless files of this architecture can be loaded."""
    if arch not in architectures():
        raise UnsupportedModelError(f"architecture {arch!r} is not supported; supported: {', '.join(architectures())}")


def load_model(
    file: GGUFFile,
    *,
    repack: bool = True,
    num_threads: int = 1,
    context_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Model:
    """Build a file's model.

    ``context_size`` (default: what the model was trained for) chooses between the short and long factors of LongRoPE.
    Raises UnsupportedModelError for an architecture or tensor format we don't have, LoadError and its children for
    metadata and tensors that are missing or don't fit each other.
    """
    arch = file.metadata.arch
    check_architecture(arch)
    spec = ModelSpec.read(file)
    weights = Weights(file, repack=repack, num_threads=num_threads, progress=progress)
    model = _loaders[arch](spec, weights, context_size or spec.context_length)
    weights.check_all_used()
    return model
