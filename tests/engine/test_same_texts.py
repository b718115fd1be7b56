"""Texts for seeds are recorded once, for every CPU; a request that was saved under one tier goes on under another."""

import json
import os
import subprocess
import sys

import pytest

import oxillama as ox
from oxillama.kernels import _table
from tests.engine.texts import PROMPTS, RECORDED, texts
from tests.processes import ROOT

OTHERS = [tier for tier in _table.usable_tiers() if tier != _table.tier()]


def in_tier(tier, *args):
    """Output of the module in a process of its own, which has one tier."""
    env = os.environ | {"OXILLAMA_TIER": tier, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.engine.texts", *map(str, args)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "digits may differ" not in done.stderr
    return json.loads(done.stdout)


def test_the_recorded_texts():
    assert texts("f16") | texts("q8_0") == json.loads(RECORDED.read_text())


@pytest.mark.parametrize("tier", OTHERS)
def test_the_recorded_texts_in_every_other_tier(tier):
    assert in_tier(tier) == json.loads(RECORDED.read_text())


@pytest.mark.parametrize("tier", OTHERS)
def test_a_snapshot_goes_on_in_every_other_tier(tier, tmp_path):
    with ox.load(num_threads=1) as engine:
        stream = engine.stream(PROMPTS[0], max_tokens=40, seed=3, ignore_eos=True)
        for _ in range(5):
            next(stream)
        stream.snapshot(tmp_path / "saved")
        rest = [token for chunk in stream for token in chunk.token_ids]
    assert in_tier(tier, tmp_path / "saved") == rest != []
