"""Freeing of large values in pieces."""

import gc

from oxillama._util import freeing
from oxillama._util.freeing import MANY, empty, free, parts_within


class Leaf:
    """Counts those that are freed."""

    n_freed = 0

    def __del__(self):
        Leaf.n_freed += 1


def steps_of(value):
    """How many leaves are freed with each part of a value, of which the caller has no reference."""
    parts = parts_within(value[0])
    value.clear()
    parts.reverse()
    steps = []
    while parts:
        before = Leaf.n_freed
        parts.pop()
        steps.append(Leaf.n_freed - before)
    return steps


def test_each_part_is_freed_by_itself():
    for make, n in (
        (lambda: [[Leaf(), {"a": [Leaf()]}] for _ in range(3000)], 6000),
        (lambda: [Leaf() for _ in range(3 * MANY + 5)], 3 * MANY + 5),
        (lambda: {"a": {str(i): Leaf() for i in range(2 * MANY)}}, 2 * MANY),
        (lambda: {"a": [{"b": {}} for _ in range(2 * MANY)], "c": Leaf()}, 1),
    ):
        steps = steps_of([make()])
        assert sum(steps) == n
        assert max(steps) <= MANY


def test_shared_parts_stay():
    shared = [Leaf(), [Leaf()]]
    before = Leaf.n_freed
    free(parts_within([shared, [Leaf()]]))
    assert Leaf.n_freed == before + 1
    assert len(shared) == 2


def test_lists_and_dicts_are_emptied():
    names, values = {str(i): i for i in range(1000)}, list(range(1001))
    empty(names, values, {}, [])
    assert (names, values) == ({}, [])


def test_what_keeps_parts_is_nothing_to_the_collector():
    parts = parts_within([1] * (2 * MANY))
    assert [len(part) for part in parts] == [2 * MANY, MANY, MANY]
    assert [gc.is_tracked(part) for part in parts] == [True, False, False]
    assert freeing.FEW * MANY < 1 << 16
