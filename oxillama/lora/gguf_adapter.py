"""Adapters in GGUF files, as llama.cpp's converter writes them: NAME.lora_a and NAME.lora_b for a tensor NAME."""

from __future__ import annotations

import os

import oxillama.gguf as gguf
from oxillama.errors import LoraError, MissingKeyError, QuantError, UnsupportedModelError
from oxillama.gguf import GGUFFile, TensorInfo
from oxillama.lora.factors import Change, check_scale, check_shapes, check_values

__all__ = ["read_gguf"]

ALPHA = "adapter.lora.alpha"
# What else may be said of an adapter without changing what it computes.
KNOWN = frozenset({"adapter.type", ALPHA, "adapter.lora.task_name", "adapter.lora.prompt_prefix"})
# Tables whose factors llama.cpp keeps the other way round: a row of lora_a for each row of the table.
TABLES = ("token_embd.weight", "position_embd.weight")


def read_gguf(path: str | os.PathLike[str]) -> tuple[str, float, dict[str, Change]]:
    """Architecture, alpha, and changes by tensor name.

    Raises LoadError and its children: GGUFError for a damaged file, LoraError for one that is no adapter or whose
    tensors make none, MissingKeyError without alpha, UnsupportedModelError for other kinds of adapters.
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
            raise UnsupportedModelError(f"{label}: the adapter has a key {key}, which nothing is known of here")


def read_alpha(file: GGUFFile) -> float:
    try:
        return file.metadata.get_float(ALPHA)
    except MissingKeyError as e:
        if ALPHA in file.metadata:
            raise LoraError(str(e)) from None
        raise


def pair_up(file: GGUFFile) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Both factors of each tensor that is changed; LoraError names one without the other, and what is neither."""
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
    """An alpha of 0 means that the product is taken as it is, as in llama.cpp."""
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
    """Writers may leave out leading ones."""
    return (1, *shape) if len(shape) == 1 else tuple(shape)
