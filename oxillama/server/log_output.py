"""Log output of the command: lines that never hold up the server, on one line each, without content."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

from oxillama._util.threads import starting

__all__ = ["LOSSES", "LineFormatter", "LogOutput", "Losses", "log_to", "name_of", "unblocked"]

MOST_WAITING = 1 << 20  # bytes
MOST_OF_A_TEXT = 1 << 18  # bytes of one text, which is cut there
RETRY = 0.5  # seconds until a file that takes nothing is tried again
LAST = 1.0  # seconds that what waits has at the end
MOST_FRAMES = 24  # of a traceback: the innermost ones
MOST_CAUSES = 4
FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Losses:
    """Count of lines that were lost since the process began, for the metrics."""

    def __init__(self) -> None:
        self.n_lines = 0


LOSSES = Losses()


class LogOutput(io.TextIOBase):
    """Text file over a descriptor, to which writing never waits: a thread writes what was given.

    If nothing takes it (a full pipe, a full disk, a terminal that is held), at most a megabyte waits, and
    further texts are lost; a line says how many, as soon as lines are taken again.
    """

    def __init__(self, descriptor: int, encoding: str = "utf-8", most: int = MOST_WAITING) -> None:
        self._descriptor, self._encoding, self._most = descriptor, encoding or "utf-8", most
        self._changed = threading.Condition(threading.RLock())  # a finaliser may write within a write
        self._waiting: deque[bytes] = deque()
        self._n_bytes = self._n_lost = 0
        self._writes = self._ended = False
        self._thread = threading.Thread(target=self._run, name="oxillama-log", daemon=True)
        with starting("the thread that writes the log"):
            self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the file."""
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Handler of characters that the encoding hasn't."""
        return "backslashreplace"

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str) -> int:
        """Gives a text to the thread, or counts its lines as lost."""
        data = text.encode(self._encoding, "backslashreplace")
        if len(data) > MOST_OF_A_TEXT:
            data = data[:MOST_OF_A_TEXT] + b"...\n"
        with self._changed:
            if self._ended or self._n_bytes + len(data) > self._most:
                self._lose(data.count(b"\n"))
            elif data:
                self._tell_losses()
                self._give(data)
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread writes at once what it can."""

    def close(self) -> None:
        """Waits a second at most for what is written, and loses the rest. The descriptor stays open."""
        with self._changed:
            if self._ended:
                return
            self._tell_losses()
            self._ended = True
            self._changed.notify()
            self._changed.wait_for(lambda: not self._waiting and not self._writes, LAST)
            self._lose(sum(data.count(b"\n") for data in self._waiting))
            self._waiting.clear()

    def _give(self, data: bytes) -> None:
        self._waiting.append(data)
        self._n_bytes += len(data)
        self._changed.notify()

    def _lose(self, n_lines: int) -> None:
        self._n_lost += n_lines
        LOSSES.n_lines += n_lines

    def _tell_losses(self) -> None:
        n_lost, self._n_lost = self._n_lost, 0
        if n_lost:
            self._give(f"{n_lost} lines of the log were lost here: nothing took them\n".encode())

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._ended:
                    self._tell_losses()
                self._writes = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                data = b"".join(self._waiting)
                self._waiting.clear()
                self._writes = True
            self._write(data)

    def _write(self, data: bytes) -> None:
        """Writes all of it, however long that takes; what waits beyond the end is lost."""
        while data:
            try:
                n_written = os.write(self._descriptor, data[: 1 << 16])
            except OSError as error:
                if self._ended:
                    break
                if isinstance(error, BlockingIOError):  # a descriptor that another process has set so
                    select.select([], [self._descriptor], [], RETRY)
                else:
                    time.sleep(RETRY)
                continue
            data = data[n_written:]
            with self._changed:
                self._n_bytes -= n_written
        with self._changed:
            self._n_bytes -= len(data)
            self._lose(data.count(b"\n"))


class LineFormatter(logging.Formatter):
    """A record as one line: whatever its message holds, it can't look like another one, or steer a terminal.

    A traceback follows on lines of its own: the places and the kinds of its errors. Their messages are left out, which
    may hold what a client sent, unless `shows_content`.
    """

    def __init__(self, shows_content: bool = False) -> None:
        super().__init__(FORM)
        self._shows_content = shows_content

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with escapes for what can't be printed."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in line)

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """The traceback of an error and of its causes."""
        if ei[1] is None or self._shows_content:
            return super().formatException(ei)
        return "".join(_places(ei[1])).rstrip("\n")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _places(error: BaseException) -> Iterator[str]:
    """Lines of a traceback without the messages of its errors."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and len(chain) < MOST_CAUSES:
        chain.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    for i, one in enumerate(reversed(chain)):
        if i:
            yield "\nAfter this error, another one:\n\n"
        yield "Traceback (most recent call last):\n"
        yield from traceback.StackSummary.extract(traceback.walk_tb(one.__traceback__), limit=-MOST_FRAMES).format()
        yield f"{name_of(type(one))}: its message is left out, which may hold content (--log-content shows it)\n"


def name_of(kind: type[BaseException]) -> str:
    """The name of an error's class, with its module unless it is one of Python's own."""
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextlib.contextmanager
def unblocked() -> Iterator[None]:
    """Standard output and error as a `LogOutput` each, for all that writes to them by their names in `sys`."""
    before = sys.stdout, sys.stderr
    made: list[LogOutput] = []
    sys.stdout, sys.stderr = (_over(file, made) for file in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for output in made:
            output.close()


def _over(file: TextIO | None, made: list[LogOutput]) -> Any:
    """A LogOutput over a file's descriptor; the file itself if it has none, as those of tests and of no terminal."""
    if file is None:
        return None
    try:
        descriptor = file.fileno()
        file.flush()
    except (OSError, ValueError):
        return file
    made.append(LogOutput(descriptor, file.encoding))
    return made[-1]


@contextlib.contextmanager
def log_to(stream: TextIO | None, level: str, shows_content: bool) -> Iterator[None]:
    """Lines of all loggers on a stream; of oxillama's from `level` on, of others' their warnings."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(shows_content))
    logger, root = logging.getLogger("oxillama"), logging.getLogger()
    before = logger.level
    root.addHandler(handler)
    logger.setLevel(level.upper())
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        logger.setLevel(before)
