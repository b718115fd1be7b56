"""The engine that the classes of other libraries use, and their results are held against."""

import pytest

import oxillama as ox


@pytest.fixture(scope="package")
def engine():
    with ox.load(num_threads=1) as loaded:
        yield loaded
