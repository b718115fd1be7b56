"""Arrays in GGUF metadata, decoded on access."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import GGUFError
from oxillama.gguf import _scan
from oxillama.gguf.values import DTYPES, ValueType

__all__ = ["GGUFArray"]


def in_memory() -> None:
    """The check of an array in memory, which can't change: nothing."""


class GGUFArray(Sequence[Any]):
    """An array of numbers, bools or strings.

    ``payload`` holds the items' bytes as in the file; numbers are converted on each access, the offsets of strings are
    found once, on the first. Equal to any sequence of equal items.

    Attributes:
        item_type: the stored `ValueType` of the items.
        payload: uint8 ``[n]``, a read-only view of the file.
        where: the place, for messages.
        check: raises ModelFileError if the file has changed since it was opened; every access to items calls it.
    """

    __slots__ = ("_count", "_offsets", "check", "item_type", "payload", "where")

    def __init__(
        self,
        item_type: ValueType,
        count: int,
        payload: NDArray[np.uint8],
        where: str,
        check: Callable[[], None] = in_memory,
    ) -> None:
        self.item_type = item_type
        self.payload = payload
        self.where = where
        self.check = check
        self._count = count
        self._offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._some(range(*index.indices(self._count)))
        i = range(self._count)[index]
        if self.item_type is not ValueType.STRING:
            item = self._view()[i].item()
            self.check()
            return item
        return self._text(self.bytes_at(i), i)

    def __reduce__(self) -> tuple[Any, ...]:
        payload = self.payload.copy()  # a copy in memory needs no check
        self.check()
        return GGUFArray, (self.item_type, self._count, payload, self.where)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GGUFArray) and other.item_type is self.item_type:
            return len(other) == len(self) and self.tolist() == other.tolist()
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(other) == len(self) and self.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<GGUFArray of {self._count} {self.item_type.name}>"

    def tolist(self) -> list[Any]:
        """The items as Python ints, floats, bools or strings; GGUFError names a string that is not UTF-8."""
        try:
            strings = self.item_type is ValueType.STRING
            found = _scan.text_list(self.payload, self._places()) if strings else self._view().tolist()
            self.check()
        except UnicodeDecodeError:
            # The C loop doesn't report the index of the string.
            found = [self._text(raw, i) for i, raw in enumerate(self.bytes_list())]
        return found

    def numpy(self) -> NDArray[Any]:
        """The numbers or bools as a new array of their stored dtype; GGUFError for strings."""
        found = self._view().copy()
        self.check()
        return found

    def bytes_list(self) -> list[bytes]:
        """The bytes of all strings, UTF-8 or not; GGUFError for numbers."""
        found = _scan.bytes_list(self.payload, self._places())
        self.check()
        return found

    def string_places(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The file's bytes, of which string i is ``[offsets[i] + 8:offsets[i + 1]]``, and the offsets; GGUFError for
        numbers. Callers ``check()`` after they have used the bytes."""
        return self.payload, self._places()

    def bytes_at(self, index: int) -> bytes:
        """The bytes of one string, UTF-8 or not."""
        found = self._raw(range(self._count)[index])
        self.check()
        return found

    def _some(self, chosen: range) -> list[Any]:
        """Items with one check, a system call, for all."""
        if self.item_type is not ValueType.STRING:
            view = self._view()
            numbers = [view[i].item() for i in chosen]
            self.check()
            return numbers
        raw = [self._raw(i) for i in chosen]
        self.check()
        return [self._text(one, i) for one, i in zip(raw, chosen, strict=True)]

    def _raw(self, i: int) -> bytes:
        """The bytes of a string, without a check."""
        places = self._places()
        return self.payload[int(places[i]) + 8 : int(places[i + 1])].tobytes()

    def _view(self) -> NDArray[Any]:
        if self.item_type is ValueType.STRING:
            raise GGUFError(f"{self.where}: holds strings, not numbers; use tolist() or bytes_list()")
        return self.payload.view(DTYPES[self.item_type])

    def _places(self) -> NDArray[np.int64]:
        if self.item_type is not ValueType.STRING:
            raise GGUFError(f"{self.where}: holds {self.item_type.name} items, not strings; use numpy() or tolist()")
        if self._offsets is None:
            self._offsets = _scan.string_offsets(self.payload, self._count)
        if self._offsets is None:
            self.check()
            raise GGUFError(f"{self.where}: its strings don't fit any more: the file changed while it was open")
        return self._offsets

    def _text(self, raw: bytes, i: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise GGUFError(f"{self.where}: string {i} is not UTF-8: {raw[:40]!r} ({e.reason} at {e.start})") from None
