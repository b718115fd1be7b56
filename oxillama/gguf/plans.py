"""Quantisation plans: the new format of each tensor, from names, shapes and metadata alone."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from oxillama.errors import ConfigError, QuantError
from oxillama.gguf.formats import all_formats, format_by_name
from oxillama.gguf.metadata import Metadata
from oxillama.gguf.mixes import FileType, ModelFacts, fitting_format, is_quantised, mixed_format, value_layers
from oxillama.gguf.tensors import TensorInfo

__all__ = ["TensorPlan", "plan_tensors"]


class TensorPlan(NamedTuple):
    """Plan for one tensor. ``fallback``: why it can't have the format of its file type."""

    name: str
    shape: tuple[int, ...]
    before: str
    after: str
    fallback: str | None

    def nbytes(self, format: str) -> int:
        """Size of the tensor in a format."""
        return format_by_name(format).nbytes(math.prod(self.shape))


def plan_tensors(
    tensors: Mapping[str, TensorInfo],
    metadata: Metadata,
    type: FileType,
    *,
    tensor_types: Mapping[str, str],
    pure: bool = False,
    keep_output: bool = False,
) -> list[TensorPlan]:
    """Plans for all tensors, in file order; from names, shapes and metadata alone.

    Raises ConfigError or QuantError for ``tensor_types`` that can't be honoured.
    """
    model = _facts(tensors, metadata)
    patterns = _patterns(tensor_types)
    output = "output.weight" if model.has_output else "token_embd.weight"
    used: set[str] = set()
    plans = []
    for info in tensors.values():
        plan = TensorPlan(info.name, info.shape, info.type, info.type, None)
        chosen = _chosen(info.name, patterns)
        if is_quantised(info.name, info.shape) and info.type in _kernel_formats():
            if chosen:
                used.add(chosen[0])
                plan = plan._replace(after=_checked(info, *chosen))
            elif not (keep_output and info.name == output):
                plan = _planned(plan, type.format if pure else mixed_format(type, info.name, info.shape, model))
        plans.append(plan)
    _check_used(patterns, used)
    return plans


def _check_used(patterns: list[tuple[str, re.Pattern[str], str]], used: set[str]) -> None:
    for pattern, _, _ in patterns:
        if pattern not in used:
            raise ConfigError(
                f"tensor_types: {pattern!r} is found in no name of a matrix that can be quantised, or only in names "
                "that an earlier pattern is found in"
            )


def _planned(plan: TensorPlan, format: str) -> TensorPlan:
    fitting = fitting_format(format, plan.shape[-1])
    if fitting == format:
        return plan._replace(after=format)
    values = format_by_name(format).block_values
    return plan._replace(
        after=fitting, fallback=f"rows of {plan.shape[-1]} values; {format} needs a multiple of {values}"
    )


def _facts(tensors: Mapping[str, TensorInfo], metadata: Metadata) -> ModelFacts:
    arch = metadata.arch
    heads = _first(metadata.get(f"{arch}.attention.head_count", 0))
    shared = _first(metadata.get(f"{arch}.attention.head_count_kv", heads))
    return ModelFacts(
        arch,
        metadata.get_int(f"{arch}.block_count", 0),
        metadata.get_int(f"{arch}.expert_count", 0),
        heads // shared if shared else 1,
        "output.weight" in tensors,
        value_layers(tensors),
    )


def _first(value: Any) -> int:
    """A number, or the first one above zero of a list with one for each layer."""
    if isinstance(value, int):
        return value
    return next((int(v) for v in np.asarray(value).ravel() if v > 0), 0)


def _kernel_formats() -> frozenset[str]:
    from oxillama.kernels import _table

    return frozenset(_table.kernel_formats())


def _patterns(tensor_types: Mapping[str, str]) -> list[tuple[str, re.Pattern[str], str]]:
    from oxillama.kernels import _table

    found = []
    for pattern, name in tensor_types.items():
        try:
            format = format_by_name(name).name
        except QuantError as e:
            raise QuantError(f"tensor_types: {pattern!r}: {e}") from None
        if format not in _table.writable_formats():
            writable = ", ".join(f.name for f in all_formats() if f.name in _table.writable_formats())
            raise QuantError(f"tensor_types: quantising to {format} is not supported; there are {writable}")
        try:
            found.append((pattern, re.compile(pattern), format))
        except re.error as e:
            raise ConfigError(f"tensor_types: {pattern!r} is no regular expression: {e}") from None
    return found


def _chosen(name: str, patterns: list[tuple[str, re.Pattern[str], str]]) -> tuple[str, str] | None:
    return next(((pattern, format) for pattern, regex, format in patterns if regex.search(name)), None)


def _checked(info: TensorInfo, pattern: str, format: str) -> str:
    values = format_by_name(format).block_values
    if info.shape[-1] % values:
        raise QuantError(
            f"tensor_types: {pattern!r} wants {format} for {info.name}, whose rows of {info.shape[-1]} values are no "
            f"multiple of {values}; choose {fitting_format(format, info.shape[-1])}"
        )
    return format
