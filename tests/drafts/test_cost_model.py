"""The number of draft tokens that pay: the rule against brute force, and against drafts of any acceptance."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.drafts.cost_model import (
    BESIDE,
    FIRST_FRESH,
    FIRST_REST,
    FRESH_STEPS,
    KEPT_STEPS,
    MOST_REST,
    TRY_CHANCE,
    AcceptanceEstimate,
    DraftRequest,
    StepTimeModel,
    allocate_drafts,
)


def measured(*seconds):
    """Costs of steps of 1, 2, ... rows."""
    costs = StepTimeModel()
    for rows, s in enumerate(seconds, 1):
        for _ in range(BESIDE + 1):
            costs.observe(rows, s)
    for _ in range(BESIDE):
        costs.observe(1, seconds[0])
    return costs


def rate(costs, rows, bids, ks):
    """Tokens per second, if each text has so many draft tokens."""
    tokens = rows + sum(bid.chance**i for bid, k in zip(bids, ks, strict=True) for i in range(1, k + 1))
    seconds = costs.after(rows, sum(bid.n for bid in bids))[sum(ks)]
    return tokens / (seconds + sum(bid.seconds * k for bid, k in zip(bids, ks, strict=True)))


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 4)), min_size=1, max_size=3),
    st.lists(st.floats(0.01, 1.0), min_size=16, max_size=16),
    st.integers(0, 2),
)
def test_the_best_choice_of_all(wanted, increments, others):
    costs, bids = measured(*itertools.accumulate(increments)), [DraftRequest(*one) for one in wanted]
    rows = len(bids) + others
    allocate_drafts(costs, rows, bids, 99)
    best = max(rate(costs, rows, bids, ks) for ks in itertools.product(*(range(bid.n + 1) for bid in bids)))
    assert rate(costs, rows, bids, [bid.granted for bid in bids]) == pytest.approx(best)


def test_the_expected_number_of_tokens_is_leviathans():
    costs = measured(1.0, *[1.0 + 0.01 * k for k in range(1, 20)])
    bid = DraftRequest(0.6, 5)
    allocate_drafts(costs, 1, [bid], 99)
    assert bid.granted == 5
    assert rate(costs, 1, [bid], [5]) * 1.1 == pytest.approx((1 - 0.6**6) / (1 - 0.6) * 1.1 / costs.after(1, 5)[5])


def test_an_expensive_draft_gets_less_and_a_full_batch_nothing():
    costs = measured(*[1.0 + 0.1 * n for n in range(40)])
    cheap, dear, useless = DraftRequest(0.8, 8), DraftRequest(0.8, 8, 0.2), DraftRequest(0.8, 8, 2.0)
    for bid in (cheap, dear, useless):
        allocate_drafts(costs, 1, [bid], 99)
    assert cheap.granted > dear.granted > useless.granted == 0
    # Rows cost as much as they bring once weights are no longer what is waited for.
    linear = measured(*[float(n) for n in range(1, 60)])
    full = [DraftRequest(0.9, 4) for _ in range(8)]
    allocate_drafts(linear, 8, full, 99)
    assert [bid.granted for bid in full] == [0] * 8


def test_the_likelier_accepted_draft_comes_first():
    costs = measured(*[1.0] * 3, *[5.0] * 40)
    good, poor = DraftRequest(0.9, 4), DraftRequest(0.3, 4)
    allocate_drafts(costs, 2, [poor, good], 99)
    assert (good.granted, poor.granted) == (1, 0)


def test_texts_that_share_a_draft_share_its_rounds():
    costs = measured(*[1.0 + 0.01 * n for n in range(60)])
    alone = [DraftRequest(0.7, 4, 0.5, draft) for draft in "abcdefgh"]
    together = [DraftRequest(0.7, 4, 0.5, "a") for _ in range(8)]
    allocate_drafts(costs, 8, alone, 99)
    allocate_drafts(costs, 8, together, 99)
    assert sum(bid.granted for bid in alone) == 0
    assert all(bid.granted for bid in together)


def test_no_more_than_the_limit_is_granted():
    bids = [DraftRequest(0.9, 8), DraftRequest(0.8, 8)]
    allocate_drafts(measured(*[1.0] * 40), 2, bids, 5)
    assert [bid.granted for bid in bids] == [4, 1]  # 0.9, 0.81, 0.8, 0.729, 0.656


# ---- measuring


def test_unmeasured_rows_are_interpolated_or_extrapolated():
    costs = StepTimeModel()
    assert costs.seconds(1) == 1.0
    assert 1.0 < costs.seconds(4) < costs.seconds(9) < 3.0
    for rows in (1, 1, 1, 1, 9, 1, 1, 1):
        costs.observe(rows, 0.5 if rows == 9 else 0.1)
    assert 0.1 < costs.seconds(9) < 0.4  # measured only once
    for _ in range(3):
        for rows in (9, 1, 1, 1):
            costs.observe(rows, 0.3 if rows == 9 else 0.1)
    assert costs.seconds(5) == pytest.approx(0.2)
    assert costs.seconds(1) == 0.1
    assert 0.3 < costs.seconds(12) < 0.6


def test_one_slow_step_counts_for_nothing():
    costs = measured(0.1, 0.9, 0.12)
    assert costs.after(1, 2)[1] == pytest.approx(0.12)  # three rows took less
    costs = measured(0.1, 0.11)
    for seconds in (0.9, 0.1, 0.1, 0.1):
        costs.observe(2 if seconds == 0.9 else 1, seconds)
    assert (costs.seconds(1), costs.seconds(2)) == pytest.approx((0.1, 0.11))


def test_more_rows_are_never_cheaper():
    costs = measured(0.1, 0.08, 0.05, 0.2)
    found = costs.after(1, 6)
    assert all(a < b for a, b in itertools.pairwise(found))


def test_old_measurements_are_dropped():
    costs = measured(0.1, 0.9)
    for _ in range(KEPT_STEPS + 20):
        costs.observe(1, 0.1)
    assert costs.seconds(2) < 0.12


# ---- trust


def played(chance, n_tokens, k=8, seed=0, step=lambda rows: 1.0 + 0.1 * (rows - 1), draft_seconds=0.0, cold=1.0):
    """Seconds to decode a text whose draft tokens are accepted with this chance; 1.0 a token without drafts.

    cold: how many times as long the first step takes.
    """
    luck, costs, trust = random.Random(seed), StepTimeModel(), AcceptanceEstimate()
    now = n = 0
    while n < n_tokens:
        if costs.wants_plain(1) or trust.resting > n:
            bid = DraftRequest(0.0, 0)
        elif trust.resting:
            bid = DraftRequest(TRY_CHANCE, 1, draft_seconds)
        else:
            bid = DraftRequest(trust.chance, k, draft_seconds)
        allocate_drafts(costs, 1, [bid], 99)
        if not trust.resting and bid.n and not bid.granted:
            may_be = DraftRequest(trust.upper_bound, k, draft_seconds)
            allocate_drafts(costs, 1, [may_be], 99)
            bid.granted = min(1, may_be.granted)
            if not bid.granted:
                trust.pause(n)
        elif not trust.resting and bid.n:
            trust.resume()
        right = 0
        while right < bid.granted and luck.random() < chance:
            right += 1
        if bid.granted:
            trust.observe(right, bid.granted)
        seconds = step(1 + bid.granted) * (1.0 if now else cold)
        costs.observe(1 + bid.granted, seconds)
        now += seconds + draft_seconds * bid.granted
        n += 1 + right
    return now / n


@pytest.mark.parametrize("n_tokens", [128, 1000])
@pytest.mark.parametrize("k", [1, 4, 8, 32])
def test_a_hopeless_draft_costs_at_most_two_percent(n_tokens, k):
    assert played(0.0, n_tokens, k) <= 1.02


@pytest.mark.parametrize("chance", [0.05, 0.1, 0.2, 0.3])
def test_a_poor_draft_costs_little(chance):
    assert sum(played(chance, 500, seed=seed) for seed in range(20)) / 20 <= 1.04


def test_a_perfect_draft_is_used_to_the_full():
    assert played(1.0, 500) <= 1.8 / 9 * 1.05


@pytest.mark.parametrize("chance", [0.6, 0.8, 0.95])
def test_a_good_draft_pays_nearly_as_much_as_with_the_best_number(chance):
    step = [1.0 + 0.1 * k for k in range(9)]
    best = min(step[k] / sum(chance**i for i in range(k + 1)) for k in range(9))
    found = sum(played(chance, 500, seed=seed) for seed in range(20)) / 20
    assert found <= 1.12 * best


@pytest.mark.parametrize("chance", [0.5, 0.6, 0.7, 0.8, 0.95])
@pytest.mark.parametrize("draft_seconds", [0.2, 0.4])
def test_a_first_step_that_is_slow_makes_no_bad_draft_look_good(chance, draft_seconds):
    """Of a small model a second row costs nearly as much as the first, and those after it little."""
    step = [1.0, 1.75, 1.8, 1.9, 2.0]
    best = min((step[k] + k * draft_seconds) / sum(chance**i for i in range(k + 1)) for k in range(5))
    times = [
        played(chance, 400, 4, seed, lambda rows: step[rows - 1], draft_seconds=draft_seconds, cold=2.4)
        for seed in range(20)
    ]
    assert sum(times) / 20 <= 1.15 * best


def test_a_step_without_drafts_is_measured_soon_and_then_seldom():
    costs, at = StepTimeModel(), []
    for n in range(1, 1000):
        plain = costs.wants_plain(1)
        costs.observe(1 if plain else 5, 1.0)
        at += [n] * plain
    gaps = [b - a for a, b in itertools.pairwise(at)]
    assert at[0] == 1
    assert FIRST_FRESH <= gaps[0] <= FIRST_FRESH + 1
    assert gaps == sorted(gaps)
    assert FRESH_STEPS <= gaps[-1] <= FRESH_STEPS + 1


def test_a_draft_that_takes_longer_than_it_saves_is_not_used():
    assert played(0.9, 1000, draft_seconds=3.0) <= 1.03


def test_pauses_grow_and_are_short_again_after_success():
    trust = AcceptanceEstimate()
    rests = []
    for n in range(0, 1000, 100):
        trust.pause(n)
        rests.append(trust.resting - n)
    assert rests[0] == FIRST_REST
    assert rests == sorted(rests)
    assert rests[-1] == MOST_REST
    trust.resume()
    trust.pause(0)
    assert trust.resting == FIRST_REST


def test_only_tokens_up_to_the_first_rejected_one_count():
    one, other = AcceptanceEstimate(), AcceptanceEstimate()
    one.observe(2, 3)
    other.observe(2, 8)
    assert one.chance == other.chance
    other.observe(8, 8)
    assert other.chance > one.chance


@pytest.mark.parametrize("n", [1, 4, 16, 64])
def test_the_upper_bound_is_a_deviation_above_the_chance_and_converges(n):
    good, bad = AcceptanceEstimate(), AcceptanceEstimate()
    for _ in range(n):
        good.observe(1, 1)
        bad.observe(0, 1)
    for trust in (good, bad):
        assert trust.chance < trust.upper_bound <= 1.0
    assert bad.upper_bound - bad.chance < 0.5 / n**0.5
    assert n < 16 or bad.upper_bound < 0.2


def test_one_rejected_token_of_a_good_draft_does_not_shut_it_off():
    trust = AcceptanceEstimate()
    for i in range(40):
        trust.observe(int(i % 6 != 5), 1)
        assert trust.upper_bound > 0.72  # a draft token pays then that costs a third of a step, with a row of as much


def test_what_is_kept_of_many_numbers_of_rows_is_bounded():
    costs, luck = StepTimeModel(), random.Random(1)
    for _ in range(4000):
        rows = luck.randrange(1, 190)
        for _ in range(2):
            costs.observe(rows, 1.0 + 0.05 * rows)
    assert len(costs._ratios) <= 64
    assert len(costs._at) == len(costs._rows) <= 190
    assert len(costs._near) == 2 * BESIDE + 1
    found = [costs.seconds(rows) for rows in (1, 20, 100)]
    assert found == sorted(found)


def test_numbers_of_rows_that_were_not_compared_directly_are_by_others():
    costs = StepTimeModel()
    for rows, seconds in ((1, 1.0), (3, 1.5), (6, 3.0)):
        for _ in range(2 * BESIDE + 1):
            costs.observe(rows, seconds)
    assert (1, 6) not in costs._ratios
    for _ in range(2 * BESIDE + 1):
        costs.observe(6, 30.0)  # the machine is slower
    assert [costs.seconds(rows) for rows in (1, 3, 6)] == pytest.approx([10.0, 15.0, 30.0])
