"""Files of served models: whether they were changed under a running server or can't be loaded, and that no answer
tells where they are."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from oxillama.engine.engine import Engine
from oxillama.errors import (
    ConfigError,
    LoadError,
    LoraError,
    ModelFileError,
    ModelNotFoundError,
    PackedFileError,
    ThreadStartError,
    UnsupportedModelError,
)
from oxillama.speculative.draft_model import DraftModel

__all__ = ["CHANGED", "file_fault", "is_passing", "reason_of", "stamp_of", "without_paths"]

# Of the system, which may have what was lacking a moment later.
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT)
Stamp = tuple[int, int, int, int]
CHANGED = "its file was changed, cut off or can't be read any more since it was loaded"


def file_fault(engine: Engine, draft: object = None) -> ModelFileError | None:
    """Fault of a file that weights are read or mapped from; None while all are as they were opened."""
    try:
        engine.context.core.runner.check_files()
        if isinstance(draft, DraftModel):
            draft.check_files()
    except ModelFileError as error:
        return error
    return None


def stamp_of(path: str | None) -> Stamp | None:
    """Stamp that changes with a file; None without one."""
    try:
        info = os.stat(path or "")
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def is_passing(error: BaseException) -> bool:
    """Whether loading failed for what the system was short of: memory, threads, descriptors, room on the disk."""
    seen: BaseException | None = error
    for _ in range(16):
        if isinstance(seen, MemoryError | ThreadStartError) or (isinstance(seen, OSError) and seen.errno in SHORT):
            return True
        seen = None if seen is None else seen.__cause__ or seen.__context__
    return False


def reason_of(error: BaseException) -> str:
    """Reason for which a model can't be loaded, by the kind of the error: its own words, which may tell a path, are for
    the log."""
    if is_passing(error):
        return "the server is short of memory, of threads or of open files"
    match error:
        case ModelNotFoundError():
            return "its file isn't there, or can't be read"
        case LoraError():
            return "an adapter doesn't fit it"
        case PackedFileError():
            return "its packed weights can't be used"
        case UnsupportedModelError():
            return "it is of a kind that isn't supported"
        case LoadError():
            return "its file is damaged, or lacks a part"
        case ConfigError():
            return "a setting or its draft doesn't fit it"
        case OSError():
            return "one of its files can't be read"
    return "the log says why"


def without_paths(text: str, paths: Iterable[str | None]) -> str:
    """A message for clients: of files and folders of the server, only the names are left."""
    if os.sep not in text:
        return text
    known = {form for path in paths if path for form in (path, os.path.abspath(path), os.path.realpath(path))}
    for path in sorted(known, key=len, reverse=True):
        if os.sep in path.strip(os.sep):
            text = text.replace(path, os.path.basename(path))
        text = text.replace(f"{os.path.dirname(path)}{os.sep}", "") if os.sep in path[1:] else text
    return text
