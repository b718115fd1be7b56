"""Budget of one rendering of a chat template: work, text, memory, and the size of any value it builds.

Template code is compiled to Python and can't be interrupted from outside, so it is made to ask: every loop step, call,
filter, literal, comparison and piece of output goes through a :class:`Budget` (see :mod:`.sandbox`), which counts what
each costs. No clock is read: a template is stopped at the same place on a fast machine and on a busy one. A unit of
work takes about a microsecond; one that reads long values costs more, by their length.
"""

import datetime
import sys
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

__all__ = ["Budget", "LimitError", "budget"]

# Deeper values are no conversation, and walking them would exhaust the stack.
_MAX_DEPTH = 100
# Bytes of output, for each character of the limit: pieces count once for each macro or block that they pass through.
_EMIT_FACTOR = 8
# Bytes of values that are held at once, for each character of the limit.
_HELD_FACTOR = 8
_MAX_INT_BITS = 1 << 16
_MAX_ARGUMENTS = 1000
_SMALL = 64  # characters of strings that aren't counted: less than the step that makes one
_OTHER = 512  # bytes of an object that isn't a string or a container


class LimitError(Exception):
    """The template asks for more than it may have."""


class Budget:
    """Limits of one rendering.

    Args:
        limit: characters in the output, in a string, or in all the strings and items of a nested value.
        work: units of work.
        now: the time that the template sees; None: the system's.
    """

    def __init__(self, limit: int, work: int, now: datetime.datetime | None = None) -> None:
        self.limit, self.work, self.left = limit, work, work
        self.now = now
        self._emitted = 0
        # id -> (size, number of values, the value). Holding the value keeps its id from being used again.
        self._sizes: dict[int, tuple[int, int, Any]] = {}
        self._given: dict[int, tuple[int, int, Any]] = {}
        self._held: dict[int, tuple[Any, int]] = {}  # id -> (value, its bytes)
        self._n_held, self._next_look = 0, _HELD_FACTOR * limit // 4

    # ---- work

    def step(self, work: int = 1) -> None:
        """Counts work. Called wherever the template can loop. Raises LimitError when it is used up."""
        self.left -= work
        if self.left < 0:
            raise LimitError(f"it takes more than {self.work} units of work")

    def call(self, n_arguments: int) -> None:
        """Counts a call. Raises LimitError for one with too many arguments, which are copied several times."""
        if n_arguments > _MAX_ARGUMENTS:
            raise LimitError(f"a call has {n_arguments} arguments; the limit is {_MAX_ARGUMENTS}")
        self.step(4 + (n_arguments >> 2))

    def cost(self, value: Any) -> int:
        """Units of work that it takes to read a value once."""
        if isinstance(value, (str, bytes)):
            return len(value) >> 8
        if isinstance(value, int):
            return value.bit_length() >> 6
        if isinstance(value, (range, KeysView, ValuesView, ItemsView)):
            return len(value) >> 2
        if not isinstance(value, (list, tuple, Mapping)):
            return 0
        size, count = self._measure(value, 0)
        return (size >> 8) + (count >> 2)

    def read(self, *values: Any) -> None:
        """Counts the work of an operation that goes through these values."""
        self.step(1 + sum(map(self.cost, values)))

    def emit(self, text: str) -> None:
        """Counts a piece of output."""
        self._emitted += sys.getsizeof(text) if len(text) > _SMALL else len(text)
        self.step(1 + (len(text) >> 10))
        if self._emitted > _EMIT_FACTOR * self.limit:
            raise LimitError(f"it writes more than {self.limit} characters")

    # ---- sizes

    def allow(self, size: int, what: str) -> None:
        """Refuses an operation whose result would have ``size`` characters or items."""
        if size > self.limit:
            raise LimitError(f"{what} would make a value of {size} characters; the limit is {self.limit}")

    def allow_bits(self, bits: int) -> None:
        """Refuses an integer of this many bits."""
        if bits > _MAX_INT_BITS:
            raise LimitError(f"it computes an integer of {bits} bits; the limit is {_MAX_INT_BITS}")

    def made(self, value: Any, what: str) -> Any:
        """Checks a value that the template has built, and returns it."""
        if isinstance(value, (str, bytes)):
            self.allow(len(value) + 1, what)
            if len(value) > _SMALL:
                self.step(len(value) >> 10)
                self._hold(value, sys.getsizeof(value), what)
        elif isinstance(value, (list, tuple, Mapping)):
            self.allow(self.size(value), what)
            self._hold(value, sys.getsizeof(value) + 8 * len(value), what)
        elif isinstance(value, int):
            self.allow_bits(value.bit_length())
        return value

    def size(self, value: Any) -> int:
        """Characters in a value: of strings their length, of containers 1 plus the sizes of what they hold.

        A container that is held twice counts twice, as it would when printed.
        """
        return self._measure(value, 0)[0]

    def _measure(self, value: Any, depth: int) -> tuple[int, int]:
        """(size, number of values) of a value."""
        if isinstance(value, (str, bytes)):
            return len(value) + 1, 1
        if isinstance(value, int):
            return 1 + value.bit_length() // 3, 1
        if not isinstance(value, (list, tuple, Mapping)):
            return 1, 1
        known = self._given.get(id(value)) or self._sizes.get(id(value))
        if known is not None:
            return known[0], known[1]
        if depth >= _MAX_DEPTH:
            raise LimitError(f"a value is nested more than {_MAX_DEPTH} deep, or contains itself")
        self.step(1 + (len(value) >> 2))
        size, count = 1, 1
        for item in (*value.keys(), *value.values()) if isinstance(value, Mapping) else value:
            own = self._measure(item, depth + 1)
            size, count = size + own[0], count + own[1]
        self._sizes[id(value)] = (size, count, value)
        return size, count

    def give(self, value: Any) -> None:
        """Measures a value that the template is given and can't change, so that its size is never forgotten.

        Raises LimitError for one that contains itself.
        """
        self._measure(value, 0)
        self._given |= self._sizes
        self._sizes.clear()

    def changed(self) -> None:
        """Forgets the sizes of values: one of them grew, and so did those that hold it."""
        self._sizes.clear()

    def text(self, value: Any) -> str:
        """``str(value)``, if that is not too long."""
        if not isinstance(value, str):
            size = self.size(value)
            self.allow(size, "printing a value")
            self.step(size >> 6)
            value = str(value)
        self.allow(len(value), "printing a value")
        return str(value)

    # ---- memory

    def claim(self, n_bytes: int, what: str) -> None:
        """Refuses an operation that takes so much memory beside what the template holds."""
        most = _HELD_FACTOR * self.limit
        if self._n_held + n_bytes > most:
            self._look()
            if self._n_held + n_bytes > most:
                raise LimitError(f"{what} takes more memory than a template may hold; the limit is {most} bytes")

    def hold(self, value: Any) -> None:
        """Counts an object that holds others, of a size that isn't known."""
        self._hold(value, _OTHER, "an object")

    def _hold(self, value: Any, n_bytes: int, what: str) -> None:
        if id(value) in self._held:
            return
        self._held[id(value)] = value, n_bytes
        self._n_held += n_bytes
        if self._n_held > self._next_look:
            self._look()
            self.claim(0, what)

    def _look(self) -> None:
        """Counts anew what the template still holds, the newest first: what nothing else refers to is forgotten."""
        self.step(len(self._held) >> 2)
        self._sizes.clear()
        held, kept, n_held = self._held, list[tuple[Any, int]](), 0
        while held:
            value, n_bytes = held.popitem()[1]
            if sys.getrefcount(value) > 2:
                kept.append((value, n_bytes))
                n_held += n_bytes
        self._held = {id(value): (value, n_bytes) for value, n_bytes in reversed(kept)}
        self._n_held = n_held
        least, most = _HELD_FACTOR * self.limit // 4, _HELD_FACTOR * self.limit
        self._next_look = max(least, min(2 * n_held, most))


budget: ContextVar[Budget] = ContextVar("oxillama_template_budget")
"""The budget of the running rendering in this context."""
