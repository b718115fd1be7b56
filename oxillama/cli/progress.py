"""Progress line on the terminal while a large file is loaded."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from oxillama._util.signals import DeferredInterrupt

__all__ = ["LoadingLine"]

PATIENCE = 1.0  # seconds: shorter loading needs no line
INTERVAL = 0.1
ERASE = "\r\x1b[K"


class LoadingLine:
    """Progress of loading, on standard error if that is a terminal; gone when the block ends.

    interrupt: noted Ctrl-C, which ends the loading at the next tensor.
    """

    def __init__(self, interrupt: DeferredInterrupt) -> None:
        self._interrupt = interrupt
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._due = time.monotonic() + PATIENCE
        self._shown = False

    def update(self, done: int, total: int) -> None:
        """Shows the number of loaded bytes. Raises KeyboardInterrupt after Ctrl-C."""
        if self._interrupt.pending:
            raise KeyboardInterrupt
        now = time.monotonic()
        if self._terminal and now >= self._due:
            self._due, self._shown = now + INTERVAL, True
            gib = f"{done / 2**30:.1f} of {total / 2**30:.1f} GiB"
            print(f"{ERASE}loading the model: {done / max(total, 1):.0%}, {gib}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._shown:
            print(ERASE, end="", file=sys.stderr, flush=True)
