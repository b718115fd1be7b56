"""NumPy's import where hardly a thread can be created.

OpenBLAS, which comes with NumPy, creates its threads when it is loaded, one per core. Where it can't, it sends SIGINT
to its own process: a KeyboardInterrupt out of nowhere in the middle of an import.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["import_numpy", "install_guard"]

MOST_THREADS = 64  # that the OpenBLAS of NumPy's wheels has
_VARIABLE = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """Imports NumPy if nothing has. The package computes with its own threads, however many OpenBLAS has."""
    import numpy  # noqa: F401


def install_guard() -> None:
    """Has NumPy imported with one thread of OpenBLAS where the system allows no more, by whichever module is the first
    to import it; unless the environment says how many."""
    if "numpy" not in sys.modules and not any(isinstance(finder, _Guard) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Guard())


class _Guard:
    """Finder of modules that finds NumPy alone, where few threads can be created. It goes when NumPy is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "numpy":
            return None
        with contextlib.suppress(ValueError):  # of another thread
            sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec(name)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        short = _VARIABLE not in os.environ and not can_start(min(cores, MOST_THREADS) - 1)
        if short and spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _OneThread(spec.loader))
        return spec


class _OneThread:
    """Loader of a module while the environment allows OpenBLAS one thread: it is read once. The module then shows the
    loader that it has otherwise."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        os.environ[_VARIABLE] = "1"
        try:
            self._loader.exec_module(module)
        finally:
            del os.environ[_VARIABLE]


def can_start(n: int) -> bool:
    """Whether so many threads can be started, all alive at once."""
    end, started = threading.Event(), []
    try:
        with contextlib.suppress(RuntimeError):
            for _ in range(n):
                thread = threading.Thread(target=end.wait, name="oxillama-trial", daemon=True)
                thread.start()
                started.append(thread)
    finally:
        end.set()
        for thread in started:
            thread.join()
    return len(started) == n
