"""Which matrices stay in memory, and how the others are cut into pages: sizes and counts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Item", "Layout", "Plan"]

LARGEST = 4 << 20  # bytes of a page: reading one takes some hundred times as long as asking for it
WINDOW = 48 << 20  # bytes of pages read ahead that are enough for any disk to go on meanwhile
PAGE = 4096
LEAST_SLOTS = 2  # one that is multiplied by, one that is read into


@dataclass(frozen=True, slots=True)
class Item:
    """A matrix or stack of them. ``held``: its bytes in memory, where that costs more than in the file."""

    name: str
    n_panels: int  # of 16 rows, of each matrix
    panel_bytes: int
    n_stack: int
    held: int
    is_experts: bool

    @property
    def nbytes(self) -> int:
        """In the file, to the last row's panel."""
        return self.n_stack * self.n_panels * self.panel_bytes

    def n_pages(self, page_panels: int) -> int:
        return self.n_stack * -(-self.n_panels // page_panels)


@dataclass(frozen=True, slots=True)
class Plan:
    """For a budget: the matrices that stay, and how many pages of the others have room at a time."""

    resident: frozenset[int]
    n_window: int = 0
    n_experts: int = 0


class Layout:
    """Pages of all matrices, of one size for experts and one for the others, numbered through.

    pinned: matrices that stay in any case. slack: bytes that a slot needs beside its page.
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
        """Bytes of a slot: pages of at most so many, cut so that little of their slots stays empty."""
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
        """Bytes with which every matrix stays."""
        return sum(m.held for m in self.items)

    @property
    def least(self) -> int:
        """Bytes with which every matrix can be multiplied by, in pages as small as they can be."""
        largest = [max((m.panel_bytes for m in self._of_kind(kind)), default=0) for kind in (False, True)]
        slots = sum(LEAST_SLOTS * self.cost(size) for size in largest if size)
        return min(self.most, sum(self.items[i].held for i in self.pinned) + slots)

    @property
    def floor(self) -> int:
        """The least with pages as they are."""
        slots = sum(LEAST_SLOTS * self.cost(size) for size in self.slot_bytes.values() if size)
        return min(self.most, sum(self.items[i].held for i in self.pinned) + slots)

    def plan(self, budget: int) -> Plan:
        """For a budget of at least ``floor``. Matrices that every token needs come first, spread over the layers.

        While those that stay are multiplied by, others are read: so reading never has to stop for long.
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
        """Bytes of the matrices that don't stay."""
        return sum(m.nbytes for i, m in enumerate(self.items) if i not in plan.resident)

    def _fitting(self, left: int, slot: int) -> int:
        pages = sum(m.n_pages(self.slot_bytes[True] // m.panel_bytes) for m in self._of_kind(True))
        return max(LEAST_SLOTS, min(pages, left // slot))

    def _spread(self, dense: list[int], room: int, total: int) -> set[int]:
        """Matrices for so many bytes, as evenly as may be; then what still fits, large ones first."""
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
