"""Engines and applications that tests of the server share."""

import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from tests.server.browser import PROGRAM, browsing
from tests.server.client import Client


@pytest.fixture(scope="package")
def engine():
    with ox.load(num_threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="package")
def client(engine):
    return Client(create_app({"tiny": engine}, ServerConfig(max_body=1 << 20)))


@pytest.fixture
def configured(engine):
    """Makes a client of a server with these settings."""

    def make(**settings):
        return Client(create_app({"tiny": engine}, ServerConfig(**settings)))

    return make


@pytest.fixture(scope="package")
def browser():
    """A browser, in which each page that is opened shares nothing with those before."""
    if PROGRAM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with browsing() as started:
        yield started
