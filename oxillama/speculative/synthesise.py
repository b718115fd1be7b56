"""A draft made of the target itself: its weights in fewer bits, or some of its layers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from pathlib import Path
from typing import overload

import oxillama.gguf as gguf
from oxillama.config import RopeConfig
from oxillama.engine import Engine
from oxillama.engine.loading import shipped_model
from oxillama.errors import ConfigError, UnsupportedModelError
from oxillama.gguf import GGUFFile, GGUFWriter
from oxillama.gguf.mixes import file_type
from oxillama.gguf.plans import TensorPlan, plan_tensors
from oxillama.gguf.recoding import add_recoded, check_destination, check_threads, report_fallbacks
from oxillama.models import ModelSpec, load_model
from oxillama.models.registry import find_architecture
from oxillama.speculative.pruning import chosen_layers, pruned

__all__ = ["Source", "opened", "synthesise_draft"]

Source = Engine | str | os.PathLike[str] | bytes | bytearray | memoryview


@overload
def synthesise_draft(
    target: Source,
    type: str | None = "Q2_K",
    layers: int | SequenceOf[int] | None = None,
    *,
    destination: None = None,
    num_threads: int | None = None,
) -> bytes: ...


@overload
def synthesise_draft(
    target: Source,
    type: str | None = "Q2_K",
    layers: int | SequenceOf[int] | None = None,
    *,
    destination: str | os.PathLike[str],
    num_threads: int | None = None,
) -> Path: ...


def synthesise_draft(
    target: Source,
    type: str | None = "Q2_K",
    layers: int | SequenceOf[int] | None = None,
    *,
    destination: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
) -> bytes | Path:
    """A draft model of the target's own weights: the bytes of a GGUF file, or the path that it was written to.

    target: an engine, or the path or bytes of its model. Adapters are no part of the draft.
    type: the file type that matrices are quantised to (`gguf.quantize_file`), whatever they are in; those that would
        become larger stay as they are. None: all do.
    layers: how many to keep, evenly spread from the first to the last, or the indices of those to keep; None: all.
        A model that isn't trained for it guesses much worse with every layer that it lacks.
    destination: a file to write instead. num_threads: of quantising; by default one per core.

    Raises ConfigError for arguments out of range and for a draft that would not be smaller than the target, QuantError
    for a type that can't be written, UnsupportedModelError for an encoder and for layers that can't be left out,
    LoadError and its children for a bad model.
    """
    threads = check_threads(num_threads)
    with opened(target) as file:
        spec = check_generates(ModelSpec.read(file))
        kept = chosen_layers(spec, find_architecture(spec.arch).traits, layers)
        seen = pruned(file, spec, kept)
        load_model(seen, repack=False)  # nothing is missing, misshapen or left over
        plans = smaller_plans(seen, type)
        check_smaller(file, plans)
        if destination is not None:
            check_destination(file, destination)
        writer = recoded(seen, plans, type, threads, destination)
        if destination is None:
            return writer.to_bytes()
        writer.write()
        return Path(destination)


@contextmanager
def opened(source: Source) -> Iterator[GGUFFile]:
    """The file that an engine was loaded from, as it was read then; or that of a path or of bytes.

    Raises ConfigError for an engine whose file isn't known or has changed.
    """
    if not isinstance(source, Engine):
        with gguf.open(source) as file:
            yield file
        return
    config = source.config
    path = shipped_model() if config.model_path is None else config.model_path
    with gguf.open(path, overrides=config.overrides) as file:
        if isinstance(config.rope, RopeConfig):
            file.override(config.rope.metadata(file.metadata.arch))
        if ModelSpec.read(file) != source.model_config:
            raise ConfigError("the engine's model is not the one that its model_path holds: give the path or bytes")
        yield file


def check_generates(spec: ModelSpec) -> ModelSpec:
    if not spec.causal:
        raise UnsupportedModelError(f"architecture {spec.arch} makes embeddings: there is nothing to draft for it")
    return spec


def smaller_plans(file: GGUFFile, type: str | None) -> list[TensorPlan]:
    """What becomes of each tensor; none gets more bits than it has."""
    if type is None:
        return [TensorPlan(t.name, t.shape, t.type, t.type, None) for t in file.tensors.values()]
    planned = plan_tensors(file.tensors, file.metadata, file_type(type), tensor_types={})
    return [p if p.nbytes(p.after) < p.nbytes(p.before) else p._replace(after=p.before, fallback=None) for p in planned]


def check_smaller(file: GGUFFile, plans: list[TensorPlan]) -> None:
    before, after = sum(t.nbytes for t in file.tensors.values()), sum(p.nbytes(p.after) for p in plans)
    if after >= before:
        raise ConfigError(
            f"the draft would have {after} bytes of weights, its target has {before}: give a type of fewer bits, or "
            "fewer layers"
        )


def recoded(
    file: GGUFFile,
    plans: list[TensorPlan],
    type: str | None,
    num_threads: int,
    destination: str | os.PathLike[str] | None,
) -> GGUFWriter:
    report_fallbacks(plans)
    writer = GGUFWriter(destination, alignment=file.alignment, version=file.version)
    name = file.metadata.get_str("general.name", "")
    metadata = file.metadata.replaced({"general.name": f"{name} (draft)".strip()})
    kind = None if type is None else file_type(type)
    add_recoded(writer, metadata, file.tensors, kind, plans, num_threads)
    return writer
