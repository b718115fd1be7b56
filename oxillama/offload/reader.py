"""Pages of a model's file in memory, read by a thread of its own while others are multiplied by."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import EngineClosedError, ModelFileError, OxiLlamaError
from oxillama.lives import READS, Lives
from oxillama.offload.buffers import new_buffer
from oxillama.offload.calls import Call, Page, PagerCounts
from oxillama.offload.order import Order
from oxillama.offload.slots import Slots

__all__ = ["PageReader"]

_lives = Lives(READS)


class PageReader:
    """Slots in memory, and the thread that fills them: first with what is asked for, then with what will be next.

    Methods may be called from any thread. Whoever drops the last reference calls `stop` before.
    """

    def __init__(self, pages: Sequence[Page], order: Order, slot_bytes: dict[bool, int], *, direct: bool) -> None:
        """`slot_bytes`: of a slot for a page of experts (True), and of others."""
        self.counts = PagerCounts()
        self._pages, self._order, self._slot_bytes, self._direct = pages, order, slot_bytes, direct
        self._slots = {False: Slots(cyclic=True), True: Slots()}
        self._buffers: dict[bool, dict[int, NDArray[np.uint8]]] = {False: {}, True: {}}
        self._addresses: dict[int, int] = {}
        self._asked: dict[int, list[Call]] = {}
        self._reset()
        _lives.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._reading: int | None = None
        self._paused = self._stopping = self._failed = False

    # ---- for who multiplies

    def bring(self, pages: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
        """Pages as they come into memory: lists of (number, address), valid until the next one is asked for.

        Reading begins at once. Raises ModelFileError if a page can't be read.
        """
        return self._each(self.begin(pages))

    def _each(self, call: Call) -> Iterator[list[tuple[int, int]]]:
        try:
            while call.n_open:
                yield self.take(call)
        finally:
            self.end(call)

    def begin(self, pages: Sequence[int]) -> Call:
        """Asks for pages."""
        call = Call(len(pages))
        with self._changed:
            self._start()
            for page in pages:
                slots = self._slots[self._pages[page].is_expert]
                if page in slots and page != self._reading:
                    slots.hold(page)
                    call.ready.append(page)
                else:
                    self._asked.setdefault(page, []).append(call)
            self.counts.hits += len(call.ready)
            self.counts.faults += len(pages) - len(call.ready)
            self._order.asked_for(pages)
            self._failed = False
            self._changed.notify_all()
        return call

    def take(self, call: Call) -> list[tuple[int, int]]:
        """Numbers and addresses of the pages that are there, at least one; those taken before may leave from now on.

        Raises ModelFileError if one can't be read.
        """
        with self._changed:
            self._let_go(call)
            if not call.ready and call.error is None:
                self._wait_for(call)
            if call.error is not None:
                raise call.error
            call.taken, call.ready = call.ready, []
            call.n_open -= len(call.taken)
            return [(page, self._addresses[page]) for page in call.taken]

    def _wait_for(self, call: Call) -> None:
        began = time.perf_counter()
        while not call.ready and call.error is None:
            if self._stopping:
                raise EngineClosedError("the model was closed while it was in use")
            self._changed.wait()
        self.counts.stalls += 1
        self.counts.stall_seconds += time.perf_counter() - began

    def end(self, call: Call) -> None:
        """Nothing more of it is wanted."""
        with self._changed:
            call.taken += call.ready
            call.ready = []
            self._let_go(call)
            if call.n_open:
                self._withdraw(call)

    def _let_go(self, call: Call) -> None:
        for page in call.taken:
            self._slots[self._pages[page].is_expert].let_go(page)
        if call.taken:
            call.taken = []
            self._changed.notify_all()

    def _withdraw(self, call: Call) -> None:
        for page, calls in list(self._asked.items()):
            if call in calls:
                calls.remove(call)
                if not calls:
                    del self._asked[page]

    # ---- between steps

    def resize(self, n_window: int, n_experts: int) -> None:
        """So many slots, empty ones or not. While nobody multiplies."""
        with self._changed:
            self._wait_for_quiet()
            for is_expert, n in ((False, n_window), (True, n_experts)):
                buffers = self._buffers[is_expert]
                for gone in self._slots[is_expert].resize(n):
                    buffers.pop(gone, None)
            self._paused = False

    def forget(self, pages: Sequence[int]) -> None:
        """Pages of which nothing will be asked for leave."""
        with self._changed:
            self._wait_for_quiet()
            for page in pages:
                self._slots[self._pages[page].is_expert].forget(page)
            self._paused = False

    def _wait_for_quiet(self) -> None:
        self._paused = True
        while self._reading is not None:
            self._changed.wait()

    # ---- the thread

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._work, name="oxillama-pages", daemon=True)
            self._thread.start()

    def stop(self, *, wait: bool = False) -> None:
        """Ends the thread; it reads its page to the end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        thread = self._thread
        if wait and thread is not None:
            thread.join()

    def _work(self) -> None:
        while (chosen := self._wait_for_work()) is not None:
            page, slot = chosen
            error = None
            try:
                self._read(page, slot)
            except OxiLlamaError as caught:
                error = caught
            except Exception as caught:
                error = ModelFileError(f"{self._pages[page].source.path}: reading failed: {caught!r}")
            with self._changed:
                self._arrived(page, error)

    def _wait_for_work(self) -> tuple[int, int] | None:
        with self._changed:
            while not self._stopping:
                chosen = None if self._paused else self._choose()
                if chosen is not None:
                    self._reading = chosen[0]
                    return chosen
                self._changed.wait()
            return None

    def _choose(self) -> tuple[int, int] | None:
        """The next page to read, and a slot for it: of those asked for, or ahead of that."""
        for page in self._asked:
            is_expert = self._pages[page].is_expert
            slots = self._slots[is_expert]
            if page not in slots:
                slot = slots.place(page, sparing=self._soon(is_expert))
                slot = slots.place(page) if slot is None else slot
                if slot is not None:
                    return page, slot
        if not self._failed:
            for is_expert in (True, False):
                slots, soon = self._slots[is_expert], self._soon(is_expert)
                for page in soon:
                    if page not in slots:
                        slot = slots.place(page, sparing=soon)
                        if slot is not None:
                            return page, slot
                        break
        return None

    def _soon(self, is_expert: bool) -> dict[int, None]:
        """Pages that will be asked for next, as far as is known, for which there can be room beside others."""
        n = len(self._slots[is_expert])
        return dict.fromkeys(self._order.experts(n // 2) if is_expert else self._order.upcoming(n - 1))

    def _read(self, page: int, slot: int) -> None:
        p = self._pages[page]
        buffers = self._buffers[p.is_expert]
        buffer = buffers.get(slot)
        if buffer is None:
            buffer = buffers[slot] = new_buffer(self._slot_bytes[p.is_expert])
        shift = 0
        if self._direct:
            shift = p.source.read_direct(p.offset, p.nbytes, buffer)
        else:
            p.source.read(p.offset, buffer[: p.nbytes])
        self._addresses[page] = buffer.ctypes.data + shift

    def _arrived(self, page: int, error: OxiLlamaError | None) -> None:
        self._reading = None
        slots, calls = self._slots[self._pages[page].is_expert], self._asked.pop(page, [])
        if error is not None:
            self._failed = True  # ahead of time, it may be tried again when it is needed
            slots.drop(page)
            for call in calls:
                call.error = error
        else:
            self.counts.bytes += self._pages[page].nbytes
            for call in calls:
                slots.hold(page)
                call.ready.append(page)
            slots.let_go(page)
        self._changed.notify_all()

    # ---- forks

    def before_fork(self) -> None:
        self._changed.acquire()

    def after_fork_in_parent(self) -> None:
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """The thread is the parent's. What it was reading is not there, and whoever asked for pages is gone."""
        reading = self._reading
        self._asked.clear()
        for slots in self._slots.values():
            slots.release_all()
        if reading is not None:
            self._slots[self._pages[reading].is_expert].forget(reading)
        self._reset()
