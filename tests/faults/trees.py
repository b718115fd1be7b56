"""A folder with all that is in it, before and after a fault."""

from __future__ import annotations

import os
from pathlib import Path

from oxillama.gguf.output import TEMPORARY
from tests.faults.scenes import NAME

INTERRUPTED = "interrupted by a signal"
Tree = dict[str, bytes | None]  # relative path -> contents, None of a folder


def read_tree(folder: Path) -> Tree:
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = None if path.is_dir() else path.read_bytes()
    return found


def losses(old: Tree, new: Tree, now: Tree, *, alive: bool, error: str | None) -> list[str]:
    """What is not as it should be: each file is the old one or the new one, and there are no others.

    alive: whether the process lives on; then nothing is left, and an error means that the old file is there.
    """
    found = []
    for path in sorted(old.keys() | new.keys() | now.keys()):
        before, after = old.get(path, b"none"), new.get(path, b"none")
        if path not in old and path not in new:
            if alive or not TEMPORARY.fullmatch(os.path.basename(path)):
                found.append(f"{path} is left")
        elif now.get(path, b"none") not in (before, after):
            found.append(f"{path} is neither the old nor the new one")
        elif alive and path == NAME and now[path] != (before if error else after) and not _is_named(error):
            found.append(f"{path} is the {'new' if error else 'old'} one")
    whole = now.get(NAME) == new.get(NAME) != old.get(NAME) or (alive and error is None)
    if whole and NAME in new:
        found += [f"{path} is missing" for path in new if path not in now]
    return found


def _is_named(error: str | None) -> bool:
    """Of what may come when the file has its name already: an error that says so, and signals."""
    return error is not None and ("it has its name" in error or error == INTERRUPTED)
