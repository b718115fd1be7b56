"""Chains and samplers; probabilities after single stages as llama.cpp's own tests give them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError, GrammarError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Sampler, SamplerChain, stages
from oxillama.sampling.grammar import Grammar, Vocabulary
from oxillama.sampling.state import PenaltyWindow, SamplerState
from tests.sampling import twin

FOUR = [0.1, 0.2, 0.3, 0.4]
FIVE = [0.2] * 5

# stage, setting, probabilities before, the same after (largest first, zeros left out)
CASES = [
    ("temperature", {"temperature": 1.0}, FOUR, [0.4, 0.3, 0.2, 0.1]),
    ("top_k", {"top_k": 1}, FOUR, [1.0]),
    ("top_k", {"top_k": 3}, FOUR, [0.44444, 0.33333, 0.22222]),
    ("top_k", {"top_k": 4}, FOUR, [0.4, 0.3, 0.2, 0.1]),
    ("top_k", {"top_k": 0}, FOUR, [0.4, 0.3, 0.2, 0.1]),
    ("top_p", {"top_p": 0}, FOUR, [1.0]),
    ("top_p", {"top_p": 0.7}, FOUR, [0.571429, 0.428571]),
    ("top_p", {"top_p": 0.8}, FOUR, [0.44444, 0.33333, 0.22222]),
    ("top_p", {"top_p": 1.0}, FOUR, [0.4, 0.3, 0.2, 0.1]),
    ("min_p", {"min_p": 0.0}, FOUR, [0.4, 0.3, 0.2, 0.1]),
    ("min_p", {"min_p": 0.24}, FOUR, [0.4, 0.3, 0.2, 0.1]),
    ("min_p", {"min_p": 0.26}, FOUR, [0.44444, 0.33333, 0.22222]),
    ("min_p", {"min_p": 0.49}, FOUR, [0.44444, 0.33333, 0.22222]),
    ("min_p", {"min_p": 0.51}, FOUR, [0.571429, 0.428571]),
    ("min_p", {"min_p": 0.74}, FOUR, [0.571429, 0.428571]),
    ("min_p", {"min_p": 0.76}, FOUR, [1.0]),
    ("min_p", {"min_p": 1.0}, FOUR, [1.0]),
]


def log_row(probabilities):
    return np.log(np.array(probabilities, np.float32))


@pytest.mark.parametrize(("stage", "setting", "before", "after"), CASES)
def test_probabilities_after_a_stage(stage, setting, before, after):
    candidates = Candidates()
    candidates.load(log_row(before))
    config = SamplerConfig(**setting)
    getattr(stages, stage)(candidates, config, SamplerState.start(config))
    got = sorted((p for _, p in candidates.probabilities()), reverse=True)
    assert got == pytest.approx(after, abs=1e-5)


@pytest.mark.parametrize(
    ("last", "after"),
    [([0], [0, 0.25, 0.25, 0.25, 0.25]), ([0, 1, 2], [0, 0, 0, 0.5, 0.5]), ([0, 1, 2, 0, 0], [0, 0, 0, 0.5, 0.5])],
)
def test_probabilities_after_the_penalty(last, after):
    candidates = Candidates()
    candidates.load(log_row(FIVE))
    config = SamplerConfig(repetition_penalty=50.0)
    stages.repetition_penalty(candidates, config, SamplerState.start(config, last))
    assert [p for _, p in candidates.probabilities()] == pytest.approx(after, abs=1e-5)


def plain_sample(row, config, window, state):
    """The default chain out of the twin's pieces; (token, generator's state after)."""
    left = [(i, float(x)) for i, x in enumerate(row)]
    if config.repetition_penalty != 1.0:
        left = twin.penalize(left, set(window), config.repetition_penalty)
    if config.temperature == 0.0:
        return twin.ordered(left)[0][0], state
    left = twin.min_p(twin.top_p(twin.top_k(left, config.top_k), config.top_p), config.min_p)
    if config.temperature != 1.0:
        left = twin.temperature(left, config.temperature)
    state = twin.xorshift(state)
    return twin.draw(left, twin.uniform(state)), state


CONFIGS = st.builds(
    SamplerConfig,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.9, 3.0]),
    repetition_penalty_window=st.integers(0, 6),
    seed=st.integers(1, 1 << 64).map(lambda x: x - 1).filter(bool),
)


@given(CONFIGS, st.integers(0, 1000), st.lists(st.integers(0, 39), max_size=8))
def test_a_run_of_draws_equals_the_plain_chain(config, noise, prompt):
    rows = np.random.default_rng(noise).standard_normal((6, 40)).astype(np.float32) * 3
    sampler = Sampler(config, prompt=prompt)
    history, state = list(prompt), config.seed
    for row in rows:
        size = config.repetition_penalty_window
        expected, state = plain_sample(row, config, history[-size:] if size else [], state)
        token = sampler.sample(row)
        assert token == expected
        sampler.accept(token)
        history.append(token)
        assert sampler.state.rng.state == state


@given(st.integers(0, 5), st.lists(st.integers(0, 4), max_size=30))
def test_window_counts_its_tokens(size, tokens):
    window = PenaltyWindow(size)
    for n, token in enumerate(tokens, 1):
        window.push(token)
        seen = tokens[:n][-size:] if size else []
        assert list(window.tokens) == seen
        assert window.counts == {t: seen.count(t) for t in seen}


def test_a_copy_goes_on_by_itself():
    rows = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    config = SamplerConfig(temperature=2.0, seed=5)
    one = Sampler(config)
    for row in rows[:10]:
        one.accept(one.sample(row))
    two = one.copy()

    def go_on(sampler):
        tokens = []
        for row in rows[10:]:
            tokens.append(sampler.sample(row))
            sampler.accept(tokens[-1])
        return tokens

    assert go_on(one) == go_on(two)
    assert one.state is not two.state


def test_one_buffer_serves_samplers_in_turn():
    rows = np.random.default_rng(3).standard_normal((12, 30)).astype(np.float32)
    scratch = Candidates()
    shared = [Sampler(SamplerConfig(seed=s), scratch=scratch) for s in (1, 2)]
    alone = [Sampler(SamplerConfig(seed=s)) for s in (1, 2)]
    for row in rows:
        assert [s.sample(row) for s in shared] == [s.sample(row) for s in alone]


def test_no_seed_is_random():
    row = np.zeros(1000, np.float32)
    config = SamplerConfig(top_k=0, top_p=1.0)
    assert len({tuple(s.sample(row) for _ in range(4)) for s in (Sampler(config) for _ in range(20))}) == 20


def test_chain_leaves_out_idle_stages():
    config = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
    # A grammar may come with the request alone, as that of tool calls does.
    assert SamplerChain.from_config(config).stages == (stages.grammar, stages.draw)


def test_a_list_of_ones_own():
    def ban_odd(candidates, config, state):
        rows.append([i for i, _ in candidates.items()])

    rows = []
    chain = SamplerChain([stages.top_k, ban_odd, stages.greedy], SamplerConfig(top_k=2))
    assert Sampler(chain).sample(np.array([1.0, 3.0, 2.0], np.float32)) == 1
    assert rows == [[1, 2]]


def test_a_chain_must_choose():
    with pytest.raises(GenerateError, match="without choosing"):
        Sampler(SamplerChain([stages.top_k])).sample(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="stages"):
        SamplerChain([])


def test_nan_is_an_error_and_not_a_token():
    with pytest.raises(GenerateError, match="nan"):
        Sampler().sample(np.array([0.0, math.nan], np.float32))


# ---- bad input


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Sampler({"temperature": 1}), "config"),
        (lambda: Sampler(0.7), "config"),
        (lambda: SamplerChain.from_config(None), "config"),
        (lambda: SamplerChain([stages.greedy], {"seed": 1}), "config"),
        (lambda: SamplerChain([stages.greedy, "draw"]), r"stages\[1\]"),
        (lambda: SamplerChain(stages.greedy), "stages"),
        (lambda: Sampler(prompt="abc"), "prompt"),
        (lambda: Sampler(prompt=5), "prompt"),
        (lambda: Sampler(prompt=[3, -1]), r"prompt\[1\]"),
        (lambda: Sampler(prompt=[3.0]), r"prompt\[0\]"),
        (lambda: Sampler(scratch=[]), "scratch"),
    ],
)
def test_arguments_of_a_wrong_kind(make, name):
    with pytest.raises(ConfigError, match=rf"^{name} must "):
        make()


@pytest.mark.parametrize(
    "logits",
    [
        [0.1, 0.2],
        None,
        "ab",
        np.zeros(4),
        np.zeros(4, np.float16),
        np.zeros(4, ">f4"),
        np.zeros(4, np.int32),
        np.zeros((1, 4), np.float32),
        np.float32(1),
        np.array(1, np.float32),
    ],
)
def test_logits_of_a_wrong_kind(logits):
    with pytest.raises(ConfigError, match=r"^logits must be a float32 array of one dimension, not "):
        Sampler().sample(logits)


def test_every_second_logit_of_a_row():
    row = np.array([0, 9, 1, 9, 5, 9], np.float32)
    assert Sampler(SamplerConfig.greedy()).sample(row[::2]) == 2


@pytest.mark.parametrize("token", [-1, 1.0, "a", None, True, 1 << 31])
def test_accepting_what_is_no_token(token):
    sampler = Sampler()
    with pytest.raises(ConfigError, match=r"^token must be"):
        sampler.accept(token)
    sampler.accept(np.int32(3))
    assert list(sampler.state.window.tokens) == [3]


def test_a_copy_follows_the_grammar_on_its_own():
    vocabulary = Vocabulary([b"a", b"b", b"c", None], [3])
    state = Grammar.parse('root ::= "a" ("b" | "c" "a")').state(vocabulary)
    sampler = Sampler(SamplerConfig(temperature=0.0, repetition_penalty=1.0, grammar="..."), grammar=state)
    row = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    assert sampler.sample(row) == 0
    sampler.accept(0)
    twin = sampler.copy()
    assert [sampler.sample(row), twin.sample(row)] == [2, 2]
    sampler.accept(2)
    twin.accept(1)
    assert [sampler.sample(row), twin.sample(row)] == [0, 3]
    with pytest.raises(GrammarError, match="can't come here"):
        twin.accept(0)
