"""Memory that large requests leave behind in the allocator of C, which goes back to the system."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable
from functools import cache

__all__ = ["LARGE", "HeapTrimmer", "trim"]

LARGE = 1 << 20  # bytes of a body or an answer
DELAY = 0.5  # seconds: what comes meanwhile is given back with it


def trim() -> None:
    """Gives free memory of all threads back to the system, where the C library has a call for it (glibc)."""
    if (call := _malloc_trim()) is not None:
        call(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return found
    return None


class HeapTrimmer:
    """Trims the heap some time after a large request, once for all that end until then."""

    def __init__(self, trim: Callable[[], None] = trim) -> None:
        self._trim = trim
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Called in the event loop when a large request has ended."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY, self._begin)

    def _begin(self) -> None:
        self._timer = None
        asyncio.get_running_loop().run_in_executor(None, self._trim)

    def close(self) -> None:
        """Trims no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
