"""Pickling and copying: objects that are opened once per process, and objects that stay in theirs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, NoReturn, SupportsIndex, TypeVar

from oxillama._util.fork import renew_at_fork
from oxillama.errors import PickleError

__all__ = ["OpenedOnce", "frozen", "stays_here", "with_fields"]

T = TypeVar("T")


def stays_here(remedy: str) -> Callable[[object, SupportsIndex], NoReturn]:
    """A `__reduce_ex__` for a class whose objects can be neither pickled nor copied. `remedy`: what to do instead."""

    def refuse(self: object, protocol: SupportsIndex) -> NoReturn:
        raise PickleError(f"{type(self).__name__} objects can't be pickled or copied: {remedy}")

    return refuse


class OpenedOnce(Generic[T]):
    """Objects that a process opens once, however many pickles of them it reads, in any threads.

    One lock protects what is known, for a few steps of a dictionary; while an object is opened, a lock of its key alone
    is held, so that only calls for the same object wait.

    The object opened last is kept until `forget`, so that the tasks of a pool, each of which holds it while it runs,
    find it open. All others live as long as something else refers to them.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[Hashable, T] = weakref.WeakValueDictionary()
        self._last: T | None = None
        self.renew_lock()
        renew_at_fork(self)

    def renew_lock(self) -> None:
        """Replaces the locks, in a forked child."""
        self._lock = threading.RLock()
        self._opening: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()  # locks

    def register(self, key: Hashable, one: T) -> None:
        """Registers an object that is pickled here: its pickles return itself in this process."""
        with self._lock:
            self._known[key] = one

    def get(self, key: Hashable, make: Callable[[], T], usable: Callable[[T], object] = lambda one: True) -> T:
        """The object of a key; made if there is none that is still usable."""
        with self._lock:
            opening = self._opening.get(key) or self._opening.setdefault(key, threading.RLock())
        with opening:
            found = self._known.get(key)
            if found is None or not usable(found):
                made = make()
                with self._lock:
                    self._known[key] = self._last = found = made
            return found

    def forget(self, one: T) -> None:
        """Drops an object that was closed."""
        if self._last is one:
            self._last = None


def frozen(value: Any) -> Hashable:
    """A value of a setting as part of a key: equal for equal values."""
    if isinstance(value, Mapping):
        return tuple(sorted((repr(name), repr(frozen(part))) for name, part in value.items()))
    if isinstance(value, list | tuple):
        return tuple(frozen(part) for part in value)
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # an array, whose repr is cut short
        return str(value.dtype), getattr(value, "shape", ()), value.tobytes()
    return repr(value)


def with_fields(kind: Callable[..., T], values: Mapping[str, Any]) -> T:
    """kind(**values), for `__reduce__` of classes whose fields are keywords."""
    return kind(**values)
