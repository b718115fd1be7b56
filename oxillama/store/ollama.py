"""Models of Ollama: their files among its blobs, by its manifests. They are read, and never changed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from oxillama.store.entries import Entry
from oxillama.store.places import ollama_folders

__all__ = ["ollama_entries"]

LIBRARY = os.path.join("registry.ollama.ai", "library")
MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
MOST_BYTES = 1 << 20  # of a manifest
MOST = 10_000  # manifests
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def ollama_entries(folders: list[str] | None = None) -> list[Entry]:
    """The models of Ollama's folders; a name that is in two of them means the first."""
    found: dict[str, Entry] = {}
    for folder in ollama_folders() if folders is None else folders:
        for place, name in _manifests(os.path.join(folder, "manifests")):
            entry = _entry(folder, place, name)
            if entry is not None:
                found.setdefault(name, entry)
    return [found[name] for name in sorted(found)]


def _manifests(root: str) -> Iterator[tuple[str, str]]:
    """(path, name) of manifests HOST/NAMESPACE/MODEL/TAG."""
    n = 0
    for folder, folders, files in os.walk(root):
        depth = os.path.relpath(folder, root).count(os.sep) + 1
        if depth >= 3:
            folders.clear()
        folders.sort()
        for tag in sorted(files) if depth == 3 else ():
            n += 1
            if n > MOST:
                return
            if not tag.startswith("."):
                model = os.path.relpath(folder, root)
                short = model.removeprefix(LIBRARY + os.sep).removeprefix("registry.ollama.ai" + os.sep)
                yield os.path.join(folder, tag), f"{short.replace(os.sep, '/')}:{tag}"


def _entry(folder: str, place: str, name: str) -> Entry | None:
    """The model of a manifest; None for what is no manifest of a model."""
    layers = _layers(place)
    digest = next((found[1] for one in layers if (found := _digest(one, MODEL))), None)
    if digest is None:
        return None
    path = os.path.join(folder, "blobs", f"sha256-{digest}")
    fault = "" if os.path.isfile(path) else "its blob is gone"
    if any(_digest(one, ADAPTER) for one in layers):
        fault = fault or "it has adapters, which oxillama takes as files: --lora"
    return Entry(name, path, place, "ollama", (path,), fault=fault)


def _layers(place: str) -> list[Any]:
    try:
        if os.path.getsize(place) > MOST_BYTES:
            return []
        with open(place, "rb") as file:
            read = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    layers = read.get("layers") if isinstance(read, dict) else None
    return layers if isinstance(layers, list) else []


def _digest(layer: Any, kind: str) -> re.Match[str] | None:
    if not isinstance(layer, dict) or layer.get("mediaType") != kind or not isinstance(layer.get("digest"), str):
        return None
    return _DIGEST.fullmatch(layer["digest"])
