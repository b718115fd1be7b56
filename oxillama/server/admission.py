"""AdmissionQueue of requests: how many the models work on, how many wait, and whose turn is next."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from types import TracebackType

from oxillama.server.auth import Key
from oxillama.server.errors import ApiError

__all__ = ["AdmissionQueue", "Slot"]

MINUTE = 60.0
MAX_RETRY = 60


class _Use:
    """Requests of one owner under way, and the tokens that it used.

    n_open, n_running: its requests that have a place or wait for one, and that have one. expected: tokens that they may
    take.
    """

    __slots__ = ("expected", "n_open", "n_running", "tokens", "waiting")

    def __init__(self) -> None:
        self.expected = self.n_open = self.n_running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.tokens: deque[tuple[float, int]] = deque()  # (when, how many) of the last minute


_NONE = _Use()


class AdmissionQueue:
    """Lets `max_running` requests through at a time, and shares places and queue among owners: keys, or addresses.

    An owner may use what the others leave free. Where that is nothing, its share is let through all the same, or waits,
    beyond `max_running` and `max_queue`; owners that have more than their share get no more until they have less. So an
    owner finds a place whatever another one sends. The next place goes to the owner that has the fewest. Steps and
    memory of a model are shared by its scheduler.

    running: requests that are through. waiting: those that are not. n_owners: owners that have some.
    """

    def __init__(self, max_running: int, max_queue: int, queue_timeout: float) -> None:
        self._max_running, self._max_queue, self._timeout = max_running, max_queue, queue_timeout
        self._uses: dict[str, _Use] = {}
        self._order: deque[str] = deque()  # owners with waiting requests; of those with as few places the first is next
        self._ended: deque[float] = deque(maxlen=256)
        self.n_owners = 0
        self.running = self.waiting = 0

    def enter(self, key: Key) -> Slot:
        """A place for one request. Raises ApiError if the queue is full, or the key has used what it may."""
        use = self._uses.get(key.owner) or _Use()
        if key.max_concurrent is not None and use.n_open >= key.max_concurrent:
            raise self._limited(f"the key {key.name} has {use.n_open} requests under way, as many as it may", 1)
        if key.tpm is not None:
            self._check_tokens(key, key.tpm, use, use.expected)
        n_owners = self.n_owners + (not use.n_open)
        waits = self.running >= self._max_running and use.n_running >= max(1, self._max_running // n_owners)
        share = -(-self._max_queue // n_owners)
        if waits and self.waiting >= self._max_queue and len(use.waiting) >= share:
            raise self._limited(f"{self.waiting} requests wait already", self.retry_after(), "queue_full")
        return Slot(self, key)

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
        if key.tpm is not None:
            self._uses[key.owner].tokens.append((time.monotonic(), n_tokens))

    def limits(self, key: Key) -> dict[str, str]:
        """Headers that say what a key may use and has left: tokens of a minute, and requests at a time."""
        use = self._uses.get(key.owner, _NONE)
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
        use = self._uses.setdefault(key.owner, _Use())
        self.n_owners += not use.n_open
        use.n_open += 1
        if not use.waiting and self._has_place(use):
            self._let(use)
            return
        try:
            await self._wait(key.owner, use)
        except BaseException:
            self._leave(key.owner, use)
            raise

    async def _wait(self, owner: str, use: _Use) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not use.waiting:
            self._order.append(owner)
        use.waiting.append(turn)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it was through already
                self.running -= 1
                use.n_running -= 1
            elif turn in use.waiting:
                use.waiting.remove(turn)
                self.waiting -= 1
                if not use.waiting:
                    self._order.remove(owner)
            if isinstance(error, TimeoutError):
                text = f"it waited {self._timeout:g} s for its turn"
                raise ApiError(503, "queue_timeout", text, headers={"Retry-After": str(self.retry_after())}) from None
            raise

    def _end(self, key: Key) -> None:
        use = self._uses[key.owner]
        use.n_running -= 1
        self.running -= 1
        self._ended.append(time.monotonic())
        self._leave(key.owner, use)

    def _leave(self, owner: str, use: _Use) -> None:
        """A request of an owner is gone: what it leaves free is for those that wait."""
        use.n_open -= 1
        if not use.n_open:
            self.n_owners -= 1
            if not use.tokens:
                self._uses.pop(owner, None)
        self._next()

    def _expect(self, key: Key, n_tokens: int) -> None:
        use = self._uses[key.owner]
        if key.tpm is not None:
            self._check_tokens(key, key.tpm, use, use.expected)
        use.expected += n_tokens

    def _has_place(self, use: _Use) -> bool:
        """Whether a request of an owner can be let through: where a place is free, or the owner has less than its
        share of them."""
        share = max(1, self._max_running // self.n_owners)
        return self.running < self._max_running or use.n_running < share

    def _let(self, use: _Use) -> None:
        self.running += 1
        use.n_running += 1

    def _next(self) -> None:
        """Lets waiting requests through, each time one of the owner that has the fewest places."""
        while self._order:
            owner = min(self._order, key=lambda one: self._uses[one].n_running)
            use = self._uses[owner]
            if not self._has_place(use):
                return
            self._order.remove(owner)
            turn = use.waiting.popleft()
            if use.waiting:
                self._order.append(owner)
            self.waiting -= 1
            if not turn.done():  # else it was cancelled, and leaves by itself
                self._let(use)
                turn.set_result(None)


class Slot:
    """One request's place, for `async with`: entered when it is its turn."""

    def __init__(self, gate: AdmissionQueue, key: Key) -> None:
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
        self._gate._uses[self._key.owner].expected -= self._expected
        self._expected = 0

    async def __aenter__(self) -> Slot:
        await self._gate._begin(self._key)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle()
        self._gate._end(self._key)
