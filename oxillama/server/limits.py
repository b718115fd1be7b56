"""Gate of requests: how many the models work on, how many wait, and whose turn is next."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from types import TracebackType

from oxillama.server.auth import Key
from oxillama.server.errors import ApiError

__all__ = ["Gate", "Place"]

MINUTE = 60.0
MAX_RETRY = 60


class _Use:
    """What one key has under way and used."""

    __slots__ = ("n_open", "tokens", "waiting")

    def __init__(self) -> None:
        self.n_open = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.tokens: deque[tuple[float, int]] = deque()  # (when, how many) of the last minute


class Gate:
    """Lets `max_running` requests through at a time; keys take turns, and none has more than half of the queue.

    running: requests that are through. waiting: those that are not.
    """

    def __init__(self, max_running: int, max_queue: int, queue_timeout: float) -> None:
        self._max_running, self._max_queue, self._timeout = max_running, max_queue, queue_timeout
        self._uses: dict[str, _Use] = {}
        self._order: deque[str] = deque()  # keys with waiting requests; the first has the next turn
        self._ended: deque[float] = deque(maxlen=256)
        self.running = self.waiting = 0

    def enter(self, key: Key) -> Place:
        """A place for one request. Raises ApiError if the queue is full, or the key has used what it may."""
        use = self._uses.setdefault(key.name, _Use())
        if key.max_concurrent is not None and use.n_open >= key.max_concurrent:
            raise self._limited(f"the key {key.name} has {use.n_open} requests under way, as many as it may", 1)
        if key.tpm is not None:
            self._check_tokens(key, key.tpm, use)
        full = self.waiting >= self._max_queue
        alone = len(self._uses) == 1
        if self.running >= self._max_running and (
            full or (not alone and len(use.waiting) >= max(1, self._max_queue // 2))
        ):
            raise self._limited(f"{self.waiting} requests wait already", self.retry_after(), "queue_full")
        return Place(self, key)

    def _check_tokens(self, key: Key, tpm: int, use: _Use) -> None:
        since = time.monotonic() - MINUTE
        while use.tokens and use.tokens[0][0] < since:
            use.tokens.popleft()
        used = sum(n for _, n in use.tokens)
        if used >= tpm:
            wait = math.ceil(use.tokens[0][0] - since)
            raise self._limited(f"the key {key.name} has used {used} tokens in a minute, and may use {tpm}", wait)

    @staticmethod
    def _limited(text: str, wait: int, code: str = "rate_limited") -> ApiError:
        wait = min(max(wait, 1), MAX_RETRY)
        return ApiError(429, code, f"{text}: try again in {wait} s", headers={"Retry-After": str(wait)})

    def retry_after(self) -> int:
        """Seconds until the queue is likely to be worked off, by how fast requests ended of late."""
        if len(self._ended) < 2:
            return 1
        seconds = max(time.monotonic() - self._ended[0], 1e-3)
        return min(max(math.ceil((self.waiting + 1) * seconds / len(self._ended)), 1), MAX_RETRY)

    def spend(self, key: Key, n_tokens: int) -> None:
        """Counts tokens of a key."""
        if key.tpm is not None:
            self._uses.setdefault(key.name, _Use()).tokens.append((time.monotonic(), n_tokens))

    async def _begin(self, key: Key) -> None:
        use = self._uses.setdefault(key.name, _Use())
        use.n_open += 1
        try:
            if self.running < self._max_running and not self.waiting:
                self.running += 1
                return
            await self._wait(key.name, use)
        except BaseException:
            use.n_open -= 1
            self._forget(key.name, use)
            raise

    async def _wait(self, name: str, use: _Use) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not use.waiting:
            self._order.append(name)
        use.waiting.append(turn)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it was through already
                self.running -= 1
                self._next()
            elif turn in use.waiting:
                use.waiting.remove(turn)
                self.waiting -= 1
                if not use.waiting:
                    self._order.remove(name)
            if isinstance(error, TimeoutError):
                text = f"it waited {self._timeout:g} s for its turn"
                raise ApiError(503, "queue_timeout", text, headers={"Retry-After": str(self.retry_after())}) from None
            raise

    def _end(self, key: Key) -> None:
        use = self._uses[key.name]
        use.n_open -= 1
        self.running -= 1
        self._ended.append(time.monotonic())
        self._next()
        self._forget(key.name, use)

    def _next(self) -> None:
        """Lets waiting requests through, one of each key in turn."""
        while self.running < self._max_running and self._order:
            name = self._order.popleft()
            use = self._uses[name]
            turn = use.waiting.popleft()
            if use.waiting:
                self._order.append(name)
            self.waiting -= 1
            if not turn.done():  # else it was cancelled, and leaves by itself
                self.running += 1
                turn.set_result(None)

    def _forget(self, name: str, use: _Use) -> None:
        if not use.n_open and not use.tokens:
            self._uses.pop(name, None)


class Place:
    """One request's place, for `async with`: entered when it is its turn."""

    def __init__(self, gate: Gate, key: Key) -> None:
        self._gate, self._key = gate, key

    async def __aenter__(self) -> None:
        await self._gate._begin(self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._end(self._key)
