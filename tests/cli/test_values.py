"""Values of options that are more than a number or a word."""

import math

import pytest

import oxillama as ox
from oxillama.cli.arguments import parse
from oxillama.cli.options import engine_options, text_options

ONE_THREAD = ["-t", "1"]


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("4096", 4096), ("512K", 512 << 10), ("3m", 3 << 20), ("2GiB", 2 << 30), ("1T", 1 << 40)]
)
def test_sizes(text, n_bytes):
    args = parse(["run", "x", "--kv-budget", text, "--offload", text])
    options = engine_options(args)
    assert (options["kv_budget"], options["offload"].budget) == (n_bytes, n_bytes)
    assert engine_options(parse(["run", "x"]))["kv_budget"] is None


def test_kv_budget_holds(run, monkeypatch):
    engines = []
    original = ox.Engine.__init__
    monkeypatch.setattr(ox.Engine, "__init__", lambda self, *a, **k: engines.append(self) or original(self, *a, **k))
    assert run("run", "hi", "-n", 2, "--kv-budget", "256K", *ONE_THREAD)[0] == 0
    assert engines[0].config.kv_budget == 256 << 10


def test_biases(run):
    given = ["--logit-bias", "5=2.5", "--logit-bias", "7=-1e3", "--logit-bias", "0=-inf"]
    assert text_options(parse(["run", "x", *given]))["logit_bias"] == {5: 2.5, 7: -1000.0, 0: -math.inf}
    assert "logit_bias" not in text_options(parse(["chat"]))
    with ox.load(num_threads=1) as engine:
        token = engine.tokenize(" cat", add_special=False)[0]
        piece = engine.detokenize([token])
    out = run("run", "The", "-n", 3, "--temperature", 0, "--logit-bias", f"{token}=100", "--repetition-penalty", 1,
              *ONE_THREAD)[1]  # fmt: skip
    assert out == f"{piece * 3}\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--logit-bias", "5"], "--logit-bias must be ID=X, a token's id and a number, not '5'"),
        (["--logit-bias", "=5"], "--logit-bias must be ID=X"),
        (["--logit-bias", "the=5"], "--logit-bias must be ID=X"),
        (["--logit-bias=-1=5"], "--logit-bias must be ID=X"),
        (["--logit-bias", "\N{ARABIC-INDIC DIGIT ONE}=5"], "--logit-bias must be ID=X"),
        (["--logit-bias", "5=x"], "--logit-bias must be ID=X"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "--logit-bias was given twice for token 5, with 1 and 2"),
        (["--logit-bias", "5=nan"], "--logit-bias[5] must be"),
        (["--logit-bias", "5=inf"], "--logit-bias[5] must be"),
        (["--logit-bias", "99999=1"], "--logit-bias must have token ids of this model, from 0 to 1535, not 99999"),
        (["--kv-budget", "5X"], "--kv-budget must be a number of bytes, as 800M or 4G, not '5X'"),
        (["--kv-budget", "-5"], "--kv-budget must be a number of bytes, as 800M or 4G, not '-5'"),
        (["--kv-budget", "5"], "--kv-budget must be at least 16384 bytes, one block of 16 tokens"),
        (["--offload", "5X"], "--offload must be a number of bytes, as 800M or 4G, or auto, not '5X'"),
    ],
)
def test_wrong_values_are_one_line(run, given, message):
    status, out, err = run("run", "x", *given, *ONE_THREAD)
    assert (status, out) == (2, "")
    assert err.startswith(f"oxillama: error: {message}")
    assert len(err.splitlines()) == 1
