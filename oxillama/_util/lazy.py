"""Lazy values, computed when first used, and modules that are imported then."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["LateModule", "lazy"]

T = TypeVar("T")


class lazy(Generic[T]):
    """`functools.cached_property` without a lock.

    In Python 3.11 that has one lock for all objects of a class, which would stay locked for ever in a child that was
    forked while another thread computed a value. Here two threads may each compute a value; both get the one that was
    there first, and the other is dropped.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> Self | T:
        if owner is None:
            return self
        value: T = owner.__dict__.setdefault(self._make.__name__, self._make(owner))
        return value


class LateModule(ModuleType):
    """A module that is imported when something of it is first used.

    For modules that most programs don't need and that take long: asyncio takes as long as a twentieth of the way to the
    first token of a small model. Modules of the package are imported by an import statement.
    """

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        self.__dict__[name] = value
        return value
