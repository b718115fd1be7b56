"""Cursor over untrusted bytes: bounds-checked reading of numbers and strings."""

from collections.abc import Callable
from struct import Struct
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import GGUFError
from oxillama.gguf.values import STRUCTS, ValueType

__all__ = ["Cursor"]

_U32 = STRUCTS[ValueType.UINT32]
_U64 = STRUCTS[ValueType.UINT64]


class Cursor:
    """A position in a file's bytes. Nothing is read, sliced or allocated before its bounds are checked.

    Attributes:
        data: uint8 ``[n_bytes]``.
        label: the file's name, for messages.
        check: raises ModelFileError if the bytes are mapped, and their file has changed.
        position: the next byte to read; never beyond ``n_bytes``.
    """

    __slots__ = ("_memory", "check", "data", "label", "n_bytes", "position")

    def __init__(self, data: NDArray[np.uint8], label: str, check: Callable[[], None]) -> None:
        self.data = data
        self.check = check
        self._memory = data.data
        self.label = label
        self.n_bytes = len(data)
        self.position = 0

    @property
    def left(self) -> int:
        """Bytes from the position to the end."""
        return self.n_bytes - self.position

    def fail(self, what: str, message: str, at: int | None = None) -> NoReturn:
        """Raise GGUFError with file, place and byte offset (the position, if not given)."""
        raise GGUFError(f"{self.label}: {what}, byte {self.position if at is None else at}: {message}")

    def need(self, n: int, what: str) -> None:
        """GGUFError unless ``n`` bytes are left."""
        if n > self.left:
            self.fail(what, f"needs {n} bytes, the file has {self.left} more: it is truncated or damaged")

    def number(self, layout: Struct, what: str) -> Any:
        """A number of fixed size."""
        self.need(layout.size, what)
        (value,) = layout.unpack_from(self._memory, self.position)
        self.position += layout.size
        return value

    def u32(self, what: str) -> int:
        return self.number(_U32, what)  # type: ignore[no-any-return]

    def u64(self, what: str) -> int:
        return self.number(_U64, what)  # type: ignore[no-any-return]

    def string(self, what: str, limit: int | None = None) -> str:
        """A string: its length as uint64, then UTF-8 of no more than ``limit`` bytes."""
        start = self.position
        length = self.u64(f"length of {what}")
        if limit is not None and length > limit:
            self.fail(what, f"{length} bytes long; at most {limit} are allowed", start)
        self.need(length, what)
        raw = bytes(self._memory[self.position : self.position + length])
        try:
            text = raw.decode()
        except UnicodeDecodeError as e:
            self.fail(what, f"not UTF-8: {e.reason}, byte {e.start} of {raw[:40]!r}")
        self.position += length
        return text

    def skip(self, n: int, what: str) -> NDArray[np.uint8]:
        """The next ``n`` bytes, as a view."""
        self.need(n, what)
        view = self.data[self.position : self.position + n]
        self.position += n
        return view
