from typing import Any, Generic, TypeVar

__all__ = ["SlotsMaker"]

T = TypeVar("T")

class SlotsMaker(Generic[T]):
    def __init__(self, made: type[T], *given: str) -> None: ...
    def __call__(self, *values: Any) -> T: ...
