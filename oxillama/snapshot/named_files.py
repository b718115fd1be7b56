"""Files that a snapshot names: its model, tokenizer and adapters, on paths that an attacker may have chosen.

A name is used only where the caller gives no replacement. It can cause no more than this: a regular file is looked up
(no pipe or device is opened), and read if it exists. Model and tokenizer must have the size and the first and last
bytes that the snapshot records before they are loaded; an adapter, once it is read, its digest. A repository of the Hub
is looked up in the local cache; the network is used, with the user's token, only with `allow_download`. A snapshot's
other names (``base``, ``blocks``) are of files beside it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from oxillama._util.json_fields import Fields
from oxillama.config import ModelSource
from oxillama.errors import ConfigError, LoadError, ModelNotFoundError, SnapshotFileError, SnapshotMismatchError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.lora import Lora, as_lora

if TYPE_CHECKING:
    from oxillama.core.context import LoadedEngine

__all__ = ["check_tokenizer", "load_adapters", "model_source"]

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
