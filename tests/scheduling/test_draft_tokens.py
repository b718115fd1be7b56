"""Room for draft tokens: their share, and that no sequence gets less for them. Ids and counts alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import ConfigError
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.scheduler import MAX_DRAFT_TOKENS, Scheduler
from oxillama.scheduling.sequence import Sequence, SequenceState

KINDS = {"blocks": (12, 0, 0, 0), "windows": (0, 0, 12, 20), "both": (12, 0, 12, 20)}


def make(pool, budget, **options):
    scheduler = Scheduler(SequencePool(*pool), 16, budget, prefix_cache=False, **options)
    scheduler.debug = True
    return scheduler


def settle(scheduler, plan, right, outputs):
    """Computes a plan: the first `right(sequence)` draft tokens are accepted, and one more token is drawn."""
    for s, n in plan:
        good = min(right(s), n - 1) if s.draft_tokens else 0
        if s.draft_tokens:
            s.tokens += [7] * (good + 1)
            scheduler.advance(s, 1 + good)
        else:
            scheduler.advance(s, n)
            s.tokens += [7] * (s.n_computed == len(s.tokens))
        if len(s.tokens) - s.n_prompt >= outputs[s.id]:
            scheduler.finish(s)


def guess(scheduler, k):
    for s in scheduler.running:
        if s.is_decoding and not s.n_recompute and len(s.tokens) > s.n_prompt:
            s.draft_tokens = [7] * k


def run(pool, budget, jobs, k, right, **options):
    """Each step of some work: the sequences that computed, and their numbers of tokens."""
    scheduler = make(pool, budget, **options)
    sequences = [Sequence(range(n), n + m - 1) for n, m in jobs]
    outputs = {s.id: m for s, (_, m) in zip(sequences, jobs, strict=True)}
    for s in sequences:
        scheduler.add_request(s)
    steps = []
    while scheduler.live:
        guess(scheduler, k)
        plan = scheduler.step()
        assert sum(n for _, n in plan) <= budget
        steps.append([(sequences.index(s), n - len(s.draft_tokens), len(s.tokens)) for s, n in plan])
        settle(scheduler, plan, right, outputs)
        for s in scheduler.running:
            assert s.draft_tokens == []
            for kind, _ in scheduler.blocks.groups if s.is_decoding else ():
                assert len(s.tables[kind]) <= scheduler.blocks.n_blocks(len(s.tokens))
        assert len(steps) < 5000, "a sequence never ends"
    assert scheduler.pool.blocks.n_free == scheduler.pool.blocks.n
    assert scheduler.pool.windowed.n_free == scheduler.pool.windowed.n
    assert scheduler.pool.slots.n_free == scheduler.pool.slots.n
    return steps, scheduler.n_preempted


JOBS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=6)


@given(st.sampled_from(list(KINDS)), JOBS, st.integers(8, 70), st.integers(1, 32))
def test_rejected_draft_tokens_delay_no_sequence(kind, jobs, budget, k):
    """Running and preempted sequences of each step, and their tokens, are those without draft tokens."""
    without = run(KINDS[kind], budget, jobs, 0, lambda s: 0)
    assert run(KINDS[kind], budget, jobs, k, lambda s: 0) == without


@given(st.sampled_from(list(KINDS)), JOBS, st.integers(8, 70), st.integers(1, 32), st.integers(0, 99))
def test_every_sequence_ends_whatever_is_accepted(kind, jobs, budget, k, seed):
    luck = random.Random(seed)
    run(KINDS[kind], budget, jobs, k, lambda s: luck.randrange(k + 1))
    run((*KINDS[kind][:1], 9, *KINDS[kind][2:]), budget, jobs, k, lambda s: luck.randrange(k + 1))


def decoding(pool=(12, 0, 0, 0), budget=64, n=20, reserve=60, **options):
    scheduler = make(pool, budget, **options)
    s = scheduler.add_request(Sequence(range(n), reserve))
    settle(scheduler, scheduler.step(), lambda s: 0, {s.id: 99})
    return scheduler, s


def test_a_step_computes_the_last_token_and_the_draft_tokens():
    scheduler, s = decoding()
    s.draft_tokens = [1, 2, 3]
    assert scheduler.step() == [(s, 4)]
    s.tokens += [1, 2, 9]
    scheduler.advance(s, 3)
    assert (s.n_computed, s.draft_tokens, s.n_recompute) == (23, [], 0)
    assert s.state is SequenceState.DECODING
    assert scheduler.step() == [(s, 1)]


def test_draft_tokens_end_at_the_reserve():
    scheduler, s = decoding(reserve=23)
    s.draft_tokens = [1] * 9
    assert scheduler.step() == [(s, 3)]  # of three tokens more, the last is not computed
    assert s.draft_tokens == [1, 1]


def test_prompts_go_before_draft_tokens():
    scheduler, s = decoding(budget=30)
    scheduler.add_request(Sequence(range(40), 40))
    s.draft_tokens = [1] * 20
    assert [n for _, n in scheduler.step()] == [1, 29]
    assert s.draft_tokens == []
    scheduler, s = decoding(budget=30)
    scheduler.add_request(Sequence(range(12), 12))
    s.draft_tokens = [1] * 20
    assert [n for _, n in scheduler.step()] == [18, 12]


def test_draft_tokens_of_a_step_have_a_limit():
    scheduler = make((100, 0, 0, 0), 512)
    sequences = [scheduler.add_request(Sequence([i], 99)) for i in range(6)]
    settle(scheduler, scheduler.step(), lambda s: 0, {s.id: 99 for s in sequences})
    for s in sequences:
        s.draft_tokens = [1] * 32
    assert [n for _, n in scheduler.step()] == [33, 33, 33, 33, 1, 1]
    assert sum(len(s.draft_tokens) for s in sequences) == MAX_DRAFT_TOKENS


def test_without_room_draft_tokens_fill_the_block():
    scheduler, s = decoding(pool=(2, 0, 0, 0), n=28, reserve=32)
    s.n_reserve = 60
    s.draft_tokens = [1] * 20
    assert scheduler.step() == [(s, 4)]
    assert scheduler.n_preempted == 0


def test_blocks_of_rejected_tokens_are_freed():
    scheduler, s = decoding(n=15)
    s.draft_tokens = [1] * 30
    assert scheduler.step() == [(s, 31)]
    assert len(s.block_table) == 3
    s.tokens += [9]
    scheduler.advance(s, 1)
    assert len(s.block_table) == 1
    assert scheduler.pool.blocks.n_free == 11


def test_a_recurrent_state_is_kept_until_accepted_tokens_are_recomputed():
    scheduler, s = decoding(pool=(0, 3, 0, 0))
    before = s.slots.current
    s.draft_tokens = [1, 2, 3, 4]
    assert scheduler.step() == [(s, 5)]
    s.tokens += [1, 2, 9]
    scheduler.advance(s, 3)
    assert (s.slots.current, s.n_computed, s.n_recompute) == (before, 20, 3)
    assert s.state is SequenceState.DECODING
    s.draft_tokens = [5]
    assert scheduler.step() == [(s, 4)]
    assert s.draft_tokens == []
    s.tokens += [4]
    scheduler.advance(s, 4)
    assert (s.n_computed, s.n_recompute) == (24, 0)
    assert s.slots.current != before


def test_a_fully_accepted_draft_commits_the_state():
    scheduler, s = decoding(pool=(0, 3, 0, 0))
    before = s.slots.current
    s.draft_tokens = [1, 2]
    scheduler.step()
    s.tokens += [1, 2, 9]
    scheduler.advance(s, 3)
    assert (s.n_computed, s.n_recompute) == (23, 0)
    assert s.slots.current != before


def test_preempted_and_ended_sequences_have_no_draft_tokens():
    scheduler, s = decoding(pool=(4, 0, 0, 0))
    other = scheduler.add_request(Sequence(range(16), 40))
    outputs = {s.id: 99, other.id: 99}
    while not scheduler.n_preempted:
        guess(scheduler, 2)
        settle(scheduler, scheduler.step(), lambda s: 0, outputs)
    assert (other.draft_tokens, other.n_recompute) == ([], 0)
    assert other.state is SequenceState.PREEMPTED
    s.draft_tokens = [1]
    scheduler.finish(s)
    assert s.draft_tokens == []


def test_a_step_of_more_tokens_than_there_are_is_refused():
    scheduler, s = decoding()
    s.draft_tokens = [1, 2]
    scheduler.step()
    with pytest.raises(ConfigError, match="can't advance by 2"):
        scheduler.advance(s, 2)  # what came true is to be among its tokens first
    assert s.draft_tokens == [1, 2]
