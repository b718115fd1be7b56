"""What a chain draws from: its probabilities against the plain twin, with ==, and against what is drawn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels.random import XorShift64
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Distribution, Sampler, SamplerChain
from tests.sampling import twin
from tests.sampling.plain_chain import plain_changes, plain_cuts
from tests.sampling.settings import CONFIGS, PROMPTS


def pairs(distribution):
    return list(zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True))


@settings(max_examples=150)
@given(CONFIGS, st.integers(0, 1000), PROMPTS, st.sampled_from([12, 40, 300]))
def test_probabilities_equal_those_of_the_plain_chain(config, noise, prompt, n_vocab):
    row = np.random.default_rng(noise).standard_normal(n_vocab).astype(np.float32) * 3
    memory = [config.seed, 0.0]
    left = plain_cuts(plain_changes(row, config, prompt), config, memory)
    weights = twin.weights(left)
    expected = sorted((i, w / twin.total(weights)) for (i, _), w in zip(left, weights, strict=True) if w)
    sampler = Sampler(config, prompt=prompt)
    found = sampler.distribution(row)
    assert pairs(found) == expected
    assert (found.ids.dtype, found.probs.dtype) == (np.int32, np.float64)
    assert abs(math.fsum(found.probs) - 1.0) < 1e-15 * (2 + len(left))
    # The coin of xtc is thrown, the number for the draw is left.
    assert sampler.memory.rng.state == memory[0]


@settings(max_examples=60)
@given(CONFIGS, st.integers(0, 1000), PROMPTS)
def test_a_sample_is_a_draw_from_it(config, noise, prompt):
    row = np.random.default_rng(noise).standard_normal(40).astype(np.float32)
    sampler = Sampler(config, prompt=prompt)
    found, left = sampler.copy().distribution(row), sampler.copy()
    token = sampler.sample(row)
    left.distribution(row)
    u = left.memory.rng.uniform()
    assert found.probability(token) > 0.0
    # `sample` goes through candidates in their own order: that of ids if nothing has sorted them.
    if (config.top_k, config.top_p, config.typical_p) == (0, 1.0, 1.0):
        assert found.draw(u) == token


def test_settings_without_chance_are_certain():
    row = np.array([0.5, 2.0, 1.0], np.float32)
    assert pairs(Sampler(SamplerConfig.greedy()).distribution(row)) == [(1, 1.0)]
    assert pairs(Sampler(SamplerConfig(top_k=1, temperature=1.0)).distribution(row)) == [(1, 1.0)]


def test_a_stage_that_chooses_is_certain_of_what_it_chose():
    chain = SamplerChain([lambda candidates, config, state: 2], SamplerConfig(seed=1))
    assert pairs(Sampler(chain).distribution(np.zeros(4, np.float32))) == [(2, 1.0)]
    config = SamplerConfig.mirostat_v2(tau=3.0, eta=0.5)
    one = Sampler(config)
    other = one.copy()
    row = np.random.default_rng(0).standard_normal(30).astype(np.float32)
    assert pairs(one.distribution(row)) == [(other.sample(row), 1.0)]
    assert one.memory.mu == other.memory.mu


def test_a_chain_that_chooses_nothing_has_no_distribution():
    with pytest.raises(GenerateError, match="without choosing a token"):
        Sampler(SamplerChain(["top_k"])).distribution(np.zeros(4, np.float32))
    with pytest.raises(ConfigError, match="logits must be a float32 array"):
        Sampler().distribution(np.zeros((2, 2), np.float32))


def test_banned_tokens_have_no_probability():
    config = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0, banned_tokens=[0, 3])
    found = Sampler(config).distribution(np.zeros(5, np.float32))
    assert pairs(found) == [(1, 1 / 3), (2, 1 / 3), (4, 1 / 3)]
    assert [found.probability(i) for i in (0, 1, 3, 7)] == [0.0, 1 / 3, 0.0, 0.0]


def test_softmax_into_arrays_of_another_length_is_refused():
    candidates = Candidates()
    candidates.load(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="arrays must have 3 places, not 2 and 3"):
        candidates.softmax(np.empty(2, np.int32), np.empty(3))


def test_draws_follow_the_cumulative_probabilities():
    found = Distribution(np.array([2, 5, 9], np.int32), np.array([0.25, 0.5, 0.25]))
    assert [found.draw(u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)] == [2, 2, 5, 5, 9, 9]
    short = Distribution(np.array([1, 2], np.int32), np.array([0.1, 0.2]))
    assert [short.draw(u) for u in (0.33, 0.34, 1 - 2**-53)] == [1, 2, 2]


# ---- guesses, which nobody else is to notice


def test_a_guesser_shares_the_memory_and_calls_nobody():
    calls = []

    def mine(candidates, config, state):
        calls.append("stage")

    def processor(ids, logits):
        calls.append("processor")

    chain = SamplerChain.from_config(SamplerConfig(seed=3, temperature=1.0)).insert(mine, before="draw")
    sampler = Sampler(chain, prompt=[1, 2], processors=[processor])
    before = sampler.state()
    guesser = sampler.shadow(Candidates())
    rows = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    for row in rows:
        guesser.accept(guesser.sample(row))
    assert calls == []
    assert sampler.memory.n_accepted == 3
    sampler.rewind(3)
    assert sampler.state() == before


def test_a_guesser_draws_what_its_sampler_draws():
    config = SamplerConfig(seed=5, xtc_probability=0.5, xtc_threshold=0.05, temperature=1.2)
    row = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    for seed in range(20):
        sampler = Sampler(SamplerChain.from_config(config).with_config(config), prompt=[1])
        sampler.memory.rng = XorShift64(seed + 1)
        assert sampler.copy().shadow(Candidates()).sample(row) == sampler.sample(row)


def test_a_guesser_of_a_chain_without_a_choice_of_ours_draws():
    chain = SamplerChain(["top_k", lambda candidates, config, state: 0], SamplerConfig(top_k=2, seed=1))
    token = Sampler(chain).shadow(Candidates()).sample(np.array([0, 5, 6], np.float32))
    assert token in (1, 2)
