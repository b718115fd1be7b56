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

from oxillama._util.signals import DeferredInterrupt
from oxillama.errors import GenerateError

__all__ = [
    "GUESSES",
    "READS",
    "STEPS",
    "ForkRegistry",
    "check_running",
    "ended",
    "import_before_fork",
    "renew_at_fork",
]

# Who is seen to first, at a fork and at the end: a step waits for guesses, and both wait for what they read. Were
# reading held up first, a fork would wait for a step that never ends.
GUESSES, STEPS, READS = range(3)


class Living(Protocol):
    """Something with a thread."""

    def stop(self, *, wait: bool) -> None:
        """Ends the thread."""

    def before_fork(self) -> None:
        """Sees to it that memory is whole when it is copied, and that no lock is held."""

    def after_fork_in_parent(self) -> None:
        """Goes on."""

    def after_fork_in_child(self) -> None:
        """The same without the thread."""


class Locking(Protocol):
    """Something with a lock for moments in which nothing is half done."""

    def renew_lock(self) -> None:
        """In a forked child: whoever held it is not here to give it back."""


class ForkRegistry:
    """Everything of a kind that has a thread; one instance for a module."""

    def __init__(self, turn: int) -> None:
        """`turn`: one of the numbers above."""
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
        """In one order everywhere, so that two threads that fork at once can't wait for each other."""
        with self._lock:
            return sorted(self._all, key=id)

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


# One hook for all kinds, since the order of hooks would be that in which modules happen to be imported.
_kinds: list[ForkRegistry] = []
_forking = threading.local()
_stopped = False
_locking: weakref.WeakSet[Locking] = weakref.WeakSet()


def renew_at_fork(one: Locking) -> None:
    """Sees to it that its lock is free in every forked child."""
    _locking.add(one)


def ended() -> bool:
    """Whether the interpreter ends: no thread of the package's own may begin any more."""
    return _stopped or sys.is_finalizing()


def check_running() -> None:
    """Raises GenerateError once the interpreter takes itself apart, and other threads are not there any more."""
    if sys.is_finalizing():
        raise GenerateError("the interpreter is ending: close engines, and what uses them, before that")


def _stop_all() -> None:
    global _stopped
    _stopped = True
    for kind in _kinds:
        for one in kind.members():
            one.stop(wait=True)


def _before_fork() -> None:
    _forking.ready = []
    with DeferredInterrupt():  # Python drops what a hook raises, and forks: nothing may be left out for it
        import_before_fork()  # while nobody is held up yet, whom a thread that imports could wait for
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


# A daemon that still worked while the interpreter goes would use memory that is free already.
atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


PACKAGE = __name__.partition(".")[0]
ENGINE = f"{PACKAGE}.core.loading"
# Programs, which don't fork.
PROGRAMS = (f"{PACKAGE}.cli", f"{PACKAGE}.__main__", f"{PACKAGE}.models.__main__")

# Of others, what templates and compressed snapshots come to need late.
OTHERS = ("encodings.unicode_escape", "compression.zstd", "zstandard")

_finished = False


def import_before_fork() -> None:
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
