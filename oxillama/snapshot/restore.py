"""Restoration of an engine from a snapshot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from oxillama._util.checks import check_bool, check_keywords
from oxillama._util.json_fields import Fields
from oxillama._util.places import Place
from oxillama.config import EngineConfig, EngineOptions, field_names
from oxillama.core.context import EngineContext, LoadedEngine, context_of
from oxillama.core.loading import OF_USE, config_beside, parts_beside
from oxillama.errors import (
    ConfigError,
    SnapshotDamagedError,
    SnapshotFormatError,
)
from oxillama.lora import Lora
from oxillama.snapshot.bundle import open_bundle
from oxillama.snapshot.engine_snapshots import writer_of
from oxillama.snapshot.format.opened import OpenSnapshot, open_snapshot
from oxillama.snapshot.named_files import check_tokenizer, load_adapters, model_source
from oxillama.snapshot.request_state import config_fields
from oxillama.snapshot.resume import fill_session, load_saved

__all__ = [
    "RestoreOptions",
    "engine_settings",
    "restored",
]

SPECULATIVE = "it is of a speculative engine, several models in one: restore it with SpeculativeEngine.restore"

E = TypeVar("E", bound=LoadedEngine)


class RestoreOptions(EngineOptions, total=False):
    """Keywords of `restore`; `restored` says what they mean."""

    adapters: Iterable[str | os.PathLike[str] | Lora]
    allow_download: bool


def restored(
    kind: Callable[..., E],
    snapshot: Place | OpenSnapshot,
    model_path: Any,
    *,
    adapters: Iterable[str | os.PathLike[str] | Lora] = (),
    allow_download: bool = False,
    **fields: Any,
) -> E:
    """What `Engine.restore` loads, an engine of class `kind`.

    model_path: where the model is, if not where it was; a copy will do. Or a loaded engine: its weights are shared, and
        stay after it is closed, and nothing is loaded.
    adapters: those that are not where they were. fields: settings in place of those that were saved.
    allow_download: a model of the Hub that is neither where it was nor in the Hub's local cache may be fetched, with
        the token of this user; by the name that the snapshot has, which is anybody's.

    Files that a snapshot names (model, tokenizer_path, adapters) are read where nothing is given in their place, if
    they are regular files, and used if they have the size, the ends and the digest that it says.
    """
    check_keywords("restore", fields, ("adapters", "allow_download", *field_names(EngineConfig)))
    check_bool("allow_download", allow_download)
    opened = open_snapshot(snapshot)
    try:
        part = open_bundle(opened).parts[0]  # of several completions or beams, the first
        settings, described = engine_settings(part)
        if (loaded := context_of(model_path)) is not None:
            engine = _beside(kind, loaded, settings, fields)
        else:
            if "tokenizer_path" not in fields:
                check_tokenizer(described, settings, part.label)
            place = model_source(described, model_path, part.label, allow_download=allow_download)
            engine = kind(model_path=place, **{**settings, **fields})
        try:
            load_adapters(engine, described.sub("adapters"), list(adapters), part.label)
            context = engine.context
            fill_session(context, context.session, load_saved(writer_of(context), part), part.label)
        except BaseException:
            engine.close()
            raise
        return engine
    finally:
        opened.close()


def _beside(kind: Callable[..., E], loaded: EngineContext, settings: Mapping[str, Any], fields: Mapping[str, Any]) -> E:
    """An engine with the weights of another one. Raises ConfigError where they can't be shared."""
    if loaded.config.offload is not None:
        raise ConfigError("a model with offload can't be shared: give model_path as a path, or resume() in its engine")
    saved = {name: value for name, value in settings.items() if name in OF_USE}
    config = config_beside(loaded, {**saved, **fields})
    return kind(config, parts=parts_beside(loaded, config))


def engine_settings(snapshot: OpenSnapshot) -> tuple[dict[str, Any], Fields]:
    """Settings of the engine, and its other fields."""
    if snapshot.is_version1:
        from oxillama.snapshot.v1_convert import described_engine

        settings, state = described_engine(snapshot.version1, snapshot.label)
        return _checked(settings, snapshot.label), state
    if snapshot.kind == "speculative":
        raise SnapshotFormatError(f"{snapshot.label}: {SPECULATIVE}")
    state = snapshot.reader.state
    settings = config_fields(state.sub("engine").sub("config"), snapshot.label)
    settings["context_size"] = state.sub("engine").integer("context_size", 2)
    tokenizer = state.sub("model").maybe_text("tokenizer_path")
    settings |= {} if tokenizer is None else {"tokenizer_path": tokenizer}
    return _checked(settings, snapshot.label), state


def _checked(settings: dict[str, Any], label: str) -> dict[str, Any]:
    try:
        EngineConfig(**settings)
    except (ConfigError, TypeError) as error:
        raise SnapshotDamagedError(f"{label}: settings of its engine: {error}") from None
    return settings
