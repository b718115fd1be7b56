"""From a snapshot to a loaded engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from oxillama.checks import check_keywords
from oxillama.config import EngineConfig, ModelSource, field_names
from oxillama.engine.engine import Engine
from oxillama.engine.sharing import OF_USE, config_beside, parts_beside
from oxillama.errors import (
    ConfigError,
    SnapshotDamagedError,
    SnapshotFileError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.lora import Lora
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.resuming import fill_session, is_version1, load_saved
from oxillama.snapshot.saved import Reader
from oxillama.snapshot.settings import config_fields
from oxillama.snapshot.several import parts_of
from oxillama.snapshot.sources import Place, Source, open_source
from oxillama.snapshot.version1 import SPEC_MAGIC

__all__ = ["engine_settings", "model_source", "restored"]

SPECULATIVE = "it is of a speculative engine, several models in one: restore it with SpeculativeEngine.restore"

E = TypeVar("E", bound=Engine)


def restored(
    kind: type[E],
    place: Place | Source,
    model_path: ModelSource | Engine,
    adapters: Iterable[str | os.PathLike[str] | Lora],
    fields: Mapping[str, Any],
) -> E:
    """`Engine.restore`."""
    check_keywords("restore", fields, field_names(EngineConfig))
    opened = open_source(place)
    try:
        source = parts_of(opened).sources[0]  # of several completions or beams, the first
        settings, described = engine_settings(source)
        if isinstance(model_path, Engine):
            engine = _beside(kind, model_path, settings, fields)
        else:
            engine = kind(model_path=model_source(described, model_path, source.label), **{**settings, **fields})
        try:
            _load_adapters(engine, described.sub("adapters"), list(adapters), source.label)
            fill_session(engine, engine._session, load_saved(engine._snapshots, source), source.label)
        except BaseException:
            engine.close()
            raise
        return engine
    finally:
        opened.close()


def _beside(kind: type[E], loaded: Engine, settings: Mapping[str, Any], fields: Mapping[str, Any]) -> E:
    """An engine with the weights of another one. Raises ConfigError where they can't be shared."""
    if loaded.config.offload is not None:
        raise ConfigError("a model with offload can't be shared: give model_path as a path, or resume() in its engine")
    saved = {name: value for name, value in settings.items() if name in OF_USE}
    config = config_beside(loaded, {**saved, **fields})
    return kind(config, parts=parts_beside(loaded, config))


def engine_settings(source: Source) -> tuple[dict[str, Any], Fields]:
    """Settings of the engine, and what else is said of it."""
    if is_version1(source):
        from oxillama.snapshot.version1_engine import described_engine

        settings, state = described_engine(bytes(source.read(0, source.n_bytes)), source.label)
        return _checked(settings, source.label), state
    if bytes(source.read(0, min(8, source.n_bytes))) == SPEC_MAGIC:
        raise SnapshotFormatError(f"{source.label}: {SPECULATIVE}")
    state = Reader(source).state
    if state.text("kind") == "speculative":
        raise SnapshotFormatError(f"{source.label}: {SPECULATIVE}")
    settings = config_fields(state.sub("engine").sub("config"), source.label)
    settings["context_size"] = state.sub("engine").integer("context_size", 2)
    tokenizer = state.sub("model").maybe_text("tokenizer_path")
    settings |= {} if tokenizer is None else {"tokenizer_path": tokenizer}
    return _checked(settings, source.label), state


def _checked(settings: dict[str, Any], label: str) -> dict[str, Any]:
    try:
        EngineConfig(**settings)
    except (ConfigError, TypeError) as error:
        raise SnapshotDamagedError(f"{label}: settings of its engine: {error}") from None
    return settings


def model_source(state: Fields, given: ModelSource, label: str, name: str = "model_path") -> ModelSource:
    """Where the model is. Raises SnapshotFileError if it isn't known, or not there any more."""
    model = state.sub("model")
    if given is not None or model.get("shipped") is True:
        return given
    path = model.maybe_text("path")
    if path is not None and os.path.exists(path):
        return path
    hub = model.maybe_sub("hub")
    if hub is not None:
        from oxillama.hub import download

        return download(hub.text("repo_id"), hub.text("filename"), revision=hub.text("revision"))
    what = f"its model is not at {path!r} any more" if path else "its model was in memory"
    raise SnapshotFileError(f"{label}: {what}: give {name}")


def _load_adapters(engine: Engine, state: Fields, given: list[Any], label: str) -> None:
    """Loads and pushes what the other engine had. Raises SnapshotMismatchError for an adapter that is another now."""
    loaded = [lora if isinstance(lora, Lora) else Lora.load(lora) for lora in given]
    by_digest, files = {lora.digest: lora for lora in loaded}, state.sub("files")

    def find(digest: str) -> Lora:
        if digest not in by_digest:
            path = files.text(digest)
            if not os.path.exists(path):
                raise SnapshotMismatchError(f"{label}: its adapter {path} is not there any more: give adapters=[...]")
            lora = Lora.load(path)
            if lora.digest != digest:
                raise SnapshotMismatchError(f"{label}: the adapter {path} is another one now: give adapters=[...]")
            by_digest[digest] = lora
        return by_digest[digest]

    named = state.sub("named")
    for name in named:
        engine.load_lora(name, find(named.text(name)))
    for digest, scale in state.scaled("pushed"):
        engine.push_lora(find(digest), scale)
