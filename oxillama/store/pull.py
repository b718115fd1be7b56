"""Pulling: the files of a model fetched by its name, checked, and linked into the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oxillama.errors import ModelNotFoundError
from oxillama.hub import first_of, shard_names
from oxillama.store.entries import Entry
from oxillama.store.names import HubName
from oxillama.store.places import repo_folder
from oxillama.store.quants import quant_of_file
from oxillama.store.repository import Choice, choose, files_of_hub
from oxillama.store.store import Store
from oxillama.store.transfer import SUFFIX, RemoteFile, Report, check_hash, check_room, remote_file, transfer
from oxillama.store.trouble import is_absent, is_offline

__all__ = ["Pulled", "pull"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Pulled:
    """A model that was pulled. name: by which it is found. path: of its first file. parts: its files. n_new: of these
    that were fetched now. n_bytes: of all. digest: hash of the first."""

    name: str
    path: str
    parts: tuple[str, ...]
    n_new: int
    n_bytes: int
    digest: str


def pull(name: HubName, store: Store, report: Report | None = None, say: Say | None = None,
         plan: Callable[[Sequence[RemoteFile]], None] | None = None) -> Pulled:  # fmt: skip
    """Fetches what of a model isn't here, and links it.

    report: told how far each file is. say: told what is chosen, and what the repository has beside it. plan: told which
    files are fetched, before they are. Raises
    ModelNotFoundError, ConfigError and LoadError; what came until then stays, and the next call goes on from there.
    """
    tell: Say = say or (lambda text: None)
    if is_offline():
        return _offline(name, store)
    choice, files = _chosen(name)
    if choice.said:
        tell(choice.said)
    if plan is not None:
        plan(files)
    missing = sum(_missing(file) for file in files)
    if missing:
        check_room(repo_folder(name.repo_id), missing, f"{name}")
    found = [_fetched(file, store, report) for file in files]
    for path, file in zip((path for path, _ in found), files, strict=True):
        store.link(name.repo_id, file.filename, path)
    _name_beside(name, choice, tell)
    n_bytes = sum(os.path.getsize(path) for path, _ in found)
    own = f"{name.repo_id}:{choice.quant}" if choice.quant else f"{name.repo_id}/{choice.files[0]}"
    return Pulled(
        own, found[0][0], tuple(path for path, _ in found), sum(new for _, new in found), n_bytes, files[0].etag
    )


def _offline(name: HubName, store: Store) -> Pulled:
    entry = store.find(str(name))
    if entry is None or entry.fault:
        raise ModelNotFoundError(
            f"{name} is not on this machine, and HF_HUB_OFFLINE forbids to download it: unset it, or fetch the model "
            "beforehand"
        )
    return _as_pulled(entry)


def _as_pulled(entry: Entry) -> Pulled:
    digest = os.path.basename(os.path.realpath(entry.path))
    return Pulled(entry.name, entry.path, entry.parts, 0, entry.n_bytes, digest)


def _chosen(name: HubName) -> tuple[Choice, list[RemoteFile]]:
    """The files that a name means. The list of a repository's files is asked for only where the name doesn't say it."""
    if name.filename is not None:
        choice = Choice(shard_names(first_of(name.filename)), quant_of_file(name.filename))
        try:
            return choice, _described(name, choice)
        except ModelNotFoundError as error:
            if not is_absent(error.__cause__):
                raise
    choice = choose(name, files_of_hub(name))
    return choice, _described(name, choice)


def _described(name: HubName, choice: Choice) -> list[RemoteFile]:
    return [remote_file(name.repo_id, filename, name.revision) for filename in choice.files]


def _missing(file: RemoteFile) -> int:
    """Bytes of a file that aren't here."""
    if os.path.exists(file.blob):
        return 0
    here = os.path.getsize(file.blob + SUFFIX) if os.path.isfile(file.blob + SUFFIX) else 0
    return max((file.n_bytes or 0) - here, 0)


def _fetched(file: RemoteFile, store: Store, report: Report | None) -> tuple[str, bool]:
    """Path of a file in the Hub's cache, and whether it was put there now. One that was there before, and that this
    store has no link to, is checked; a damaged one is fetched anew."""
    there, known = os.path.exists(file.blob), store.has_fetched(file.etag)
    if not there:
        store.note_fetched(file.etag)  # before it is there: a process that dies in between leaves nothing unmarked
    elif not known and not is_linked(store, file) and not check_hash(file, file.blob, report):
        os.unlink(file.blob)
        store.note_fetched(file.etag)
    elif file.n_bytes is not None and os.path.getsize(file.blob) != file.n_bytes:
        os.unlink(file.blob)
    try:
        return transfer(file, report)
    except BaseException:
        if not os.path.exists(file.blob):
            store.forget_fetched(file.etag)
        raise


def is_linked(store: Store, file: RemoteFile) -> bool:
    """Whether the store has a link to the bytes of a file."""
    place = os.path.join(store.root, *file.repo_id.split("/"), *file.filename.split("/"))
    return os.path.islink(place) and os.path.realpath(place) == os.path.realpath(file.blob)


def _name_beside(name: HubName, choice: Choice, tell: Say) -> None:
    for kind, files in choice.beside.items():
        first = min(files, key=lambda one: (quant_of_file(one) != "F16", one))
        what = {"mmproj": "an encoder of pictures or sound", "draft": "a draft"}[kind]
        more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
        tell(f"the repository has {what}, too: hf:{name.repo_id}/{first}{more}")
