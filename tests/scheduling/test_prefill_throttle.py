"""Liveness: a decoding sequence gets a token in every step, beside prompt tokens that fit; and every sequence ends."""

import itertools
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.scheduling.scheduler import LEAST_CHUNK, MAX_DECODE_WAIT_MS, PrefillThrottle
from tests.fakes import N_VOCAB, core_of, make_engine, runner_of
from tests.scheduling.stepping import compute, make, sequence

WAIT = MAX_DECODE_WAIT_MS / 1000


# ---- the pace


def test_chunks_fit_the_wait():
    pace = PrefillThrottle(512)
    assert pace.chunk == 512
    for n, seconds, expected in (
        (512, 512 * WAIT / 128, 128),
        (128, WAIT, 128),
        (128, WAIT / 2, 256),
        (256, WAIT / 100, 512),  # never more than the budget
        (512, 99.0, LEAST_CHUNK),  # nor less than pays
        (LEAST_CHUNK - 1, 1e-9, LEAST_CHUNK),  # too few to tell
        (0, 1.0, LEAST_CHUNK),
        (LEAST_CHUNK, 0.0, 512),
    ):
        pace.observe(n, seconds)
        assert pace.chunk == expected
    small = PrefillThrottle(8)
    small.observe(LEAST_CHUNK, 99.0)
    assert small.chunk == 8


@pytest.mark.parametrize("per_token", [WAIT / 40, WAIT / 200, WAIT / 5000], ids=["slow", "medium", "fast"])
def test_a_step_with_a_decoding_sequence_is_short(monkeypatch, per_token):
    """Each token of a step takes a fixed time on the engine's clock."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    steps = []

    def forward(spans, poll):
        steps.append([len(s.tokens) for s in spans])
        clock.now += per_token * sum(steps[-1])
        rows = np.zeros((sum(s.want != "none" for s in spans), N_VOCAB), np.float32)
        rows[:, 3] = 9.0
        return rows

    engine = make_engine(context_size=33_000, n_blocks=4200)
    core_of(engine).scheduler.debug = False  # it looks at all of the long table in each step
    runner_of(engine).forward = forward
    stream = engine.stream([4], max_tokens=2000, ignore_eos=True, temperature=0)
    next(stream)
    long = engine.stream([3] * 32_000, max_tokens=1, ignore_eos=True)
    next(long)  # its first token: by then all of its prompt is computed
    del steps[0]
    prompts = [step[1] if len(step) == 2 else 0 for step in steps]
    assert sum(prompts) == 32_000
    assert all(step[0] == 1 for step in steps), "the decoding sequence was left out"
    assert max(sum(step) for step in steps) <= 512
    later = [n for n in prompts[1:] if n]  # the first one is computed before anything is known
    assert max(later) <= max(LEAST_CHUNK, WAIT / per_token)
    assert max(later) >= min(511, max(LEAST_CHUNK, WAIT / per_token) - 2), "less than it might be"
    assert sum(len(c.token_ids) for c in itertools.islice(stream, len(steps))) == len(steps)


def test_alone_a_prompt_is_computed_in_whole_chunks():
    engine = make_engine(context_size=2048)
    core_of(engine).pace.chunk = LEAST_CHUNK
    engine.generate([3] * 1500, max_tokens=1)
    assert runner_of(engine).steps == [[512], [512], [476]]


def test_the_bound_holds_for_all_prompts_of_a_step_together():
    scheduler = make(n_blocks=300, budget=100)
    a, b, c = sequence(4, 50), sequence(90, 1, first=500), sequence(90, 1, first=900)
    scheduler.add_request(a)
    compute(scheduler, scheduler.step(), {a.id: 50})
    scheduler.add_request(b)
    scheduler.add_request(c)
    sizes = []
    while not c.finished:
        plan = scheduler.step(40)
        assert plan[0] == (a, 1)
        assert sum(n for _, n in plan[1:]) <= 40
        sizes.append([n for _, n in plan])
        compute(scheduler, plan, {a.id: 50})
    assert sizes == [[1, 40], [1, 40], [1, 10, 30], [1, 40], [1, 20]]


# ---- every sequence ends

JOBS = st.tuples(
    st.integers(1, 100), st.integers(1, 40), st.integers(0, 3), st.integers(0, 60), st.sampled_from([None, "k"])
)


@settings(deadline=None)
@given(
    n_blocks=st.integers(9, 30),
    budget=st.integers(1, 80),
    beside=st.none() | st.integers(1, 80),
    max_running=st.integers(1, 8),
    jobs=st.lists(JOBS, min_size=1, max_size=16),
    cancelled=st.sets(st.integers(0, 15)),
)
def test_every_sequence_ends_in_a_bounded_number_of_steps(n_blocks, budget, beside, max_running, jobs, cancelled):
    """The first running sequence gains a token in each step and loses none, until it ends or one of a better rank
    starts; the first in the queue starts at the latest when all running ones have ended: a loose bound."""
    scheduler = make(n_blocks, 16, budget, max_running=max_running)
    coming = sorted(enumerate(jobs), key=lambda job: job[1][3])
    n_tokens = sum(n_prompt + n_output for n_prompt, n_output, *_ in jobs)
    outputs, added = {}, []
    for step in itertools.count():
        while coming and coming[0][1][3] <= step:
            i, (n_prompt, n_output, priority, _, key) = coming.pop(0)
            s = scheduler.add_request(sequence(n_prompt, n_output, priority=priority, cache_key=key))
            outputs[s.id] = n_output
            added.append((i, s))
        for i, s in added:
            if i in cancelled and s.is_scheduled and step % 7 == i % 7:
                scheduler.cancel(s)
        if not scheduler.live and not coming:
            break
        first = scheduler.running[0] if scheduler.running else None
        before = first.n_computed if first else 0
        plan = scheduler.step(beside)
        assert plan or scheduler.preempting or not scheduler.live
        compute(scheduler, plan, outputs)
        assert first is None or first.finished or first.n_computed > before, "the first did not go on"
        assert step <= (1 + len(jobs)) * n_tokens + 60, "a sequence never ends"
    assert all(s.finished and (s.cancelled or len(s.tokens) == s.n_prompt + outputs[s.id]) for _, s in added)
    assert {s.id for s in scheduler.drain_finished()} == set(outputs)


def test_a_thousand_requests_in_a_storm():
    """As many steps as their tokens need, and some; in a pool in which many of those that run must go back again."""
    scheduler = make(n_blocks=80, budget=256, max_running=32)
    scheduler.debug = False
    outputs, n_tokens = {}, 0
    for i in range(1000):
        n_prompt, n_output = 1 + 37 * i % 20, 80 + 13 * i % 20
        s = sequence(n_prompt, n_output, priority=i % 4, first=i % 50, cache_key=(None, "k")[i % 2])
        outputs[scheduler.add_request(s).id] = n_output
        n_tokens += n_prompt + n_output - 1
    steps = 0
    while scheduler.live:
        compute(scheduler, scheduler.step(128), outputs)
        steps += 1
        assert steps < 10 * n_tokens / 32, "a sequence never ends"
    ended = scheduler.drain_finished()
    assert len(ended) == len({s.id for s in ended}) == 1000
    assert all(len(s.tokens) == s.n_prompt + outputs[s.id] for s in ended)
    assert scheduler.n_preempted > 100
    decoding = sum(outputs.values()) - 1000
    assert steps >= math.ceil(decoding / 32)
    scheduler.prefix.clear()
    assert scheduler.pool.blocks.n_free == 80
