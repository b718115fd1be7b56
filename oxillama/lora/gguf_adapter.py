"""Adapters in GGUF files, as llama.cpp's converter writes them: NAME.lora_a and NAME.lora_b for a tensor NAME."""

from __future__ import annotations

import os

import oxillama.gguf as gguf
from oxillama.errors import LoraError, MissingKeyError, QuantError, UnsupportedModelError
from oxillama.gguf import GGUFFile, TensorInfo
from oxillama.lora.factors import Change, check_scale, check_shapes, check_values

__all__ = ["read_gguf"]

ALPHA = "adapter.lora.alpha"
# Metadata that don't change the adapter's computation.
KNOWN = frozenset({"adapter.type", ALPHA, "adapter.lora.task_name", "adapter.lora.prompt_prefix"})
# Tables whose factors llama.cpp stores transposed: a row of lora_a for each row of the table.
TABLES = ("token_embd.weight", "position_embd.weight")


def read_gguf(path: str | os.PathLike[str]) -> tuple[str, float, dict[str, Change]]:
    """Architecture, alpha, and changes by tensor name.

    Raises LoadError and its children: GGUFError for a damaged file, LoraError for a file that is no adapter or whose
    tensors are none's, MissingKeyError without alpha, UnsupportedModelError for other kinds of adapters.
    """
    with gguf.open(path) as file:
        check_kind(file)
        alpha = read_alpha(file)
        pairs = pair_up(file)
        changes = {name: read_change(name, a, b, alpha) for name, (a, b) in pairs.items()}
        return file.metadata.arch, alpha, changes


def check_kind(file: GGUFFile) -> None:
    m, label = file.metadata, file.path
    kind = m.get_str("general.type", "model")
    if kind != "adapter":
        raise LoraError(f"{label}: general.type is {kind!r}; the file of an adapter is needed, which says 'adapter'")
    if (adapter := m.get_str("adapter.type")) != "lora":
        raise UnsupportedModelError(f"{label}: adapter.type is {adapter!r}; supported: lora")
    for key in m:
        if key.startswith("adapter.") and key not in KNOWN:
            raise UnsupportedModelError(f"{label}: the adapter has the unknown key {key}")


def read_alpha(file: GGUFFile) -> float:
    try:
        return file.metadata.get_float(ALPHA)
    except MissingKeyError as e:
        if ALPHA in file.metadata:
            raise LoraError(str(e)) from None
        raise


def pair_up(file: GGUFFile) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Both factors of each changed tensor. Raises LoraError, which names a single factor or another tensor."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for full, info in file.tensors.items():
        name, _, part = full.rpartition(".")
        if part not in ("lora_a", "lora_b") or not name:
            raise LoraError(
                f"{file.path}: tensor {full} is no factor of a change: their names end in .lora_a and .lora_b"
            )
        found.setdefault(name, {})[part] = info
    for name, parts in found.items():
        if len(parts) < 2:
            (have,) = parts
            raise LoraError(f"{file.path}: {name}.{have} stands alone: a change has lora_a and lora_b")
    if not found:
        raise LoraError(f"{file.path}: the adapter has no tensors")
    return {name: (parts["lora_a"], parts["lora_b"]) for name, parts in found.items()}


def read_change(name: str, a: TensorInfo, b: TensorInfo, alpha: float) -> Change:
    """The change of a tensor. With an alpha of 0 the product is not scaled, as in llama.cpp."""
    a_shape, b_shape = matrix_shape(a.shape), matrix_shape(b.shape)
    turned = name in TABLES and len(a_shape) == 2 and a_shape[1] == b_shape[1] and a_shape[0] != b_shape[1]
    if turned:
        check_shapes(name, b_shape[::-1], a_shape)
    else:
        check_shapes(name, a_shape, b_shape)
    try:
        first, second = a.dequantize().reshape(a_shape), b.dequantize().reshape(b_shape)
    except QuantError as e:
        raise UnsupportedModelError(f"{name}: {e}") from e
    check_values(a.name, first)
    check_values(b.name, second)
    if turned:
        first, second = second.T, first
    rank = first.shape[-2]
    return Change(first, second, check_scale(name, alpha / rank if alpha else 1.0))


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the leading ones that writers may leave out."""
    return (1, *shape) if len(shape) == 1 else tuple(shape)
