"""Folders of models: the store, the Hub's cache, and those of Ollama."""

from __future__ import annotations

import os
import re

from oxillama.errors import ConfigError

__all__ = ["cached_parts", "hub_cache", "ollama_folders", "repo_folder", "shown_bytes", "store_folder"]

_CACHED = re.compile(r"models--(?P<owner>[^/]+?)--(?P<repo>[^/]+)/snapshots/(?P<commit>[^/]+)/(?P<file>.+)", re.DOTALL)


def store_folder() -> str:
    """The folder of the store: OXILLAMA_MODELS, or oxillama/models in XDG_DATA_HOME or ~/.local/share.

    Raises ConfigError without a home.
    """
    own, shared = os.environ.get("OXILLAMA_MODELS"), os.environ.get("XDG_DATA_HOME")
    if own:
        return os.path.abspath(os.path.expanduser(own))
    if shared and os.path.isabs(shared):  # others are to be ignored, says the specification
        return os.path.join(shared, "oxillama", "models")
    return os.path.join(_home("OXILLAMA_MODELS"), ".local", "share", "oxillama", "models")


def _home(variable: str) -> str:
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise ConfigError(f"{variable} must be set to a folder: there is no home folder")
    return home


def hub_cache() -> str:
    """The folder of the Hub's cache, as its library finds it, which isn't imported for it."""
    given = os.environ
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if given.get(name):
            return os.path.expandvars(os.path.expanduser(given[name]))
    shared = given.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = given.get("HF_HOME") or os.path.join(shared, "huggingface")
    return os.path.join(os.path.expandvars(os.path.expanduser(home)), "hub")


def repo_folder(repo_id: str) -> str:
    """The folder of a repository in the Hub's cache."""
    return os.path.join(hub_cache(), f"models--{repo_id.replace('/', '--')}")


def cached_parts(path: str) -> tuple[str, str, str] | None:
    """Repository, commit and file of a path in the Hub's cache; None for a path elsewhere."""
    root = os.path.join(hub_cache(), "")
    found = _CACHED.fullmatch(path.removeprefix(root)) if path.startswith(root) else None
    return None if found is None else (f"{found['owner']}/{found['repo']}", found["commit"], found["file"])


def ollama_folders() -> list[str]:
    """Folders of models that Ollama may have: OLLAMA_MODELS alone where it is set; else that of the user, and that of
    its service."""
    if own := os.environ.get("OLLAMA_MODELS"):
        return [os.path.abspath(os.path.expanduser(own))]
    home = os.path.join(os.path.expanduser("~"), ".ollama", "models")
    return [home, "/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models"]


def shown_bytes(n_bytes: int) -> str:
    """A number of bytes as it is read."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n_bytes >= 1 << power:
            return f"{n_bytes / (1 << power):.1f} {unit}"
    return f"{max(n_bytes, 0)} bytes"
