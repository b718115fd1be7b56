"""Samplers: any settings against the chain out of the plain twin's pieces."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import GenerateError
from oxillama.sampling import Sampler
from tests.sampling import twin
from tests.sampling.settings import PROMPTS, WILDER


def heat(left, c):
    if c.temperature == 1.0 and not c.dynatemp_range:
        return left
    return twin.dynamic_temperature(left, c.temperature, c.dynatemp_range, c.dynatemp_exponent)


def plain_changes(row, c, history):
    """What a default chain does to logits before anything is cut."""
    left = [(i, float(x)) for i, x in enumerate(row)]
    biases = dict(c.logit_bias or {}) | dict.fromkeys(c.banned_tokens, -math.inf)
    left = twin.bias(left, biases)
    recent = history[-c.repetition_penalty_window :] if c.repetition_penalty_window else []
    counts = {token: recent.count(token) for token in recent}
    left = twin.penalize(left, counts, c.repetition_penalty, c.frequency_penalty, c.presence_penalty)
    if c.dry_multiplier:
        said = history[-(c.dry_window or 0) :]
        breaks = [i for i, token in enumerate(said) if (token,) in c.dry_sequence_breakers]
        limit = len(said) - 1 - breaks[-1] if breaks else len(said)
        lost = twin.dry(said, limit, c.dry_allowed_length, c.dry_multiplier, c.dry_base)
        left = twin.bias(left, {t: -x for t, x in lost.items() if (t,) not in c.dry_sequence_breakers})
    return twin.top_n_sigma(left, c.top_n_sigma) if c.top_n_sigma else left


def plain_sample(row, c, history, memory):
    """The default chain out of the twin's pieces; `memory` is [generator's state, mu]."""
    left = plain_changes(row, c, history)
    if c.mirostat:
        left = heat(left, c)
        left = twin.mirostat_v1(left, len(row), memory[1]) if c.mirostat == 1 else twin.mirostat_v2(left, memory[1])
        memory[0] = twin.xorshift(memory[0])
        token = twin.draw(left, twin.uniform(memory[0]))
        memory[1] -= c.mirostat_eta * (-math.log2(twin.probability(left, token)) - c.mirostat_tau)
        return token
    if c.temperature == 0.0:
        return twin.ordered(left)[0][0]
    left = plain_cuts(left, c, memory)
    memory[0] = twin.xorshift(memory[0])
    return twin.draw(left, twin.uniform(memory[0]))


def plain_cuts(left, c, memory):
    """What the last draw of a chain chooses from."""
    left = twin.top_p(twin.typical_p(twin.top_k(left, c.top_k), c.typical_p), c.top_p)
    left = twin.min_p(left, c.min_p)
    left = twin.top_a(left, c.top_a) if c.top_a else left
    left = twin.eta_cutoff(left, c.eta_cutoff) if c.eta_cutoff else left
    left = twin.min_probability(left, c.epsilon_cutoff)
    if c.xtc_probability:
        memory[0] = twin.xorshift(memory[0])
        if twin.uniform(memory[0]) < c.xtc_probability:
            left = twin.xtc(left, c.xtc_threshold)
    return heat(left, c)


@settings(max_examples=120, deadline=None)
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
