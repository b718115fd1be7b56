"""PEFT mapping: changes of a PEFT adapter's modules (Hugging Face's names) as changes of a GGUF file's tensors.

The factors are converted as converters convert the values: rows of queries and keys that rotate in pairs become
adjacent, interleaved heads are separated, and rows of several tensors are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from oxillama.errors import LoraError, UnsupportedModelError
from oxillama.lora.factors import Change
from oxillama.lora.namings import EXPERT, HEADS, LAYER, PART, REFUSED, STACK, TABLE, TOP, Naming, naming_of
from oxillama.models import ModelSpec

__all__ = ["to_gguf"]


def to_gguf(changes: Mapping[str, Change], spec: ModelSpec) -> dict[str, Change]:
    """The changes by GGUF tensor name, as the model's file has its values.

    Raises UnsupportedModelError for an architecture without a mapping, LoraError for a module that the model doesn't
    have.
    """
    naming = naming_of(spec)
    if naming is None:
        why = REFUSED.get(spec.arch, "its names are not known here")
        raise UnsupportedModelError(
            f"PEFT folders for architecture {spec.arch} are not supported, since {why}: convert the adapter to GGUF "
            "(llama.cpp's convert_lora_to_gguf.py does)"
        )
    found: dict[str, Change] = {}
    stacks: dict[str, dict[int, Change]] = {}
    for module, whole in changes.items():
        place, inner, expert, i = located(module, spec, naming)
        for name, change in divided(module, whole, inner, naming, spec, i):
            tensor = f"{place}{name}.weight"
            if expert is not None:
                stacks.setdefault(tensor, {})[expert] = change
            elif found.setdefault(tensor, change) is not change:
                raise LoraError(f"{module}: another module of the adapter is {tensor}, too")
    return found | {name: stacked(name, stack, spec) for name, stack in stacks.items()}


def located(module: str, spec: ModelSpec, naming: Naming) -> tuple[str, str, int | None, int]:
    """The prefix of the tensor's layer, its name, the expert (None without), and the layer (0 without one)."""
    if (part := PART.fullmatch(module)) is not None and part[3] in naming.names:
        return f"{part[1]}.blk.{part[2]}.", naming.names[part[3]], None, int(part[2])
    match = LAYER.fullmatch(counted_once(module, spec, naming))
    if match is None:
        table = TABLE.fullmatch(module)
        name = HEADS.get(module) or (TOP.get(table[1]) if table else None)
        if name is None:
            raise LoraError(f"{module[:200]} is no known module of architecture {spec.arch}")
        return "", name, None, 0
    i, inner, expert = int(match[1]), match[2], None
    if (inside := EXPERT.fullmatch(inner)) is not None:
        inner, expert = f"{inside[1]}.{inside[3]}", int(inside[2])
    name = naming.names.get(inner)
    if i < spec.n_layers and not spec.layers[i].n_heads:
        name = naming.recurrent.get(inner, name)
    if name is None or i >= spec.n_layers:
        raise LoraError(f"{module[:200]} is no module of this model: {spec.arch} with {spec.n_layers} layers")
    return f"blk.{i}.", name, expert, i


def counted_once(module: str, spec: ModelSpec, naming: Naming) -> str:
    """The module's name with the number that its layer has in the file, where stacks of layers are counted apart."""
    match = STACK.fullmatch(module)
    if match is None or match[1] not in naming.stacks:
        return module
    n, i = spec.n_layers // len(naming.stacks), int(match[2])
    first = naming.stacks.index(match[1]) * n
    return f"layers.{first + i if i < n else spec.n_layers}.{match[3]}"


def divided(
    module: str, change: Change, name: str, naming: Naming, spec: ModelSpec, i: int
) -> Iterator[tuple[str, Change]]:
    """The file's tensors of a module's rows, and their changes."""
    change = with_rows(module, change, name, naming, spec, i)
    parts = name.split("+")
    if len(parts) == 1:
        yield name, change
        return
    first, sizes = 0, part_sizes(parts, spec, i)
    unit, left = divmod(len(change.b), sum(sizes))
    if left:
        raise LoraError(f"{module}: factor B has {len(change.b)} rows, which can't be those of {' and '.join(parts)}")
    for part, size in zip(parts, sizes, strict=True):
        share = replace(change, b=np.ascontiguousarray(change.b[first : first + size * unit]))
        yield part, with_rows(module, share, part, naming, spec, i)
        first += size * unit


def part_sizes(parts: list[str], spec: ModelSpec, i: int) -> list[int]:
    """Rows of each part of one module."""
    layer = spec.layers[i]
    if spec.delta is not None and parts[0] == "attn_qkv":
        return [spec.delta.n_convolved, spec.delta.n_inner]
    return [layer.n_heads, layer.n_kv_heads, layer.n_kv_heads] if len(parts) == 3 else [1, 1]


def with_rows(module: str, change: Change, name: str, naming: Naming, spec: ModelSpec, i: int) -> Change:
    """The change with the rows of ``b``, or the columns of ``a``, where the file has them."""
    rows, columns = naming.rows.get(name), naming.columns.get(name)
    try:
        if rows is not None:
            change = replace(change, b=np.ascontiguousarray(rows(change.b, spec, i)))
    except (ValueError, ZeroDivisionError):
        raise LoraError(f"{module}: factor B has {len(change.b)} rows, which are no heads of this model") from None
    try:
        if columns is not None:
            change = replace(change, a=np.ascontiguousarray(columns(change.a.T, spec, i).T))
    except (ValueError, ZeroDivisionError):
        n = change.a.shape[-1]
        raise LoraError(f"{module}: factor A has {n} columns, which are no heads of this model") from None
    return change


def stacked(name: str, stack: Mapping[int, Change], spec: ModelSpec) -> Change:
    """The changes of all experts as one: zeros for an expert without one, and up to the highest rank."""
    n = spec.experts.n_experts if spec.experts is not None else 0
    if max(stack) >= n:
        raise LoraError(f"{name}: expert {max(stack)} is changed, but the model has {n}")
    rank = max(change.rank for change in stack.values())
    one = stack[max(stack)]
    a = np.zeros((n, rank, one.a.shape[-1]), np.float32)
    b = np.zeros((n, one.b.shape[0], rank), np.float32)
    for e, change in stack.items():
        if change.a.shape[1] != a.shape[2] or change.b.shape[0] != b.shape[1]:
            raise LoraError(f"{name}: experts {max(stack)} and {e} are changed in different shapes")
        a[e, : change.rank], b[e, :, : change.rank] = change.a * np.float32(change.scale), change.b
    return Change(a, b, 1.0)
