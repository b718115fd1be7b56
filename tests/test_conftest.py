"""What conftest.py decides of a run: the cases of a sweep that are long, and the number of its processes."""

import os
from types import SimpleNamespace

import pytest

from tests import conftest


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
    conftest.pytest_collection_modifyitems([*items, other := Case("test_b"), same := Case("test_c", 1)])
    assert [i for i, item in enumerate(items) if not item.marks] == short
    assert all(item.marks in ([], ["long"]) for item in items)
    assert other.marks == same.marks == []


@pytest.mark.parametrize(
    ("cpus", "quota", "workers"), [(1, None, 1), (2, None, 2), (64, None, 8), (64, 2.5, 2), (4, 0.5, 1), (2, 16.0, 2)]
)
def test_workers_are_as_many_as_cpus(monkeypatch, cpus, quota, workers):
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)), raising=False)
    monkeypatch.setattr(conftest, "cgroup_quota", lambda: quota)
    assert conftest.pytest_xdist_auto_num_workers() == workers
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "3")
    assert conftest.pytest_xdist_auto_num_workers() is None
