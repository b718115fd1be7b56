"""`oxillama info`: what it says of models that are no plain transformers, and of those that can't be run."""

from pathlib import Path

import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.cli import main
from tests.models.tiny import tiny

MODELS = Path(__file__).parents[1] / "data" / "models"


@pytest.fixture
def told(capsys):
    """told(file) -> lines by their first words; those without are joined to the one before."""

    def call(path):
        assert main(["info", str(path)]) == 0
        found, name = {}, ""
        for line in capsys.readouterr().out.splitlines():
            name = line[:18].strip() or name
            found[name] = f"{found.get(name, '')}{line[18:]};"
        return found

    return call


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon-h1", "lfm2", "jamba", "deepseek2", "bert", "gemma3"])
def test_the_estimate_is_what_an_engine_reserves(told, name):
    path = MODELS / f"{name}.gguf"
    lines = told(path)
    with ox.load(path, num_threads=1) as engine:
        held, context = engine.memory_bytes(), engine.context_size
    states, cache = held["recurrent_state"] / 4, held["kv_cache"] / 4  # room for four requests
    assert (f"{states / 1024:,.2f} KiB for the recurrent states" in lines["memory"]) == (states > 0)
    assert (f"{cache / 1024:,.2f} KiB for the KV cache of {context:,} tokens" in lines["memory"]) == (cache > 0)
    assert "unknown" not in lines["memory"]
    assert lines["runs"] == "yes, verified with transformers, llama.cpp;"


def test_layers_without_attention(told):
    lines = told(MODELS / "mamba.gguf")
    assert lines["heads"] == lines["feed forward"] == "none;"
    assert lines["state space"] == "128 channels of 8 values;"
    assert lines["convolution"] == "4 tokens;"
    assert told(MODELS / "bert.gguf")["heads"] == "4, 4 for keys and values;"


def test_what_is_refused_is_described_with_the_reason(told, tmp_path):
    with gguf.open(tiny("llama", tmp_path)) as file:
        keys = {key.replace("llama.", "grok."): value for key, value in file.metadata.items()}
        keys["general.architecture"] = "grok"
        gguf.write_gguf(tmp_path / "grok.gguf", keys, file.tensors)
    lines = told(tmp_path / "grok.gguf")
    assert lines["runs"].startswith("no: architecture 'grok' is not supported: its authors' code caps")
    assert "for the KV cache of" in lines["memory"]
    assert told(tiny("xverse", tmp_path))["runs"] == "yes, not verified;"
