"""Regions of these tests are shared out among the threads that a workspace has, however small they are."""

import pytest

from oxillama.kernels import _team


@pytest.fixture(autouse=True)
def _every_region_is_shared_out():
    before = _team.always_share(True)
    yield
    _team.always_share(before)
