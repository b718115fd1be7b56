"""Entries: models that are on this machine, in the store, the Hub's cache and Ollama's folders, with their names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from oxillama.errors import ConfigError
from oxillama.hub import first_of, shard_names
from oxillama.store.names import HUB, folded, read_hub_name
from oxillama.store.places import cached_parts, hub_cache
from oxillama.store.quants import quant_of_file

__all__ = ["DEEPEST", "Entry", "Source", "cached_entries", "folder_entries", "plain_name"]

Source = Literal["pulled", "link", "file", "hub", "ollama"]
DEEPEST = 8  # folders below a store
MOST = 100_000  # files that are looked at
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class Entry:
    """A model on this machine.

    name: the one that lists show. path: of its first file, which is opened. place: where the store has it: a link, a
    file, or a manifest. source: "pulled" by name, a "link" or a "file" put there by hand, in the "hub"'s cache, or
    "ollama"'s. parts: all files. repo_id, filename: on the Hub. quant: by its file's name. fault: why it can't be used.
    """

    name: str
    path: str
    place: str
    source: Source
    parts: tuple[str, ...] = ()
    repo_id: str = ""
    filename: str = ""
    quant: str | None = None
    fault: str = ""

    @property
    def n_bytes(self) -> int:
        """Size of all its files that are there."""
        return sum(os.path.getsize(part) for part in self.parts if os.path.isfile(part))

    @property
    def modified(self) -> float:
        """Time since which it is there, Unix seconds."""
        try:
            return os.lstat(self.place).st_mtime
        except OSError:
            return 0.0

    def names(self) -> Iterator[tuple[int, str]]:
        """(rank, name) of every name that means it: a name of a lower rank counts before those of higher ones."""
        yield 0, self.name
        if self.source == "ollama":
            plain = self.name.removesuffix(":latest")
            yield from ((0, plain), (1, f"library/{plain}"), (1, f"library/{self.name}"))
            return
        base = os.path.basename(self.filename or self.place)
        stem = _SHARD.sub("", base[: -len(".gguf")]) if base.lower().endswith(".gguf") else base
        yield from ((1, base), (1, stem))
        if not self.repo_id:
            yield 0, f"{self.name}.gguf"
            yield from self._by_quant(without_quant(stem, self.quant))
            return
        yield 0, f"{self.repo_id}/{self.filename}"
        repo = self.repo_id.partition("/")[2]
        for rank, owner in ((1, self.repo_id), (2, repo), (3, re.sub(r"[-_.]gguf$", "", repo, flags=re.IGNORECASE))):
            yield from ((rank, owner), (rank, f"{owner}:latest"))
            if self.quant:
                yield rank, f"{owner}:{self.quant}"
        yield from self._by_quant(without_quant(stem, self.quant))

    def _by_quant(self, plain: str) -> Iterator[tuple[int, str]]:
        yield 3, plain
        if self.quant:
            yield 3, f"{plain}:{self.quant}"

    def answers_to(self, wanted: str) -> int | None:
        """Rank of a name, `folded` and plain, as that of this model; None if it is none of its names."""
        ranks = [rank for rank, one in self.names() if folded(one) == wanted]
        return min(ranks) if ranks else None


def plain_name(name: str) -> str:
    """A name without what says that it is one of the Hub: as entries have it."""
    try:
        found = read_hub_name(name)
    except ConfigError:
        return name
    return name if found is None else str(found).removeprefix(HUB)


def without_quant(stem: str, quant: str | None) -> str:
    """A file's stem without the quantisation that ends it."""
    if quant is None:
        return stem
    return re.sub(rf"[-_.]{re.escape(quant)}$", "", stem, flags=re.IGNORECASE)


def folder_entries(root: str) -> list[Entry]:
    """The models of a store's folder: GGUF files and links to them, by hand or pulled."""
    found = []
    for place in sorted(_files(root)):
        name = os.path.basename(place)
        if first_of(name) != name:
            continue
        found.append(_entry(root, place))
    return _with_own_names(found)


