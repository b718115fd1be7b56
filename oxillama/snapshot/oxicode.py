"""oxicode with variable-length integers, the encoding of the original's snapshots.

An integer below 251 is one byte; else a byte that says how many follow, little-endian: 251 two, 252 four, 253 eight.
Signed ones are zigzag first. Bytes (u8) and floats are as they are, little-endian. A text or list begins with its
length, an option with 0 or 1, a variant of an enumeration with its number; structures and arrays of fixed length are
their fields one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import SnapshotDamagedError, SnapshotError

__all__ = ["Decoder", "Encoder"]

T = TypeVar("T")

WIDTHS = {251: 2, 252: 4, 253: 8}
_F32 = struct.Struct("<f")


class Decoder:
    """Reads values one after another. Each raises SnapshotDamagedError, which names the value and the place."""

    def __init__(self, data: bytes, label: str) -> None:
        self._data, self._label = memoryview(data), label
        self.position = 0

    def wrong(self, name: str, what: str) -> SnapshotDamagedError:
        return SnapshotDamagedError(f"{self._label}: {name} at byte {self.position} {what}")

    def raw(self, name: str, n: int) -> bytes:
        if n > len(self._data) - self.position:
            raise self.wrong(name, f"needs {n} bytes, and {len(self._data) - self.position} are left")
        self.position += n
        return bytes(self._data[self.position - n : self.position])

    def uint(self, name: str, bits: int = 64) -> int:
        first = self.raw(name, 1)[0]
        if first > 253:
            raise self.wrong(name, f"begins with {first}, which no integer of {bits} bits does")
        value = first if first < 251 else int.from_bytes(self.raw(name, WIDTHS[first]), "little")
        # The shortest form is the only one that is written.
        if value >> bits or (first >= 251 and value < (251, 1 << 16, 1 << 32)[first - 251]):
            raise self.wrong(name, f"is {value} in a form that is not that of an integer of {bits} bits")
        return value

    def sint(self, name: str) -> int:
        value = self.uint(name)
        return (value >> 1) ^ -(value & 1)

    def float(self, name: str) -> float:
        value: float = _F32.unpack(self.raw(name, 4))[0]
        return value

    def text(self, name: str) -> str:
        try:
            return self.raw(name, self.uint(name)).decode()
        except UnicodeDecodeError:
            raise self.wrong(name, "is no UTF-8") from None

    def option(self, name: str, read: Callable[[], T]) -> T | None:
        given = self.raw(name, 1)[0]
        if given > 1:
            raise self.wrong(name, f"is marked as {given}, neither there (1) nor not (0)")
        return read() if given else None

    def floats(self, name: str) -> NDArray[np.float32]:
        return np.frombuffer(self.raw(name, 4 * self.uint(name)), "<f4")

    def many(self, name: str, read: Callable[[], T]) -> list[T]:
        """A list, each item of which takes a byte at least."""
        n = self.uint(name)
        if n > len(self._data) - self.position:
            raise self.wrong(name, f"has {n} items, more than bytes are left")
        return [read() for _ in range(n)]

    def end(self) -> None:
        if self.position != len(self._data):
            raise self.wrong("the end", f"is followed by {len(self._data) - self.position} bytes more")


class Encoder:
    """Writes values one after another into `data`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, value: bytes) -> None:
        self.data += value

    def uint(self, value: int) -> None:
        if value < 251:
            self.data.append(value)
            return
        first = 251 if value < 1 << 16 else 252 if value < 1 << 32 else 253
        self.data.append(first)
        self.data += value.to_bytes(WIDTHS[first], "little")

    def sint(self, value: int) -> None:
        self.uint((value << 1) ^ (value >> 63))

    def float(self, value: float) -> None:
        self.data += _F32.pack(value)

    def text(self, value: str) -> None:
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise SnapshotError(f"format=1 has no place for {value!r:.200}, which is no UTF-8: use format=2") from None
        self.uint(len(encoded))
        self.data += encoded

    def option(self, value: T | None, write: Callable[[T], None]) -> None:
        self.data.append(value is not None)
        if value is not None:
            write(value)

    def floats(self, values: NDArray[np.float32]) -> None:
        self.uint(values.size)
        self.data += np.ascontiguousarray(values, "<f4").tobytes()
