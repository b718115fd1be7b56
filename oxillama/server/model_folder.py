"""Folder of models that a server has by their files: each is loaded when a request names it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.engine.engine import Engine
from oxillama.errors import ConfigError
from oxillama.server.config import STORE, ServerConfig
from oxillama.server.memory import weight_bytes
from oxillama.store.entries import Entry
from oxillama.store.quants import is_companion
from oxillama.store.store import Store, find_in, nearest_names

__all__ = ["DEFAULT", "FolderLoader", "ModelFolder"]

log = logging.getLogger("oxillama")

REST = 50  # looking at the folder takes this part of the time at most
DEFAULT = "oxillama-default"  # id of the model that ships with the package


@dataclass(frozen=True)
class FolderLoader:
    """A function that loads an engine. path: of its file, None for the model that ships. options: of `oxillama.load`"""

    path: str | None
    options: Mapping[str, Any]

    def __call__(self) -> Engine:
        engine = Engine.load(self.path, **self.options)
        log.info("loaded %s", self.path or "the model that ships with oxillama")
        return engine


class ModelFolder:
    """The models of `--models-dir`: what is there now, with aliases, and which of them stay in memory.

    store: the folder. entries: by the names under which they are served. options: of loading, of all models.
    """

    def __init__(self, config: ServerConfig, options: Mapping[str, Any] | None = None) -> None:
        """Raises ConfigError for aliases and pinned models that the folder lacks, and for a folder that isn't there."""
        given = config.models_dir or STORE
        self.store = Store(None if given == STORE else given, alone=True)
        if given != STORE and not os.path.isdir(self.store.root):
            raise ConfigError(f"models_dir {given}: there is no such folder")
        self.options = {name: value for name, value in (options or {}).items() if name != "model_path"}
        self._aliases = [pair_of(one) for one in config.alias]
        self.entries: dict[str, Entry] = {}
        self._due = 0.0
        self.scan()
        self._pinned = [self._named("keep_loaded", name).name for name in config.keep_loaded]
        for alias, name in self._aliases:
            self._named(f"alias {alias}={name}:", name)
        if config.models_max and len(set(self._pinned)) >= config.models_max:
            raise ConfigError(
                f"models_max must be more than the {len(set(self._pinned))} models of keep_loaded, not "
                f"{config.models_max}: the others are never in memory otherwise"
            )

    def _named(self, place: str, name: str) -> Entry:
        entry = self.find(name)
        if entry is None:
            near = nearest_names(list(self.entries.values()), name)
            there = f"; the nearest: {', '.join(near)}" if near else ""
            raise ConfigError(f"{place} {name!r:.80} is no model of {self.store.root}{there}")
        return entry

    def scan(self) -> bool:
        """Looks what is in the folder. Whether it is something else than before."""
        began = time.monotonic()
        found: dict[str, Entry] = {}
        for entry in self.store.entries():
            if not entry.fault and not is_companion(entry.filename or entry.place):
                found.setdefault(entry.name, entry)
        changed = found != self.entries
        self.entries = found
        now = time.monotonic()
        self._due = now + REST * (now - began)
        return changed

    @property
    def is_due(self) -> bool:
        """Whether to look again: a folder that takes long to look at is looked at less often."""
        return time.monotonic() >= self._due

    def find(self, name: str) -> Entry | None:
        """The model that a name means, also one that is not served under it. None for a name of none or of several."""
        if name in self.entries:
            return self.entries[name]
        try:
            return find_in(self.entries.values(), name)
        except ConfigError:
            return None

    def fields_of(self, entry: Entry) -> dict[str, Any]:
        """Fields of `ServedModel` for a model."""
        pinned = entry.name in self._pinned
        aliases = tuple(
            a for a, name in self._aliases if (one := self.find(name)) is not None and one.name == entry.name
        )
        return {
            "id": entry.name, "path": entry.path, "load": FolderLoader(entry.path, self.options), "aliases": aliases,
            "files": tuple(part for part in entry.parts if part != entry.path), "at_start": pinned, "pinned": pinned,
            "weights": 0 if self.options.get("offload") is not None else weight_bytes(entry.path),
            "created": int(entry.modified),
        }  # fmt: skip

    def described(self) -> list[dict[str, Any]]:
        """Fields of `ServedModel` for each model, those first that stay in memory."""
        order = sorted(self.entries.values(), key=lambda entry: (entry.name not in self._pinned, entry.name))
        return [self.fields_of(entry) for entry in order]

    def shipped(self) -> dict[str, Any]:
        """Fields of `ServedModel` for the model that ships, which answers while there is no other."""
        return {"id": DEFAULT, "load": FolderLoader(None, self.options), "at_start": False}


def pair_of(given: str) -> tuple[str, str]:
    """NAME=MODEL. Raises ConfigError."""
    alias, equals, name = given.partition("=")
    if not equals or not alias.strip() or not name.strip():
        raise ConfigError(f"alias must be NAME=MODEL, not {given!r:.80}")
    return alias.strip(), name.strip()
