"""Synthesis of a draft model from a model's own weights."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast, overload

import oxillama.gguf as gguf
from oxillama._util.checks import check_int
from oxillama._util.places import Place
from oxillama.config import RopeConfig
from oxillama.core.context import LoadedEngine, context_of
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, UnsupportedModelError
from oxillama.gguf import GGUFArray, GGUFFile, GGUFWriter, Metadata, TensorInfo
from oxillama.gguf.mixes import file_type
from oxillama.gguf.plans import TensorPlan, plan_tensors
from oxillama.gguf.recoding import add_recoded, check_destination, check_threads, report_fallbacks
from oxillama.models import ModelSpec, load_model
from oxillama.models.decoder import rotation_of
from oxillama.models.delta_spec import RECURRENT_LAYERS
from oxillama.models.indexed import CHOOSING_LAYERS
from oxillama.models.registry import find_architecture, read_model_spec
from oxillama.models.traits import Traits

__all__ = [
    "Source",
    "chosen_layers",
    "opened",
    "pruned",
    "synthesise_draft",
]

# Metadata keys that may hold a value for each layer.
PER_LAYER = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_feed_forward_length",
)
BOUNDS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")  # also one for each layer, but not whole numbers
ACTIVATION = tuple(f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps"))  # likewise, of no architecture
WINDOWS = "attention.sliding_window_pattern"
ROTATING = "attention.rope_pattern"
LAYER = re.compile(r"blk\.(\d+)\.")


def chosen_layers(spec: ModelSpec, traits: Traits, layers: int | SequenceOf[int] | None) -> tuple[int, ...]:
    """Indices of the layers to keep: all, the given ones, or a number of them, evenly spread from first to last.

    Raises ConfigError for a number or for indices that the model doesn't have.
    """
    n = spec.n_layers
    if layers is None:
        return tuple(range(n))
    if isinstance(layers, int) and not isinstance(layers, bool):
        return with_choosers(spec, spread(n, check_int("layers", layers, 1, n), rotation_rule(traits)))
    if isinstance(layers, str | bytes) or not isinstance(layers, SequenceOf):
        raise ConfigError(f"layers must be a number of layers or a list of indices, not {layers!r}")
    found = [check_int(f"layers[{i}]", layer, 0, n - 1) for i, layer in enumerate(layers)]
    if not found or any(a >= b for a, b in pairwise(found)):
        raise ConfigError(f"layers must be indices from 0 to {n - 1} in rising order, at least one, not {found}")
    return tuple(found)


def rotation_rule(traits: Traits) -> Callable[[int], bool]:
    """Predicate of the layer indices with rotation, where that depends on the index alone, not on metadata."""
    rule = traits.rotates
    return rule if callable(rule) else lambda i: True


def spread(n: int, n_kept: int, kind: Callable[[int], bool]) -> tuple[int, ...]:
    """``n_kept`` of ``n`` layers, as even as possible; a kept layer has the same kind at its old and new index."""
    latest, last = [0] * n_kept, n
    for place in reversed(range(n_kept)):
        last = latest[place] = next(i for i in reversed(range(last)) if kind(i) == kind(place))
    found: list[int] = []
    for place in range(n_kept):
        ideal = place * (n - 1) / max(1, n_kept - 1)
        first = found[-1] + 1 if found else 0
        fitting = (i for i in range(first, latest[place] + 1) if kind(i) == kind(place))
        found.append(min(fitting, key=lambda i: abs(i - ideal)))
    return tuple(found)


def pruned(file: GGUFFile, spec: ModelSpec, kept: tuple[int, ...]) -> GGUFFile:
    """The file as if it had only these layers; layers that predict tokens further ahead are left out too.

    Raises UnsupportedModelError if the layers would then be computed differently: in some architectures the computation
    of a layer depends on its index, or on the number of layers.
    """
    traits = find_architecture(spec.arch).traits
    if len(kept) < spec.n_layers:
        check_apart(file, spec, kept)
    seen = file.seen_as(pruned_metadata(file.metadata, spec, kept), renumbered(file, kept))
    check_same(spec, read_model_spec(seen), traits, kept)
    return seen


def check_apart(file: GGUFFile, spec: ModelSpec, kept: tuple[int, ...]) -> None:
    """Raises UnsupportedModelError if layers that are left out have parts that others need."""
    if kept[0] and "blk.0.time_mix_v0.weight" in file.tensors:
        raise UnsupportedModelError(
            f"the layers of this {spec.arch} model mix their values with those of the first: keep layer 0"
        )
    for i in kept:
        chooser = choosing_layer(spec, i)
        if chooser not in kept:
            raise UnsupportedModelError(
                f"layer {i} of this {spec.arch} model attends to the keys that layer {chooser} chooses: keep that too"
            )
    if find_architecture(spec.arch).traits.by_index:
        raise UnsupportedModelError(
            f"what a layer of {spec.arch} computes depends on its index and the number of layers: leave none of them "
            "out, choose only another type"
        )
    table = "per_layer_token_embd.weight"
    common = f"their embeddings side by side in {table}" if table in file.tensors else ""
    if file.metadata.get(f"{spec.arch}.attention.shared_kv_layers", 0) != 0:
        common = common or "keys and values that several of them read"
    if common:
        raise UnsupportedModelError(
            f"the layers of this {spec.arch} model have {common}: leave none of them out, choose only another type"
        )


def with_choosers(spec: ModelSpec, kept: tuple[int, ...]) -> tuple[int, ...]:
    """The layers, but where one's keys are chosen by a layer that is left out, that in its place."""
    found: list[int] = []
    for i in kept:
        chooser = choosing_layer(spec, i)
        found.append(i if chooser in found else chooser)
    return tuple(found)


