"""Fixtures that tests of several folders share, and what makes a run of all of them quick."""

import gc
import os

import hypothesis
import pytest

from oxillama.kernels._cores import cgroup_quota
from tests import hub as stand_in
from tests.lora import shipped
from tests.ray import cluster

# On a loaded machine any example may take long: no test claims anything about seconds.
hypothesis.settings.register_profile("oxillama", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("oxillama")

MOST_WORKERS = 8  # of 1 GB each


@pytest.fixture
def hub():
    """The address of a stand-in for the Hub."""
    with stand_in.serving() as address:
        yield address


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folder that holds `store`, `hub` and `ollama`, which this process takes for its own."""
    pytest.importorskip("huggingface_hub.constants")  # which reads the variables when it is imported
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("OXILLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path


@pytest.fixture
def near_hub(hub, places, monkeypatch):
    """`places`, with a stand-in for the Hub that this process asks."""
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub + template)
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", hub + template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(places / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(places / "token"))
    return places


@pytest.fixture(scope="session")
def ray():
    """Ray, connected to two nodes."""
    with cluster.two_nodes() as connected:
        yield connected


@pytest.fixture(scope="session")
def ray_serve(ray):
    """(Ray Serve, the port on which it listens)."""
    with cluster.serving() as started:
        yield started


@pytest.fixture(scope="session")
def adapters(tmp_path_factory):
    """Two adapters of the shipped model."""
    return shipped.write_two(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def texts_alone(adapters):
    """Tokens of the shipped model with and without adapters."""
    return shipped.texts_alone(adapters)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Workers of `-n auto`: one for each CPU that the process may run on, or that its quota allows, up to MOST_WORKERS.

    None leaves the number to the plugin, which reads the variable.
    """
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, int(cgroup_quota() or cpus), MOST_WORKERS))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    """Of the cases of a test that is marked `sweep(n)`, all are long but n, which lie evenly among them."""
    sweeps = {}
    for item in items:
        if mark := item.get_closest_marker("sweep"):
            sweeps.setdefault((item.path, item.originalname), (mark.args[0], []))[1].append(item)
    for n, cases in sweeps.values():
        short = {i * len(cases) // n for i in range(n)}
        for i, item in enumerate(cases):
            if i not in short:
                item.add_marker("long")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """22,000 tests are over a million lasting objects: tests that collect garbage took up to 60 times as long."""
    gc.collect()
    gc.freeze()
