"""Threads of the package's own, when their process forks or ends."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol

__all__ = ["Lives"]


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


class Lives:
    """Everything of a kind that has a thread; one instance for a module."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Living] = weakref.WeakSet()
        self._forking = threading.local()
        # A daemon that still worked while the interpreter goes would use memory that is free already.
        atexit.register(self._stop_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )

    def add(self, one: Living) -> None:
        self._all.add(one)

    def _stop_all(self) -> None:
        for one in list(self._all):
            one.stop(wait=True)

    def _before(self) -> None:
        # In one order everywhere, so that two threads that fork at once can't wait for each other.
        self._forking.all = sorted(self._all, key=id)
        for one in self._forking.all:
            one.before_fork()

    def _after_in_parent(self) -> None:
        for one in self._forking.all:
            one.after_fork_in_parent()
        self._forking.all = []

    def _after_in_child(self) -> None:
        for one in self._forking.all:
            one.after_fork_in_child()
        self._forking.all = []
