"""Models of the Hugging Face Hub by name and glob pattern."""

from __future__ import annotations

import fnmatch
import os
from typing import Any

from oxillama import hub
from oxillama.errors import ConfigError, LoadError, ModelNotFoundError
from oxillama.store.names import read_hub_name
from oxillama.store.resolve import find_hub_model

__all__ = ["fetched"]


def fetched(repo_id: str, filename: Any, additional: Any, folders: dict[str, Any], symlinks: Any) -> str:
    """Path of a file in the Hub's local cache; a split model is there whole.

    Raises ConfigError, ModelNotFoundError, LoadError.
    """
    for name, folder in folders.items():
        if folder is not None:
            raise ConfigError(f"{name} must be None, not {folder!r}: HF_HOME names the folder of the Hub's cache")
    if symlinks != "auto":
        raise ConfigError(f"local_dir_use_symlinks must be 'auto', not {symlinks!r}")
    if filename is None and isinstance(repo_id, str) and not additional:
        of_hub = read_hub_name(repo_id, "repo_id", bare=":" in repo_id)
        if of_hub is not None:
            return find_hub_model(of_hub)
    if filename is None:
        raise ConfigError("filename must be a file's name or a glob pattern, or None with repo_id as hf:OWNER/REPO")
    if not isinstance(filename, str):
        raise ConfigError(f"filename must be a file's name or a glob pattern, not {filename!r}")
    found = _matching(repo_id, filename)
    for pattern in additional or ():
        other = _matching(repo_id, pattern)
        if other not in hub.shard_names(found):
            raise ConfigError(f"additional_files must be further parts of {found!r}, not {other!r}: fetch it yourself")
    return hub.download(repo_id, found)


def _matching(repo_id: str, pattern: str) -> str:
    if not any(mark in pattern for mark in "*?["):
        return pattern
    names = _names(repo_id)
    matching = [name for name in names if fnmatch.fnmatch(name, pattern)]
    firsts = [name for name in matching if name in hub.shard_names(name)[:1]]
    heads = [name for name in matching if not any(name in hub.shard_names(first)[1:] for first in firsts)]
    if not heads:
        raise NoFileError(f"No file found in {repo_id} that match {pattern}: there are {', '.join(names)}")
    if len(heads) > 1:
        raise ConfigError(f"Multiple files found in {repo_id} matching {pattern}: {', '.join(heads)}")
    return heads[0]


def _names(repo_id: str) -> list[str]:
    """The GGUF files of a repository, or with HF_HUB_OFFLINE those of the local cache."""
    hub.check_names(repo_id, "model.gguf")
    try:
        from huggingface_hub import HfApi, constants, scan_cache_dir
    except ImportError as error:
        raise LoadError(f"from_pretrained needs huggingface_hub, which can't be imported ({error})") from error
    if constants.HF_HUB_OFFLINE:
        if not os.path.isdir(constants.HF_HUB_CACHE):
            return []
        revisions = [r for repo in scan_cache_dir().repos if repo.repo_id == repo_id for r in repo.revisions]
        names = {str(f.file_path.relative_to(r.snapshot_path)) for r in revisions for f in r.files}
    else:
        try:
            names = set(HfApi().list_repo_files(repo_id))
        except Exception as error:  # its releases raise the errors of different HTTP libraries
            raise LoadError(f"can't list the files of {repo_id!r} on the Hub: {error}") from error
    return sorted(name for name in names if name.endswith(".gguf"))


class NoFileError(ModelNotFoundError, ValueError):
    """No file matches: a ValueError, as the replaced package raises it."""
