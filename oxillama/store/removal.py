"""Removal of models: links of the store, and of the Hub's cache what the store had put there. Nothing else goes."""

from __future__ import annotations

import contextlib
import os

from oxillama.errors import ConfigError, LoadError
from oxillama.store.entries import Entry
from oxillama.store.places import cached_parts, repo_folder, shown_bytes
from oxillama.store.store import Store

__all__ = ["check_removable", "remove"]


def check_removable(entry: Entry) -> None:
    """Raises ConfigError for a model that belongs to another program, with the command that removes it."""
    if entry.source == "ollama":
        raise ConfigError(f"{entry.name} belongs to Ollama: ollama rm {entry.name}")
    if entry.source == "hub":
        raise ConfigError(
            f"{entry.name} was put into the Hub's cache by another program, and stays: "
            f"hf cache rm model/{entry.repo_id}, which takes the whole repository"
        )


def remove(entry: Entry, store: Store) -> list[str]:
    """Removes a model, and tells what was done, a line each. Raises ConfigError, LoadError."""
    check_removable(entry)
    try:
        if entry.source == "pulled":
            return _remove_pulled(entry, store)
        places = [os.path.join(os.path.dirname(entry.place), os.path.basename(part)) for part in entry.parts]
        n_bytes = 0 if entry.source == "link" else entry.n_bytes
        for place in places:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
        _remove_empty(os.path.dirname(entry.place), store.root)
    except OSError as error:
        raise LoadError(f"{entry.place} can't be removed: {error.strerror or error}") from error
    if entry.source == "link":
        return [f"removed the link {entry.name}; the file that it leads to stays"]
    return [f"removed {entry.name}: {shown_bytes(n_bytes)}"]


def _remove_pulled(entry: Entry, store: Store) -> list[str]:
    folder = os.path.dirname(entry.place)
    freed, stays = 0, 0
    for part in entry.parts or (entry.path,):
        blob = os.path.realpath(part)
        etag = os.path.basename(blob)
        place = os.path.join(folder, os.path.basename(part))
        if os.path.islink(place):
            os.unlink(place)
        if not os.path.lexists(part):
            store.forget_fetched(etag)
        elif not store.has_fetched(etag):
            stays += 1
        for version in versions_of(part):
            found = os.path.realpath(version)
            if store.has_fetched(os.path.basename(found)):
                freed += _remove_cached(version, found, entry.repo_id)
                if not os.path.exists(found):
                    store.forget_fetched(os.path.basename(found))
    _remove_empty(folder, store.root)
    said = [f"removed {entry.name}: {shown_bytes(freed)}" if freed else f"removed {entry.name} from the store"]
    if stays:
        said.append(f"its file was in the Hub's cache before, and stays there: hf cache rm model/{entry.repo_id}")
    return said


def versions_of(path: str) -> list[str]:
    """Paths of a file of the Hub's cache at all revisions that are there."""
    known = cached_parts(path)
    if known is None:
        return []
    snapshots = os.path.join(repo_folder(known[0]), "snapshots")
    try:
        found = [os.path.join(snapshots, commit, known[2]) for commit in os.listdir(snapshots)]
    except OSError:
        return []
    return [one for one in found if os.path.lexists(one)]


def _remove_cached(path: str, blob: str, repo_id: str) -> int:
    """Removes a file of the Hub's cache, and its bytes if no other revision has them. Returns the bytes freed."""
    known, root = cached_parts(path), repo_folder(repo_id)
    if known is None or known[0] != repo_id or not blob.startswith(os.path.join(os.path.realpath(root), "")):
        return 0
    os.unlink(path)
    snapshots = os.path.join(root, "snapshots")
    _remove_empty(os.path.dirname(path), snapshots)
    if os.path.lexists(blob) and not any(_leads_to(snapshots, blob)):
        n_bytes = os.path.getsize(blob)
        os.unlink(blob)
    else:
        n_bytes = 0
    if not os.path.isdir(os.path.join(snapshots, known[1])):
        _remove_refs(root, known[1])
    return n_bytes


def _leads_to(snapshots: str, blob: str) -> list[str]:
    return [
        os.path.join(folder, name)
        for folder, _, names in os.walk(snapshots)
        for name in names
        if os.path.realpath(os.path.join(folder, name)) == blob
    ]


def _remove_refs(root: str, commit: str) -> None:
    """Removes the names of a revision that is gone: the Hub's library takes them for damage."""
    for folder, _, names in os.walk(os.path.join(root, "refs")):
        for name in names:
            place = os.path.join(folder, name)
            with contextlib.suppress(OSError), open(place, "rb") as file:
                if file.read(200).strip() == commit.encode():
                    os.unlink(place)


def _remove_empty(folder: str, root: str) -> None:
    """Removes empty folders from this one up to, and without, the root."""
    while folder.startswith(os.path.join(root, "")):
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)
