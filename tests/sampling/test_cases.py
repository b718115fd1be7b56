"""Probabilities after single stages, and what chains of cuts leave, as llama.cpp's own tests have them (to 1e-5), and
as its stages were recorded on random logits."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from oxillama.config import SamplerConfig
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import stages
from oxillama.sampling.state import SamplerState

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "sampling_cases.json").read_text())
RECORDED = json.loads((DATA / "sampling_recorded.json").read_text())

# The stage of each test, and our settings for theirs.
STAGES = {
    "temp": ("temperature", lambda c: {"temperature": c["temp"]}),
    "temp_ext": (
        "temperature",
        lambda c: {"temperature": c["temp"], "dynatemp_range": c["delta"], "dynatemp_exponent": c["exponent"]},
    ),
    "top_k": ("top_k", lambda c: {"top_k": c["k"]}),
    "top_p": ("top_p", lambda c: {"top_p": c["p"]}),
    # Theirs may be above 1, where ours says that this is out of range.
    "min_p": ("min_p", lambda c: {"min_p": min(1.0, c["p"])}),
    "typical": ("typical_p", lambda c: {"typical_p": c["p"]}),
    # The first number of this seed is below 0.99.
    "xtc": ("xtc", lambda c: {"xtc_probability": c["probability"], "xtc_threshold": c["threshold"], "seed": 1}),
    "penalties": (
        "penalties",
        lambda c: {
            "repetition_penalty": c["repeat"],
            "frequency_penalty": c["freq"],
            "presence_penalty": c["presence"],
        },
    ),
    "dry": (
        "dry",
        lambda c: {
            "dry_multiplier": c["multiplier"],
            "dry_base": c["base"],
            "dry_allowed_length": c["allowed_length"],
            "dry_window": c["penalty_last_n"],
            "dry_sequence_breakers": c["seq_breakers"],
        },
    ),
    "top_n_sigma": ("top_n_sigma", lambda c: {"top_n_sigma": c["n"]}),
}
SINGLE = [case for case in CASES if case["test"] in STAGES]
QUEUES = [case for case in CASES if case["test"] == "sampler_queue"]


def test_there_are_no_others():
    assert len(SINGLE) + len(QUEUES) == len(CASES) == 65


@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_probabilities_after_a_stage(case):
    candidates = Candidates()
    candidates.load(np.log(np.array(case["probs"], np.float32)))
    name, settings = STAGES[case["test"]]
    config = SamplerConfig(**settings(case))
    getattr(stages, name)(candidates, config, SamplerState(config, case.get("last_tokens", ())))
    got = sorted(p for _, p in candidates.probabilities() if p)
    # They write 0 for what is gone, and for less than 1e-5; after some stages they have not normalised again.
    expected = sorted(p / sum(case["expect"]) for p in case["expect"] if p)
    assert got[len(got) - len(expected) :] == pytest.approx(expected, abs=1e-5)
    assert sum(got[: len(got) - len(expected)]) < 1e-5


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['stage']} {case['settings']}")
def test_recorded_probabilities(case):
    candidates = Candidates()
    candidates.load(np.array(case["logits"], np.float32))
    config = SamplerConfig(**case["settings"])
    getattr(stages, case["stage"])(candidates, config, SamplerState(config, case.get("last_tokens", ())))
    got = {str(token): p for token, p in candidates.probabilities() if p > 1e-20}
    expected = {token: p for token, p in case["expect"].items() if p > 1e-20}
    # Theirs is all in float32: a temperature that is off by 1e-6 of it moves a logit of 20 / 0.4 by 5e-5.
    assert got == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("case", QUEUES, ids=lambda case: f"{case['sequence']} {case['top_k']} {case['min_p']}")
def test_what_a_chain_of_cuts_leaves(case):
    """Token t has the probability t / (0 + 1 + ... + n - 1), and each cut leaves the highest ones."""
    n = case["n_vocab"]
    candidates = Candidates()
    with np.errstate(divide="ignore"):
        candidates.load(np.log(np.arange(n)).astype(np.float32))
    config = SamplerConfig(**{name: case[name] for name in ("top_k", "top_p", "min_p")})
    first = 0
    for letter in case["sequence"]:
        name = {"k": "top_k", "p": "top_p", "m": "min_p"}[letter]
        getattr(stages, name)(candidates, config, SamplerState(config))
        first = highest_left(name, first, n, case[name])
        assert sorted(token for token, _ in candidates.items()) == list(range(first, n))


def highest_left(stage, first, n, value):
    """The first of the tokens first .. n - 1 that a cut leaves, in integers."""
    if stage == "top_k":
        return max(first, n - value)
    if stage == "min_p":
        return max(first, math.ceil(value * (n - 1)))
    total, mass, t = sum(range(first, n)), 0, n
    while t > first and (t == n or mass < value * total):
        t -= 1
        mass += t
    return 0 if value >= 1.0 else t
