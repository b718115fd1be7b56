"""Pages of a model's file in memory, read by threads of its own while others are multiplied by."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from oxillama._util.fork import READS, ForkRegistry
from oxillama.errors import EngineClosedError, GenerateError, ModelFileError, OxiLlamaError
from oxillama.offload.ahead import Ahead
from oxillama.offload.buffers import SlotBuffers
from oxillama.offload.calls import Call, Page, PagerCounts
from oxillama.offload.order import Order

__all__ = ["PageReader"]

N_DIRECT = 2  # threads that read past the page cache: while one looks what is next, the disk works for the other

_lives = ForkRegistry(READS)
_log = logging.getLogger("oxillama")


class PageReader:
    """Slots in memory, and threads that fill them: first with what is asked for, then with what will be next.

    What the system's page cache has is read by who multiplies by it, straight into its core's cache; experts into a
    slot, where they stay. Methods may be called from any thread. Whoever drops the last reference calls `stop` before.
    """

    def __init__(self, pages: Sequence[Page], order: Order, slot_bytes: dict[bool, int], *, direct: bool) -> None:
        """`slot_bytes`: of a slot for a page of experts (True), and of others."""
        self.counts = PagerCounts()
        self._pages, self._buffers, self._direct = pages, SlotBuffers(slot_bytes), direct
        self._ahead = Ahead(pages, order, direct=direct)
        self._slots, self._asked = self._ahead.slots, self._ahead.asked
        self._addresses: dict[int, int] = {}
        for source in {page.source for page in pages}:  # now, so that no step has to open a file
            _log.debug("%s: reads past the page cache: %s", source.path, source.can_pass_cache)
        self._reset()
        _lives.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._arrival, self._work = threading.Condition(self._lock), threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._reading: set[int] = set()
        self._filled: dict[int, Call] = {}  # pages whose slots a call reads into
        self._paused = self._stopping = False

    # ---- for who multiplies

    def begin(self, pages: Sequence[int]) -> Call:
        """Asks for pages. Reading begins at once."""
        call = Call(len(pages))
        with self._lock:
            self._start()
            for page in pages:
                is_there = page in self._slots[self._pages[page].is_expert]
                if not is_there and self._ahead.has(page):
                    call.at_hand.append(page)
                else:
                    self._ask(page, call)
            self.counts.hits += len(call.ready)
            self.counts.faults += len(pages) - len(call.ready)
            if self._ahead.follow(pages):
                self._work.notify_all()
            for page in call.at_hand:
                if self._pages[page].is_expert:
                    self._fill(page, call)
        return call

    def _ask(self, page: int, call: Call) -> None:
        slots = self._slots[self._pages[page].is_expert]
        if page in slots and page not in self._reading and page not in self._filled:
            slots.hold(page)
            call.ready.append(page)
        else:
            self._asked.setdefault(page, []).append(call)

    def _fill(self, page: int, call: Call) -> None:
        slot = self._ahead.place_expert(page)
        if slot is not None:
            self._addresses[page] = self._buffers.of(True, slot).ctypes.data
            self._filled[page] = call

    def take(self, call: Call) -> list[tuple[int, int, int, int]]:
        """Pages that are there, at least one: number, address, file and offset as `Matrix.page` has them.

        Those taken before may leave from now on. Raises ModelFileError if one can't be read.
        """
        with self._lock:
            self._let_go(call)
            if not call.ready and not call.at_hand and call.error is None:
                self._wait_for(call)
            if call.error is not None:
                raise call.error
            call.taken, call.ready = call.ready, []
            call.tried, call.at_hand = call.at_hand, []
            call.n_open -= len(call.taken) + len(call.tried)
            found = [(page, self._addresses[page], -1, 0) for page in call.taken]
            for page in call.tried:
                p = self._pages[page]
                address = self._addresses[page] if self._filled.get(page) is call else 0
                found.append((page, address, p.source.fd, p.offset))
            return found

    def _wait_for(self, call: Call) -> None:
        began = time.perf_counter()
        while not call.ready and call.error is None:
            if self._stopping:
                raise EngineClosedError("the model was closed while it was in use")
            self._arrival.wait()
        self.counts.stalls += 1
        self.counts.stall_seconds += time.perf_counter() - began

    def done(self, call: Call, missing: Sequence[int], n_bytes: int) -> None:
        """Pages in `missing` were not all at hand, and are read for it now; of others, so many bytes were.

        Raises ModelFileError if the file was changed, so that what was computed must not be used.
        """
        for source in {self._pages[page].source for page in call.tried}:
            source.check()
        if call.tried:
            with self._lock:
                self.counts.bytes += n_bytes
                if missing:
                    self._ahead.cache.missed()
                self._settle(call, missing)

    def _settle(self, call: Call, missing: Sequence[int]) -> None:
        """Of pages that were tried, those are held that got a slot; those that are missing are asked for."""
        for page in call.tried:
            if self._filled.get(page) is call:
                del self._filled[page]
                if page in missing:
                    self._slots[True].drop(page)
                else:
                    call.taken.append(page)
                    self._hand_over(page)
        call.tried = []
        call.n_open += len(missing)
        for page in missing:
            self._ask(page, call)
        if missing:
            self._work.notify_all()

    def end(self, call: Call) -> None:
        """Nothing more of it is wanted."""
        with self._lock:
            call.tried += call.at_hand
            self._settle(call, call.tried)
            call.taken += call.ready
            call.ready = []
            self._let_go(call)
            if call.n_open:
                self._withdraw(call)

    def _let_go(self, call: Call) -> None:
        for page in call.taken:
            self._slots[self._pages[page].is_expert].let_go(page)
        if call.taken and self._ahead.starved:
            self._work.notify_all()
        call.taken = []

    def _withdraw(self, call: Call) -> None:
        for page, calls in list(self._asked.items()):
            if call in calls:
                calls.remove(call)
                if not calls:
                    del self._asked[page]

    # ---- between steps

    def resize(self, n_window: int, n_experts: int) -> None:
        """So many slots, empty ones or not. While nobody multiplies."""
        with self._lock:
            self._wait_for_quiet()
            for is_expert, n in ((False, n_window), (True, n_experts)):
                self._buffers.drop(is_expert, self._slots[is_expert].resize(n))
            self._paused = False

    def forget(self, pages: Sequence[int]) -> None:
        """Pages of which nothing will be asked for leave."""
        with self._lock:
            self._wait_for_quiet()
            for page in pages:
                self._slots[self._pages[page].is_expert].forget(page)
            self._paused = False

    def _wait_for_quiet(self) -> None:
        while self._reading:
            self._paused = True
            self._arrival.wait()
        self._paused = True  # also where another fork has gone on meanwhile

    # ---- the threads

    def _start(self, n_threads: int = 1) -> None:
        """Raises GenerateError if not even one can be started; where one is at work, it does without the others."""
        while len(self._threads) < n_threads and not self._stopping:
            thread = threading.Thread(target=self._run, name="oxillama-pages", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if self._threads:
                    return
                raise GenerateError(f"the thread that reads weights couldn't be started: {error}") from error
            self._threads.append(thread)

    def stop(self, *, wait: bool = False) -> None:
        """Ends the threads; they read their pages to the end."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            self._arrival.notify_all()
        for thread in self._threads if wait else ():
            thread.join()

    def _run(self) -> None:
        while (chosen := self._wait_for_work()) is not None:
            page, slot, past_cache, following = chosen
            error = None
            try:
                for p in following:
                    p.source.expect(p.offset, p.nbytes)
                past_cache = self._read(page, slot, past_cache)
            except OxiLlamaError as caught:
                error = caught
            except Exception as caught:
                error = ModelFileError(f"{self._pages[page].source.path}: reading failed: {caught!r}")
            with self._lock:
                self._arrived(page, past_cache, error)

    def _wait_for_work(self) -> tuple[int, int, bool, list[Page]] | None:
        with self._lock:
            while not self._stopping:
                chosen = None if self._paused else self._ahead.next()
                if chosen is not None:
                    page, slot, past_cache = chosen
                    self._reading.add(page)
                    if past_cache:
                        self._start(N_DIRECT)
                    return page, slot, past_cache, self._ahead.following()
                self._work.wait()
            return None

    def _read(self, page: int, slot: int, past_cache: bool) -> bool:
        """Returns whether it was past the cache: not every disk has the blocks for that."""
        p = self._pages[page]
        buffer = self._buffers.of(p.is_expert, slot)
        shift = None
        if past_cache:
            shift = (p.source.read_direct if self._direct else p.source.pass_cache)(p.offset, p.nbytes, buffer)
        if shift is None:
            p.source.read(p.offset, buffer[: p.nbytes])
        self._addresses[page] = buffer.ctypes.data + (shift or 0)
        return shift is not None

    def _arrived(self, page: int, past_cache: bool, error: OxiLlamaError | None) -> None:
        self._reading.discard(page)
        slots = self._slots[self._pages[page].is_expert]
        if error is not None:
            self._ahead.failed = True  # ahead of time, it may be tried again when it is needed
            slots.drop(page)
            for call in self._asked.pop(page, []):
                call.error = error
        else:
            self.counts.bytes += self._pages[page].nbytes
            self.counts.direct_bytes += self._pages[page].nbytes if past_cache else 0
            self._hand_over(page)
            slots.let_go(page)
        self._arrival.notify_all()

    def _hand_over(self, page: int) -> None:
        for call in self._asked.pop(page, []):
            self._slots[self._pages[page].is_expert].hold(page)
            call.ready.append(page)
        self._arrival.notify_all()

    # ---- forks

    def before_fork(self) -> None:
        """Nothing may be read past the page cache then: open(2), of memory that a child would share."""
        self._lock.acquire()
        self._wait_for_quiet()

    def after_fork_in_parent(self) -> None:
        self._paused = False
        self._work.notify_all()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """The threads are the parent's. What they were reading is not there, and whoever asked for pages is gone."""
        unfinished = self._reading.union(self._filled)
        self._asked.clear()
        for slots in self._slots.values():
            slots.release_all()
        for page in unfinished:
            self._slots[self._pages[page].is_expert].forget(page)
        self._reset()
