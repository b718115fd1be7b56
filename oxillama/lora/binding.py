"""Binding of an adapter to a model: each change as packed factors of the matrices that hold a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoraError
from oxillama.kernels.lora import LowRank
from oxillama.kernels.matmul import quantize
from oxillama.kernels.matrix import Matrix
from oxillama.lora.adapter import Lora
from oxillama.lora.factors import Change
from oxillama.models import ModelSpec
from oxillama.models.adaptable import Adaptable, Part
from oxillama.models.linear import Linear
from oxillama.models.table import Table
from oxillama.models.weights import Arena

__all__ = ["BoundLora", "bind", "changed_tensors"]

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
JOINT = "attn_kv_b.weight"


@dataclass(frozen=True, eq=False)
class BoundLora:
    """An adapter bound to one model. ``changes``: by the matrix or table that is changed; ``heads``: by the layer."""

    lora: Lora
    changes: Mapping[Any, LowRank]
    heads: Mapping[Linear, Change]

    @property
    def nbytes(self) -> int:
        """Bytes that the factors take."""
        of_heads = sum(change.a.nbytes + change.b.nbytes for change in self.heads.values())
        return of_heads + sum(change.nbytes for change in self.changes.values())


def bind(lora: Lora, spec: ModelSpec, adaptable: Mapping[str, Adaptable]) -> BoundLora:
    """Checks an adapter against a model, and packs its factors.

    Raises LoraError, which names the tensor, for a tensor that the model doesn't have or that has another shape, and
    what `Lora.changes` raises.
    """
    found: dict[Any, LowRank] = {}
    heads: dict[Linear, Change] = {}
    arena = Arena()  # a step reads all of it, which small pages make a third slower
    for name, change, parts, _ in changed_tensors(lora, spec, adaptable):
        for part in parts:
            if part.whole in found:
                raise LoraError(f"{name}: the adapter changes the same weights under another name")
            if isinstance(part.whole, Linear):
                a, b = (np.ascontiguousarray(x.reshape(x.shape[-2:])) for x in (change.a, change.b))
                heads[part.whole] = Change(a, b, change.scale)
            else:
                found[part.whole] = low_rank(name, part, change, arena)
    return BoundLora(lora, found, heads)


def changed_tensors(
    lora: Lora, spec: ModelSpec, adaptable: Mapping[str, Adaptable]
) -> Iterator[tuple[str, Change, list[Part], str]]:
    """(tensor, change, the changed parts of the tensor, the tensor's name in the model's file), all checked."""
    for name, change in split_up(lora.changes(spec), adaptable).items():
        target, parts = find(name, change, adaptable)
        if target is None:
            raise LoraError(
                f"{lora.path}: {name} is no matrix or embedding of this model ({spec.arch} with {spec.n_layers} layers)"
            )
        check_fits(name, change, adaptable[target].shape)
        yield name, change, parts, target


def split_up(changes: dict[str, Change], adaptable: Mapping[str, Adaptable]) -> dict[str, Change]:
    """Splits the change of the up-projection of latent keys and values, for files with two tensors, keys transposed."""
    found: dict[str, Change] = {}
    for name, change in changes.items():
        k_name, v_name = (name.replace(JOINT, f"attn_{part}_b.weight") for part in "kv")
        if not name.endswith(JOINT) or name in adaptable or k_name not in adaptable or v_name not in adaptable:
            found[name] = change
            continue
        n_heads, rank, plain = adaptable[k_name].shape
        v_dim = adaptable[v_name].shape[1]
        check_fits(name, change, (n_heads * (plain + v_dim), rank))
        by_head = change.b.reshape(n_heads, plain + v_dim, -1)
        found[k_name] = Change(by_head[:, :plain].transpose(0, 2, 1), change.a.T[None], change.scale)
        found[v_name] = Change(change.a[None], by_head[:, plain:], change.scale)
    return found


def find(name: str, change: Change, adaptable: Mapping[str, Adaptable]) -> tuple[str | None, list[Part]]:
    """The model's tensor, and its changed parts: a table that is also the output may be changed in either use alone."""
    if name in adaptable:
        parts = adaptable[name].parts
        return name, [part for part in parts if isinstance(part.whole, Table)] if change.lookups else parts
    if name == OUTPUT and EMBEDDING in adaptable:
        parts = [part for part in adaptable[EMBEDDING].parts if isinstance(part.whole, Matrix)]
        return EMBEDDING if parts else None, parts
    return None, []


def check_fits(name: str, change: Change, shape: tuple[int, ...]) -> None:
    """Raises LoraError unless a change fits a tensor of this shape."""
    n_stack = max(change.a.shape[0], change.b.shape[0]) if change.a.ndim == 3 else 1
    given = (n_stack, change.b.shape[-2], change.a.shape[-1])
    wanted = (1,) * (3 - len(shape)) + tuple(shape)
    if given != wanted:
        raise LoraError(
            f"{name}: factors of shapes {change.a.shape} and {change.b.shape} change a tensor of shape "
            f"{given[3 - len(shape) :] if n_stack == 1 else given}; the model's has {tuple(shape)}"
        )


def low_rank(name: str, part: Part, change: Change, arena: Arena) -> LowRank:
    """Factors in the kernels' layout."""
    a, b = part.share((change.a, change.b))
    if isinstance(part.whole, Table):
        return LowRank(encoded(b), factor(f"{name}.lora_a", a.T, arena), change.scale)
    return LowRank(factor(f"{name}.lora_a", a, arena), factor(f"{name}.lora_b", b, arena), change.scale)


def factor(name: str, values: NDArray[np.float32], arena: Arena) -> Matrix:
    data, type = encoded(values)
    made = Matrix(data, type, values.shape, name=name, repack=False, rounds=False)
    made.repack(allocate=arena.take)
    return made


def encoded(values: NDArray[np.float32]) -> tuple[NDArray[np.uint8], str]:
    """The values in the smallest float format that holds them exactly: adapters are read at every step."""
    whole = np.ascontiguousarray(values, np.float32)
    if not (whole.view(np.uint32) & 0xFFFF).any():
        return quantize(whole, "BF16"), "BF16"
    with np.errstate(over="ignore"):
        half = whole.astype(np.float16)
    if np.array_equal(half.astype(np.float32), whole):
        return half.view(np.uint8).reshape(-1), "F16"
    return whole.view(np.uint8).reshape(-1), "F32"
