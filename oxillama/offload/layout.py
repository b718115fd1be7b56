"""Memory layout of offloaded weights: resident matrices, and pages of the others. Computes with sizes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Item", "Layout", "Plan"]

LARGEST = 4 << 20  # bytes of a page: reading one takes some hundred times as long as requesting it
WINDOW = 48 << 20  # bytes of prefetched pages that keep any disk busy
PAGE = 4096
LEAST_SLOTS = 2  # one in use by a product, one being read into


@dataclass(frozen=True, slots=True)
class Item:
    """A matrix or stack of matrices. ``held``: its bytes in memory, where it needs more than in the file."""

    name: str
    n_panels: int  # of 16 rows, of each matrix
    panel_bytes: int
    n_stack: int
    held: int
    is_experts: bool

    @property
    def nbytes(self) -> int:
        """Bytes in the file, with whole panels of rows."""
        return self.n_stack * self.n_panels * self.panel_bytes

    def n_pages(self, page_panels: int) -> int:
        return self.n_stack * -(-self.n_panels // page_panels)


@dataclass(frozen=True, slots=True)
class Plan:
    """Use of a budget: the resident matrices, and the number of slots for pages of the others."""

    resident: frozenset[int]
    n_window: int = 0
    n_experts: int = 0


class Layout:
    """Pages of all matrices, numbered consecutively, with one size for experts and one for the others.

    pinned: matrices that are resident with any budget. slack: bytes that a slot needs beside its page.
    """

    def __init__(self, items: Sequence[Item], pinned: frozenset[int], budget: int, slack: int) -> None:
        self.items, self.pinned, self.slack = list(items), pinned, slack
        free = budget - sum(items[i].held for i in pinned)
        self.loose = [i for i in range(len(items)) if i not in pinned]
        self.slot_bytes = {kind: self._choose(kind, free // 48) for kind in (False, True)}
        self.page_panels = [max(1, self.slot_bytes[m.is_experts] // m.panel_bytes) for m in items]
        self.first_page = [0]
        for item, panels in zip(items, self.page_panels, strict=True):
            self.first_page.append(self.first_page[-1] + item.n_pages(panels))

    def _of_kind(self, is_experts: bool) -> list[Item]:
        return [self.items[i] for i in self.loose if self.items[i].is_experts == is_experts]

    def _choose(self, is_experts: bool, most: int) -> int:
        """Bytes of a slot, at most `most`, for pages that leave little of their slots empty."""
        items = self._of_kind(is_experts)
        if not items:
            return 0
        least = max(m.panel_bytes for m in items)
        most = max(least, min(LARGEST, most))
        sizes = {-(-m.n_panels // n) * m.panel_bytes for m in items for n in range(1, 65)}
        found = [size for size in {*sizes, most} if least <= size <= most]

        alike = Counter((m.n_panels, m.panel_bytes, m.n_stack) for m in items)  # layers have the same sizes

        def cost(size: int) -> int:  # a page's own cost counts as 256 kB
            pages = sum(n * stack * -(-panels // (size // step)) for (panels, step, stack), n in alike.items())
            return pages * (self.cost(size) + (256 << 10))

        return min(found, key=lambda size: (cost(size), -size))

    def cost(self, slot_bytes: int) -> int:
        """Bytes that a slot takes."""
        return -(-(slot_bytes + self.slack) // PAGE) * PAGE

    @property
    def most(self) -> int:
        """Bytes with which every matrix is resident."""
        return sum(m.held for m in self.items)

    @property
    def least(self) -> int:
        """Bytes with which every matrix can be used, with the smallest possible pages."""
        largest = [max((m.panel_bytes for m in self._of_kind(kind)), default=0) for kind in (False, True)]
        slots = sum(LEAST_SLOTS * self.cost(size) for size in largest if size)
        return min(self.most, sum(self.items[i].held for i in self.pinned) + slots)

    @property
    def floor(self) -> int:
        """Bytes with which every matrix can be used, with the pages of this layout."""
        slots = sum(LEAST_SLOTS * self.cost(size) for size in self.slot_bytes.values() if size)
        return min(self.most, sum(self.items[i].held for i in self.pinned) + slots)

    def plan(self, budget: int) -> Plan:
        """The plan for a budget of at least ``floor``. Matrices that every token needs come first.

        The resident ones are spread over the layers: while they are in use, others are read, so reading never pauses
        for long.
        """
        if self.most <= budget:
            return Plan(frozenset(range(len(self.items))))
        free = budget - sum(self.items[i].held for i in self.pinned)
        window, experts = (self.cost(self.slot_bytes[kind]) for kind in (False, True))
        for_experts = max(LEAST_SLOTS * experts, free // 4) if self._of_kind(True) else 0
        dense = [i for i in self.loose if not self.items[i].is_experts]
        total = sum(self.items[i].held for i in dense)
        resident, n_window = set(dense), 0
        if total > free - for_experts:
            share = max(0, free - for_experts)
            n_window = max(LEAST_SLOTS, min(WINDOW, share // 6) // window)
            resident = self._spread(dense, share - n_window * window, total)
        left = free - n_window * window - sum(self.items[i].held for i in resident)
        n_experts = self._fitting(left, experts) if for_experts else 0
        return Plan(frozenset(resident | self.pinned), n_window, n_experts)

    def slots_nbytes(self, plan: Plan) -> int:
        """Bytes of all slots."""
        return plan.n_window * self.cost(self.slot_bytes[False]) + plan.n_experts * self.cost(self.slot_bytes[True])

    def paged_bytes(self, plan: Plan) -> int:
        """Bytes of the matrices that are not resident."""
        return sum(m.nbytes for i, m in enumerate(self.items) if i not in plan.resident)

    def _fitting(self, left: int, slot: int) -> int:
        pages = sum(m.n_pages(self.slot_bytes[True] // m.panel_bytes) for m in self._of_kind(True))
        return max(LEAST_SLOTS, min(pages, left // slot))

    def _spread(self, dense: list[int], room: int, total: int) -> set[int]:
        """Matrices of at most `room` bytes, evenly spread; then others that still fit, large ones first."""
        chosen: set[int] = set()
        credit = 0.0
        for i in dense:
            credit += self.items[i].held * max(0, room) / total
            if self.items[i].held <= credit:
                chosen.add(i)
                credit -= self.items[i].held
        room -= sum(self.items[i].held for i in chosen)
        for i in sorted(set(dense) - chosen, key=lambda i: -self.items[i].held):
            if self.items[i].held <= room:
                chosen.add(i)
                room -= self.items[i].held
        return chosen
