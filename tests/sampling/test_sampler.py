"""Samplers: any settings against the chain out of the plain twin's pieces."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama._util.rounded import log2
from oxillama.config import SamplerConfig
from oxillama.errors import GenerateError
from oxillama.sampling import Sampler
from tests.sampling import twin
from tests.sampling.plain_chain import heat, plain_changes, plain_cuts
from tests.sampling.settings import PROMPTS, WILDER


def plain_sample(row, c, history, memory):
    """The default chain out of the twin's pieces; `memory` is [generator's state, mu]."""
    left = plain_changes(row, c, history)
    if c.mirostat:
        left = heat(left, c)
        left = twin.mirostat_v1(left, len(row), memory[1]) if c.mirostat == 1 else twin.mirostat_v2(left, memory[1])
        memory[0] = twin.xorshift(memory[0])
        token = twin.draw(left, twin.uniform(memory[0]))
        memory[1] -= c.mirostat_eta * (-log2(twin.probability(left, token)) - c.mirostat_tau)
        return token
    if c.temperature == 0.0:
        return twin.ordered(left)[0][0]
    left = plain_cuts(left, c, memory)
    memory[0] = twin.xorshift(memory[0])
    return twin.draw(left, twin.uniform(memory[0]))


@settings(max_examples=120)
@given(WILDER, st.integers(0, 1000), PROMPTS, st.sampled_from([12, 40, 300]))
def test_a_run_of_draws_equals_the_plain_chain(config, noise, prompt, n_vocab):
    rows = np.random.default_rng(noise).standard_normal((6, n_vocab)).astype(np.float32) * 3
    sampler = Sampler(config, prompt=prompt)
    history, memory = list(prompt), [config.seed, 2 * config.mirostat_tau]
    for row in rows:
        expected = plain_sample(row, config, history, memory)
        token = sampler.sample(row)
        assert token == expected
        sampler.accept(token)
        history.append(token)
        assert [sampler.memory.rng.state, sampler.memory.mu] == memory


def test_no_seed_is_random():
    row = np.zeros(1000, np.float32)
    config = SamplerConfig(top_k=0, top_p=1.0)
    assert len({tuple(s.sample(row) for _ in range(4)) for s in (Sampler(config) for _ in range(20))}) == 20


def test_nan_is_an_error_and_not_a_token():
    with pytest.raises(GenerateError, match="nan"):
        Sampler().sample(np.array([0.0, math.nan], np.float32))
