"""Store: models by name on this machine. Its folder holds links into the Hub's cache, and files put there by hand."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from oxillama.errors import ConfigError, LoadError
from oxillama.store.entries import Entry, cached_entries, folder_entries, plain_name
from oxillama.store.names import folded
from oxillama.store.ollama import ollama_entries
from oxillama.store.places import store_folder
from oxillama.store.quants import nearest_quant

__all__ = ["Store", "find_in", "nearest_names"]

FETCHED = ".fetched"  # folder of marks: blobs of the Hub's cache that this store had put there
SHOWN = 3  # nearest names
LONGEST = 200  # characters of a name whose nearest are looked for


class Store:
    """A folder of models.

    root: the folder; it needn't be there. alone: nothing but the folder counts, which may be one of Ollama's, and
    neither the Hub's cache nor Ollama's own folder.
    """

    def __init__(self, root: str | None = None, *, alone: bool = False) -> None:
        self.root = store_folder() if root is None else os.path.abspath(os.path.expanduser(root))
        self.alone = alone

    def entries(self) -> list[Entry]:
        """All models, those of the folder first. Headers are not read."""
        found = folder_entries(self.root)
        if self.alone:
            return found + ollama_entries([self.root])  # a folder of Ollama's, which others aren't
        linked = {(entry.repo_id, entry.filename) for entry in found if entry.source == "pulled" and not entry.fault}
        found += [entry for entry in cached_entries() if (entry.repo_id, entry.filename) not in linked]
        return found + ollama_entries()

    def find(self, name: str) -> Entry | None:
        """The model of a name, None if there is none. Raises ConfigError for a name of several models."""
        return find_in(self.entries(), name) if name else None

    # ---- links

    def link(self, repo_id: str, filename: str, path: str) -> str:
        """Puts a link to a file of the Hub's cache into the folder. Raises LoadError."""
        place = os.path.join(self.root, *repo_id.split("/"), *filename.split("/"))
        if os.path.lexists(place) and not os.path.islink(place):
            raise LoadError(f"{place} was put there by hand, and a pull replaces nothing: move it away")
        beside = os.path.join(os.path.dirname(place), f".{os.urandom(6).hex()}.link")
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(path, beside)
            os.replace(beside, place)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise self._unwritable(error) from error
        return place

    def note_fetched(self, etag: str) -> None:
        """Notes that a blob of the Hub's cache is there because of this store. Raises LoadError."""
        try:
            os.makedirs(os.path.join(self.root, FETCHED), exist_ok=True)
            with open(os.path.join(self.root, FETCHED, etag), "ab"):
                pass
        except OSError as error:
            raise self._unwritable(error) from error

    def has_fetched(self, etag: str) -> bool:
        """Whether a blob of the Hub's cache is there because of this store."""
        return os.path.exists(os.path.join(self.root, FETCHED, etag))

    def forget_fetched(self, etag: str) -> None:
        """Takes back `note_fetched`."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.root, FETCHED, etag))

    def _unwritable(self, error: OSError) -> LoadError:
        why = error.strerror or str(error)
        return LoadError(f"{self.root}: the store can't be written: {why}; OXILLAMA_MODELS names its folder")


def find_in(entries: Iterable[Entry], name: str) -> Entry | None:
    """Finds the model that a name means; of several quantisations of one repository the usual one.

    Raises ConfigError for a name of several models.
    """
    wanted = folded(plain_name(name))
    ranked = [(rank, entry) for entry in entries if (rank := entry.answers_to(wanted)) is not None]
    if not ranked:
        return None
    best = min(rank for rank, _ in ranked)
    found = [entry for rank, entry in ranked if rank == best]
    usable = [entry for entry in found if not entry.fault] or found
    if len(usable) > 1 and len({(entry.repo_id, entry.source) for entry in usable}) == 1 and usable[0].repo_id:
        quant = nearest_quant(sorted({entry.quant or "" for entry in usable}))
        usable = [entry for entry in usable if (entry.quant or "") == quant]
    if len({os.path.realpath(entry.path) for entry in usable}) > 1:
        listed = ", ".join(entry.name for entry in usable[:6])
        raise ConfigError(f"{name!r:.80} is a name of several models: {listed}; give one of them whole")
    return usable[0]


def nearest_names(entries: Sequence[Entry], name: str) -> list[str]:
    """Names of the three models whose names are most like one that means none."""
    if len(name) > LONGEST:
        return []
    import difflib  # which most names don't need

    wanted = folded(name)
    known: dict[str, str] = {}
    for entry in entries:
        for _, one in entry.names():
            known.setdefault(folded(one), entry.name)
    close = difflib.get_close_matches(wanted, known, n=5 * SHOWN, cutoff=0.5)
    close += sorted(one for one in known if len(wanted) > 2 and wanted.partition(":")[0] in one and one not in close)
    return list(dict.fromkeys(known[one] for one in close))[:SHOWN]
