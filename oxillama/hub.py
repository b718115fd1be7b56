"""Hugging Face Hub: files of its repositories, from the local cache or downloaded."""

from __future__ import annotations

import contextlib
import re

from oxillama.errors import ConfigError, LoadError, ModelNotFoundError

__all__ = ["download"]

# What the Hub takes for the name of an owner or a repository, and what a file's path is made of: no patterns, since
# one file is loaded.
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_PATH = re.compile(r"[^\x00-\x1f\x7f/\\*?:\"<>|]{1,255}")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def download(repo_id: str, filename: str, *, revision: str | None = None, cached: bool = False) -> str:
    """Path of the file in the local cache, as `from_hub` says; a split model is fetched whole.

    cached: it must be there already: no network is asked.
    """
    check_names(repo_id, filename)
    if revision is not None and (not isinstance(revision, str) or not revision):
        raise ConfigError(f"revision must be a string of at least one character or None, not {revision!r}")
    find = _cached if cached else _fetch
    paths = [find(repo_id, part, revision) for part in shard_names(filename)]
    return paths[0]


def check_names(repo_id: object, filename: object) -> None:
    """Raises ConfigError for what can be no repository and no GGUF file in one, before a network is asked for it."""
    parts = repo_id.split("/") if isinstance(repo_id, str) else []
    if len(parts) != 2 or not all(_NAME.fullmatch(part) and ".." not in part and "--" not in part for part in parts):
        raise ConfigError(
            f"repo_id must be 'owner/name' (letters, digits, '-', '_' and '.'), not {repo_id!r}: the file's name is "
            "an argument of its own"
        )
    folders = filename.split("/") if isinstance(filename, str) else []
    if not folders or not all(_PATH.fullmatch(part) and part not in (".", "..") for part in folders):
        raise ConfigError(f"filename must be a file's path in the repository, such as 'model.gguf', not {filename!r}")
    if not folders[-1].lower().endswith(".gguf"):
        raise ConfigError(f"filename must be that of a GGUF file, which ends in .gguf, not {filename!r}")
    shard = _SHARD.fullmatch(folders[-1])
    if shard is not None and shard[2] != "00001":
        first = "/".join([*folders[:-1], f"{shard[1]}-00001-of-{shard[3]}.gguf"])
        raise ConfigError(f"filename must be that of a split model's first file, {first!r}, not {filename!r}")


def shard_names(filename: str) -> list[str]:
    """All files of a split model, given the name of the first (…-00001-of-0000N.gguf); else the one name."""
    stem, dot, suffix = filename.rpartition(".gguf")
    head, of, count = stem.rpartition("-of-")
    if not dot or suffix or not of or not head.endswith("-00001") or not (len(count) == 5 and count.isdecimal()):
        return [filename]
    base = head.removesuffix("-00001")
    return [f"{base}-{i:05}-of-{count}.gguf" for i in range(1, int(count) + 1)]


def first_of(filename: str) -> str:
    """The first file of the split model that a file is a part of."""
    head, of, count = filename[: -len(".gguf")].rpartition("-of-")
    if of and len(count) == 5 and count.isdecimal() and head[-6:-5] == "-" and head[-5:].isdecimal():
        return f"{head[:-5]}00001-of-{count}{filename[-len('.gguf') :]}"
    return filename


def _cached(repo_id: str, filename: str, revision: str | None) -> str:
    # Not hf_hub_download(local_files_only=True): that asks the Hub for other things all the same.
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError as error:
        raise LoadError(f"the Hub's cache needs huggingface_hub, which can't be imported ({error})") from error
    try:
        path = try_to_load_from_cache(repo_id, filename, revision=revision)
    except Exception as error:  # its releases raise errors of several kinds for names that can't be
        raise LoadError(
            f"can't find {_named(repo_id, filename, revision)} in the cache: {_first_line(error)}"
        ) from error
    if not isinstance(path, str):
        raise ModelNotFoundError(f"{_named(repo_id, filename, revision)} is not in the Hub's local cache")
    return path


def _named(repo_id: str, filename: str, revision: str | None) -> str:
    return f"{filename!r} of {repo_id!r}" + (f" at {revision!r}" if revision else "")


def _fetch(repo_id: str, filename: str, revision: str | None) -> str:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise LoadError(f"the Hub needs huggingface_hub, which can't be imported ({error})") from error
    from oxillama.store.progress import DownloadBar
    from oxillama.store.transfer import remote_file, transfer
    from oxillama.store.trouble import is_absent

    try:
        file = remote_file(repo_id, filename, revision)
    except LoadError as error:
        if not is_absent(error.__cause__):  # what is here counts where the Hub gives no answer
            with contextlib.suppress(LoadError):
                return _cached(repo_id, filename, revision)
        raise
    with DownloadBar() as bar:
        return transfer(file, bar)[0]


def _first_line(error: Exception) -> str:
    """The Hub's messages run over many lines; the first that says something is enough here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
