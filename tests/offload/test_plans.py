"""Resident matrices, evicted pages and expected pages: against brute force and by their properties."""

import random

import pytest

from oxillama.offload.layout import LEAST_SLOTS, Item, Layout
from oxillama.offload.order import AccessOrder
from oxillama.offload.slots import Slots


def some_items(rng, n):
    found = []
    for i in range(n):
        panels, size = rng.randint(1, 300), rng.choice([576, 4608, 9216, 36864])
        stack = rng.choice([1, 1, 8]) if rng.random() < 0.5 else 1
        held = int(stack * panels * size * rng.choice([1, 1.03])) + 64
        found.append(Item(f"m{i}", panels, size, stack, held, stack > 1 and rng.random() < 0.8))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_keeps_to_its_budget(seed):
    rng = random.Random(seed)
    items = some_items(rng, rng.randint(1, 40))
    pinned = frozenset(i for i in range(len(items)) if rng.random() < 0.1)
    slack = rng.choice([0, 8192])
    least = Layout(items, pinned, 0, slack).least
    most = sum(m.held for m in items)
    for budget in (least, least + 1, *(rng.randint(least, most + 1) for _ in range(8)), most, most * 2):
        layout = Layout(items, pinned, budget, slack)
        assert layout.floor <= budget
        plan = layout.plan(budget)
        held = sum(items[i].held for i in plan.resident) + layout.slots_nbytes(plan)
        assert held <= budget
        assert pinned <= plan.resident
        for is_experts, n in ((False, plan.n_window), (True, plan.n_experts)):
            paged = [m for i, m in enumerate(items) if i not in plan.resident and m.is_experts == is_experts]
            assert n >= LEAST_SLOTS or not paged
            for m in paged:
                assert m.panel_bytes * layout.page_panels[items.index(m)] <= layout.slot_bytes[is_experts]
        if budget >= most:
            assert len(plan.resident) == len(items)


def test_pages_are_consecutive_and_cover_each_matrix():
    rng = random.Random(3)
    items = some_items(rng, 20)
    layout = Layout(items, frozenset(), 10_000_000, 0)
    for i, item in enumerate(items):
        n = layout.first_page[i + 1] - layout.first_page[i]
        assert n == item.n_stack * -(-item.n_panels // layout.page_panels[i])


def test_resident_matrices_are_spread_over_the_layers():
    """So that no half of the model is without something to read meanwhile."""
    items = [Item(f"m{i}", 128, 18432, 1, 128 * 18432, False) for i in range(112)]
    total = sum(m.held for m in items)
    plan = Layout(items, frozenset(), total // 2, 0).plan(total // 2)
    first = sum(i < 56 for i in plan.resident)
    assert abs(2 * first - len(plan.resident)) <= 2
    assert max(sum(i + k in plan.resident for k in range(8)) for i in range(104)) < 8


def test_dense_matrices_are_resident_before_experts():
    dense = [Item(f"d{i}", 16, 4608, 1, 16 * 4608, False) for i in range(8)]
    experts = [Item(f"e{i}", 16, 4608, 32, 32 * 16 * 4608, True) for i in range(8)]
    items = [m for pair in zip(dense, experts, strict=True) for m in pair]
    budget = sum(m.held for m in items) // 4
    plan = Layout(items, frozenset(), budget, 0).plan(budget)
    assert plan.resident == {i for i, m in enumerate(items) if not m.is_experts}
    assert plan.n_window == 0


class NaiveSlots:
    """Pages in the order of their last use."""

    def __init__(self, n, cyclic):
        self.n, self.cyclic, self.pages, self.held = n, cyclic, [], []

    def place(self, page, sparing):
        if len(self.pages) == self.n:
            may = [p for p in self.pages if p not in self.held and p not in sparing]
            if not may:
                return False
            self.pages.remove(may[-1 if self.cyclic else 0])
        self.pages.append(page)
        self.held.append(page)
        return True

    def hold(self, page):
        self.pages.remove(page)
        self.pages.append(page)
        self.held.append(page)


@pytest.mark.parametrize("seed", range(20))
def test_slots_agree_with_a_plain_model(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 6)
    cyclic = seed % 2 == 1
    ours, twin = Slots(n, cyclic=cyclic), NaiveSlots(n, cyclic)
    for _ in range(400):
        page = rng.randrange(10)
        if page in twin.pages:
            if rng.random() < 0.5:
                ours.hold(page)
                twin.hold(page)
            elif page in twin.held:
                ours.let_go(page)
                twin.held.remove(page)
            elif rng.random() < 0.2:
                ours.forget(page)
                twin.pages.remove(page)
        else:
            sparing = set(rng.sample(range(10), rng.randint(0, 4)))
            assert (ours.place(page, sparing=sparing) is not None) == twin.place(page, sparing)
        assert [p for p in range(10) if p in ours] == sorted(twin.pages)
        slots = [ours.slot(p) for p in twin.pages]
        assert len(set(slots)) == len(slots)
        assert len(ours) == n


def test_slots_shrink_and_grow():
    slots = Slots(3)
    for page in range(3):
        slots.place(page)
        slots.let_go(page)
    kept = slots.slot(2)
    assert len(slots.resize(1)) == 2
    assert [p for p in range(3) if p in slots] == [2]
    assert slots.slot(2) == kept
    assert slots.resize(4) == []
    assert len({slots.place(page) for page in (5, 6, 7)} | {kept}) == 4


def test_the_order_is_learned():
    """Three matrices of two pages, of which the second comes last."""
    order = AccessOrder([0, 2, 4, 6], [1, 1, 1], {})
    order.follow([0, 1, 2])
    assert list(order.upcoming(3)) == [0, 1, 2]
    for _ in range(2):
        order.asked_for([0, 1])
        order.asked_for([4, 5])
        order.asked_for([2, 3])
    assert list(order.upcoming(6)) == [0, 1, 4, 5, 2, 3]
    assert list(order.upcoming(100)) == [0, 1, 4, 5, 2, 3]
    order.asked_for([0, 1])
    assert list(order.upcoming(1)) == [4]


def test_matrices_of_one_call_follow_each_other():
    order = AccessOrder([0, 1, 2, 3], [1, 1, 1], {})
    order.follow([0, 1, 2])
    order.asked_for([0, 2])
    assert list(order.upcoming(9)) == [0, 2]


def test_second_matrices_of_chosen_experts_are_expected():
    """A router, then stacks of four experts: two of one page each, the second half of two each."""
    order = AccessOrder([0, 1, 5, 9, 17], [1, 4, 4, 4], {1: 3, 2: 3, 3: None})
    order.follow([0])
    order.asked_for([0])
    assert order.experts(9) == []
    order.asked_for([2, 4, 6, 8])
    assert order.experts(9) == [11, 12, 15, 16]
    assert order.experts(3) == [11, 12, 15]
    order.asked_for([11, 12, 15, 16])
    assert order.experts(9) == []
