"""Logits of every recorded model have the recorded bits on every CPU, in every tier that this one can run."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.kernels import _table
from oxillama.models import load_model
from oxillama.models.weights import COMMON
from tests.models.digests import RECORDED, digests
from tests.models.references import logits, path_of, rewritten, tokens_of
from tests.processes import ROOT

OTHERS = [tier for tier in _table.usable_tiers() if tier != _table.tier()]


def test_the_tier_in_use():
    assert digests() == json.loads(RECORDED.read_text())


@pytest.mark.parametrize("tier", [pytest.param(t, marks=pytest.mark.long if t == "scalar" else ()) for t in OTHERS])
def test_every_other_tier(tier):
    """In processes of their own: a process has one tier."""
    env = os.environ | {"OXILLAMA_TIER": tier, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.models.digests"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(RECORDED.read_text())


def in_bf16(tmp_path):
    gguf.quantize_file(path_of("llama"), tmp_path / "BF16.gguf", "BF16")
    return tmp_path / "BF16.gguf"


@pytest.mark.skipif("not _table.multiplies_bf16()")
def test_bf16_has_other_bits_where_the_cpu_multiplies_it(tmp_path):
    """Which is why it is an option, and the arithmetic of a model is told."""
    path, tokens = in_bf16(tmp_path), tokens_of("llama")
    assert (logits(path, tokens) != logits(path, tokens, portable=True)).any()
    with gguf.open(path) as file:
        assert load_model(file).arithmetic == f"bf16 {_table.tier()}"
        assert load_model(file, portable=True).arithmetic == COMMON


def test_arithmetic_without_bf16_is_common(tmp_path):
    with gguf.open(path_of("Q4_0")) as file:
        assert load_model(file).arithmetic == COMMON


def test_nan_is_nan(tmp_path):
    """A damaged weight makes NaN in the same places, whatever its bits are there."""
    with gguf.open(path_of("llama")) as file:
        damaged = np.array(file.tensors["blk.0.ffn_norm.weight"].dequantize())
    damaged[0] = np.nan
    path = rewritten(path_of("llama"), tmp_path, tensors={"blk.0.ffn_norm.weight": damaged})
    assert np.isnan(logits(path, tokens_of("llama"))).all()
