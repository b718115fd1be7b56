"""Measured times of drafts, on a clock of the test's own with steps of one second."""

import pytest

from oxillama.core import draft_scheduler as drafting
from oxillama.core import engine_core as core
from oxillama.core import metrics_recorder as meter
from oxillama.drafts.cost_model import KEPT_STEPS
from oxillama.drafts.draft import Proposal
from tests.fakes import BOS, logits_of, make_engine

PROMPT = [BOS, 4, 5, 6]
OPTIONS = {"max_tokens": 2000, "seed": 1, "ignore_eos": True, "temperature": 0.0}


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class Right:
    """Guesses what the fake model says at no temperature; each token takes `seconds`, and to begin anew `reading`."""

    def __init__(self, clock, seconds, reading=0.0):
        self.clock, self.seconds, self.reading = clock, seconds, reading
        self.asked, self.known = [], 0

    def bind(self, target):
        pass

    def forget(self, key):
        self.known = 0

    def propose(self, tasks):
        found = []
        for task in tasks:
            tokens = list(task.tokens)
            self.asked.append((len(tokens), task.n))
            self.clock.now += self.reading * (len(tokens) - self.known)
            for _ in range(task.n):
                tokens.append(int(logits_of(tokens).argmax()))
                self.clock.now += self.seconds
            self.known = len(tokens)
            found.append(Proposal(tokens[len(task.tokens) :]))
        return found


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (core, drafting, meter):
        monkeypatch.setattr(module, "time", made)
    return made


def serve(clock, draft, n_tokens, step=lambda rows: 1.0):
    """Tokens of each round in which the draft was asked. step: seconds of one with so many rows."""

    def hook(runner, spans, poll):
        clock.now += step(sum(len(span.tokens) for span in spans))

    engine = make_engine(context_size=4096, hook=hook)
    options = OPTIONS | {"max_tokens": n_tokens, "repetition_penalty": 1.0}
    found = engine.generate(PROMPT, draft=draft, **options)
    assert found.token_ids == make_engine(context_size=4096).generate(PROMPT, **options).token_ids
    return draft.asked


def test_a_quick_accepted_draft_is_used_all_the_time(clock):
    asked = serve(clock, Right(clock, 0.01), 200)
    assert len(asked) >= (200 - 5) // 5  # five steps or so are measured without it
    assert sum(n for _, n in asked) > 120


def test_a_draft_as_slow_as_the_model_is_not_used(clock):
    asked = serve(clock, Right(clock, 2.0), 200)
    assert len(asked) < 10


def test_a_draft_that_was_slow_for_a_while_is_tried_again(clock):
    class Recovers(Right):
        def propose(self, tasks):
            self.seconds = 2.0 if len(tasks[0].tokens) < 100 else 0.01
            return super().propose(tasks)

    asked = serve(clock, Recovers(clock, 2.0), 3 * KEPT_STEPS)
    early, late = [n for at, n in asked if at < 100], [n for at, n in asked if at > 2 * KEPT_STEPS]
    assert len(early) < 8
    assert sum(late) > KEPT_STEPS // 2


def test_catching_up_after_a_pause_does_not_count_as_drafting(clock):
    """Wrong for long, then right: tries come after long rests, and read much."""

    class Learns(Right):
        def propose(self, tasks):
            found = super().propose(tasks)
            if len(tasks[0].tokens) < 300:
                return [Proposal([(t + 1) % 15 + 2 for t in p.tokens]) for p in found]
            return found

    asked = serve(clock, Learns(clock, 0.01, reading=0.1), 900)
    assert sum(n for at, n in asked if at > 600) > 150


def test_one_slow_time_decides_nothing(clock):
    class Warms(Right):
        def propose(self, tasks):
            self.seconds = 9.0 if len(self.asked) in (0, 1) else 0.01
            return super().propose(tasks)

    asked = serve(clock, Warms(clock, 9.0), 150)
    assert sum(n for _, n in asked) > 100


def test_expensive_rows_are_noticed_though_all_tokens_are_accepted(clock):
    """A second row takes three times as long: known only because steps without draft tokens are measured too."""
    asked = serve(clock, Right(clock, 0.0), 4 * KEPT_STEPS, step=lambda rows: 1.0 if rows == 1 else 3.0 + 0.9 * rows)
    assert sum(n for _, n in asked) < 100
    assert clock.now < 4 * KEPT_STEPS * 1.08


def test_a_try_that_does_not_pay_is_postponed(clock, monkeypatch):
    asked = []
    real = drafting.allocate_drafts
    monkeypatch.setattr(drafting, "allocate_drafts", lambda *args: asked.append(1) or real(*args))
    serve(clock, Right(clock, 9.0), 250)
    assert len(asked) < 40


class Loaded(Right):
    """Takes five times as long while other load is on the machine, as the model does: from 40 to 120 s and later."""

    def slow(self):
        return 5.0 if self.clock.now >= 40 and self.clock.now // 80 % 2 == 0 else 1.0

    def propose(self, tasks):
        idle, self.seconds = self.seconds, self.seconds * self.slow()
        try:
            return super().propose(tasks)
        finally:
            self.seconds = idle


@pytest.mark.parametrize("least", [0.0, 1.0, 4.0, 9.0])
def test_other_load_turns_no_draft_off_that_pays(clock, least):
    draft = Loaded(clock, 0.02)
    clock.now = 80.0 * least  # the load begins sooner or later
    asked = serve(clock, draft, 900, step=lambda rows: draft.slow() * (1.0 + 0.1 * rows))
    last = [n for at, n in asked if at > 200]
    assert sum(last) > 0.7 * 700  # of five tokens of a step, four are drafted


@pytest.mark.parametrize("least", [0.0, 1.0, 4.0, 9.0])
def test_other_load_keeps_no_draft_on_that_loses(clock, least):
    draft = Loaded(clock, 1.5)
    clock.now = 80.0 * least
    asked = serve(clock, draft, 600, step=lambda rows: draft.slow() * (1.0 + 0.1 * rows))
    assert sum(n for at, n in asked if at > 100) < 50
