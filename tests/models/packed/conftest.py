"""A cache of its own for each test."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OXILLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OXILLAMA_CACHE_SIZE", raising=False)
    return tmp_path / "cache"
