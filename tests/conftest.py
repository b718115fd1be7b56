"""Fixtures that tests of several folders share."""

import pytest

from tests import hub as stand_in
from tests.lora import shipped


@pytest.fixture
def hub():
    """The address of a stand-in for the Hub."""
    with stand_in.serving() as address:
        yield address


@pytest.fixture(scope="session")
def adapters(tmp_path_factory):
    """Two adapters of the shipped model."""
    return shipped.write_two(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def texts_alone(adapters):
    """Tokens of the shipped model with and without adapters."""
    return shipped.texts_alone(adapters)
