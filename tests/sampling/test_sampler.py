"""Chains and samplers: any settings against the plain twin, states that are copied, taken back and saved."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError, GrammarError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Sampler, SamplerChain, stages
from oxillama.sampling.grammar import Grammar, Vocabulary
from oxillama.sampling.state import History
from tests.sampling import twin


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


def sometimes(value, idle):
    """A setting that is mostly idle, so that few of the many are at work together."""
    return st.one_of(st.just(idle), st.just(idle), value)


CONFIGS = st.builds(
    SamplerConfig,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=sometimes(st.integers(0, 50), 0),
    top_p=sometimes(st.floats(0, 1), 1.0),
    min_p=sometimes(st.floats(0, 1), 0.0),
    typical_p=sometimes(st.floats(0, 1), 1.0),
    top_a=sometimes(st.floats(0, 1), 0.0),
    eta_cutoff=sometimes(st.floats(0, 0.3), 0.0),
    epsilon_cutoff=sometimes(st.floats(0, 0.3), 0.0),
    top_n_sigma=sometimes(st.floats(0, 4), 0.0),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.9, 3.0]),
    repetition_penalty_window=st.integers(0, 6),
    frequency_penalty=sometimes(st.floats(-2, 2), 0.0),
    presence_penalty=sometimes(st.floats(-2, 2), 0.0),
    dry_multiplier=sometimes(st.floats(0, 5), 0.0),
    dry_base=st.sampled_from([1.0, 1.75, 50.0]),
    dry_allowed_length=st.integers(1, 4),
    dry_window=st.one_of(st.none(), st.integers(1, 9)),
    dry_sequence_breakers=st.lists(st.integers(0, 9).map(lambda t: [t]), max_size=2),
    xtc_probability=sometimes(st.floats(0, 1), 0.0),
    xtc_threshold=st.floats(0, 0.5),
    dynatemp_range=sometimes(st.floats(0, 2), 0.0),
    dynatemp_exponent=st.sampled_from([0.5, 1.0, 3.0]),
    logit_bias=st.one_of(st.none(), st.dictionaries(st.integers(0, 11), st.floats(-5, 5), max_size=3)),
    banned_tokens=sometimes(st.lists(st.integers(0, 10), max_size=4), ()),
    seed=st.integers(1, (1 << 64) - 1),
)
WILDER = st.one_of(
    CONFIGS,
    st.builds(
        replace,
        CONFIGS,
        mirostat=st.sampled_from([1, 2]),
        mirostat_tau=st.floats(0, 6),
        mirostat_eta=st.sampled_from([0.0, 0.1, 1.0]),
    ),
    st.builds(replace, CONFIGS, temperature=st.just(0.0)),
)
PROMPTS = st.lists(st.integers(0, 11), max_size=12)


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


@given(st.integers(0, 5), st.lists(st.one_of(st.integers(0, 4), st.none()), max_size=30), st.lists(st.integers(0, 4)))
def test_window_counts_its_tokens(size, changes, prompt):
    history, seen = History(size, prompt), list(prompt)
    for change in changes:
        if change is not None:
            history.push(change)
            seen.append(change)
        elif len(seen) > len(prompt):
            history.pop()
            seen.pop()
        window = seen[-size:] if size else []
        assert history.tokens.tolist() == seen
        assert history.counts == {t: window.count(t) for t in window}


def run(sampler, rows):
    tokens = []
    for row in rows:
        tokens.append(sampler.sample(row))
        sampler.accept(tokens[-1])
    return tokens


@settings(max_examples=50, deadline=None)
@given(WILDER, PROMPTS, st.integers(0, 9), st.integers(0, 9))
def test_what_was_taken_back_comes_again(config, prompt, noise, kept):
    rows = np.random.default_rng(noise).standard_normal((9, 20)).astype(np.float32)
    sampler = Sampler(config, prompt=prompt)
    run(sampler, rows[:kept])
    there = sampler.state()
    rest = run(sampler, rows[kept:])
    for _ in range(3):
        sampler.sample(rows[0])  # drawn, and not accepted
    sampler.rewind(9 - kept)
    assert sampler.state() == there
    assert run(sampler, rows[kept:]) == rest


@settings(max_examples=50, deadline=None)
@given(WILDER, PROMPTS, st.integers(0, 9), st.integers(0, 9))
def test_a_saved_state_goes_on_alike(config, prompt, noise, kept):
    rows = np.random.default_rng(noise).standard_normal((9, 20)).astype(np.float32)
    sampler = Sampler(config, prompt=prompt)
    run(sampler, rows[:kept])
    sampler.sample(rows[0])
    data = json.loads(json.dumps(sampler.state()))
    twins = [Sampler.from_state(data, config), sampler.copy()]
    expected = run(sampler, rows[kept:])
    for other in twins:
        assert run(other, rows[kept:]) == expected
        other.rewind(9)
        assert run(other, rows) == (sampler.rewind(9), run(sampler, rows))[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens of the saved state"),
        ({"tokens": [1, -2, 3]}, r"tokens of the saved state\[1\]"),
        ({"n_prompt": 9}, "n_prompt of the saved state must be from 0 to 3, not 9"),
        ({"n_prompt": None}, "n_prompt of the saved state"),
        ({"rng": 0}, "generator of the saved state"),
        ({"rng": 1 << 64}, "generator of the saved state"),
        ({"mu": math.nan}, "mu of the saved state"),
        ({"mu": "1"}, "mu of the saved state"),
        ({"marks": [[1, 1.0]]}, "marks of the saved state must be 3 pairs"),
        ({"marks": [[1, 1.0], [1], [1, 1.0]]}, "marks of the saved state"),
        ({"marks": "abc"}, "marks of the saved state"),
    ],
)
def test_damaged_states_are_refused(change, message):
    sampler = Sampler(SamplerConfig(seed=1), prompt=[1])
    sampler.accept(2)
    sampler.accept(3)
    with pytest.raises(ConfigError, match=message):
        Sampler.from_state(sampler.state() | change, sampler.config)
    with pytest.raises(ConfigError, match="data must be"):
        Sampler.from_state([1], sampler.config)


def test_only_accepted_tokens_can_be_taken_back():
    sampler = Sampler(prompt=[1, 2, 3])
    sampler.accept(4)
    with pytest.raises(ConfigError, match="n must be from 0 to 1, not 2"):
        sampler.rewind(2)
    sampler.rewind(1)
    assert sampler.memory.history.tokens.tolist() == [1, 2, 3]


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
    assert one.memory is not two.memory


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


def test_a_chain_ends_with_its_first_choice():
    names = [stage.__name__ for stage in SamplerChain.from_config(SamplerConfig(mirostat=2)).stages]
    assert names == ["penalties", "grammar", "temperature", "mirostat_v2"]
    assert SamplerChain.from_config(SamplerConfig.greedy()).stages == (stages.grammar, stages.greedy)


def test_order_of_all_stages():
    config = SamplerConfig(
        logit_bias={1: 1}, dry_multiplier=1, top_n_sigma=1, grammar="x", typical_p=0.9, min_p=0.1, top_a=0.1,
        eta_cutoff=0.1, epsilon_cutoff=0.1, xtc_probability=0.1,
    )  # fmt: skip
    assert repr(SamplerChain.from_config(config)) == (
        "<SamplerChain logit_bias → penalties → dry → top_n_sigma → grammar → top_k → typical_p → top_p → min_p → "
        "top_a → eta_cutoff → epsilon_cutoff → xtc → temperature → draw>"
    )


def test_building_a_chain():
    def mine(candidates, config, state):
        return None

    chain = SamplerChain(["top_k", stages.temperature, "draw"])
    assert chain.stages == (stages.top_k, stages.temperature, stages.draw)
    assert chain.insert(mine, before="top_k").stages == (mine, *chain.stages)
    assert chain.insert("min_p", after=stages.top_k).stages == (stages.top_k, stages.min_p, *chain.stages[1:])
    assert chain.without("top_k").stages == chain.stages[1:]
    config = SamplerConfig(seed=3)
    assert chain.with_config(config).config is config
    for wrong in (lambda: chain.without(mine), lambda: chain.insert(mine, before="min_p")):
        with pytest.raises(ConfigError, match="stage must be one of the chain's, top_k, temperature, draw, not"):
            wrong()
    for options in ({}, {"before": "draw", "after": "draw"}):
        with pytest.raises(ConfigError, match="either before or after"):
            chain.insert(mine, **options)


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
        (lambda: SamplerChain([stages.greedy, "drow"]), r"stages\[1\]"),
        (lambda: SamplerChain(stages.greedy), "stages"),
        (lambda: Sampler(prompt="abc"), "prompt"),
        (lambda: Sampler(prompt=5), "prompt"),
        (lambda: Sampler(prompt=[3, -1]), r"prompt\[1\]"),
        (lambda: Sampler(prompt=[3.0]), r"prompt\[0\]"),
        (lambda: Sampler(scratch=[]), "scratch"),
        (lambda: Sampler(processors=7), "logits_processors"),
        (lambda: Sampler(processors=[print, 7]), r"logits_processors\[1\]"),
        (lambda: Sampler(SamplerConfig(dry_multiplier=1)), "dry_sequence_breakers"),
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
    assert sampler.memory.history.tokens.tolist() == [3]


GBNF = 'root ::= "a" ("b" | "c" "a")'


def test_a_copy_follows_the_grammar_on_its_own():
    vocabulary = Vocabulary([b"a", b"b", b"c", None], [3])
    state = Grammar.parse(GBNF).state(vocabulary)
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
    with pytest.raises(GrammarError, match="can't come here"):
        sampler.accept(2)
    again = Sampler.from_state(sampler.state(), sampler.config, grammar=Grammar.parse(GBNF).state(vocabulary))
    again.rewind(1)
    sampler.rewind(1)
    assert [again.sample(row), sampler.sample(row)] == [2, 2]
    with pytest.raises(GrammarError, match="can't come here"):
        Sampler.from_state(
            twin.state() | {"tokens": [1, 1]}, twin.config, grammar=Grammar.parse(GBNF).state(vocabulary)
        )


def test_processors_work_on_a_copy_in_turn():
    def double(ids, logits):
        seen.append((ids, logits.tolist()))
        logits *= 2
        ids.clear()

    def ban(ids, logits):
        seen.append((list(ids), logits.tolist()))
        logits[2] = -np.inf

    seen = []
    row = np.array([1.0, 2.0, 3.0], np.float32)
    sampler = Sampler(SamplerConfig.greedy(), prompt=[7, 8], processors=[double, ban])
    assert sampler.sample(row) == 1
    assert seen == [([], [1, 2, 3]), ([7, 8], [2, 4, 6])]
    assert row.tolist() == [1, 2, 3]
    sampler.accept(1)
    sampler.sample(row)
    assert seen[3][0] == [7, 8, 1]
    assert sampler.copy().sample(row) == 1


def keep_all(ids, logits):
    kept.append(logits)


kept = []


def test_a_processor_may_keep_what_it_gets():
    sampler = Sampler(SamplerConfig.greedy(), processors=[keep_all])
    for n in (3, 100000, 5):
        sampler.sample(np.arange(n, dtype=np.float32))
    assert [int(row[-1]) for row in kept] == [2, 99999, 4]


def writing(value):
    def processor(ids, logits):
        logits[1:] = value

    return processor


@pytest.mark.parametrize(
    ("processor", "error", "message"),
    [
        (lambda ids, logits: logits, ConfigError, "in place and return None, not float32 of shape"),
        (lambda ids, logits: 0, ConfigError, "in place and return None, not int"),
        (writing(math.nan), GenerateError, "made the logit of token 1 nan"),
        (writing(math.inf), GenerateError, "made the logit of token 1 inf"),
        (lambda ids, logits: logits.fill(-math.inf), GenerateError, "left no token"),
    ],
)
def test_processors_that_misbehave_are_named(processor, error, message):
    sampler = Sampler(processors=[writing(0.0), processor])
    with pytest.raises(error, match=rf"^logits_processors\[1\] .*{message}"):
        sampler.sample(np.zeros(3, np.float32))
