"""Lazy values, computed when first used, modules that are imported then, and names that an upper layer gives."""

import importlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["LateModule", "give_names", "given_name", "lazy"]

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


_GIVEN: dict[tuple[str, str], str] = {}


def give_names(package: str, names: Iterable[str], module: str) -> None:
    """Notes that a package has these names too, of a module that is above it and imported when one is asked for.

    Called by the top of the package, which knows all layers; the package itself names none above its own.
    """
    _GIVEN.update(dict.fromkeys(((package, name) for name in names), module))


def given_name(package: str, name: str) -> Any:
    """Object of a name that a package was given, for its `__getattr__`. Raises AttributeError for others."""
    module = _GIVEN.get((package, name))
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
