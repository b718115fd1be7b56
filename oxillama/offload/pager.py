"""Weight pager: weights kept in memory or read from the file when needed, within a budget."""

from __future__ import annotations

import time
from collections.abc import Mapping

from oxillama._util.signals import Finalizer
from oxillama.config import OffloadPolicy
from oxillama.gguf.pages import release_pages
from oxillama.gguf.source import FileSource
from oxillama.models.weights import Stored, Weights
from oxillama.offload.buffers import new_buffer
from oxillama.offload.calls import Page
from oxillama.offload.layout import Plan
from oxillama.offload.order import AccessOrder
from oxillama.offload.pressure import MemoryPressureProbe
from oxillama.offload.reader import PageReader
from oxillama.offload.sizing import next_budget
from oxillama.offload.survey import Survey, second_halves, survey

__all__ = ["LayerPager"]

PROBE_SECONDS = 0.25


class LayerPager:
    """Pager of a model's weights, layer by layer and expert by expert, during its forward pass.

    Resident matrices are kept as without a pager. Of the others, a product requests the pages that it reads; a reader
    thread reads these, and the pages expected next, into slots. Experts are read when a router has chosen them, and
    stay until slots are needed for others used since. Products see pages as `Matrix.page` describes.

    The model's matrices refer to the reader only, and the reader's threads end with the pager.
    """

    def __init__(
        self,
        weights: Weights,
        policy: OffloadPolicy,
        *,
        repack: bool,
        num_threads: int,
        probe: MemoryPressureProbe | None = None,
    ) -> None:
        """Takes over the matrices of a built model. `probe`: measures the available memory.

        Raises ConfigError, which names the least that works, for a budget that is too small, and for patterns that fit
        no matrix's name; ModelFileError if the file can't be read.
        """
        self.policy, self._repack, self._num_threads = policy, repack, num_threads
        self._probe, self._probed_at = probe or MemoryPressureProbe(), 0.0
        self._survey: Survey = survey(weights, policy, self._probe, repack=repack)
        self.budget, self.least = self._survey.budget, self._survey.least
        self.floor = self._survey.constant + self._survey.layout.floor  # with the layout's page sizes
        self._resident: set[int] = set()
        self._plan = Plan(frozenset())
        for s in weights.stored:
            if repack and s.source is None:
                s.matrix.repack(num_threads=num_threads)
        self._start()

    def _start(self) -> None:
        layout = self._survey.layout
        self._order = AccessOrder(layout.first_page, [m.n_stack for m in layout.items], second_halves(layout.items))
        slot_bytes = {kind: size + layout.slack for kind, size in layout.slot_bytes.items()}
        self.reader = PageReader(self._pages(), self._order, slot_bytes, direct=self.policy.direct)
        self._dropped = Finalizer(self.reader.stop)
        for i in range(len(layout.items)):
            self._page(i)
        self._apply(layout.plan(self.budget - self._survey.constant))

    def _pages(self) -> list[Page]:
        pages = []
        for s, item, panels in zip(
            self._survey.stored, self._survey.layout.items, self._survey.layout.page_panels, strict=True
        ):
            assert s.source is not None
            matrix_bytes = s.nbytes // s.matrix.n_experts  # the last panel of rows in a file may have less than 16
            for matrix in range(s.matrix.n_experts):
                for first in range(0, matrix_bytes, panels * item.panel_bytes):
                    n_bytes = min(panels * item.panel_bytes, matrix_bytes - first)
                    pages.append(Page(s.source, s.offset + matrix * matrix_bytes + first, n_bytes, item.is_experts))
        return pages

    def _page(self, i: int) -> None:
        layout, stored = self._survey.layout, self._survey.stored[i]
        stored.matrix.page(self.reader, layout.first_page[i], layout.page_panels[i], in_panels=stored.in_panels)

    # ---- between steps

    def between_steps(self) -> None:
        """Adapts the budget to the available memory, if the policy says so."""
        now = time.monotonic()
        if self.policy.automatic and now - self._probed_at >= PROBE_SECONDS:
            self._probed_at = now
            most = min(self._survey.most, self.policy.budget or self._survey.most)
            self.resize(next_budget(self.budget, self._probe.read(), self.policy.reserve, self.floor, most))

    def resize(self, budget: int) -> None:
        """Sets another budget, while no step runs. Raises ModelFileError; matrices changed before that stay changed."""
        if budget != self.budget:
            self.budget = budget
            self._apply(self._survey.layout.plan(max(budget, self.floor) - self._survey.constant))

    def _apply(self, plan: Plan) -> None:
        layout = self._survey.layout
        for i in self._resident - plan.resident:
            self._page(i)
        self._resident &= plan.resident
        for i in plan.resident - self._resident:
            self.reader.forget(range(layout.first_page[i], layout.first_page[i + 1]))
        self._order.follow([i for i in layout.loose if i not in plan.resident and not layout.items[i].is_experts])
        self.reader.resize(plan.n_window, plan.n_experts)
        self._plan = plan
        # The largest first: while a matrix is repacked, the bytes read from the file are in memory, too.
        for i in sorted(plan.resident - self._resident, key=lambda i: -layout.items[i].held):
            self._load(self._survey.stored[i])
            self._resident.add(i)

    def _load(self, stored: Stored) -> None:
        w = stored.matrix
        stored.load(new_buffer(stored.nbytes))
        self.reader.counts.bytes += stored.nbytes
        if self._repack and not stored.in_panels:
            w.repack(num_threads=self._num_threads, release=release_pages, allocate=new_buffer)

    # ---- measurements

    @property
    def sources(self) -> set[FileSource]:
        """The files that pages are read from."""
        return {stored.source for stored in self._survey.stored if stored.source is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of memory for weights: resident matrices, slots, norms and biases."""
        layout, plan = self._survey.layout, self._plan
        return self._survey.constant + layout.slots_nbytes(plan) + sum(layout.items[i].held for i in self._resident)

    @property
    def step_budget(self) -> int | None:
        """The budget that a step's memory counts against; None if all weights are resident and no budget is set."""
        return None if self.policy.budget is None and not self.paged_bytes else self.budget

    @property
    def paged_bytes(self) -> int:
        """Bytes that a token reads from the file if it uses all experts and none of their pages is in memory."""
        return self._survey.layout.paged_bytes(self._plan)

    def counts(self) -> Mapping[str, float]:
        """The fields of `PagerCounts`, and the budget, by name."""
        c = self.reader.counts
        return {
            "budget": self.budget,
            "hits": c.hits,
            "faults": c.faults,
            "bytes": c.bytes,
            "direct_bytes": c.direct_bytes,
            "stalls": c.stalls,
            "stall_seconds": c.stall_seconds,
        }
