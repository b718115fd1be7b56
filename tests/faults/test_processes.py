"""Forks and shared folders: the quick part of what `python -m tests.faults forks stores` does."""

import pytest

from tests.faults import forks, stores
from tests.faults.limits import run_module


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", forks.KINDS)
def test_forks(kind):
    assert "\n".join(run_module("tests.faults.forks", kind, "0")) == ""


@pytest.mark.long
def test_a_store_that_processes_share_and_die_in(tmp_path):
    assert stores.storm(tmp_path, 4) == []
