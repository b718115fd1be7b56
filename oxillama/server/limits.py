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
QUANTUM = 512  # tokens that a waiting key is given in a round


class _Use:
    """What one key has under way and used.

    credit: tokens that it may still have before others' turns. expected: tokens that its requests under way may take.
    """

    __slots__ = ("credit", "expected", "n_open", "tokens", "waiting")

    def __init__(self) -> None:
        self.credit = self.expected = 0
        self.n_open = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.tokens: deque[tuple[float, int]] = deque()  # (when, how many) of the last minute


_NONE = _Use()


class Gate:
    """Lets `max_running` requests through at a time; keys take turns, and none has more than half of the queue.

    Turns are those of deficit round robin (Shreedhar and Varghese, 1995) by tokens: each round gives every waiting key
    as many, and a key whose requests took more than it was given lets others go first. What a request takes is known
    at its end, and paid then. While no request waits nothing is owed: what a key took then it took from none, and debts
    end with the queue. While requests wait a key keeps its debt, also where it has nothing under way.

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
            self._check_tokens(key, key.tpm, use, use.expected)
        full = self.waiting >= self._max_queue
        alone = all(other is use or not other.n_open for other in self._uses.values())
        if self.running >= self._max_running and (
            full or (not alone and len(use.waiting) >= max(1, self._max_queue // 2))
        ):
            raise self._limited(f"{self.waiting} requests wait already", self.retry_after(), "queue_full")
        return Place(self, key)

    def _check_tokens(self, key: Key, tpm: int, use: _Use, expected: int) -> None:
        since = time.monotonic() - MINUTE
        while use.tokens and use.tokens[0][0] < since:
            use.tokens.popleft()
        used = sum(n for _, n in use.tokens)
        if used + expected >= tpm and expected:
            text = f"the key {key.name} has used {used} tokens in a minute, {expected} more may come of its requests"
            raise self._limited(f"{text} under way, and it may use {tpm}", 1)
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
        """Counts tokens of a request that is through, at its end."""
        use = self._uses[key.name]
        if self._order:
            use.credit -= n_tokens
        if key.tpm is not None:
            use.tokens.append((time.monotonic(), n_tokens))

    def limits(self, key: Key) -> dict[str, str]:
        """Headers that say what a key may use and has left: tokens of a minute, and requests at a time."""
        use = self._uses.get(key.name, _NONE)
        found: dict[str, str] = {}
        if key.tpm is not None:
            since = time.monotonic() - MINUTE
            used = [(when, n) for when, n in use.tokens if when >= since]
            left = max(key.tpm - sum(n for _, n in used) - use.expected, 0)
            reset = math.ceil(used[-1][0] - since) if used else 0
            found |= {"x-ratelimit-limit-tokens": str(key.tpm), "x-ratelimit-remaining-tokens": str(left),
                      "x-ratelimit-reset-tokens": f"{reset}s"}  # fmt: skip
        if key.max_concurrent is not None:
            left = max(key.max_concurrent - use.n_open, 0)
            found |= {
                "x-ratelimit-limit-requests": str(key.max_concurrent),
                "x-ratelimit-remaining-requests": str(left),
            }
        return found

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
        if self._order:
            self._forget(key.name, use)
            return
        for name, other in list(self._uses.items()):
            other.credit = 0
            self._forget(name, other)

    def _expect(self, key: Key, n_tokens: int) -> None:
        use = self._uses[key.name]
        if key.tpm is not None:
            self._check_tokens(key, key.tpm, use, use.expected)
        use.expected += n_tokens

    def _next(self) -> None:
        """Lets waiting requests through, one of each key in turn that has credit."""
        while self.running < self._max_running and self._order:
            name = self._turn()
            use = self._uses[name]
            turn = use.waiting.popleft()
            if use.waiting:
                self._order.append(name)
            else:
                use.credit = min(use.credit, 0)
            self.waiting -= 1
            if not turn.done():  # else it was cancelled, and leaves by itself
                self.running += 1
                turn.set_result(None)

    def _turn(self) -> str:
        """Takes the key out of the order whose turn it is, after as many rounds as give one of them credit."""
        most = max(self._uses[name].credit for name in self._order)
        if most <= 0:
            for name in self._order:
                self._uses[name].credit += QUANTUM * (-most // QUANTUM + 1)
        while self._uses[self._order[0]].credit <= 0:
            self._order.rotate(-1)
        return self._order.popleft()

    def _forget(self, name: str, use: _Use) -> None:
        if not use.n_open and not use.tokens and (use.credit >= 0 or not self._order):
            self._uses.pop(name, None)


class Place:
    """One request's place, for `async with`: entered when it is its turn."""

    def __init__(self, gate: Gate, key: Key) -> None:
        self._gate, self._key = gate, key
        self._expected, self._spent = 0, False

    def expect(self, n_tokens: int) -> None:
        """Counts tokens that the request may take until it has ended, so that those beside it can't take them too.

        Raises ApiError if requests of the key that are under way may take all that its `tpm` leaves. One alone may
        take more than is left: that is known at its end.
        """
        self._gate._expect(self._key, n_tokens)
        self._expected = n_tokens

    def spend(self, n_tokens: int) -> None:
        """Counts what the request took, in place of what was expected; once, before its end is told."""
        if not self._spent:
            self._spent = True
            self._settle()
            self._gate.spend(self._key, n_tokens)

    def _settle(self) -> None:
        self._gate._uses[self._key.name].expected -= self._expected
        self._expected = 0

    async def __aenter__(self) -> Place:
        await self._gate._begin(self._key)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle()
        self._gate._end(self._key)
