"""Scheduling order: ids and counts, ten thousand requests in no time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import GenerateError, KvCacheFullError
from oxillama.scheduling.sequence import Sequence, SequenceState
from tests.scheduling.stepping import compute, make


def sequence(n_prompt, n_output=1):
    return Sequence(range(n_prompt), n_prompt + n_output - 1)


def test_a_prompt_is_cut_into_chunks_of_the_budget():
    scheduler = make(budget=10)
    s = sequence(25)
    scheduler.add_request(s)
    sizes = []
    while not s.finished:
        plan = scheduler.step()
        sizes += [n for _, n in plan]
        compute(scheduler, plan)
    assert sizes == [10, 10, 5]


def test_decoding_goes_first_and_prompts_share_the_rest():
    scheduler = make(budget=10)
    a, b, c = sequence(3, 9), sequence(12, 9), sequence(4, 9)
    for s in (a, b, c):
        scheduler.add_request(s)
    assert scheduler.step() == [(a, 3), (b, 7)]
    compute(scheduler, [(a, 3), (b, 7)], {a.id: 9, b.id: 9, c.id: 9})
    assert scheduler.step() == [(a, 1), (b, 5), (c, 4)]


def test_a_sequence_starts_with_blocks_for_its_prompt_and_grows():
    scheduler = make(n_blocks=6, block_size=16)
    a, b, c = sequence(31, 34), sequence(33, 9), sequence(1, 1)
    for s in (a, b, c):
        scheduler.add_request(s)
    # One block for each that runs stays free, and though c would fit, b came first.
    outputs = {a.id: 34, b.id: 9, c.id: 1}
    plan = scheduler.step()
    assert [s for s, _ in plan] == [a, b]
    assert (len(a.block_table), len(b.block_table)) == (2, 3)
    assert c.state is SequenceState.WAITING
    compute(scheduler, plan, outputs)
    compute(scheduler, scheduler.step(), outputs)
    compute(scheduler, scheduler.step(), outputs)
    assert len(a.block_table) == 3
    scheduler.finish(b)
    assert [s for s, _ in scheduler.step()] == [a, c]


def test_a_sequence_that_can_never_fit_is_refused_with_the_numbers():
    scheduler = make(n_blocks=2, block_size=16)
    scheduler.add_request(sequence(30, 3))
    with pytest.raises(KvCacheFullError, match=r"33 tokens.* 3 KV blocks of 16 tokens.*are 2 in all"):
        scheduler.add_request(sequence(30, 4))


def test_states_of_a_sequence():
    scheduler = make(budget=4)
    s = sequence(6, 5)
    assert s.state is SequenceState.WAITING
    scheduler.add_request(s)
    compute(scheduler, scheduler.step())
    assert s.state is SequenceState.PREFILLING
    compute(scheduler, scheduler.step(), {s.id: 5})
    assert s.state is SequenceState.DECODING
    scheduler.finish(s)
    assert s.state is SequenceState.FINISHED


def test_a_waiting_sequence_can_be_ended():
    scheduler = make(n_blocks=1)
    a, b, c = (sequence(4) for _ in range(3))
    for s in (a, b, c):
        scheduler.add_request(s)
    scheduler.step()
    scheduler.finish(b)
    scheduler.finish(a)
    assert [s for s, _ in scheduler.step()] == [c]
    assert scheduler.waiting.first() is None


def test_blocks_can_be_kept_and_grow():
    scheduler = make(n_blocks=4)
    s = sequence(20)
    scheduler.add_request(s)
    compute(scheduler, scheduler.step(), {s.id: 99})
    scheduler.finish(s, keep_blocks=True)
    first = list(s.block_table)
    s.tokens, s.n_reserve = list(range(40)), 40
    scheduler.add_request(s)
    assert scheduler.step() == [(s, 20)]
    assert s.block_table[:2] == first
    assert len(s.block_table) == 3
    scheduler.finish(s, keep_blocks=True)
    scheduler.blocks.rewind(s, 17)
    assert s.block_table == first
    scheduler.blocks.rewind(s, 0)
    assert scheduler.pool.blocks.n_free == 4


def test_added_again_after_being_ended_in_the_queue_runs_once():
    scheduler = make()
    s = sequence(5)
    for _ in range(3):
        scheduler.add_request(s)
        scheduler.finish(s)
    scheduler.add_request(s)
    assert scheduler.step() == [(s, 5)]
    assert len(scheduler.running) == 1


def test_a_waiting_or_running_sequence_is_not_queued_again():
    scheduler = make()
    s = sequence(5)
    scheduler.add_request(s)
    with pytest.raises(GenerateError, match="is waiting already"):
        scheduler.add_request(s)
    scheduler.step()
    with pytest.raises(GenerateError, match="is prefilling already"):
        scheduler.add_request(s)
    scheduler.finish(s)
    scheduler.add_request(s)
    assert scheduler.step() == [(s, 5)]


@given(
    st.integers(4, 30),
    st.integers(1, 40),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=20),
)
def test_every_sequence_ends_and_nothing_leaks(n_blocks, budget, max_running, sizes):
    scheduler = make(n_blocks, 16, budget, max_running=max_running)
    sizes = [(p, o) for p, o in sizes if -(-(p + o - 1) // 16) <= n_blocks]
    sequences = [sequence(p, o) for p, o in sizes]
    outputs = {s.id: o for s, (_, o) in zip(sequences, sizes, strict=True)}
    for s in sequences:
        scheduler.add_request(s)
    started = []
    for _ in range(sum(p + o for p, o in sizes)):
        plan = scheduler.step()
        if not plan:
            break
        decoding = {s.id for s in scheduler.running if len(s.tokens) - s.n_computed == 1}
        assert decoding <= {s.id for s, _ in plan}, "a decoding sequence was left out"
        assert all(n >= 1 for _, n in plan)
        assert sum(n for _, n in plan) <= budget
        assert len(scheduler.running) <= max_running
        tables = [block for s in scheduler.running for block in s.block_table]
        assert len(set(tables)) == len(tables)
        assert all(len(s.block_table) * 16 >= s.n_computed + n for s, n in plan)
        started += [s.id for s, _ in plan if s.id not in started]
        compute(scheduler, plan, outputs)
    assert all(s.finished for s in sequences)
    assert scheduler.pool.blocks.n_free == n_blocks
    assert started == [s.id for s in sequences], "overtaken in the queue"
    for s, (p, o) in zip(sequences, sizes, strict=True):
        assert len(s.tokens) == p + o


def test_ten_thousand_requests():
    scheduler = make(n_blocks=640, budget=512)
    scheduler.debug = False
    sequences = [sequence(40, 4) for _ in range(10_000)]
    outputs = {s.id: 4 for s in sequences}
    for s in sequences:
        scheduler.add_request(s)
    steps = 0
    while plan := scheduler.step():
        compute(scheduler, plan, outputs)
        steps += 1
    assert all(s.finished for s in sequences)
    # 40 tokens of prompt and 3 decoding steps each, at most 512 tokens in a step.
    assert steps < 1.2 * 10_000 * 43 / 512


def test_prompts_that_give_a_row_for_each_token_share_the_budget_of_rows():
    scheduler = make(budget=40)
    scheduler.row_budget = 8
    rows, plain, more = sequence(20), sequence(30), sequence(12)
    rows.every_row = more.every_row = True
    for s in (rows, more, plain):
        scheduler.add_request(s)
    plans = []
    while not (rows.finished and plain.finished and more.finished):
        plan = scheduler.step()
        plans.append([(s.id, n) for s, n in plan])
        assert sum(n for s, n in plan if s.every_row) <= 8
        assert plan
        compute(scheduler, plan)
    assert [n for plan in plans for i, n in plan if i == rows.id] == [8, 8, 4]
    assert [n for plan in plans for i, n in plan if i == more.id] == [4, 8]
    assert len(plans) == 4
