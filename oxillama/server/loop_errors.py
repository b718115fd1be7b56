"""Errors that reach the event loop: a line of the log each, at most one a second of a kind."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import time
from typing import Any

__all__ = ["LoopErrors", "Repeats"]

log = logging.getLogger("oxillama")

EVERY = 1.0  # seconds
MOST_KINDS = 256
_ARGUMENTS = re.compile(r"[(:<].*", re.DOTALL)
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Repeats:
    """Tells what is new from what was said less than a second ago."""

    def __init__(self) -> None:
        self._said: dict[object, tuple[float, int]] = {}  # when, and how often it came since

    def is_new(self, kind: object) -> int | None:
        """Number of times that the kind came without being said, if it is to be said now; else None."""
        now = time.monotonic()
        when, n = self._said.pop(kind, (-EVERY, 0))
        is_said = now - when >= EVERY
        self._said[kind] = (now, 0) if is_said else (when, n + 1)
        if len(self._said) > MOST_KINDS:
            del self._said[next(iter(self._said))]
        return n if is_said else None


class LoopErrors:
    """Exception handler of an event loop. What its context holds may be content, and isn't logged."""

    def __init__(self) -> None:
        self._repeats = Repeats()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error."""
        error, text = context.get("exception"), str(context.get("message", "an error in the event loop"))
        kind = (_ARGUMENTS.sub("", text), type(error))  # behind it are arguments, as they are shown
        n_before = self._repeats.is_new(kind)
        if n_before is None:
            return
        again = f" ({n_before} times more before)" if n_before else ""
        if isinstance(error, OSError) and error.errno in _NO_MORE:
            log.error("no connection can be accepted: %s%s", error.strerror, again)
        else:
            log.error("%s%s", kind[0], again, exc_info=error)
