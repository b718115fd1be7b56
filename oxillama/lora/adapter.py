"""Adapter as its file has it, before it is bound to a model: `Lora`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import blake3

from oxillama.errors import ConfigError, LoraError, ModelNotFoundError, PickleError
from oxillama.lora.factors import Change
from oxillama.lora.gguf_adapter import read_gguf
from oxillama.models import ModelSpec

__all__ = ["Lora", "as_lora"]


class Lora:
    """A low-rank adapter: Hu et al., "LoRA", 2021. `Lora.load` reads one; an engine binds it to its model.

    path: of its file; place: the same, absolute. arch: the architecture that its metadata name; None without it (PEFT).
    names: the tensors (GGUF) or modules (PEFT) that it changes. rank: the highest of their ranks. alpha: of its
    metadata, for modules without an alpha of their own (PEFT's alpha_pattern). digest: blake3 of all that it computes
    with, in hexadecimal: equal digests, equal results.
    """

    def __init__(self, path: Path, arch: str | None, alpha: float, changes: Mapping[str, Change]) -> None:
        self.path, self.arch, self.alpha = path, arch, alpha
        self.place = os.path.abspath(path)
        self._changes = dict(changes)
        self.digest = digest_of(arch, self._changes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a GGUF file as llama.cpp's converter writes it, or a folder that Hugging Face PEFT wrote.

        Raises LoadError and its children: ModelNotFoundError, GGUFError or LoraError for a damaged file (NaN, ranks
        out of range, factors that don't fit each other), MissingKeyError without alpha, UnsupportedModelError for other
        methods than LoRA (DoRA and others, by their names). ConfigError if `path` is no path.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"path must be that of an adapter, not {type(path).__name__}")
        if not os.fspath(path):
            raise ConfigError("path is empty: give a GGUF file, or the folder of a PEFT adapter")
        place = Path(os.fspath(path))
        try:
            folder = place.is_dir()
        except (OSError, ValueError) as e:
            raise ModelNotFoundError(f"{str(place)!r}: the adapter can't be read: {e}") from e
        if folder:
            from oxillama.lora.peft import read_peft

            return cls(place, None, *read_peft(place))
        if place.suffix in (".safetensors", ".bin", ".json"):
            raise LoraError(f"{place}: of a PEFT adapter, the folder is needed that holds this and its configuration")
        return cls(place, *read_gguf(place))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._changes)

    @property
    def rank(self) -> int:
        return max(change.rank for change in self._changes.values())

    def changes(self, spec: ModelSpec) -> dict[str, Change]:
        """The change that is added to each tensor of a model.

        Raises LoraError if the adapter is for another architecture or has modules that the model lacks,
        UnsupportedModelError if the names in its folder are not known for this architecture.
        """
        if self.arch is None:
            from oxillama.lora.peft_names import to_gguf

            return to_gguf(self._changes, spec)
        if self.arch != spec.arch:
            raise LoraError(f"{self.path}: the adapter is for architecture {self.arch}, the model is {spec.arch}")
        return dict(self._changes)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened_lora, (self.place, self.digest)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<Lora {self.path}, {len(self._changes)} tensors, rank {self.rank}, alpha {self.alpha:g}>"


def as_lora(given: str | os.PathLike[str] | Lora) -> Lora:
    """The adapter, loaded if it is a path. Raises what `Lora.load` raises."""
    return given if isinstance(given, Lora) else Lora.load(given)


def reopened_lora(place: str, digest: str) -> Lora:
    """The adapter of a pickle. Raises what `Lora.load` raises, PickleError if the file has another adapter now."""
    lora = Lora.load(place)
    if lora.digest != digest:
        raise PickleError(f"{place}: this is not the adapter that was pickled: give every process the same file")
    return lora


def digest_of(arch: str | None, changes: Mapping[str, Change]) -> str:
    """Digest of names, shapes, scales and values, independent of the file's types."""
    h = blake3.blake3(repr(arch).encode())
    for name in sorted(changes):
        c = changes[name]
        h.update(repr((name, c.a.shape, c.b.shape, c.scale.hex(), c.lookups)).encode())
        h.update(c.a.tobytes())
        h.update(c.b.tobytes())
    return h.hexdigest()
