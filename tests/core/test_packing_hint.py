"""A load of a large file says that packed files are there."""

import logging
import shutil

import pytest

import oxillama as ox
from oxillama.core import loading


@pytest.fixture
def suggestions(monkeypatch, caplog, tmp_path):
    """Texts of the log after a load of the shipped model, which is taken for a large one."""
    monkeypatch.setattr(loading, "SUGGESTED_BYTES", 1)
    monkeypatch.setenv("OXILLAMA_CACHE", str(tmp_path / "cache"))

    def load(model_path=None, **options):
        caplog.clear()
        with caplog.at_level(logging.INFO, "oxillama"):
            ox.load(model_path, num_threads=1, **options).close()
        return [record.message for record in caplog.records if "packed=True (--packed)" in record.message]

    return load


def test_a_large_file_is_said_to_be_packable_once(suggestions, tmp_path):
    path = shutil.copy(loading.shipped_model(), tmp_path / "model.gguf")
    (text,) = suggestions(path)
    assert text.startswith(f"{path}: 0.0 GB were repacked")


@pytest.mark.parametrize("options", [{"packed": True}, {"repack": False}, {"offload": 2_000_000}])
def test_not_where_it_is_or_nothing_was_repacked(suggestions, options):
    assert suggestions(**options) == []


def test_not_of_bytes_nor_of_small_files(suggestions, monkeypatch):
    with open(loading.shipped_model(), "rb") as f:
        assert suggestions(f.read()) == []
    monkeypatch.undo()
    assert loading.SUGGESTED_BYTES == 1 << 30
