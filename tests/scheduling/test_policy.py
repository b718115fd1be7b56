"""Priorities, ageing, deadlines, preemption, a bounded queue: ids and counts alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import QueueFullError
from oxillama.scheduling.sequence import SequenceState
from oxillama.scheduling.waiting_queue import AGEING_STEPS
from tests.scheduling.stepping import compute, make, run, sequence

# ---- preemption


def test_without_blocks_the_last_sequence_is_preempted_and_recomputed():
    scheduler = make(n_blocks=4)
    a, b = sequence(16, 33), sequence(16, 20)
    outputs = {a.id: 33, b.id: 20}
    for s in (a, b):
        scheduler.add_request(s)
    while not scheduler.n_preempted:
        plan = scheduler.step()
        compute(scheduler, plan, outputs)
    assert [s for s, _ in plan] == [a]
    assert b.state is SequenceState.PREEMPTED
    assert (b.n_computed, b.block_table) == (0, [])
    assert 16 < len(b.tokens) < 36
    run(scheduler, outputs)
    assert (len(a.tokens), len(b.tokens)) == (49, 36)
    assert scheduler.pool.blocks.n_free == 4


def test_no_sequence_starts_in_a_step_with_a_preemption():
    scheduler = make(n_blocks=5)
    a, b, small = sequence(30, 40), sequence(30, 40), sequence(1, priority=9)
    outputs = {a.id: 40, b.id: 40}
    for s in (a, b):
        scheduler.add_request(s)
    while len(a.tokens) < 33:
        compute(scheduler, scheduler.step(), outputs)
    scheduler.add_request(small)
    plan = scheduler.step()
    assert scheduler.preempting
    assert [s for s, _ in plan] == [a]
    compute(scheduler, plan, outputs)
    assert b.state is SequenceState.PREEMPTED
    assert [s for s, _ in scheduler.step()] == [a, small]


def test_the_lowest_priority_is_preempted_first():
    scheduler = make(n_blocks=6)
    low, high = sequence(16, 60), sequence(16, 60, priority=1)
    for s in (low, high):
        scheduler.add_request(s)
    outputs = {low.id: 60, high.id: 60}
    while not scheduler.n_preempted:
        compute(scheduler, scheduler.step(), outputs)
    assert low.preempted
    assert high.running
    run(scheduler, outputs)


# ---- order


def test_higher_priorities_run_first_in_order_of_arrival():
    scheduler = make(max_running=1)
    order = [sequence(3, priority=p) for p in (0, 2, 1, 2, 0)]
    for s in order:
        scheduler.add_request(s)
    assert [s.id for (s,) in run(scheduler, {})] == [order[i].id for i in (1, 3, 2, 0, 4)]


def test_waiting_raises_the_rank():
    """A stream of important requests that fills the machine delays another one, but not for ever."""
    scheduler = make(max_running=1)
    waits = sequence(3)
    scheduler.add_request(waits)
    for _ in range(5 * AGEING_STEPS):
        scheduler.add_request(sequence(3, priority=2))
        plan = scheduler.step()
        compute(scheduler, plan, {})
        if waits.finished:
            break
    assert 2 * AGEING_STEPS <= scheduler.n_steps <= 2 * AGEING_STEPS + 2


def test_decoding_continues_beside_a_long_prompt():
    scheduler = make(n_blocks=2200, budget=512)
    a, long = sequence(4, 100), sequence(32_000, 1, first=9)
    scheduler.add_request(a)
    outputs = {a.id: 100}
    compute(scheduler, scheduler.step(), outputs)
    scheduler.add_request(long)
    while not long.finished:
        plan = dict(scheduler.step())
        assert plan[a] == 1
        assert plan[long] <= 511
        compute(scheduler, plan.items(), outputs)


# ---- bounds


def test_a_full_queue_refuses():
    scheduler = make(max_running=1, max_waiting=2)
    kept = [sequence(3), sequence(3)]
    for s in kept:
        scheduler.add_request(s)
    with pytest.raises(QueueFullError, match=r"2 requests are waiting.*limit of 2 \(max_queue_size\)"):
        scheduler.add_request(late := sequence(3))
    assert late.state is SequenceState.WAITING
    assert not late.is_scheduled
    scheduler.step()
    scheduler.add_request(late)
    run(scheduler, {})
    assert late.finished


def test_sequences_past_their_deadline_are_reported_once():
    scheduler = make(max_running=1)
    runs, waits, never = sequence(3, 9, deadline=5.0), sequence(3, deadline=4.0), sequence(3)
    for s in (runs, waits, never):
        scheduler.add_request(s)
    compute(scheduler, scheduler.step(), {runs.id: 9})
    assert scheduler.expired(3.9) == []
    assert scheduler.expired(6.0) == [waits, runs]
    assert scheduler.expired(99.0) == []
    for s in (waits, runs):
        scheduler.finish(s)
    assert run(scheduler, {}) == [[never]]


def test_ended_sequences_leave_the_queue():
    scheduler = make(max_running=1)
    scheduler.add_request(sequence(3, 5))
    scheduler.step()
    for _ in range(1000):
        s = sequence(3, deadline=1e9)
        scheduler.add_request(s)
        scheduler.finish(s)
    assert len(scheduler.waiting) == 0
    assert sum(map(len, scheduler.waiting._heaps.values())) < 100
    assert len(scheduler.deadlines) < 100


# ---- all of it


JOBS = st.tuples(
    st.integers(1, 70), st.integers(1, 30), st.integers(0, 3), st.integers(0, 30), st.sampled_from([None, "k", "j"])
)


@given(
    n_blocks=st.integers(7, 12),
    budget=st.integers(1, 80),
    max_running=st.integers(1, 8),
    jobs=st.lists(JOBS, min_size=1, max_size=14),
)
def test_every_sequence_ends_and_nothing_leaks(n_blocks, budget, max_running, jobs):
    scheduler = make(n_blocks, 16, budget, max_running=max_running)
    outputs, jobs, done = {}, sorted(jobs, key=lambda job: job[3]), []
    for step in range(20_000):
        while jobs and jobs[0][3] <= step:
            n_prompt, n_output, priority, _, key = jobs.pop(0)
            s = sequence(n_prompt, n_output, priority=priority, cache_key=key)
            outputs[s.id] = n_output
            scheduler.add_request(s)
            done.append(s)
        plan = scheduler.step()
        decoding = {s.id for s in scheduler.running if len(s.tokens) - s.n_computed == 1}
        assert decoding <= {s.id for s, _ in plan}, "a decoding sequence was left out"
        assert plan or scheduler.preempting or not scheduler.waiting
        compute(scheduler, plan, outputs)
        if not jobs and not scheduler.running and not scheduler.waiting:
            break
    assert all(s.finished and len(s.tokens) == s.n_prompt + outputs[s.id] for s in done)
    assert scheduler.pool.blocks.n_free == n_blocks - scheduler.prefix.n_blocks
    scheduler.prefix.clear()
    assert scheduler.pool.blocks.n_free == n_blocks


def test_prompts_have_no_more_tokens_than_are_allowed_beside_a_decoding_sequence():
    scheduler = make()
    decoding, prompt = sequence(1, 9), sequence(100, first=500)
    scheduler.add_request(decoding)
    compute(scheduler, scheduler.step(20), {decoding.id: 9})
    scheduler.add_request(prompt)
    assert scheduler.step(20) == [(decoding, 1), (prompt, 20)]
    scheduler.finish(decoding)
    assert scheduler.step(20) == [(prompt, 100)]