def _files(root: str) -> Iterator[str]:
    """GGUF files below a folder; links to folders are followed, each folder once."""
    seen: set[tuple[int, int]] = set()
    todo, n = [(root, 0)], 0
    while todo:
        folder, depth = todo.pop()
        try:
            info = os.stat(folder)
            if (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            items = sorted(os.scandir(folder), key=lambda item: item.name)
        except OSError:
            continue
        for item in items:
            n += 1
            if n > MOST:
                return
            if item.name.startswith("."):
                continue
            if item.is_dir():
                if depth < DEEPEST:
                    todo.append((item.path, depth + 1))
            elif item.name.lower().endswith(".gguf") and (item.is_file() or item.is_symlink()):
                yield item.path


def _entry(root: str, place: str) -> Entry:
    relative = os.path.relpath(place, root)
    if not os.path.islink(place):
        parts = tuple(_beside(place))
        return Entry(_plain(relative), place, place, "file", parts, "", "", quant_of_file(relative), _lacks(parts))
    target = os.path.normpath(os.path.join(os.path.dirname(place), os.readlink(place)))
    known = cached_parts(target)
    fault = "" if os.path.isfile(place) else f"its file is gone: {target}"
    if known is None or not relative.startswith(os.path.join(*known[0].split("/"), "")):
        parts = tuple(_beside(place))
        return Entry(
            _plain(relative), place, place, "link", parts, "", "", quant_of_file(relative), fault or _lacks(parts)
        )
    parts = tuple(_beside(target))
    return _of_hub(known[0], known[2], target, place, "pulled", parts, fault or _lacks(parts))


def _of_hub(repo: str, filename: str, path: str, place: str, source: Source, parts: tuple[str, ...],
            fault: str) -> Entry:  # fmt: skip
    quant = quant_of_file(filename)
    name = f"{repo}:{quant}" if quant else f"{repo}/{filename}"
    return Entry(name, path, place, source, parts, repo, filename, quant, fault)


def _plain(relative: str) -> str:
    return _SHARD.sub("", relative[: -len(".gguf")])


def _beside(path: str) -> list[str]:
    folder, name = os.path.split(path)
    return [os.path.join(folder, part) for part in shard_names(name)]


def _lacks(parts: tuple[str, ...]) -> str:
    missing = sum(not os.path.isfile(part) for part in parts)
    return f"{missing} of its {len(parts)} parts are missing" if missing else ""


def _with_own_names(entries: list[Entry]) -> list[Entry]:
    """Entries of which no two have one name: those that would are named by their files."""
    counts = Counter(folded(entry.name) for entry in entries)
    return [
        replace(entry, name=f"{entry.repo_id}/{entry.filename}")
        if entry.repo_id and counts[folded(entry.name)] > 1
        else entry
        for entry in entries
    ]


def cached_entries() -> list[Entry]:
    """The models of the Hub's cache, of each the one that its main branch was when it was asked for last."""
    root, newest = hub_cache(), dict[tuple[str, str], tuple[bool, float, str]]()
    for folder in _folders(root, "models--"):
        main = _read(os.path.join(folder, "refs", "main"))
        for snapshot in _folders(os.path.join(folder, "snapshots"), ""):
            for path in _files(snapshot):
                known = cached_parts(path)
                if known is None or first_of(path) != path or not os.path.isfile(path):
                    continue
                one = (known[1] == main, os.stat(snapshot).st_mtime, path)
                newest[known[0], known[2]] = max(newest.get((known[0], known[2]), one), one)
    found = []
    for (repo, filename), (_, _, path) in sorted(newest.items()):
        parts = tuple(_beside(path))
        found.append(_of_hub(repo, filename, path, path, "hub", parts, _lacks(parts)))
    return _with_own_names(found)


def _folders(root: str, beginning: str) -> list[str]:
    try:
        return sorted(one.path for one in os.scandir(root) if one.name.startswith(beginning) and one.is_dir())
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(100).strip()
    except OSError:
        return ""
