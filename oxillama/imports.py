"""Modules that are imported when they are first used, and forks.

A module that another thread is importing when the process is forked stays locked in the child for ever: Python doesn't
know there that nobody imports it any more. What the package imports, it has therefore imported before a fork.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from types import ModuleType

__all__ = ["finish_imports"]

PACKAGE = __name__.partition(".")[0]
ENGINE = f"{PACKAGE}.engine.loading"
# Programs, which don't fork.
PROGRAMS = (f"{PACKAGE}.cli", f"{PACKAGE}.__main__", f"{PACKAGE}.models.__main__")

# Of others, what templates and compressed snapshots come to need late.
OTHERS = ("encodings.unicode_escape", "compression.zstd", "zstandard")

_finished = False


def finish_imports() -> None:
    """Waits for other threads that import modules of the package. Where there may be an engine, imports all of them.

    After that, it has nothing to do any more, and children find every module, whatever other threads do.
    """
    global _finished
    if _finished:
        return
    whole = ENGINE in sys.modules
    for name in chain(_all_modules(sys.modules[PACKAGE]), OTHERS) if whole else _begun():
        with suppress(Exception):  # who needs it gets the error
            importlib.import_module(name)
    _finished = whole


def _all_modules(package: ModuleType) -> Iterator[str]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name not in PROGRAMS:
            yield found.name
            if found.ispkg and found.name in sys.modules:
                yield from _all_modules(sys.modules[found.name])


def _begun() -> list[str]:
    """Modules that are being imported; the package first, which imports others that have not begun."""
    ours = [(name, module) for name, module in list(sys.modules.items()) if f"{name}.".startswith(f"{PACKAGE}.")]
    return [name for name, module in ours if getattr(module.__spec__, "_initializing", False)]
