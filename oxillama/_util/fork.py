"""Fork handling: locks and threads that survive `os.fork`, and imports that finish before the first fork.

A module that another thread is importing when the process is forked stays locked in the child for ever: Python doesn't
know there that no thread imports it any more. The package therefore finishes its imports before a fork.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from types import ModuleType
from typing import Protocol

from oxillama._util.sharing import members
from oxillama._util.signals import DeferredInterrupt

__all__ = [
    "DRAFTS",
    "READS",
    "STEPS",
    "ForkRegistry",
    "ended",
    "import_before_fork",
    "renew_at_fork",
]

# Order in which threads are stopped, at a fork and at exit: a step waits for drafts, and both wait for their pages. If
# readers were stopped first, a fork would wait for a step that never ends.
DRAFTS, STEPS, READS = range(3)


class Living(Protocol):
    """An object with a worker thread."""

    def stop(self, *, wait: bool) -> None:
        """Ends the thread."""

    def before_fork(self) -> None:
        """Makes sure that memory is consistent when it is copied, and that no lock is held."""

    def after_fork_in_parent(self) -> None:
        """Resumes work."""

    def after_fork_in_child(self) -> None:
        """Resumes work, without the worker thread."""


class Locking(Protocol):
    """An object with a lock that protects short, consistent changes."""

    def renew_lock(self) -> None:
        """Replaces the lock in a forked child, since a thread of the parent may have held it."""


class ForkRegistry:
    """Registry of all objects of a kind that have a worker thread; one instance for a module."""

    def __init__(self, turn: int) -> None:
        """`turn`: place in the order above."""
        self._turn = turn
        self._all: weakref.WeakSet[Living] = weakref.WeakSet()
        self._lock = threading.Lock()
        renew_at_fork(self)
        _kinds.append(self)
        _kinds.sort(key=lambda kind: kind._turn)

    def add(self, one: Living) -> None:
        with self._lock:
            self._all.add(one)

    def members(self) -> list[Living]:
        """The objects in a fixed order, so that two threads that fork at once can't wait for each other."""
        with self._lock:
            return sorted(members(self._all), key=id)

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


# One hook for all kinds, since the order of several hooks would be that of the modules' imports.
_kinds: list[ForkRegistry] = []
_forking = threading.local()
_stopped = False
_locking: weakref.WeakSet[Locking] = weakref.WeakSet()


def renew_at_fork(one: Locking) -> None:
    """Registers an object whose lock is replaced in every forked child."""
    _locking.add(one)


def ended() -> bool:
    """Whether the interpreter is ending: no thread of the package may be started any more."""
    return _stopped or sys.is_finalizing()


def _stop_all() -> None:
    global _stopped
    _stopped = True
    for kind in _kinds:
        for one in kind.members():
            one.stop(wait=True)


def _before_fork() -> None:
    _forking.ready = []
    with DeferredInterrupt():  # Python drops a hook's errors, and forks anyway: no interrupt may skip a part
        import_before_fork()  # before any thread is stopped, since an importing thread could wait for it
        for kind in _kinds:
            for one in kind.members():
                one.before_fork()
                _forking.ready.append(one)


def _after_fork_in_parent() -> None:
    with DeferredInterrupt():
        while _forking.ready:
            _forking.ready.pop().after_fork_in_parent()


def _after_fork_in_child() -> None:
    with DeferredInterrupt():
        for one in list(_locking):
            one.renew_lock()
        while _forking.ready:
            _forking.ready.pop(0).after_fork_in_child()


# A daemon thread that still worked while the interpreter is finalizing would use freed memory.
atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


PACKAGE = __name__.partition(".")[0]
ENGINE = f"{PACKAGE}.core.loading"
# Programs, and the deployments of Ray, which don't fork.
PROGRAMS = tuple(f"{PACKAGE}.{name}" for name in ("cli", "__main__", "examples", "models.__main__", "ray"))

# Modules of other packages that coroutines, texts, templates, notebooks and compressed snapshots import late.
OTHERS = ("asyncio", "html", "tokenizers", "encodings.unicode_escape", "compression.zstd", "zstandard", "jinja2.debug")

_finished = False


def import_before_fork() -> None:
    """Waits for other threads that import modules of the package. If there may be an engine, imports all modules.

    Later calls have nothing to do: children find every module, independent of other threads.
    """
    global _finished
    if _finished:
        return
    whole = ENGINE in sys.modules
    for name in chain(_all_modules(sys.modules[PACKAGE]), OTHERS) if whole else _begun():
        with suppress(Exception):  # the code that needs the module gets the error
            importlib.import_module(name)
    _finished = whole


def _all_modules(package: ModuleType) -> Iterator[str]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name not in PROGRAMS:
            yield found.name
            if found.ispkg and found.name in sys.modules:
                yield from _all_modules(sys.modules[found.name])


def _begun() -> list[str]:
    """Modules that are being imported; the package first, which imports others that have not started."""
    ours = [(name, module) for name, module in list(sys.modules.items()) if f"{name}.".startswith(f"{PACKAGE}.")]
    return [name for name, module in ours if getattr(module.__spec__, "_initializing", False)]
