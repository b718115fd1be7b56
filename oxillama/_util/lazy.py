"""Lazy values, computed when first used."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["lazy"]

T = TypeVar("T")


class lazy(Generic[T]):
    """`functools.cached_property` without a lock.

    In Python 3.11 that has one lock for all objects of a class, which would stay locked for ever in a child that was
    forked while another thread computed a value. Here two threads may compute a value twice, with the same result.
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
        value = self._make(owner)
        owner.__dict__[self._make.__name__] = value
        return value
