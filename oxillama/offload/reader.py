"""Page reader: threads that read pages of a model's file while products use others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from oxillama._util.fork import READS, ForkRegistry
from oxillama._util.threads import starting
from oxillama.errors import EngineClosedError, ModelFileError, OxiLlamaError, ThreadStartError
from oxillama.offload.ahead import Prefetcher
from oxillama.offload.buffers import SlotBuffers
from oxillama.offload.calls import Page, PagerCounts, PageRequest
from oxillama.offload.order import AccessOrder

__all__ = ["PageReader"]

N_DIRECT = 2  # threads that read past the page cache: while one chooses the next page, the disk works for the other

_lives = ForkRegistry(READS)
_log = logging.getLogger("oxillama")


class PageReader:
    """Slots in memory, and threads that fill them: first with requested pages, then with those expected next.

    A page in the system's page cache is read by the thread that multiplies by it, straight into its core's cache; an
    expert's page into a slot, where it stays. Methods may be called from any thread. The owner calls `stop` before it
    drops the last reference.
    """

    def __init__(self, pages: Sequence[Page], order: AccessOrder, slot_bytes: dict[bool, int], *, direct: bool) -> None:
        """`slot_bytes`: bytes of a slot for a page of experts (True), and of other matrices."""
        self.counts = PagerCounts()
        self._pages, self._buffers, self._direct = pages, SlotBuffers(slot_bytes), direct
        self._ahead = Prefetcher(pages, order, direct=direct)
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
        self._filled: dict[int, PageRequest] = {}  # pages whose slots a product reads into
        self._paused = self._stopping = False

    # ---- requests of products

    def begin(self, pages: Sequence[int]) -> PageRequest:
        """Requests pages. Reading starts at once."""
        call = PageRequest(len(pages))
        with self._lock:
            self._start()
            for page in pages:
                is_there = page in self._slots[self._pages[page].is_expert]
                if not is_there and self._ahead.has(page):
                    call.cached.append(page)
                else:
                    self._ask(page, call)
            self.counts.hits += len(call.ready)
            self.counts.faults += len(pages) - len(call.ready)
            if self._ahead.follow(pages):
                self._work.notify_all()
            for page in call.cached:
                if self._pages[page].is_expert:
                    self._fill(page, call)
        return call

    def _ask(self, page: int, call: PageRequest) -> None:
        slots = self._slots[self._pages[page].is_expert]
        if page in slots and page not in self._reading and page not in self._filled:
            slots.hold(page)
            call.ready.append(page)
        else:
            self._asked.setdefault(page, []).append(call)

    def _fill(self, page: int, call: PageRequest) -> None:
        slot = self._ahead.place_expert(page)
        if slot is not None:
            self._addresses[page] = self._buffers.of(True, slot).ctypes.data
            self._filled[page] = call

    def take(self, call: PageRequest) -> list[tuple[int, int, int, int]]:
        """Pages that are ready, at least one: number, address, file and offset as `Matrix.page` has them.

        Pages taken before may be evicted from now on. Raises ModelFileError if a page can't be read.
        """
        with self._lock:
            self._let_go(call)
            if not call.ready and not call.cached and call.error is None:
                self._wait_for(call)
            if call.error is not None:
                raise call.error
            call.taken, call.ready = call.ready, []
            call.tried, call.cached = call.cached, []
            call.n_open -= len(call.taken) + len(call.tried)
            found = [(page, self._addresses[page], -1, 0) for page in call.taken]
            for page in call.tried:
                p = self._pages[page]
                address = self._addresses[page] if self._filled.get(page) is call else 0
                found.append((page, address, p.source.fd, p.offset))
            return found

    def _wait_for(self, call: PageRequest) -> None:
        began = time.perf_counter()
        while not call.ready and call.error is None:
            if self._stopping:
                raise EngineClosedError("the model was closed while it was in use")
            self._arrival.wait()
        self.counts.stalls += 1
        self.counts.stall_seconds += time.perf_counter() - began

    def done(self, call: PageRequest, missing: Sequence[int], n_bytes: int) -> None:
        """Ends the product's own reads: `n_bytes` were in the page cache; the threads read the pages in `missing` now.

        Raises ModelFileError if the file has changed, so that the product's result must not be used.
        """
        for source in {self._pages[page].source for page in call.tried}:
            source.check()
        if call.tried:
            with self._lock:
                self.counts.bytes += n_bytes
                if missing:
                    self._ahead.cache.missed()
                self._settle(call, missing)

    def _settle(self, call: PageRequest, missing: Sequence[int]) -> None:
        """Holds the tried pages that got a slot, and requests those that are missing."""
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

    def end(self, call: PageRequest) -> None:
        """Ends a call: its pages are not needed any more."""
        with self._lock:
            call.tried += call.cached
            self._settle(call, call.tried)
            call.taken += call.ready
            call.ready = []
            self._let_go(call)
            if call.n_open:
                self._withdraw(call)

    def _let_go(self, call: PageRequest) -> None:
        for page in call.taken:
            self._slots[self._pages[page].is_expert].let_go(page)
        if call.taken and self._ahead.starved:
            self._work.notify_all()
        call.taken = []

    def _withdraw(self, call: PageRequest) -> None:
        for page, calls in list(self._asked.items()):
            if call in calls:
                calls.remove(call)
                if not calls:
                    del self._asked[page]

    # ---- between steps

    def resize(self, n_window: int, n_experts: int) -> None:
        """Sets the numbers of slots, while no product runs."""
        with self._lock:
            self._wait_for_quiet()
            for is_expert, n in ((False, n_window), (True, n_experts)):
                self._buffers.drop(is_expert, self._slots[is_expert].resize(n))
            self._paused = False

    def forget(self, pages: Sequence[int]) -> None:
        """Drops pages that will not be requested any more."""
        with self._lock:
            self._wait_for_quiet()
            for page in pages:
                self._slots[self._pages[page].is_expert].forget(page)
            self._paused = False

    def _wait_for_quiet(self) -> None:
        while self._reading:
            self._paused = True
            self._arrival.wait()
        self._paused = True  # again, since a fork in another thread may have ended its pause meanwhile

    # ---- the threads

    def _start(self, n_threads: int = 1) -> None:
        """Starts threads. Raises GenerateError if not even one can be started; one is enough."""
        while len(self._threads) < n_threads and not self._stopping:
            thread = threading.Thread(target=self._run, name="oxillama-pages", daemon=True)
            try:
                with starting("the thread that reads weights"):
                    thread.start()
            except ThreadStartError:
                if self._threads:
                    return
                raise
            self._threads.append(thread)

    def stop(self, *, wait: bool = False) -> None:
        """Ends the threads, after the pages that they are reading."""
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
        """Reads a page. Returns whether it was read past the cache: not every disk's blocks allow that."""
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
            self._ahead.failed = True  # the read was ahead of need, and may be tried again when the page is needed
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
        """Waits for reads past the page cache: open(2) forbids a fork while O_DIRECT reads into shared memory."""
        self._lock.acquire()
        self._wait_for_quiet()

    def after_fork_in_parent(self) -> None:
        self._paused = False
        self._work.notify_all()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Drops all requests and unfinished reads: the threads that made them don't exist in the child."""
        unfinished = self._reading.union(self._filled)
        self._asked.clear()
        for slots in self._slots.values():
            slots.release_all()
        for page in unfinished:
            self._slots[self._pages[page].is_expert].forget(page)
        self._reset()
