"""Which cases of a sweep are long: those that `python -m pytest` leaves out, and .ci/run runs beside it."""

from types import SimpleNamespace

import pytest

from tests.conftest import pytest_collection_modifyitems


class Case:
    """What pytest collects, as far as marks go."""

    path = "test_x.py"

    def __init__(self, name, *sweep):
        self.originalname, self.sweep, self.marks = name, sweep, []

    def get_closest_marker(self, name):
        return SimpleNamespace(args=self.sweep) if self.sweep and name == "sweep" else None

    def add_marker(self, name):
        self.marks.append(name)


@pytest.mark.parametrize(("n", "cases", "short"), [(1, 5, [0]), (2, 5, [0, 2]), (3, 9, [0, 3, 6]), (4, 3, [0, 1, 2])])
def test_n_cases_of_a_sweep_are_short(n, cases, short):
    items = [Case("test_a", n) for _ in range(cases)]
    pytest_collection_modifyitems([*items, other := Case("test_b"), same := Case("test_c", 1)])
    assert [i for i, item in enumerate(items) if not item.marks] == short
    assert all(item.marks in ([], ["long"]) for item in items)
    assert other.marks == same.marks == []
