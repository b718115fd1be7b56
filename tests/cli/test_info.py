"""`oxillama info`: what it says of models that are no plain transformers, and of those that can't be run."""

import re
from pathlib import Path

import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.cli import main
from tests.models.bert import HEADS, with_head
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
    n_requests = 4 if held["recurrent_state"] else max(4, min(64, 4 * 4096 // context))  # that there is room for
    states, cache = held["recurrent_state"] / n_requests, held["kv_cache"] / n_requests
    assert (f"{states / 1024:,.2f} KiB for the recurrent states" in lines["memory"]) == (states > 0)
    assert (f"{cache / 1024:,.2f} KiB for the KV cache of {context:,} tokens" in lines["memory"]) == (cache > 0)
    assert "unknown" not in lines["memory"]
    assert lines["runs"] == "yes, verified with transformers, llama.cpp;"


@pytest.mark.parametrize(
    ("arch", "keys", "purpose"),
    [
        ("llama", {}, "generating text (oxillama run, chat);"),
        ("mamba", {}, "generating text (oxillama run, chat);"),
        ("dream", {}, "denoising texts (oxillama diffuse);"),
        ("bert", {}, "embedding texts (oxillama embed), pooling mean;"),
        ("bert", {"bert.pooling_type": 2}, "embedding texts (oxillama embed), pooling cls;"),
        ("qwen3", {"qwen3.pooling_type": 3}, "embedding texts (oxillama embed), pooling last;"),
    ],
)
def test_what_a_model_is_made_for(told, tmp_path, arch, keys, purpose):
    with gguf.open(MODELS / f"{arch}.gguf") as file:
        gguf.write_gguf(tmp_path / "m.gguf", dict(file.metadata.items()) | keys, file.tensors)
    assert told(tmp_path / "m.gguf")["made for"] == purpose


def test_a_model_with_a_classifier_ranks(told, tmp_path):
    assert told(with_head(tmp_path, head=HEADS["output"]))["made for"] == "ranking documents (oxillama rerank);"


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
    assert "made for" not in lines
    assert told(tiny("xverse", tmp_path))["runs"] == "yes, not verified;"


def test_what_would_be_left_in_the_file(capsys):
    """As an engine with this budget has it; a budget that is too small is refused as loading would."""
    path, budget = MODELS / "mixtral.gguf", 500 << 10
    assert main(["info", str(path), "--offload", "500K"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("offload"))
    with ox.load(path, num_threads=1, offload=budget) as engine:
        held = engine.memory_bytes()["weights"]
    numbers = [float(n) for n in re.findall(r"(\d+\.\d+) MiB", lines[at + 1])]
    assert sum(numbers) == pytest.approx(held / (1 << 20), abs=0.011)
    assert "of experts" in lines[at + 2]
    assert main(["info", str(path), "--offload", "1K"]) == 2
    assert "--offload must be at least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--offload", "much"], "--offload must be a number of bytes, as 800M or 4G, or auto, not 'much'"),
        (["--offload", "0"], "--offload must be from 1"),
        (["--offload", "2M", "--pin", "nothing"], "--pin must fit names of matrices"),
        (["--offload-direct"], "--offload-direct must be left out where nothing is offloaded: give --offload, too"),
    ],
)
def test_bad_offload_options_are_named(capsys, options, message):
    assert main(["run", "Once", "-n", "2", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--offload", "1m"], ["--offload", "auto"], ["--pin", "blk.0.*"]])
def test_run_tells_what_paging_did(capsys, options):
    assert main(["run", "Once upon a time", "-n", "4", "--temperature", "0"]) == 0
    expected = capsys.readouterr().out
    assert main(["run", "Once upon a time", "-n", "4", "--temperature", "0", *options]) == 0
    out, err = capsys.readouterr()
    assert out == expected
    assert re.search(r"\[weights in [\d.,]+ MiB: .*; [\d.]+ GB read; waited \d+ times, [\d.]+ s\]", err)
