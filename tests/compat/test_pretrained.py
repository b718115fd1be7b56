"""Models of the Hub by name and pattern, from a stand-in for it."""

import pytest

import oxillama.compat as llama_cpp
from oxillama.compat import pretrained
from oxillama.errors import ConfigError

NAMES = ["a-q4.gguf", "a-q8.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "sub/b.gguf"]


@pytest.fixture(autouse=True)
def names(monkeypatch):
    monkeypatch.setattr(pretrained, "_names", lambda repo_id: NAMES)
    monkeypatch.setattr(pretrained.hub, "download", lambda repo_id, filename: f"{repo_id}/{filename}")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("*q8*", "a-q8.gguf"), ("big*", "big-00001-of-00002.gguf"), ("*/b.gguf", "sub/b.gguf"), ("plain.gguf",) * 2],
)
def test_patterns(pattern, name):
    assert pretrained.fetched("o/r", pattern, ["*00002-of*"] if "big" in pattern else None, {}, "auto") == f"o/r/{name}"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"filename": "*q*"}, "Multiple files found"),
        ({"filename": "*z*"}, "No file found"),
        ({"filename": None}, "filename must be"),
        ({"filename": "*q8*", "local_dir": "x"}, "local_dir must be None"),
        ({"filename": "*q8*", "cache_dir": "x"}, "cache_dir must be None"),
        ({"filename": "*q8*", "local_dir_use_symlinks": True}, "local_dir_use_symlinks must be"),
        ({"filename": "*q8*", "additional_files": ["*q4*"]}, "additional_files must be"),
    ],
)
def test_refusals(keywords, message):
    with pytest.raises(ValueError, match=message):
        llama_cpp.Llama.from_pretrained("o/r", **keywords)
    assert issubclass(pretrained.NoFileError, ValueError)
    assert not issubclass(ConfigError, FileNotFoundError)
