"""An engine with the shipped model, which several examples use."""

import pytest

import oxillama as ox


@pytest.fixture(scope="package")
def engine():
    with ox.load(num_threads=2) as engine:
        yield engine
