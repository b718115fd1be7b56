"""A model's file with fewer layers: which ones stay, and what metadata say of them then."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from itertools import pairwise

from oxillama.checks import check_int
from oxillama.errors import ConfigError, UnsupportedModelError
from oxillama.gguf import GGUFArray, GGUFFile, Metadata, TensorInfo
from oxillama.models import ModelSpec
from oxillama.models.decoder import rotation_of
from oxillama.models.registry import find_architecture
from oxillama.models.traits import Traits

__all__ = ["chosen_layers", "pruned"]

# Keys that may hold a value for each layer.
PER_LAYER = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_feed_forward_length",
)
BOUNDS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")  # of each layer too, but not whole numbers
WINDOWS = "attention.sliding_window_pattern"
LAYER = re.compile(r"blk\.(\d+)\.")


def chosen_layers(spec: ModelSpec, traits: Traits, layers: int | SequenceOf[int] | None) -> tuple[int, ...]:
    """The layers that stay: all, those given, or so many, evenly spread from the first to the last.

    Raises ConfigError for a number or for indices that the model doesn't have.
    """
    n = spec.n_layers
    if layers is None:
        return tuple(range(n))
    if isinstance(layers, int) and not isinstance(layers, bool):
        return spread(n, check_int("layers", layers, 1, n), rotation_rule(traits))
    if isinstance(layers, str | bytes) or not isinstance(layers, SequenceOf):
        raise ConfigError(f"layers must be a number of layers or a list of indices, not {layers!r}")
    found = [check_int(f"layers[{i}]", layer, 0, n - 1) for i, layer in enumerate(layers)]
    if not found or any(a >= b for a, b in pairwise(found)):
        raise ConfigError(f"layers must be indices from 0 to {n - 1} in rising order, at least one, not {found}")
    return tuple(found)


def rotation_rule(traits: Traits) -> Callable[[int], bool]:
    """Which places of layers rotate, where that depends on their index and no key of metadata can say otherwise."""
    rule = traits.rotates
    return rule if callable(rule) else lambda i: True


def spread(n: int, n_kept: int, kind: Callable[[int], bool]) -> tuple[int, ...]:
    """``n_kept`` of ``n`` layers, as even as can be; a layer's kind is that of its old and of its new place."""
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
    """The file as if it had only these layers; those that predict tokens further ahead are left out too.

    Raises UnsupportedModelError if the layers would then be computed in another way: some architectures tell by a
    layer's index, or by the number of layers, what is done in it.
    """
    traits = find_architecture(spec.arch).traits
    if len(kept) < spec.n_layers:
        check_apart(file, spec)
    seen = file.seen_as(pruned_metadata(file.metadata, spec, kept), renumbered(file, kept))
    check_same(spec, ModelSpec.read(seen), traits, kept)
    return seen


def check_apart(file: GGUFFile, spec: ModelSpec) -> None:
    """Raises UnsupportedModelError if layers have parts in common, so that none can be left out."""
    table = "per_layer_token_embd.weight"
    common = f"their embeddings side by side in {table}" if table in file.tensors else ""
    if file.metadata.get(f"{spec.arch}.attention.shared_kv_layers", 0) != 0:
        common = common or "keys and values that several of them read"
    if common:
        raise UnsupportedModelError(
            f"the layers of this {spec.arch} model have {common}: leave none of them out, choose only another type"
        )


def renumbered(file: GGUFFile, kept: tuple[int, ...]) -> Iterator[TensorInfo]:
    """The tensors of these layers, which are counted anew, and those of none."""
    places = {old: new for new, old in enumerate(kept)}
    for name, info in file.tensors.items():
        found = LAYER.match(name)
        if found is None:
            yield info
        elif int(found[1]) in places:
            yield replace(info, name=f"blk.{places[int(found[1])]}.{name[found.end() :]}")


def pruned_metadata(m: Metadata, spec: ModelSpec, kept: tuple[int, ...]) -> Metadata:
    arch = spec.arch
    changes: dict[str, object] = {"block_count": len(kept)}
    if f"{arch}.nextn_predict_layers" in m:
        changes["nextn_predict_layers"] = 0
    for name in PER_LAYER + BOUNDS:
        if isinstance(m.get(f"{arch}.{name}"), GGUFArray):
            values = m.get_array(f"{arch}.{name}", float if name in BOUNDS else int)
            changes[name] = [values[i] for i in kept]
    changes |= of_windows(spec, kept) | of_experts(m, spec, kept) | of_scales(m, spec)
    same_type = {k: m.entry(k) for k in m if k != f"{arch}.{WINDOWS}"}  # a period may become a list
    return Metadata(same_type).replaced({f"{arch}.{name}": value for name, value in changes.items()})


def of_windows(spec: ModelSpec, kept: tuple[int, ...]) -> dict[str, object]:
    """Which layers have a window, now that the architecture's rule counts others."""
    return {WINDOWS: [spec.layers[i].window > 0 for i in kept]} if spec.window else {}


def of_experts(m: Metadata, spec: ModelSpec, kept: tuple[int, ...]) -> dict[str, object]:
    """Dense layers among those with experts are known by their tensors."""
    if spec.experts is None:
        return {}
    changes: dict[str, object] = {}
    if f"{spec.arch}.leading_dense_block_count" in m:
        changes["leading_dense_block_count"] = sum(i < spec.experts.n_dense_first for i in kept)
    if f"{spec.arch}.interleave_moe_layer_step" in m:
        changes["interleave_moe_layer_step"] = 1
    return changes


def of_scales(m: Metadata, spec: ModelSpec) -> dict[str, object]:
    """What branches add is scaled by the number of layers where MiniCPM's metadata are silent."""
    missing = spec.scales.residual != 1.0 and f"{spec.arch}.residual_scale" not in m
    return {"residual_scale": spec.scales.residual} if missing else {}


def check_same(old: ModelSpec, new: ModelSpec, traits: Traits, kept: tuple[int, ...]) -> None:
    """Raises UnsupportedModelError unless each layer is what it was."""
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
