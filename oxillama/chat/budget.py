"""Budget of one rendering of a chat template: time, text and the size of any value it builds.

Template code is compiled to Python and can't be interrupted from outside, so it is made to ask: every loop step, call,
filter, literal and piece of output goes through a :class:`Budget` (see :mod:`.sandbox`). Between two questions only one
built-in operation on values no larger than ``limit`` can run, which takes a fraction of a second at worst.
"""

import datetime
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["Budget", "LimitError", "budget"]

# Deeper values are no conversation, and walking them would exhaust the stack.
_MAX_DEPTH = 100
# Pieces of output count once for each macro or block that they pass through.
_EMIT_FACTOR = 8
_MAX_INT_BITS = 1 << 16


class LimitError(Exception):
    """The template asks for more than it may have."""


class Budget:
    """Limits of one rendering.

    Args:
        limit: characters in the output, in a string, or in all the strings and items of a nested value.
        seconds: wall-clock time.
        now: the time that the template sees; None: the system's.
    """

    def __init__(self, limit: int, seconds: float, now: datetime.datetime | None = None) -> None:
        self.limit = limit
        self.now = now
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._emitted = 0
        # id -> (size, the value). Holding the value keeps its id from being used again.
        self._sizes: dict[int, tuple[int, Any]] = {}

    def step(self) -> None:
        """Called wherever the template can loop. Raises LimitError when time is up."""
        if time.monotonic() > self._deadline:
            raise LimitError(f"it takes more than {self._seconds:g} s")

    def emit(self, text: str) -> None:
        """Count a piece of output."""
        self._emitted += len(text)
        if self._emitted > _EMIT_FACTOR * self.limit:
            raise LimitError(f"it writes more than {self.limit} characters")

    def allow(self, size: int, what: str) -> None:
        """Refuse an operation whose result would have ``size`` characters or items."""
        if size > self.limit:
            raise LimitError(f"{what} would make a value of {size} characters; the limit is {self.limit}")

    def allow_bits(self, bits: int) -> None:
        """Refuse an integer of this many bits."""
        if bits > _MAX_INT_BITS:
            raise LimitError(f"it computes an integer of {bits} bits; the limit is {_MAX_INT_BITS}")

    def made(self, value: Any, what: str) -> Any:
        """Check a value that the template has built, and return it."""
        if isinstance(value, (str, bytes, list, tuple, Mapping)):
            self.allow(self.size(value), what)
        return value

    def size(self, value: Any, depth: int = 0) -> int:
        """Characters in a value: of strings their length, of containers 1 plus the sizes of what they hold.

        A container that is held twice counts twice, as it would when printed.
        """
        if isinstance(value, (str, bytes)):
            return len(value) + 1
        if isinstance(value, int):
            return 1 + value.bit_length() // 3
        if not isinstance(value, (list, tuple, Mapping)):
            return 1
        known = self._sizes.get(id(value))
        if known is not None:
            return known[0]
        if depth >= _MAX_DEPTH:
            raise LimitError(f"a value is nested more than {_MAX_DEPTH} deep, or contains itself")
        total = 1
        if isinstance(value, Mapping):
            for key, item in value.items():
                total += self.size(key, depth + 1) + self.size(item, depth + 1)
        else:
            for item in value:
                total += self.size(item, depth + 1)
        self._sizes[id(value)] = (total, value)
        return total

    def changed(self) -> None:
        """Forget the sizes of values: one of them grew, and so did those that hold it."""
        self._sizes.clear()

    def text(self, value: Any) -> str:
        """``str(value)``, if that is not too long."""
        if not isinstance(value, str):
            self.allow(self.size(value), "printing a value")
            value = str(value)
        self.allow(len(value), "printing a value")
        return str(value)


budget: ContextVar[Budget] = ContextVar("oxillama_template_budget")
"""The budget of the running rendering in this context."""
