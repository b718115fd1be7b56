"""Threads and the event loop, shared by owners of requests: none keeps another's work waiting behind all of its own."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["LoopTurns", "OwnerThreads"]

T = TypeVar("T")


class _Job:
    """Work of an owner. failed: no thread could be had for it."""

    __slots__ = ("failed", "future", "make", "owner")

    def __init__(self, owner: str, make: Callable[[], Any]) -> None:
        self.owner, self.make, self.failed = owner, make, False
        self.future: Future[Any] = Future()


class OwnerThreads:
    """Threads for work of several owners, first come, first served for each.

    An owner has half of its share of the threads, at least one. So some are free for an owner that comes, and the steps
    of its requests wait for few threads that hold the interpreter. What an owner's thread works on counts until it has
    ended, also when no request waits for it any more.
    """

    def __init__(self, n_threads: int, name: str, n_owners: Callable[[], int] = lambda: 0) -> None:
        """n_owners: number of owners that have requests under way, also in other places; for any thread."""
        self._n, self._n_owners = n_threads, n_owners
        self._pool = ThreadPoolExecutor(n_threads, name)
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Job]] = {}
        self._running: Counter[str] = Counter()

    def submit(self, make: Callable[[], T], owner: str) -> Future[T]:
        """make(), in a thread when it is its owner's turn. The result fails where no thread can be started."""
        job = _Job(owner, make)
        future = job.future  # which the job has no more when it is done, maybe before this returns
        with self._lock:
            self._waiting.setdefault(owner, deque()).append(job)
            failed = self._start()
        _fail(failed)
        return future

    def close(self) -> None:
        """Ends the threads with what they work on; what waits is cancelled."""
        with self._lock:
            left = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
        for job in left:
            job.future.cancel()
        self._pool.shutdown(wait=False)

    def _start(self) -> list[tuple[_Job, RuntimeError]]:
        """Starts what may be, with the lock held; those for which there was no thread."""
        failed = []
        while self._running.total() < self._n and (owner := self._next()) is not None:
            jobs = self._waiting.pop(owner)
            job = jobs.popleft()
            if jobs:
                self._waiting[owner] = jobs  # behind the other owners
            if not job.future.set_running_or_notify_cancel():
                continue
            self._running[owner] += 1
            try:
                self._pool.submit(self._work, job)
            except RuntimeError as error:  # closed, or no thread can be started: one that runs may still take it
                job.failed = True
                self._ended(owner)
                failed.append((job, error))
        return failed

    def _next(self) -> str | None:
        """The owner whose turn it is: that with the fewest threads, if it has less than its share."""
        if not self._waiting:
            return None
        n_owners = max(len(self._waiting.keys() | self._running.keys()), self._n_owners())
        share = max(1, self._n // (2 * n_owners))
        owner = min(self._waiting, key=lambda one: self._running[one])
        return owner if self._running[owner] < share else None

    def _ended(self, owner: str) -> None:
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def _work(self, job: _Job) -> None:
        with self._lock:
            if job.failed:
                return
        result, error = _outcome(job.make)
        with self._lock:
            self._ended(job.owner)
            failed = self._start()
        _fail(failed)
        future = job.future
        del job.make, job.future  # frames of the error refer to those of its callers, and it would keep itself
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        del future, result, error


def _outcome(make: Callable[[], T], /) -> tuple[T | None, BaseException | None]:
    """Result of make(), or its error. Values that the frames of an error held are freed here, maybe a million of them:
    on the event loop it would be freed when the error is, and with a frame that holds the error by a collection."""
    try:
        return make(), None
    except BaseException as error:
        _free_frames(error)
        return None, error


def _free_frames(error: BaseException) -> None:
    """Clears the frames of an error and of those before it; their places stay in the tracebacks."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            todo += [one.__cause__, one.__context__]
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # without the frame that still runs


def _fail(failed: list[tuple[_Job, RuntimeError]]) -> None:
    """Tells those that wait for work that it can't be done; without a lock, since that calls them."""
    for job, error in failed:
        job.future.set_exception(error)


class LoopTurns:
    """Turns of requests on the event loop: one begins in each round of the loop, and owners take turns.

    A loop works off all that is ready before it looks for more: a hundred requests of one owner that begin in one round
    would all come before the next one of another.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the first owner is the next
        self._begun = False  # whether one began in this round
        self._loop: asyncio.AbstractEventLoop | None = None

    async def take(self, owner: str) -> None:
        """Returns when it is the turn of a request of this owner."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the first request, or the loop of before has ended
            self._loop, self._waiting, self._begun = loop, {}, False
        if not self._begun:
            self._begun = True
            loop.call_soon(self._round, loop)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        await turn

    def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        """The next round: one of those that wait begins."""
        self._begun = False
        while self._waiting and not self._begun:
            owner = next(iter(self._waiting))
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():  # else its client has left
                turn.set_result(None)
                self._begun = True
        if self._begun:
            loop.call_soon(self._round, loop)
