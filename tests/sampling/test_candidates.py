"""Each cut against its plain twin, with ==, on random rows full of ties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels.sampling import Candidates, likeliest
from tests.sampling import twin

# Few distinct values make many ties; -inf is a banned token.
LOGITS = st.lists(
    st.one_of(
        st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 30.0, -math.inf]),
        st.floats(-100, 100, width=32),
    ),
    min_size=1,
    max_size=60,
).filter(lambda row: any(x > -math.inf for x in row))


def load(row):
    c = Candidates()
    c.load(np.array(row, np.float32))
    return c


def items(row):
    return [(i, float(np.float32(x))) for i, x in enumerate(row)]


@given(LOGITS, st.integers(0, 70))
def test_top_k(row, k):
    c = load(row)
    c.top_k(k)
    assert c.items() == twin.top_k(items(row), k)


@given(LOGITS, st.integers(0, 70), st.floats(0, 1))
def test_top_p_after_top_k(row, k, p):
    c = load(row)
    c.top_k(k)
    c.top_p(p)
    assert c.items() == twin.top_p(twin.top_k(items(row), k), p)


@given(LOGITS, st.integers(0, 70), st.floats(0, 1))
def test_min_p_after_top_k(row, k, p):
    c = load(row)
    c.top_k(k)
    c.min_weight(p)
    assert c.items() == twin.min_p(twin.top_k(items(row), k), p)


@given(LOGITS, st.sets(st.integers(0, 70)))
def test_keep(row, kept):
    mask = np.zeros(2, np.uint32)
    for i in kept:
        if i < 64:
            mask[i >> 5] |= np.uint32(1 << (i & 31))
    expected = [(i, x if i in kept and i < 64 else -math.inf) for i, x in items(row)]
    c = load(row)
    if any(x > -math.inf for _, x in expected):
        c.keep(mask)
        assert c.items() == expected
    else:
        with pytest.raises(GenerateError, match="all that the grammar allows are banned"):
            c.keep(mask)


def test_keep_after_a_cut_is_refused():
    c = load([1.0, 2.0])
    c.top_k(1)
    with pytest.raises(GenerateError, match="before the stages that cut"):
        c.keep(np.ones(1, np.uint32))


# Each cut with its twin and what it is given.
CUTS = {
    "top_k": (twin.top_k, st.integers(0, 40)),
    "top_p": (twin.top_p, st.floats(0, 1)),
    "min_weight": (twin.min_p, st.floats(0, 1)),
    "min_probability": (twin.min_probability, st.floats(0, 1)),
    "typical_p": (twin.typical_p, st.floats(0, 1)),
    "drop_top": (twin.xtc, st.floats(0, 1)),
    "temperature": (twin.temperature, st.floats(0.05, 20)),
}


@given(LOGITS, st.lists(st.sampled_from(sorted(CUTS)), max_size=6), st.data())
def test_any_order_of_stages(row, order, data):
    c, twins = load(row), items(row)
    for name in order:
        plain, values = CUTS[name]
        value = data.draw(values)
        getattr(c, name)(value)
        twins = plain(twins, value)
        assert len(c) == len(twins) >= 1
    assert c.items() == twins
    assert c.argmax() == twin.ordered(twins)[0][0]
    assert c.best(7) == twin.ordered(twins)[:7]
    assert c.count() == sum(x > -math.inf for _, x in twins)
    assert c.entropy() == twin.entropy(twins)
    assert c.total_weight() == twin.total(twin.weights(twins))
    u = data.draw(st.floats(0, 1, exclude_max=True))
    token = twin.draw(twins, u)
    assert c.draw(u) == token
    assert c.pick_at(u) == (token, twin.probability(twins, token))


@given(LOGITS, st.dictionaries(st.integers(0, 70), st.integers(1, 9)), st.floats(0.01, 100), st.floats(-9, 9))
def test_penalty(row, counts, penalty, each):
    c = load(row)
    c.penalize(counts, penalty, each, 1.5)
    assert c.items() == twin.penalize(items(row), counts, penalty, each, 1.5)


@given(LOGITS, st.dictionaries(st.integers(0, 59), st.one_of(st.just(-math.inf), st.floats(-1e30, 1e30)), max_size=20))
def test_bias(row, values):
    values = {i: v for i, v in values.items() if i < len(row)}
    ids, numbers = np.array(list(values), np.int32), np.array(list(values.values()), np.float32)
    expected = twin.bias(items(row), values)
    c = load(row)
    if any(x > -math.inf for _, x in expected):
        c.bias(ids, numbers)
        assert c.items() == expected
    else:
        with pytest.raises(GenerateError, match="ban them all"):
            c.bias(ids, numbers)


@given(LOGITS, st.integers(0, 70), st.floats(0.01, 4), st.sets(st.integers(0, 59), min_size=1))
def test_top_n_sigma(row, k, n, kept):
    c = load(row)
    c.top_k(k)
    c.top_n_sigma(n)
    expected = twin.top_n_sigma(twin.top_k(items(row), k), n)
    if 0 < k < len(row):
        expected = [item for item in expected if item[1] > -math.inf]
    assert c.items() == expected


@given(LOGITS, st.floats(0.01, 4), st.sets(st.integers(0, 59), min_size=1))
def test_a_grammar_that_allows_nothing_of_the_cut_gets_a_cut_of_its_own(row, n, kept):
    mask = np.zeros(2, np.uint32)
    for i in kept:
        mask[i >> 5] |= np.uint32(1 << (i & 31))
    after = twin.keep(twin.top_n_sigma(items(row), n), kept)
    alone = twin.keep(items(row), kept)
    c = load(row)
    c.top_n_sigma(n)
    if any(x > -math.inf for _, x in after):
        c.keep(mask)
        assert c.items() == after
    elif any(x > -math.inf for _, x in alone):
        c.keep(mask)
        assert c.items() == twin.top_n_sigma(alone, n)
    else:
        with pytest.raises(GenerateError, match="all that the grammar allows are banned"):
            c.keep(mask)


def test_bias_of_a_token_that_there_is_not():
    with pytest.raises(ConfigError, match="from 0 to 1, not 2"):
        load([1.0, 2.0]).bias(np.array([2], np.int32), np.zeros(1, np.float32))
    with pytest.raises(ConfigError, match="value for each of 1 tokens, not 0"):
        load([1.0, 2.0]).bias(np.array([1], np.int32), np.zeros(0, np.float32))


def test_nothing_is_loaded_yet():
    c = Candidates()
    for choose in (c.argmax, lambda: c.draw(0.5)):
        with pytest.raises(GenerateError, match="load a row"):
            choose()
    for name in CUTS:
        getattr(c, name)(1)
    c.top_n_sigma(1.0)
    assert c.items() == c.best(3) == c.probabilities() == []


def test_weights_are_exp():
    row = -np.linspace(0, 800, 4001).astype(np.float32)
    got = np.array([p for _, p in load(row).probabilities()])
    expected = np.exp(row.astype(np.float64))
    expected /= expected.sum()
    # Ten roundings, each of half a unit in the last place.
    assert np.all(np.abs(got - expected)[:3500] <= 1.2e-15 * expected[:3500])
    assert np.all(got[3541:] == 0)
    assert [twin.exp(float(x)) for x in row[:3540:17]] == pytest.approx(np.exp(row[:3540:17].astype(float)), rel=1e-15)


@pytest.mark.parametrize("n", [1000, 5000])
@pytest.mark.parametrize("k", [1, 40, 1024, 1025, 4999])
def test_long_rows_take_the_same_order_by_heap_and_by_sorting(n, k):
    row = np.random.default_rng(k).integers(-300, 300, n).astype(np.float32) / 7
    c = load(row)
    c.top_k(k)
    assert c.items() == twin.top_k(items(row), k)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("name", sorted(CUTS))
def test_cuts_of_long_rows(scale, name):
    row = (np.random.default_rng(1).standard_normal(3001) * scale).astype(np.float32)
    values = {"top_k": 1500, "temperature": 0.7, "drop_top": 0.001, "min_probability": 0.0002}
    c, value = load(row), values.get(name, 0.9)
    getattr(c, name)(value)
    expected = CUTS[name][0](items(row), value)
    assert c.items() == expected
    assert [c.draw(i / 20) for i in range(20)] == [twin.draw(expected, i / 20) for i in range(20)]


def test_tied_tokens_go_by_id():
    c = load([1.0, 2.0, 2.0, 2.0, 0.0])
    assert c.argmax() == 1
    c.top_k(2)
    assert [i for i, _ in c.items()] == [1, 2]


def test_probabilities_are_softmax():
    row = [0.5, 1.5, -2.0]
    c = load(row)
    e = np.exp(np.array(row, np.float64))
    assert [p for _, p in c.probabilities()] == pytest.approx(e / e.sum(), abs=1e-15)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 17, 39])
def test_damaged_logits_are_named(bad, place):
    row = np.zeros(40, np.float32)
    row[place] = bad
    c = load([1.0, 2.0])
    c.top_k(1)
    with pytest.raises(GenerateError, match=f"token {place} is {bad}"):
        c.load(row)
    with pytest.raises(GenerateError, match="load a row"):
        c.argmax()


def test_nothing_left_to_choose():
    with pytest.raises(GenerateError, match="minus infinity"):
        load([-math.inf, -math.inf])
    with pytest.raises(GenerateError, match="empty"):
        load([])


def test_the_row_stays_as_it_was():
    row = np.array([3.0, 1.0, 2.0], np.float32)
    c = Candidates()
    c.load(row)
    c.penalize({0: 1}, 2.0)
    c.temperature(0.5)
    assert row.tolist() == [3.0, 1.0, 2.0]


def test_a_shorter_row_after_a_longer_one():
    c = load([5.0, 4.0, 3.0])
    c.top_k(2)
    c.load(np.array([1.0, 2.0], np.float32))
    assert c.items() == [(0, 1.0), (1, 2.0)]


def test_tiny_temperature_is_argmax_and_no_nan():
    c = load([1.0, 1.0000001, -5.0])
    c.temperature(1e-300)
    assert {c.draw(u) for u in (0.0, 0.5, 0.999999)} == {1}


@pytest.mark.parametrize("penalty", [1e38, 1e-38, 1e-300])
def test_extreme_penalties_leave_finite_logits(penalty):
    c = load([1e30, -1e30, 0.0])
    c.penalize(dict.fromkeys(range(3), 1), penalty)
    assert all(math.isfinite(logit) for _, logit in c.items())
    c.min_weight(0.1)
    c.top_p(0.5)
    assert c.draw(0.5) in (0, 1, 2)


def test_penalty_after_a_cut_is_refused():
    c = load([1.0, 2.0])
    c.top_k(1)
    with pytest.raises(GenerateError, match="before"):
        c.penalize({0: 1}, 2.0)


def test_draws_follow_the_probabilities():
    probabilities = [0.5, 0.25, 0.125, 0.125]
    c = load(np.log(probabilities))
    n = 8000
    hits = np.bincount([c.draw((i + 0.5) / n) for i in range(n)], minlength=4)
    assert hits.tolist() == [n * p for p in probabilities]


def test_draws_from_a_long_row_reach_every_block_alike():
    row = np.zeros(1000, np.float32)
    row[::2] = -math.inf
    c = load(row)
    hits = np.bincount([c.draw((i + 0.5) / 5000) for i in range(5000)], minlength=1000)
    assert hits.tolist() == [0, 10] * 500
    assert c.draw(1 - 2**-53) == 999
    assert c.draw(0.0) == 1


@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 64, 1000])
def test_the_likeliest_is_what_candidates_choose(n):
    rng = np.random.default_rng(n)
    for _ in range(50):
        row = rng.choice(
            np.array([-np.inf, -1.5, -0.0, 0.0, 0.5, 2.0], np.float32), n, p=[0.1, 0.2, 0.2, 0.2, 0.2, 0.1]
        )
        row[rng.integers(n)] = rng.choice(np.array([-0.0, 0.0, 2.0], np.float32))
        loaded = Candidates()
        loaded.load(row)
        assert likeliest(row) == loaded.argmax()
        assert likeliest(np.stack([row, row], 1)[:, 1]) == loaded.argmax()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("n", [1, 16, 33])
def test_the_likeliest_of_a_damaged_row_is_refused(n, bad):
    for i in range(n):
        row = np.zeros(n, np.float32)
        row[i] = bad
        with pytest.raises(GenerateError, match=f"the model's logit of token {i} is"):
            likeliest(row)


def test_the_likeliest_of_nothing_is_refused():
    with pytest.raises(GenerateError, match="the row is empty"):
        likeliest(np.empty(0, np.float32))
    with pytest.raises(GenerateError, match="no token is left"):
        likeliest(np.full(20, -np.inf, np.float32))
    for other in (np.zeros(3), np.zeros((1, 3), np.float32), [0.0, 1.0], None):
        with pytest.raises(ConfigError, match="float32 array of one dimension"):
            likeliest(other)
