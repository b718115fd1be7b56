"""Service: what all requests of one server share, and its life."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from oxillama._util.freeing import free
from oxillama._util.threads import starting
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.tool_format import find_format
from oxillama.errors import ConfigError
from oxillama.server.admission import AdmissionQueue
from oxillama.server.auth import ANYONE, Key, keys_of
from oxillama.server.config import ServerConfig
from oxillama.server.folder_models import look_at_folder
from oxillama.server.heap import HeapTrimmer
from oxillama.server.left_out import LeftOut
from oxillama.server.loop_errors import Repeats
from oxillama.server.metrics import ServerMetrics
from oxillama.server.models import Models
from oxillama.server.owner_threads import LoopTurns, OwnerThreads
from oxillama.server.peers import PeerCounts, Peers
from oxillama.server.residence import Residence

__all__ = ["Service"]

T = TypeVar("T")

THREADS = 4  # that prepare requests
LOOK = 1.0  # seconds between looks at models: whether their files were changed, and whether they idle
WRITERS = 2  # threads that write large answers


class Underway(Protocol):
    """A request that is under way; `Exchange` is one.

    task: that which answers it. ended: nothing of it is to be cancelled.
    """

    id: str
    key: Key
    task: asyncio.Task[Any] | None
    ended: bool

    def summary(self) -> dict[str, Any]:
        """Facts of the exchange for administrators."""

    def cancel(self) -> None:
        """Ends it as if its client had left."""


class Service:
    """Models, keys and limits of one server.

    secret: of this process; with it, what a key's requests have in the prefix cache is marked. draining: no further
    requests are taken. open: exchanges that are under way. pulls: models that are being fetched. turns: in which
    requests begin. forwarded: their numbers by the addresses that proxies tell.
    """

    def __init__(self, models: Models, config: ServerConfig) -> None:
        self.models, self.config = models, config
        self.keys, self.admins = keys_of(config)
        self.peers, self.forwarded = Peers(config.trusted_proxy), PeerCounts()
        self.residence = Residence(models)
        self.gate = AdmissionQueue(config.max_running, config.max_queue, config.queue_timeout)
        self.metrics = ServerMetrics()
        self._own_metrics: dict[str, ServerMetrics] = {}  # by owner
        self.left_out, self.repeats = LeftOut(), Repeats()
        self.heap = HeapTrimmer()
        self.secret = os.urandom(32)
        if config.tool_format not in (None, "text", "none"):
            find_format(config.tool_format)  # raises for a name of none
        self.reasoning = read_reasoning(config.reasoning_format)
        self.draining = False
        self.open: set[Underway] = set()
        self.pulls: set[object] = set()
        self.turns = LoopTurns()
        self._threads = OwnerThreads(THREADS, "oxillama-prepare", lambda: self.gate.n_owners)
        self._writers = ThreadPoolExecutor(WRITERS, "oxillama-answer")

    def counts(self, key: Key) -> tuple[ServerMetrics, ...]:
        """Metrics in which a request of this key counts: those of the server, and the key's own."""
        if key.name == ANYONE.name:
            return (self.metrics,)
        return self.metrics, self._own_metrics.setdefault(key.owner, ServerMetrics())

    def own_metrics(self, key: Key) -> ServerMetrics | None:
        """Metrics that a key sees: its own counts. None: all of them, for administrators, where they are public,
        and where there is no other key."""
        alone = len(self.keys) == 1 and not self.admins
        if key.is_admin or self.config.public_metrics or not self.keys or alone:
            return None
        own = self._own_metrics.setdefault(key.owner, ServerMetrics())
        own.in_flight = sum(one.key.owner == key.owner for one in self.open)
        return own

    async def elsewhere(self, make: Callable[[], T], owner: str) -> T:
        """make(), in another thread, which owners share."""
        with starting("a thread of the server"):
            return await asyncio.wrap_future(self._threads.submit(make, owner))

    async def answering(self, make: Callable[[], T]) -> T:
        """make(), which writes an answer, in a thread that no request is prepared in."""
        with starting("a thread of the server"):
            return await asyncio.get_running_loop().run_in_executor(self._writers, make)

    def free(self, parts: list[Any]) -> None:
        """Frees parts of values in another thread; here where none can be started."""
        try:
            asyncio.get_running_loop().run_in_executor(None, free, parts)
        except RuntimeError:
            free(parts)

    def salt_of(self, key: str, salt: str | None = None) -> str | None:
        """Salt that only requests of one key, with one `cache_salt`, have; None: all share it."""
        shares = self.config.share_prefix_cache or not self.keys
        if shares and salt is None:
            return None
        text = json.dumps(["" if shares else key, salt or ""])
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()

    def reload_keys(self) -> None:
        """Reads the key files again; those that are wrong change nothing. Raises ConfigError."""
        self.keys, self.admins = keys_of(self.config)

    # ---- life

    @property
    def status(self) -> str:
        """ "ok", "loading", "failed" or "draining"."""
        if self.draining:
            return "draining"
        return "failed" if self.models.has_failed else "ok" if self.models.is_ready else "loading"

    async def look_after_models(self) -> None:
        """Loads what is loaded at start, and then looks whether files change, and unloads what idles."""
        await self.models.load_all()
        idle = self.config.idle_unload
        while True:
            await asyncio.sleep(min(idle or LOOK, LOOK))
            self.models.look_at_files()
            if self.models.folder is not None and self.models.folder.is_due:
                await look_at_folder(self.models)
            if idle:
                await self.models.unload_idle()

    async def drain(self, timeout: float) -> bool:
        """Takes no further requests, and waits for those under way; the rest is cancelled. Whether there was none."""
        self.draining = True
        until = time.monotonic() + timeout
        while self.open and time.monotonic() < until:
            await asyncio.sleep(0.02)
        left = [exchange for exchange in self.open if not exchange.ended]
        for exchange in left:
            if exchange.task is not None:
                exchange.task.cancel()
        until = time.monotonic() + 2.0
        while self.open and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return not left

    async def close(self) -> None:
        """Gives back threads and models."""
        self.residence.close()
        self.heap.close()
        self._threads.close()
        self._writers.shutdown(wait=False, cancel_futures=True)
        await self.models.close()


def read_reasoning(given: str | None) -> ReasoningFormat | str | None:
    """Engine's `reasoning` for a setting: "none", or the marks as BEGIN END. Raises ConfigError, ToolFormatError."""
    if given is None or given == "none":
        return given
    marks = given.split()
    if len(marks) != 2:
        raise ConfigError(f"reasoning_format must be none, or two marks as '<think> </think>', not {given!r:.60}")
    return ReasoningFormat(*marks)
