"""Rejection sampling: its distribution, computed and not estimated, and that the computation would notice faults."""

import math
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.sampling import Distribution, SamplerChain, rejection
from oxillama.sampling.distribution import certain
from oxillama.sampling.rejection import check_chain, check_probs, chosen, keeping, residual
from oxillama.sampling.stages import mirostat_v1
from tests.sampling.wrong_rejections import MUTANTS, Tables, dist, ids
from tests.speculative.laws import exact_law

N = 5  # tokens of the vocabulary


def dense(d, n=N):
    return [d.probability(i) for i in range(n)]


WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1.0), st.floats(1e-300, 1e-290)), min_size=N, max_size=N
).filter(lambda w: sum(w) > 1e-3)


def law_of(p, q):
    """P(token) when draft tokens are drawn from q: every one, accepted or not."""
    law = [0.0] * N
    for x in range(N):
        if q.probability(x):
            kept = keeping(p, q, x)
            law[x] += q.probability(x) * kept
            if kept < 1.0:
                for y, r in enumerate(dense(residual(p, q))):
                    law[y] += q.probability(x) * (1.0 - kept) * r
    return law


@given(WEIGHTS, WEIGHTS)
@example([1, 1, 0, 0, 0], [0, 0, 1, 1, 1])  # nothing in common
@example([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
@example([0, 0, 1, 0, 0], [1, 1, 1, 1, 1])  # a greedy model
@example([1, 1, 1, 1, 1], [0, 0, 1, 0, 0])  # a greedy draft
def test_chosen_tokens_have_the_models_distribution(p, q):
    p, q = dist(p), dist(q)
    assert law_of(p, q) == pytest.approx(dense(p), abs=1e-12, rel=0)


@given(WEIGHTS, st.integers(0, N - 1))
def test_a_draft_token_that_was_not_drawn_counts_as_certain(p, guess):
    p = dist(p)
    assert law_of(p, certain(guess)) == pytest.approx(dense(p), abs=1e-12, rel=0)
    if p.probability(guess) > 1e-9:
        assert chosen(p, guess, None, iter([p.probability(guess) * 0.999]).__next__) == guess


@given(WEIGHTS, WEIGHTS)
def test_the_residual_is_the_models_excess_over_the_draft(p, q):
    p, q = dist(p), dist(q)
    found = residual(p, q)
    assert (found.ids.dtype, found.probs.dtype) == (np.int32, np.float64)
    assert abs(math.fsum(found.probs) - 1.0) < 1e-12
    if [max(0.0, a - b) for a, b in zip(dense(p), dense(q), strict=True)] != [0.0] * N:
        assert all(p.probability(int(i)) > q.probability(int(i)) for i in found.ids)


def test_with_equal_distributions_every_draft_token_is_accepted():
    p = dist([1, 2, 3, 4, 0])
    assert [keeping(p, p, x) for x in range(4)] == [1.0] * 4
    assert residual(p, p) is p  # asked for after rounding alone


# ---- texts, drawn number by number


QUARTERS = Tables(
    4,
    {None: [1, 2, 1], 0: [2, 2, 0], 1: [1, 2, 1], 2: [0, 0, 4]},
    {None: [2, 1, 1], 0: [1, 1, 2], 1: [2, 1, 1], 2: [1, 1, 2]},
)
# A draft of the first token is accepted half the time, and two others may follow instead.
EIGHTHS = Tables(8, dict.fromkeys([None, 0, 1, 2, 3], (2, 2, 3, 1)), dict.fromkeys([None, 0, 1, 2, 3], (4, 1, 2, 1)))
ROUNDS = [(QUARTERS, 0), (QUARTERS, 1), (QUARTERS, 2), (EIGHTHS, 1)]


@pytest.mark.parametrize(("tables", "n"), ROUNDS)
def test_texts_follow_the_models_law_exactly(tables, n):
    assert exact_law(lambda script: tables.a_round(script, n), tables.parts) == tables.true_law(n + 1)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_law_of_a_wrong_rule_is_another(mutant, monkeypatch):
    name, wrong = MUTANTS[mutant]
    monkeypatch.setattr(rejection, name, wrong)
    laws = [
        (exact_law(lambda script: tables.a_round(script, n), tables.parts), tables.true_law(n + 1))  # noqa: B023
        for tables, n in ROUNDS
    ]
    assert any(law != true for law, true in laws)


def test_the_enumeration_counts_what_is_drawn():
    law = exact_law(lambda s: s.uniform() < 0.5 and s.uniform() < 0.25, 4)
    assert law == {True: F(1, 8), False: F(7, 8)}


# ---- what is refused


def test_chains_that_remember_draws_are_refused():
    for config in (SamplerConfig.mirostat_v2(3.0, 0.1), SamplerConfig(mirostat=1)):
        with pytest.raises(ConfigError, match=r"acceptance='rejection' keeps the distribution.*mirostat=0"):
            check_chain(SamplerChain.from_config(config))
    with pytest.raises(ConfigError, match="mirostat"):
        check_chain(SamplerChain(["top_k", mirostat_v1]))
    check_chain(SamplerChain.from_config(SamplerConfig(xtc_probability=0.5)))


BAD = {
    "as many": [],
    r"probs\[0\] must be a Distribution, not dict": [{1: 1.0}],
    "ids that are a int32 array": [Distribution(np.array([1]), np.ones(1))],
    "probs that are a float64 array": [Distribution(ids(1), np.ones(1, np.float32))],
    "rising ids": [Distribution(ids(2, 1), np.full(2, 0.5))],
    "rising ids, and a probability": [Distribution(ids(1, 2), np.ones(1))],
    "sum 1, not 0.9": [Distribution(ids(1, 2), np.array([0.5, 0.4]))],
    "sum 1, not nan": [Distribution(ids(1, 2), np.array([0.5, np.nan]))],
    "above 0": [Distribution(ids(0, 1), np.array([-0.5, 1.5]))],
    "no probability for token 1": [Distribution(ids(0, 2), np.full(2, 0.5))],
}


@pytest.mark.parametrize("message", BAD)
def test_invalid_distributions_are_refused(message):
    with pytest.raises(GenerateError, match=message):
        check_probs([1], BAD[message])


def test_good_distributions_pass():
    check_probs([1, 0], [Distribution(ids(0, 1), np.full(2, 0.5)), certain(0)])
