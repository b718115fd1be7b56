"""Weights that are in memory only while they are needed: which stay, which come and go, and how many may be there."""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from oxillama.errors import ConfigError
from oxillama.gguf.pages import release_pages
from oxillama.gguf.source import DIRECT_SLACK
from oxillama.kernels.matmul import Matrix
from oxillama.models.weights import Stored, Weights
from oxillama.offload.buffers import new_buffer
from oxillama.offload.layout import WINDOW, Item, Layout, Plan
from oxillama.offload.order import Order
from oxillama.offload.pressure import MemoryPressureProbe
from oxillama.offload.reader import Page, PageReader
from oxillama.offload.sizing import first_budget, next_budget
from oxillama.offload_policy import OffloadPolicy

__all__ = ["LayerPager"]

PANEL = 16
PROBE_SECONDS = 0.25
EXPERTS = re.compile(r"^(.*)ffn_(gate|up|down)_exps\.weight$")


class LayerPager:
    """Brings a model's weights in, layer by layer and expert by expert, inside of its forward pass.

    Matrices that stay are kept as without a pager. Of the others, a product asks for the pages that it reads; a thread
    reads these, and those that will be next, into slots. Experts are read when a router chose them, and stay until
    others have been used since. `Matrix.page` has what products see of this.

    The model's matrices refer to the reader alone, and with the pager its thread ends.
    """

    def __init__(
        self,
        weights: Weights,
        policy: OffloadPolicy,
        *,
        repack: bool,
        num_threads: int,
        probe: Callable[[], MemoryPressureProbe] = MemoryPressureProbe,
    ) -> None:
        """Takes over the matrices of a model that was built. `probe`: tells what memory there is.

        Raises ConfigError, which names the least that works, for a budget that is too small, and for patterns that no
        matrix's name fits; ModelFileError if the file can't be read.
        """
        self.policy, self._repack, self._num_threads = policy, repack, num_threads
        self._constant = weights.n_value_bytes
        self._stored = [s for s in weights.stored if s.source is not None]
        self._probe, self._probed_at = probe(), 0.0
        for s in weights.stored:
            if s.source is None:  # rearranged, and not in the file like this
                if repack:
                    s.matrix.repack(num_threads=num_threads)
                self._constant += s.matrix.nbytes + s.matrix.raw_nbytes
        items = [self._item(s.matrix) for s in self._stored]
        pinned = find_pinned(items, policy.pinned)
        slack = DIRECT_SLACK if policy.direct else 0
        self.least = self._constant + Layout(items, pinned, 0, slack).least
        self.budget = self._first_budget(items, pinned)
        self._layout = Layout(items, pinned, self.budget - self._constant, slack)
        self._resident: set[int] = set()
        self._plan = Plan(frozenset())
        self._start()

    def _item(self, w: Matrix) -> Item:
        n_stack = w.n_experts
        held = w.held_nbytes if self._repack else w.file_nbytes
        return Item(w.name, -(-w.n_out // PANEL), PANEL * w.row_bytes, n_stack, held, bool(EXPERTS.match(w.name)))

    def _first_budget(self, items: Sequence[Item], pinned: frozenset[int]) -> int:
        policy, most = self.policy, self._constant + sum(m.held for m in items)
        if policy.budget is not None and policy.budget < self.least:
            raise ConfigError(
                f"offload.budget must be at least {self.least} bytes for this model"
                f"{' with the matrices that are pinned' if pinned else ''}, not {policy.budget}"
            )
        if policy.automatic:
            most = most if policy.budget is None else min(most, policy.budget)
            return first_budget(self._probe.read(), policy.reserve, self.least, most)
        if policy.budget is not None:
            return policy.budget
        rest = sum(m.held for i, m in enumerate(items) if i not in pinned)
        return min(most, self.least + min(WINDOW, rest // 8))

    def _start(self) -> None:
        layout = self._layout
        self._order = Order(layout.first_page, [m.n_stack for m in layout.items], second_halves(layout.items))
        slot_bytes = {kind: size + layout.slack for kind, size in layout.slot_bytes.items()}
        self.reader = PageReader(self._pages(), self._order, slot_bytes, direct=self.policy.direct)
        weakref.finalize(self, self.reader.stop)
        for i, s in enumerate(self._stored):
            s.matrix.page(self.reader, layout.first_page[i], layout.page_panels[i])
        self._apply(layout.plan(self.budget - self._constant))

    def _pages(self) -> list[Page]:
        pages = []
        for i, s in enumerate(self._stored):
            w, step = s.matrix, self._layout.page_panels[i] * PANEL
            for matrix in range(w.n_experts):
                for row in range(0, w.n_out, step):
                    offset = s.offset + (matrix * w.n_out + row) * w.row_bytes
                    n_bytes = min(step, w.n_out - row) * w.row_bytes
                    assert s.source is not None
                    pages.append(Page(s.source, offset, n_bytes, self._layout.items[i].is_experts))
        return pages

    # ---- between steps

    def between_steps(self) -> None:
        """Where the budget follows the memory that there is, it is looked at now."""
        now = time.monotonic()
        if self.policy.automatic and now - self._probed_at >= PROBE_SECONDS:
            self._probed_at = now
            most = self._constant + self._layout.most
            most = most if self.policy.budget is None else min(most, self.policy.budget)
            self.resize(next_budget(self.budget, self._probe.read(), self.policy.reserve, self.least, most))

    def resize(self, budget: int) -> None:
        """Another budget, while nothing is computed. Raises ModelFileError; what was changed until then is in use."""
        if budget != self.budget:
            self.budget = budget
            self._apply(self._layout.plan(max(budget, self.least) - self._constant))

    def _apply(self, plan: Plan) -> None:
        layout = self._layout
        for i in self._resident - plan.resident:
            self._stored[i].matrix.page(self.reader, layout.first_page[i], layout.page_panels[i])
        self._resident &= plan.resident
        for i in plan.resident - self._resident:
            self.reader.forget(range(layout.first_page[i], layout.first_page[i + 1]))
        self._order.follow([i for i in layout.loose if i not in plan.resident and not layout.items[i].is_experts])
        self.reader.resize(plan.n_window, plan.n_experts)
        self._plan = plan
        # The largest first: while a matrix is repacked, what is read of it is in memory, too.
        for i in sorted(plan.resident - self._resident, key=lambda i: -layout.items[i].held):
            self._load(self._stored[i])
            self._resident.add(i)

    def _load(self, stored: Stored) -> None:
        w = stored.matrix
        stored.load(new_buffer(w.file_nbytes))
        self.reader.counts.bytes += w.file_nbytes
        if self._repack:
            w.repack(num_threads=self._num_threads, release=release_pages, allocate=new_buffer)

    # ---- to the outside

    @property
    def nbytes(self) -> int:
        """Bytes of memory for weights: those that stay, slots, norms and biases."""
        layout = self._layout
        slots = sum(
            n * layout.cost(layout.slot_bytes[kind])
            for kind, n in ((False, self._plan.n_window), (True, self._plan.n_experts))
        )
        return self._constant + slots + sum(layout.items[i].held for i in self._resident)

    @property
    def paged_bytes(self) -> int:
        """Bytes that a token reads from the file, if it uses all experts."""
        return sum(m.nbytes for i, m in enumerate(self._layout.items) if i not in self._resident)

    def counts(self) -> Mapping[str, float]:
        """What `PagerCounts` has, and the budget, by name."""
        c = self.reader.counts
        return {
            "budget": self.budget,
            "hits": c.hits,
            "faults": c.faults,
            "bytes": c.bytes,
            "stalls": c.stalls,
            "stall_seconds": c.stall_seconds,
        }


def find_pinned(items: Sequence[Item], patterns: Sequence[str]) -> frozenset[int]:
    """Matrices whose names a pattern fits. ConfigError for a pattern that fits none."""
    found: set[int] = set()
    for pattern in patterns:
        fitting = [i for i, item in enumerate(items) if fnmatchcase(item.name, pattern)]
        if not fitting:
            names = sorted({re.sub(r"\d+", "*", item.name) for item in items})
            raise ConfigError(f"offload.pinned must fit the names of matrices, not {pattern!r}; they are {', '.join(names)}")
        found.update(fitting)
    return frozenset(found)


def second_halves(items: Sequence[Item]) -> dict[int, int | None]:
    """Of each stack of experts, the one that is multiplied by after it with the same ones chosen."""
    by_name = {item.name: i for i, item in enumerate(items) if item.is_experts}
    found: dict[int, int | None] = {}
    for name, i in by_name.items():
        match = EXPERTS.match(name)
        assert match is not None
        found[i] = None if match[2] == "down" else by_name.get(f"{match[1]}ffn_down_exps.weight")
    return found
