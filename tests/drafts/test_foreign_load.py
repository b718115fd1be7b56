"""Drafts beside other load: what slows down all steps alike turns no draft off that pays, and none on that doesn't."""

import random

import pytest

from oxillama.drafts.cost_model import (
    KEPT_STEPS,
    TRY_CHANCE,
    AcceptanceEstimate,
    DraftRequest,
    StepTimeModel,
    allocate_drafts,
)

N_STEPS = 1200
SLOW = 5.0


def steady(step, luck):
    return 1.0


def while_it_lasts(step, luck):
    return SLOW if 300 <= step < 600 else 1.0


def that_stays(step, luck):
    return SLOW if step >= 200 else 1.0


def that_ends(step, luck):
    return SLOW if step < 400 else 1.0


def that_comes_and_goes(step, luck):
    return SLOW if step // 40 % 2 else 1.0


def in_quick_turns(step, luck):
    return SLOW if step // 7 % 2 else 1.0


def of_single_steps(step, luck):
    return SLOW if luck.random() < 0.2 else 1.0


def of_any_size(step, luck):
    return 1.0 + 4.0 * luck.random() if step // 100 % 2 else 1.0


LOADS = [steady, while_it_lasts, that_stays, that_ends, that_comes_and_goes, in_quick_turns, of_single_steps,
         of_any_size]  # fmt: skip
EVERY_LOAD = pytest.mark.parametrize("load", LOADS, ids=lambda load: load.__name__)


class Text:
    """A text that is written with a draft, on a clock of its own: each step and each draft token takes `load` times
    as long as on an idle machine. drafted: of each step, whether it had draft tokens."""

    def __init__(self, chance, step_seconds, draft_seconds, load, seed):
        self.chance, self.step_seconds, self.draft_seconds, self.load = chance, step_seconds, draft_seconds, load
        self.luck, self.costs, self.trust = random.Random(seed), StepTimeModel(), AcceptanceEstimate()
        self.rounds, self.drafted, self.n_tokens, self.last = [], [], 0, 0

    def wanted(self, k):
        """Draft tokens of the next step, as `Drafting` asks for them."""
        costs, trust = self.costs, self.trust
        if len(self.drafted) > self.last + KEPT_STEPS:
            self.rounds.clear()
        seconds = sorted(self.rounds[-7:])[(len(self.rounds[-7:]) - 1) // 2] * costs.level if self.rounds else 0.0
        if costs.wants_plain(1) or trust.resting > self.n_tokens:
            return 0
        tries = bool(trust.resting)
        bid = DraftRequest(TRY_CHANCE if tries else trust.chance, 1 if tries else k, seconds)
        allocate_drafts(costs, 1, [bid], 99)
        if tries and not bid.granted:
            trust.postpone(self.n_tokens)
        elif bid.granted:
            trust.resume()
        else:
            may_be = DraftRequest(trust.upper_bound, k, seconds)
            allocate_drafts(costs, 1, [may_be], 99)
            if may_be.granted:
                return 1
            trust.pause(self.n_tokens)
        return bid.granted

    def write(self, k=4):
        for step in range(N_STEPS):
            n = self.wanted(k)
            slow = self.load(step, self.luck)
            if n:
                self.last = step
                self.rounds.append(self.draft_seconds(step) * slow / self.costs.level)
            right = 0
            while right < n and self.luck.random() < self.chance:
                right += 1
            if n:
                self.trust.observe(right, n)
            self.costs.observe(1 + n, self.step_seconds(step, 1 + n) * slow)
            self.n_tokens += 1 + right
            self.drafted.append(n > 0)
        return self

    def share(self, first=0, end=N_STEPS):
        return sum(self.drafted[first:end]) / len(self.drafted[first:end])


def of_rows(step, rows):
    return 1.0 + 0.1 * (rows - 1)


@EVERY_LOAD
@pytest.mark.parametrize("seed", range(3))
def test_a_draft_that_pays_stays_on(load, seed):
    text = Text(0.93, of_rows, lambda step: 0.1, load, seed).write()
    assert text.share() > 0.9
    assert text.share(500, 600) > 0.8


@EVERY_LOAD
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rows", "round_seconds"), [(of_rows, 1.5), (lambda step, rows: 1.2 * rows - 0.2, 0.3)])
def test_a_draft_that_loses_goes_off(load, seed, rows, round_seconds):
    text = Text(0.93, rows, lambda step: round_seconds, load, seed).write()
    assert text.share(100) < 0.12


@EVERY_LOAD
@pytest.mark.parametrize("seed", range(3))
def test_a_draft_that_begins_to_lose_goes_off(load, seed):
    def slower(step, rows):
        return of_rows(step, rows) if step < 700 or rows == 1 else 6.0 + rows

    text = Text(0.93, slower, lambda step: 0.1, load, seed).write()
    assert text.share(600, 700) > 0.8
    assert text.share(850) < 0.25


@EVERY_LOAD
@pytest.mark.parametrize("seed", range(3))
def test_a_draft_that_begins_to_pay_comes_on(load, seed):
    text = Text(0.93, of_rows, lambda step: 3.0 if step < 300 else 0.1, load, seed).write()
    assert text.share(100, 300) < 0.2
    assert text.share(900) > 0.8
