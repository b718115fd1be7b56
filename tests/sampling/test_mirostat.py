"""Mirostat steers to its target; version 1's estimate against the paper's formula."""

import math

import numpy as np
import pytest

from oxillama.config import SamplerConfig
from oxillama.sampling import Sampler
from oxillama.sampling.mirostat import tokens_within


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_the_surprise_comes_to_the_target(version, tau):
    # Zipf's law, which version 1 expects. All moves of mu together are eta times the sum of (tau - surprise).
    row = (-1.1 * np.log(np.arange(1, 5001))).astype(np.float32)
    eta, n = 0.1, 400
    config = SamplerConfig(
        temperature=1.0, repetition_penalty=1.0, mirostat=version, mirostat_tau=tau, mirostat_eta=eta, seed=1
    )
    sampler = Sampler(config)
    for _ in range(n):
        sampler.accept(sampler.sample(row))
    mean = tau - (sampler.memory.mu - 2 * tau) / (eta * n)
    assert mean == pytest.approx(tau, rel=0.05)


def test_mu_moves_by_the_difference_of_the_surprise():
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    sampler = Sampler(SamplerConfig.mirostat_v2(tau=1.25, eta=0.5))
    assert sampler.memory.mu == 2.5
    # Surprises are 1, 2, 3 and 3 bits: two tokens stay, with 2/3 and 1/3.
    token = sampler.sample(row)
    assert token in (0, 1)
    surprise = -math.log2([2 / 3, 1 / 3][token])
    assert sampler.memory.mu == pytest.approx(2.5 - 0.5 * (surprise - 1.25), abs=1e-6)


def test_the_likeliest_is_left_where_all_surprise_too_much():
    config = SamplerConfig(temperature=1.0, repetition_penalty=1.0, mirostat=2, mirostat_tau=0.5, mirostat_eta=0.0)
    assert {Sampler(config).sample(np.zeros(8, np.float32)) for _ in range(20)} == {0}


@pytest.mark.parametrize("exponent", [0.5, 1.0 + 1e-12, 1.3, 2.5])
@pytest.mark.parametrize("mu", [-3.0, 0.0, 2.0, 7.5])
def test_tokens_within(exponent, mu):
    n_vocab = 50_000
    logits = [-exponent * math.log(i) for i in range(1, 101)]
    e = exponent - 1
    # Where e is nothing, 1 - n ** -e is e ln n.
    share = 1 / math.log(n_vocab) if abs(e) < 1e-9 else e / (1 - n_vocab**-e)
    expected = (share * 2**mu) ** (1 / exponent)
    got = tokens_within(logits, n_vocab, mu)
    assert got == max(1, int(expected)) or abs(expected - round(expected)) < 1e-6


@pytest.mark.parametrize(
    ("logits", "mu", "expected"),
    [
        ([0.0], 5.0, 1),
        ([], 5.0, 1),
        # A thousand equal tokens have a surprise of 10 bits each: all of them, or none.
        ([1.0] * 9, 9.9, 1),
        ([1.0] * 9, 10.0, 1000),
        ([1.0] * 9, -20.0, 1),
        ([3e38, -3e38], 5.0, 1),
        ([0.0, -5.0], 1e9, 1000),
        ([0.0, -5.0], -1e9, 1),
    ],
)
def test_odd_distributions(logits, mu, expected):
    assert tokens_within(logits, 1000, mu) == expected
