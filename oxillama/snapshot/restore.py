"""Restoration of an engine from a snapshot."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from oxillama._util.checks import check_bool, check_keywords, given_of
from oxillama._util.json_fields import Fields
from oxillama._util.places import Place
from oxillama.config import EngineConfig, EngineOptions, ModelSource, field_names
from oxillama.core.context import EngineContext, LoadedEngine, context_of
from oxillama.core.loading import OF_USE, config_beside, parts_beside
from oxillama.errors import (
    ConfigError,
    LoadError,
    ModelNotFoundError,
    SnapshotDamagedError,
    SnapshotFileError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.lora import Lora, as_lora
from oxillama.snapshot.bundle import open_bundle
from oxillama.snapshot.engine_snapshots import writer_of
from oxillama.snapshot.format.reader import OpenSnapshot, open_snapshot
from oxillama.snapshot.request_state import config_fields
from oxillama.snapshot.resume import fill_session, load_saved

if TYPE_CHECKING:
    from oxillama.core.context import LoadedEngine

__all__ = [
    "RestoreOptions",
    "check_tokenizer",
    "engine_settings",
    "load_adapters",
    "model_source",
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
    /,
    *,
    adapters: Iterable[str | os.PathLike[str] | Lora] = (),
    allow_download: bool = False,
    **fields: Any,
) -> E:
    """Loads what `Engine.restore` returns, an engine of class `kind`.

    model_path: where the model is, if not where it was; a copy will do. Or a loaded engine: its weights are shared, and
        stay after it is closed, and nothing is loaded.
    adapters: those that are not where they were. Other options are settings in place of those that were saved.
    allow_download: a model of the Hub that is neither where it was nor in the Hub's local cache may be fetched, with
        the token of this user; by the name that the snapshot has, which is anybody's.

    Files that a snapshot names (model, tokenizer_path, adapters) are read where nothing is given in their place, if
    they are regular files, and used if they have the size, the ends and the digest that it says.
    """
    check_keywords("restore", fields, ("adapters", "allow_download", *field_names(EngineConfig)))
    check_bool("allow_download", allow_download)
    fields = given_of(fields)
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
            load_adapters(engine, described.sub("adapters"), list(adapters or ()), part.label)
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


_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9._-]{1,100}")  # a commit, which is the name of a folder of the cache


def model_source(
    described: Fields, given: ModelSource, label: str, name: str = "model_path", *, allow_download: bool
) -> ModelSource:
    """The model's source: the one that is given, else the one that the snapshot names.

    Raises SnapshotFileError if the source is unknown or missing, SnapshotMismatchError if the model is another one,
    LoadError and its children if it can't be read.
    """
    model = described.sub("model")
    if given is not None or model.get("shipped") is True:
        return given
    path = model.maybe_text("path")
    what = f"its model is not at {path!r} any more" if path else "its model was in memory"
    if path is None or not os.path.isfile(path):
        path = _from_hub(model.maybe_sub("hub"), f"{label}: {what}", name, allow_download)
    _check_file(path, model.sub("fingerprint"), label, name)
    return path


def _from_hub(hub: Fields | None, what: str, name: str, allow_download: bool) -> str:
    if hub is None:
        raise SnapshotFileError(f"{what}: give {name}")
    from oxillama.hub import download

    repository, filename, revision = hub.text("repo_id"), hub.text("filename"), hub.text("revision")
    if not _REVISION.fullmatch(revision):
        raise hub.wrong("revision", "a commit")
    try:
        return download(repository, filename, revision=revision, cached=not allow_download)
    except ConfigError as error:
        raise SnapshotFileError(f"{what}, and what it says of the Hub can't be ({error}): give {name}") from None
    except ModelNotFoundError as error:
        if allow_download:
            raise
        raise SnapshotFileError(
            f"{what}, and {filename!r} of {repository!r} at {revision!r} is not in the Hub's local cache: give {name}, "
            "or allow_download=True to fetch it from the Hub"
        ) from error


def _check_file(path: str, given: Fields, label: str, name: str) -> None:
    """Raises SnapshotMismatchError if a file is not the one that was saved, before any of it is loaded."""
    ModelFingerprint.read(given).check(ModelFingerprint.of_ends(path), label, name)


def check_tokenizer(described: Fields, settings: dict[str, Any], label: str) -> None:
    """Raises SnapshotFileError if the tokenizer's file is missing, SnapshotMismatchError if it is another one.
    settings: the engine's settings in the snapshot."""
    path = settings.get("tokenizer_path")
    if path is None:
        return
    if not os.path.isfile(path):
        raise SnapshotFileError(f"{label}: its tokenizer is not at {path!r} any more: give tokenizer_path")
    given = described.sub("model").maybe_sub("tokenizer")
    if given is not None:  # version 1 doesn't record it
        _check_file(path, given, f"{label}: tokenizer_path", "tokenizer_path")


def load_adapters(engine: LoadedEngine, state: Fields, given: list[Any], label: str) -> None:
    """Loads and pushes what the other engine had. Raises SnapshotMismatchError for an adapter that is another now."""
    loaded = [as_lora(lora) for lora in given]
    by_digest, files = {lora.digest: lora for lora in loaded}, state.sub("files")

    def find(digest: str) -> Lora:
        if digest not in by_digest:
            by_digest[digest] = _adapter_at(files.text(digest), digest, label)
        return by_digest[digest]

    named = state.sub("named")
    for name in named:
        engine.load_lora(name, find(named.text(name)))
    for digest, scale in state.scaled("pushed"):
        engine.push_lora(find(digest), scale)


def _adapter_at(path: str, digest: str, label: str) -> Lora:
    if not (os.path.isfile(path) or os.path.isdir(path)):
        raise SnapshotMismatchError(f"{label}: its adapter {path} is not there any more: give adapters=[...]")
    try:
        lora = Lora.load(path)
    except (LoadError, ConfigError) as error:
        raise SnapshotMismatchError(f"{label}: its adapter can't be read, give adapters=[...]: {error}") from error
    if lora.digest != digest:
        raise SnapshotMismatchError(f"{label}: the adapter {path} is another one now: give adapters=[...]")
    return lora
