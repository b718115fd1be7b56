"""Settings as JSON, and back: those of an engine, of a sampler, and of what is looked for in a text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from oxillama.config import EngineConfig, SamplerConfig, field_names
from oxillama.errors import ConfigError, SnapshotDamagedError, SnapshotError, SnapshotFormatError, SnapshotMismatchError
from oxillama.sampling import SamplerChain
from oxillama.sampling.stages import STAGES
from oxillama.snapshot.fields import Fields

__all__ = ["chain_state", "config_fields", "config_state", "plain", "read_chain", "read_config"]

# Not of the settings: where the model is from stands by itself.
SOURCES = ("model_path", "tokenizer_path")
# Fields of a sampler that a file leaves out have these values, whatever the defaults of `SamplerConfig` are by then.
LEFT_OUT = SamplerConfig.original()


def plain(name: str, value: Any) -> Any:
    """A setting as JSON. Raises SnapshotError for what JSON can't say."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(f"{name}[{key!r}]", item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise SnapshotError(f"{name}={value} can't be saved: only finite numbers can")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SnapshotError(f"{name} can't be saved: it is of type {type(value).__name__}")


def config_state(config: EngineConfig) -> dict[str, Any]:
    """All but where the model is from."""
    return {name: plain(name, getattr(config, name)) for name in field_names(EngineConfig) if name not in SOURCES}


def config_fields(given: Fields, label: str) -> dict[str, Any]:
    """Keywords of `EngineConfig`. Raises SnapshotFormatError for one that is not known here."""
    known = [name for name in field_names(EngineConfig) if name not in SOURCES]
    for name in given:
        if name not in known:
            raise SnapshotFormatError(f"{label}: the setting {name!r} is not known to this version of oxillama")
    return dict(given)


def config_of(state: Mapping[str, Any]) -> SamplerConfig:
    """Settings of a sampler. Raises ConfigError, and TypeError for an unknown one."""
    values = {"schema_mode": "full", **state}  # there was no other when the setting had no name
    biases = values.get("logit_bias")
    if isinstance(biases, dict):
        values["logit_bias"] = {int(token): -math.inf if bias is None else bias for token, bias in biases.items()}
    return replace(LEFT_OUT, **values)


def sampler_config_state(config: SamplerConfig) -> dict[str, Any]:
    """The opposite of `config_of`: only what differs from `LEFT_OUT`."""
    state = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if value == getattr(LEFT_OUT, field.name):
            continue
        if field.name == "logit_bias":
            value = {str(token): None if bias == -math.inf else bias for token, bias in value.items()}
        state[field.name] = plain(field.name, value)
    return state


def chain_state(chain: SamplerChain) -> dict[str, Any]:
    """A chain: its settings with all fields, and its stages by name, null for a function of the caller's own."""
    names = {stage: name for name, stage in STAGES.items()}
    everything = {f.name: getattr(chain.config, f.name) for f in fields(chain.config)}
    return {
        "config": sampler_config_state(chain.config) | {n: v for n, v in everything.items() if n in ALWAYS},
        "stages": [names.get(stage) for stage in chain.stages],
    }


# These stand in the file in any case.
ALWAYS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "repetition_penalty_window", "seed", "schema_mode",
)  # fmt: skip


def read_chain(given: Fields, label: str, own: SamplerChain | None) -> SamplerChain:
    """The opposite of `chain_state`; `own` has the functions of the caller's own, where there are any.

    Raises SnapshotMismatchError if they are needed and not given, SnapshotDamagedError for settings that can't be.
    """
    config = read_config(given.sub("config"), label)
    stages = given.items_of("stages")
    if None in stages or own is not None:
        if own is None or len(own.stages) != len(stages):
            raise SnapshotMismatchError(
                f"{label}: its sampler has {len(stages)} stages, some of them functions that no file can hold: give "
                "sampler=, a SamplerChain of the same stages"
            )
        names = {stage: name for name, stage in STAGES.items()}
        for i, (stage, name) in enumerate(zip(own.stages, stages, strict=True)):
            if names.get(stage) != name:
                raise SnapshotMismatchError(f"{label}: stage {i} of its sampler is {name or 'a function'}, not {stage}")
        return own.with_config(config)
    try:
        return SamplerChain(stages, config)
    except ConfigError as error:
        raise SnapshotDamagedError(f"{label}: {error}") from None


def read_config(given: Fields, label: str) -> SamplerConfig:
    """Settings of a sampler. Raises SnapshotDamagedError for those that can't be."""
    try:
        return config_of(given)
    except (ConfigError, TypeError, ValueError) as error:
        raise SnapshotDamagedError(f"{label}: settings of its sampler: {error}") from None