def choosing_layer(spec: ModelSpec, i: int) -> int:
    """Index of the layer that chooses the keys of layer ``i``, where some do that for those that follow."""
    return max(j for j in range(i + 1) if chooses(spec, j)) if spec.shares_choice else i


def chooses(spec: ModelSpec, i: int) -> bool:
    """Whether a layer has an index: then it keeps its keys beside those of attention."""
    return len(spec.states[i]) > 1


def renumbered(file: GGUFFile, kept: tuple[int, ...]) -> Iterator[TensorInfo]:
    """The tensors of these layers, renumbered, and the tensors of no layer."""
    places = {old: new for new, old in enumerate(kept)}
    for name, info in file.tensors.items():
        found = LAYER.match(name)
        if found is None:
            yield info
        elif int(found[1]) in places:
            yield replace(info, name=f"blk.{places[int(found[1])]}.{name[found.end() :]}")


def pruned_metadata(m: Metadata, spec: ModelSpec, kept: tuple[int, ...]) -> Metadata:
    arch = spec.arch
    n_blocks = m.get_int(f"{arch}.block_count") - m.get_int(f"{arch}.nextn_predict_layers", 0)
    changes: dict[str, object] = {"block_count": n_blocks - spec.n_layers + len(kept)}
    if f"{arch}.nextn_predict_layers" in m:
        changes["nextn_predict_layers"] = 0
    changes |= (
        of_windows(spec, kept)
        | of_rotations(spec, kept)
        | of_choices(spec, kept)
        | of_recurrent(m, spec, kept)
        | of_experts(m, spec, kept)
        | of_scales(m, spec)
    )
    lists = of_layers(m, kept, [f"{arch}.{name}" for name in PER_LAYER], int)
    lists |= of_layers(m, kept, [*(f"{arch}.{name}" for name in BOUNDS), *ACTIVATION], float)
    patterns = WINDOWS, ROTATING, RECURRENT_LAYERS, CHOOSING_LAYERS
    others = tuple(f"{arch}.{name}" for name in patterns)  # a period may become a list
    same_type = {k: m.entry(k) for k in m if k not in others}
    return Metadata(same_type).replaced({f"{arch}.{name}": value for name, value in changes.items()} | lists)


def of_layers(m: Metadata, kept: tuple[int, ...], keys: Iterable[str], kind: type) -> dict[str, object]:
    """The keys that have a value for each layer, with those of the layers that are kept."""
    lists = {key: m.get_array(key, kind) for key in keys if isinstance(m.get(key), GGUFArray)}
    return {key: [values[i] for i in kept] for key, values in lists.items()}


def of_windows(spec: ModelSpec, kept: tuple[int, ...]) -> dict[str, object]:
    """Metadata of the layers with a window, since the architecture's rule would give others after renumbering."""
    return {WINDOWS: [spec.layers[i].window > 0 for i in kept]} if spec.window else {}


def of_rotations(spec: ModelSpec, kept: tuple[int, ...]) -> dict[str, object]:
    """Metadata of layers that rotate, where metadata say it."""
    return {} if all(layer.rotates for layer in spec.layers) else {ROTATING: [spec.layers[i].rotates for i in kept]}


def of_recurrent(m: Metadata, spec: ModelSpec, kept: tuple[int, ...]) -> dict[str, object]:
    """Metadata of layers that are recurrent, likewise, in architectures that say it so."""
    said = spec.delta is not None or f"{spec.arch}.{RECURRENT_LAYERS}" in m
    return {RECURRENT_LAYERS: [not spec.layers[i].n_heads for i in kept]} if said else {}


