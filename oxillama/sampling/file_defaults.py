"""Sampling defaults of a model's file: the metadata keys `general.sampling.*`, as llama.cpp's converter writes them."""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, MissingKeyError
from oxillama.gguf import Metadata
from oxillama.gguf.values import ValueType, shown
from oxillama.sampler_config import idle_values

__all__ = ["PREFIX", "STAGE_NAMES", "idle_settings", "read_sampling_defaults"]

PREFIX = "general.sampling."

log = logging.getLogger("oxillama")


class _Key(NamedTuple):
    """The field that a key sets. everything: what -1 stands for there (-1: the context's size); None for nothing."""

    field: str
    kind: type[int] | type[float]
    everything: int | None = None


_KEYS = {
    "top_k": _Key("top_k", int, 0),
    "top_p": _Key("top_p", float),
    "min_p": _Key("min_p", float),
    "xtc_probability": _Key("xtc_probability", float),
    "xtc_threshold": _Key("xtc_threshold", float),
    "temp": _Key("temperature", float),
    "penalty_last_n": _Key("repetition_penalty_window", int, -1),  # the context's size
    "penalty_repeat": _Key("repetition_penalty", float),
    "mirostat": _Key("mirostat", int),
    "mirostat_tau": _Key("mirostat_tau", float),
    "mirostat_eta": _Key("mirostat_eta", float),
}
# Stages by llama.cpp's names, in the order in which both run them, with the settings that make each idle.
_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
_STAGES: dict[str, dict[str, Any]] = {name: idle_values("typical_p" if name == "typ_p" else name) for name in _ORDER}
# Each stage by all its names.
STAGE_NAMES = {
    **dict(zip(_ORDER, _ORDER, strict=True)), "typical": "typ_p", "typical_p": "typ_p", "nucleus": "top_p",
    "temp": "temperature",
}  # fmt: skip


def read_sampling_defaults(metadata: Metadata, context_size: int) -> SamplerConfig:
    """The settings that a model's file recommends; those of `SamplerConfig()` where it says nothing.

    `general.sampling.sequence` switches the stages off that it doesn't name. An order other than the usual one, stages
    that are not known here, and unknown keys are logged as warnings and change nothing.

    Raises MissingKeyError, which names the key, for a value of another type or out of range.
    """
    fields: dict[str, Any] = {}
    for name in metadata:
        key = name.removeprefix(PREFIX)
        if key == name or key == "sequence":
            continue
        if key in _KEYS:
            fields[_KEYS[key].field] = _read(metadata, name, _KEYS[key], context_size)
        else:
            log.warning("the metadata key %s is no known sampling default: it is ignored", shown(name))
    fields |= _idle_by_sequence(metadata.get_str(PREFIX + "sequence", ""))
    try:
        return SamplerConfig(**fields)
    except ConfigError as error:  # each is fine alone
        raise MissingKeyError(f"the metadata keys {PREFIX}*: {error}; `overrides` replaces them") from None


def _read(metadata: Metadata, name: str, key: _Key, context_size: int) -> float:
    value: float
    if key.kind is int:
        value = metadata.get_int(name)
        if value == -1 and key.everything is not None:
            value = key.everything if key.everything >= 0 else context_size
    else:
        value = metadata.get_float(name)
        if metadata.type_of(name) is ValueType.FLOAT32:
            value = float(str(np.float32(value)))  # 0.7, and not the double that the nearest float32 is
    alone: dict[str, Any] = {key.field: value}
    try:
        replace(SamplerConfig(temperature=1.0), **alone)
    except ConfigError as error:
        raise MissingKeyError(f"the metadata key {name}: {error}; `overrides` replaces it") from None
    return value


def _idle_by_sequence(sequence: str) -> dict[str, Any]:
    """Settings that switch off what a list of stages (`;` between them) leaves out; none for no list."""
    if not sequence.strip():
        return {}
    names = [STAGE_NAMES.get(name, name) for part in sequence.split(";") if (name := part.strip().replace("-", "_"))]
    order = list(_STAGES)
    unknown = [name for name in names if name not in _STAGES]
    places = [order.index(name) for name in names if name in _STAGES]
    if unknown or places != sorted(set(places)):
        why = f"{shown(unknown[0])} is not one of" if unknown else "it has another order than"
        log.warning(
            "the metadata key %ssequence, %s, is ignored: %s %s; sampler=SamplerChain([...]) takes any order",
            PREFIX, shown(sequence), why, ";".join(order),
        )  # fmt: skip
        return {}
    return idle_settings(names)


def idle_settings(names: Collection[str]) -> dict[str, Any]:
    """Settings that switch off the stages that are not named, by names of `STAGE_NAMES`."""
    wanted = {STAGE_NAMES.get(name, name) for name in names}
    return {field: value for stage in _STAGES if stage not in wanted for field, value in _STAGES[stage].items()}
