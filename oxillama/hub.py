"""Models from the Hugging Face Hub."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from oxillama.checks import check_keywords
from oxillama.config import EngineOptions
from oxillama.errors import ConfigError, LoadError, ModelNotFoundError

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["download", "from_hub"]


def from_hub(repo_id: str, filename: str, *, revision: str | None = None, **fields: Unpack[EngineOptions]) -> Engine:
    """Loads a GGUF file of a repository on the Hugging Face Hub, downloading it unless it is in the local cache.

    repo_id: "owner/name". filename: the file's path in it; of a split model, its first file. revision: branch, tag or
    commit. fields: those of `oxillama.load`. The Hub's own environment variables count: HF_HUB_OFFLINE=1 uses the cache
    alone, HF_HOME and HF_TOKEN as usual.

    Raises ModelNotFoundError if there is no such repository, revision or file, or it is not in the cache and can't be
    fetched; LoadError for other trouble with the Hub; what `oxillama.load` raises.
    """
    import oxillama

    check_keywords("from_hub", fields, ("repo_id", "filename", "revision", *EngineOptions.__annotations__))
    return oxillama.load(download(repo_id, filename, revision=revision), **fields)


def download(repo_id: str, filename: str, *, revision: str | None = None) -> str:
    """Path of the file in the local cache, as `from_hub` says; a split model is fetched whole."""
    for name, value in (("repo_id", repo_id), ("filename", filename)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{name} must be a string of at least one character, not {value!r}")
    if revision is not None and (not isinstance(revision, str) or not revision):
        raise ConfigError(f"revision must be a string of at least one character or None, not {revision!r}")
    paths = [_fetch(repo_id, part, revision) for part in shard_names(filename)]
    return paths[0]


def shard_names(filename: str) -> list[str]:
    """All files of a split model, given the name of the first (…-00001-of-0000N.gguf); else the one name."""
    stem, dot, suffix = filename.rpartition(".gguf")
    head, of, count = stem.rpartition("-of-")
    if not dot or suffix or not of or not head.endswith("-00001") or not (len(count) == 5 and count.isdecimal()):
        return [filename]
    base = head.removesuffix("-00001")
    return [f"{base}-{i:05}-of-{count}.gguf" for i in range(1, int(count) + 1)]


def _fetch(repo_id: str, filename: str, revision: str | None) -> str:
    try:
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub import errors as hub_errors
    except ImportError as error:
        raise LoadError(f"from_hub needs huggingface_hub, which can't be imported ({error})") from error
    what = f"{filename!r} of {repo_id!r}" + (f" at {revision!r}" if revision else "")
    absent = (
        hub_errors.EntryNotFoundError,
        hub_errors.LocalEntryNotFoundError,
        hub_errors.RepositoryNotFoundError,
        hub_errors.RevisionNotFoundError,
    )
    try:
        return os.fspath(hf_hub_download(repo_id, filename, revision=revision))
    except hub_errors.HFValidationError as error:
        raise ConfigError(f"repo_id must be 'owner/name', not {repo_id!r}: {_first_line(error)}") from error
    except absent as error:
        if constants.HF_HUB_OFFLINE:
            raise ModelNotFoundError(
                f"{what} is not in the local cache, and HF_HUB_OFFLINE forbids to download it: unset it, or fetch the "
                "file beforehand"
            ) from error
        raise ModelNotFoundError(f"can't get {what} from the Hub: {_first_line(error)}") from error
    except Exception as error:  # its releases raise the errors of different HTTP libraries
        raise LoadError(f"can't get {what} from the Hub: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """The Hub's messages run over many lines; the first that says something is enough here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