def of_choices(spec: ModelSpec, kept: tuple[int, ...]) -> dict[str, object]:
    """Metadata of the layers that choose keys for others."""
    return {CHOOSING_LAYERS: [chooses(spec, i) for i in kept]} if spec.shares_choice else {}


def of_experts(m: Metadata, spec: ModelSpec, kept: tuple[int, ...]) -> dict[str, object]:
    """Metadata of the dense layers before those with experts, recognised by their tensors."""
    if spec.experts is None:
        return {}
    changes: dict[str, object] = {}
    if f"{spec.arch}.leading_dense_block_count" in m:
        changes["leading_dense_block_count"] = sum(i < spec.experts.n_dense_first for i in kept)
    if f"{spec.arch}.interleave_moe_layer_step" in m:
        changes["interleave_moe_layer_step"] = 1
    return changes


def of_scales(m: Metadata, spec: ModelSpec) -> dict[str, object]:
    """Metadata of MiniCPM's residual scale, which by default depends on the number of layers."""
    missing = spec.scales.residual != 1.0 and f"{spec.arch}.residual_scale" not in m
    return {"residual_scale": spec.scales.residual} if missing else {}


def check_same(old: ModelSpec, new: ModelSpec, traits: Traits, kept: tuple[int, ...]) -> None:
    """Raises UnsupportedModelError unless each layer is computed as before."""
    scale = traits.attention_scale or (lambda spec: 0.0)
    same = scale(old) == scale(new) and abs(old.scales.residual - new.scales.residual) < 1e-6
    same &= replace(old.scales, residual=1.0) == replace(new.scales, residual=1.0)
    for place, i in enumerate(kept):
        same &= (new.layers[place], new.states[place]) == (old.layers[i], old.states[i])
        same &= rotation_of(new, traits, place) == rotation_of(old, traits, i)
    if not same:
        raise UnsupportedModelError(
            f"architecture {old.arch} computes layers {list(kept)} in another way where they are its only ones: "
            "choose other layers, or only another type"
        )


Source = LoadedEngine | Place


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
    """Makes a draft model of the target's own weights: the bytes of a GGUF file, or the path that it was written to.

    target: an engine, or the path or bytes of its model. Adapters are no part of the draft.
    type: the file type that matrices are quantised to (`gguf.quantize_file`), from any format; matrices that would
        become larger keep their format. None: all keep it.
    layers: number of layers to keep, evenly spread from the first to the last, or the indices of those to keep; None:
        all. A model that isn't trained for it drafts much worse with every layer that it lacks.
    destination: a file to write instead. num_threads: for quantising; by default one per core.

    Raises ConfigError for arguments out of range and for a draft that would not be smaller than the target, QuantError
    for a type that can't be written, UnsupportedModelError for an encoder and for layers that can't be left out,
    LoadError and its children for a bad model.
    """
    threads = check_threads(num_threads)
    with opened(target) as file:
        spec = check_generates(read_model_spec(file))
        kept = chosen_layers(spec, find_architecture(spec.arch).traits, layers)
        seen = pruned(file, spec, kept)
        load_model(seen, repack=False)  # checks that no tensor is missing, misshapen or left over
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
    """The file that an engine was loaded from, as it was then; or the file of a path or of bytes.

    Raises ConfigError for an engine whose file isn't known or has changed.
    """
    loaded = context_of(source)
    if loaded is None:
        with gguf.open(cast(Path, source)) as file:
            yield file
        return
    config = loaded.config
    path = shipped_model() if config.model_path is None else config.model_path
    with gguf.open(path, overrides=config.overrides) as file:
        if isinstance(config.rope, RopeConfig):
            file.override(config.rope.metadata(file.metadata.arch))
        if read_model_spec(file) != loaded.spec:
            raise ConfigError("the engine's model is not the one that its model_path holds: give the path or bytes")
        yield file


def check_generates(spec: ModelSpec) -> ModelSpec:
    if not spec.causal:
        does = "denoises whole texts" if spec.denoises else "makes embeddings"
        raise UnsupportedModelError(f"architecture {spec.arch} {does}: there is nothing to draft for it")
        raise UnsupportedModelError(f"architecture {spec.arch} makes embeddings: there is nothing to draft for it")
    if spec.decoder_start is not None:
        raise UnsupportedModelError(
            f"architecture {spec.arch} reads prompts with an encoder, which a draft model can't: its drafts are "
            "'lookup' and 'grammar'"
        )
    return spec


def smaller_plans(file: GGUFFile, type: str | None) -> list[TensorPlan]:
    """Plan for each tensor; none gets more bits than it has."""
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
