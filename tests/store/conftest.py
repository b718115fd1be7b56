"""Fixtures of models by name: a store, the Hub's cache and Ollama's folder in a folder of their own."""

import pytest

from tests import hub as stand_in


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folder that holds `store`, `hub` and `ollama`, which this process takes for its own."""
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


@pytest.fixture
def hub_files():
    """put(name, data, repo=...), and fail(name, faults...), of the stand-in."""
    return stand_in
