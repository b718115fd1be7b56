"""NumPy's import where hardly a thread can be created.

OpenBLAS, which comes with NumPy, creates its threads when it is loaded, one per core. Where it can't, it sends SIGINT
to its own process: a KeyboardInterrupt out of nowhere in the middle of an import.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

__all__ = ["import_numpy"]

MOST_THREADS = 64  # that the OpenBLAS of NumPy's wheels has
_VARIABLE = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """Imports NumPy if nothing has; with one thread of OpenBLAS where the system allows no more, unless the environment
    says how many. The package computes with its own threads either way."""
    if "numpy" in sys.modules:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    bounded = _VARIABLE not in os.environ and not can_start(min(cores, MOST_THREADS) - 1)
    if bounded:
        os.environ[_VARIABLE] = "1"  # OpenBLAS reads it once
    try:
        import numpy  # noqa: F401
    finally:
        if bounded:
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
