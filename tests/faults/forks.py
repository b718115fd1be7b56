"""Forks after a model was loaded: a child serves, saves and resumes with the same bits, and never hangs.

`python -m tests.faults.forks KIND SECONDS` forks again and again while a process does something; it prints what was
wrong, and is a process of its own because OpenMP remembers that it was used.
"""

from __future__ import annotations

import asyncio
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.snapshot.format.block_garbage import collect_garbage

PROMPT, OPTIONS = "Once upon a time", {"max_tokens": 8, "seed": 1, "ignore_eos": True}
LIMIT = 60  # seconds for a child


def repeat(act: Callable[[], object]) -> Callable[[], Any]:
    """A thread that does it until it is left."""

    @contextmanager
    def running() -> Iterator[None]:
        stop, errors = threading.Event(), []

        def work() -> None:
            try:
                while not stop.is_set():
                    act()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(LIMIT)
            assert not thread.is_alive(), "the parent hangs"
            assert not errors, errors

    return running


class Case:
    """An engine, and what goes on in other threads while it is forked."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        paged = kind == "offload"
        self.engine = ox.load(num_threads=2, offload=os.path.getsize(shipped_model()) // 3 if paged else None)
        self.expected = self.engine.generate(PROMPT, **OPTIONS).token_ids
        self.engine.prefill(self.engine.tokenize(PROMPT) * 30)
        self.saved = self.engine.snapshot_bytes()
        self.serving = ox.AsyncEngine(self.engine)
        busy = lambda: self.engine.generate("There was a", max_tokens=30, seed=3)  # noqa: E731
        self.beside: Callable[[], Any] = {
            "idle": nullcontext,
            "other thread": nullcontext,
            "multiprocessing": nullcontext,
            "stepping": repeat(busy),
            "offload": repeat(busy),
            "async": self._async,
            "saving": repeat(lambda: self._save_elsewhere()),
            "speculative": repeat(self._speculate()),
        }[kind]
        self.fork = {"other thread": in_thread, "multiprocessing": by_multiprocessing}.get(kind, by_fork)

    def _save_elsewhere(self) -> None:
        self.engine.snapshot(self.folder / "beside", shared=True)
        collect_garbage(self.folder)

    def _speculate(self) -> Callable[[], object]:
        draft = ox.SpeculativeDecoder(ox.shipped_draft(), num_threads=1)
        return lambda: self.engine.generate("There was a", max_tokens=30, seed=3, draft=draft)

    def _async(self) -> Any:
        async def serve() -> None:
            await self.serving.generate("There was a", max_tokens=30, seed=3)

        return repeat(lambda: asyncio.run(serve()))()

    def check(self) -> bool:
        """Everything works, with the bits that it had."""
        faulthandler.dump_traceback_later(LIMIT / 2)
        same = self.engine.generate(PROMPT, **OPTIONS).token_ids == self.expected
        own = self.folder / str(os.getpid())
        own.mkdir(exist_ok=True)
        self.engine.snapshot(own / "session", shared=True)
        with self.engine.resume(own / "session") as session:
            same = same and session.position == self.engine.position
        return same and self.engine.snapshot_bytes() == self.saved and collect_garbage(own) == 0


def by_fork(check: Callable[[], bool]) -> int | str:
    """The exit status of a child that checks; 0 if all is well."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if check() else 3
        finally:
            os._exit(status)
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "it hangs"


def in_thread(check: Callable[[], bool]) -> int | str:
    found: list[int | str] = []
    thread = threading.Thread(target=lambda: found.append(by_fork(check)))
    thread.start()
    thread.join()
    return found[0]


def by_multiprocessing(check: Callable[[], bool]) -> int | str:
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(0 if check() else 3))
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        return "it hangs"
    return process.exitcode


KINDS = ("idle", "other thread", "multiprocessing", "stepping", "offload", "async", "saving", "speculative")


def forked(kind: str, folder: Path, seconds: float) -> list[str]:
    """What was wrong in children forked for so long, at least five."""
    case, found = Case(kind, folder), []
    until, n = time.monotonic() + seconds, 0
    with case.beside():
        while n < 5 or time.monotonic() < until:
            time.sleep(0.003 * (n % 7))
            status = case.fork(case.check)
            if status:
                found.append(f"child {n}: {status}")
                break
            n += 1
    if not case.check():
        found.append("the parent gives something else afterwards")
    return found


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as place:
        for line in forked(sys.argv[1], Path(place), float(sys.argv[2])):
            print(line)
