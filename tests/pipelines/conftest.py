"""The engine that mappers' results are held against, and rows to map."""

import pytest

import oxillama as ox


@pytest.fixture(scope="package")
def engine():
    with ox.load(num_threads=1) as loaded:
        yield loaded
