"""Sequences with a common prefix share blocks: ids and counts alone."""

import pytest

from oxillama.errors import GenerateError
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.prefix_cache import LEAST_PART
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence
from tests.scheduling.stepping import compute, make, run, sequence

# ---- shared beginnings


def test_a_sequence_waits_for_a_long_shared_prefix():
    scheduler = make(budget=64)
    a, b = sequence(200, 3, cache_key="k"), sequence(190, 3, cache_key="k")
    other = sequence(200, 3, cache_key="k", first=7)
    for s in (a, b):
        scheduler.add_request(s)
    outputs = dict.fromkeys([a.id, b.id, other.id], 3)
    sizes = []
    while not b.finished:
        plan = scheduler.step()
        sizes += [n for s, n in plan if s is b]
        compute(scheduler, plan, outputs)
    assert sum(sizes) == 190 - 189 + 2  # eleven blocks of a and a part of the next, then two tokens of its own
    assert (scheduler.prefix.hit_tokens, scheduler.prefix.miss_tokens) == (189, 200 + 1)
    scheduler.add_request(other)
    assert scheduler.step() == [(other, 64)]


def test_a_waiting_sequence_starts_when_the_shared_prefix_is_cancelled():
    scheduler = make(budget=64)
    a, b = sequence(200, cache_key="k"), sequence(200, cache_key="k")
    for s in (a, b):
        scheduler.add_request(s)
    compute(scheduler, scheduler.step())
    assert not b.running
    scheduler.finish(a)
    assert scheduler.step() == [(b, 64)]
    assert b.n_computed == 64


@pytest.mark.parametrize("keys", [("k", "other"), ("k", None), (None, None)])
def test_sequences_of_different_keys_share_nothing(keys):
    scheduler = make()
    for key in keys:
        s = sequence(100, cache_key=key)
        scheduler.add_request(s)
        assert scheduler.step() == [(s, 100)]
        compute(scheduler, [(s, 100)])


def test_cached_blocks_are_evicted_for_running_sequences():
    scheduler = make(n_blocks=4)
    for first in range(5):
        s = sequence(60, cache_key="k", first=100 * first)
        scheduler.add_request(s)
        run(scheduler, {})
        assert scheduler.prefix.n_blocks == 4  # three full ones and the tail
    again = sequence(40, cache_key="k", first=400)
    scheduler.add_request(again)
    assert scheduler.step() == [(again, 1)]


def serve(scheduler, s):
    """Computes all of its tokens, which ends it: how many were computed, with what copies."""
    scheduler.add_request(s)
    plan = scheduler.step()
    copies = list(scheduler.copies)
    scheduler.copies.clear()
    compute(scheduler, plan)
    assert s.finished
    scheduler.blocks.check_invariants([])
    return sum(n for _, n in plan), copies


@pytest.mark.parametrize("n", [5, 7, 15, 16, 17, 21, 40])
def test_of_a_repeated_prompt_the_last_token_alone_is_computed(n):
    scheduler = make(n_blocks=8)
    assert serve(scheduler, sequence(n, cache_key="k")) == (n, [])
    for _ in range(3):
        n_computed, copies = serve(scheduler, sequence(n, cache_key="k"))
        assert (n_computed, len(copies)) == (1, int(n % 16 != 1))
        assert scheduler.prefix.n_blocks == n // 16 + (n % 16 > 1)
    assert serve(scheduler, sequence(n, cache_key="other")) == (n, [])


@pytest.mark.parametrize("n", range(1, LEAST_PART + 1))
def test_a_few_tokens_are_computed_again_and_not_copied(n):
    scheduler = make(n_blocks=8)
    serve(scheduler, sequence(n, cache_key="k"))
    assert scheduler.prefix.n_blocks == (n == LEAST_PART)
    assert serve(scheduler, sequence(n, cache_key="k")) == (n, [])


def test_a_prompt_continues_in_a_copy_of_a_tail():
    """Each prompt is the one before with five more tokens: the tail that it continues is dropped as it ends."""
    scheduler = make(n_blocks=8)
    for n in range(5, 100, 5):
        n_computed, copies = serve(scheduler, sequence(n, cache_key="k"))
        kept = (n - 5) % 16
        assert n_computed == 5 + (kept if kept < LEAST_PART else 0)
        assert len(copies) == (kept >= LEAST_PART)
        assert scheduler.prefix.n_blocks == n // 16 + (n % 16 >= LEAST_PART)
    branch = Sequence([*sequence(42).tokens, 1, 2], 44, cache_key="k")
    assert serve(scheduler, branch)[0] == 2
    assert scheduler.prefix.n_blocks == 6 + 1


def test_a_tail_that_a_longer_one_begins_with_is_kept_while_it_is_copied():
    scheduler = make(n_blocks=8)
    serve(scheduler, sequence(10, cache_key="k"))
    (tail,) = (node.ids[0] for node in scheduler.prefix.nodes())
    longer, other = sequence(14, 2, cache_key="k"), Sequence([*sequence(9).tokens, 99], 12, cache_key="k")
    for s in (longer, other):
        scheduler.add_request(s)
    assert scheduler.step() == [(longer, 4), (other, 1)]
    assert scheduler.copies == [(0, tail, longer.block_table[0]), (0, tail, other.block_table[0])]
    scheduler.copies.clear()
    compute(scheduler, [(longer, 4), (other, 1)], {longer.id: 2, other.id: 2})
    run(scheduler, {longer.id: 2, other.id: 2})
    tails = sorted(node.tokens for node in scheduler.prefix.nodes())
    assert tails == sorted([tuple(longer.tokens[:15]), tuple(other.tokens[:11])])
    scheduler.blocks.check_invariants([])


def test_a_block_that_another_sequence_writes_is_no_tail():
    """In a full pool there would be no block for the copy that it then needs."""
    scheduler = make(n_blocks=2)
    a = sequence(20, 12, cache_key="k")
    scheduler.add_request(a)
    compute(scheduler, scheduler.step(), {a.id: 12})
    b = Sequence([*a.tokens[:20], 99], 32, cache_key="k")
    scheduler.blocks.fork(a, b)
    scheduler.add_request(b)
    scheduler.cancel(b)
    run(scheduler, {a.id: 12})
    assert (a.finished, len(a.tokens)) == (True, 32)


def test_sequences_with_windows_or_recurrent_states_leave_no_tails():
    for pool in (SequencePool(8, n_slots=4), SequencePool(8, n_windowed=8, window=16)):
        scheduler = Scheduler(pool)
        serve(scheduler, sequence(10, cache_key="k"))
        assert scheduler.prefix.n_blocks == 0
        assert serve(scheduler, sequence(10, cache_key="k"))[0] == 10


def test_part_of_a_block_is_copied_and_the_rest_computed():
    scheduler = make(n_blocks=8)
    first = sequence(60, cache_key="k")
    scheduler.add_request(first)
    run(scheduler, {})
    known = [node.ids[0] for node in scheduler.prefix.find("k", first.tokens, 60)]
    for n in range(17, 48):  # as many tokens in common, and others after them
        if 0 < n % 16 < LEAST_PART:
            continue
        again = Sequence([*first.tokens[:n], 1, 2, 3], n + 3, cache_key="k")
        scheduler.add_request(again)
        assert scheduler.step() == [(again, 3)]
        whole = n // 16
        assert again.block_table[:whole] == known[:whole]
        copies = [(0, known[whole], again.block_table[whole])] if n % 16 else []
        assert scheduler.copies == copies
        assert known[whole] not in again.block_table
        scheduler.copies.clear()
        scheduler.cancel(again)
    scheduler.check_invariants([])
    other_key = Sequence(first.tokens[:40], 40, cache_key="other")
    scheduler.add_request(other_key)
    assert scheduler.step() == [(other_key, 40)]


def test_without_room_for_a_copy_only_whole_blocks_are_shared():
    scheduler = make(n_blocks=3)
    first = sequence(47, cache_key="k")
    scheduler.add_request(first)
    run(scheduler, {})
    scheduler.prefix.acquire(scheduler.prefix.find("k", first.tokens, 16))
    again = Sequence([*first.tokens[:25], 1], 26, cache_key="k")
    scheduler.add_request(again)
    assert scheduler.step() == [(again, 1)]
    scheduler.cancel(again)
    full = Sequence([*first.tokens[:25], *range(1000, 1022)], 47, cache_key="k")
    scheduler.add_request(full)
    assert scheduler.step() == [(full, 31)]


def test_a_preempted_sequence_finds_its_blocks_in_the_cache():
    scheduler = make(n_blocks=8)
    a, b = sequence(32, 60, cache_key="k"), sequence(32, 60, cache_key="k", first=500)
    for s in (a, b):
        scheduler.add_request(s)
    outputs = {a.id: 60, b.id: 60}
    while not b.preempted:
        compute(scheduler, scheduler.step(), outputs)
    before = scheduler.prefix.hit_tokens
    scheduler.finish(a)
    ((back, n),) = scheduler.step()
    assert back is b
    assert n < 32
    assert scheduler.prefix.hit_tokens == before  # its prompt was counted already


# ---- forks


@pytest.mark.parametrize("key", [None, "k"])
def test_forks_share_blocks_until_they_write(key):
    scheduler = make(n_blocks=12, budget=64)
    a = sequence(40, 9, cache_key=key)
    scheduler.add_request(a)
    outputs = {a.id: 9}
    compute(scheduler, scheduler.step(), outputs)
    forks = [Sequence(a.tokens, 49, cache_key=key) for _ in range(3)]
    for s in forks:
        outputs[s.id] = 8
        scheduler.blocks.fork(a, s)
        assert s.block_table == a.block_table
        scheduler.add_request(s)
    free = scheduler.pool.blocks.n_free
    plan = scheduler.step()
    assert [n for _, n in plan] == [1, 1, 1, 1]
    # Three had to part with the last block, which is copied for each; the last one to write has it for itself.
    last = {s.block_table[2] for s, _ in plan}
    assert len(last) == 4
    assert scheduler.pool.blocks.n_free == free - 3
    assert {block for _, source, target in scheduler.copies for block in (source, target)} == last
    assert len({s.block_table[1] for s, _ in plan}) == 1
    compute(scheduler, plan, outputs)
    run(scheduler, outputs)
    assert scheduler.pool.blocks.n_free == 12 - scheduler.prefix.n_blocks


def test_a_fork_under_another_key_shares_nothing():
    scheduler = make()
    a, b = sequence(40, 9, cache_key="k"), sequence(40, 9, cache_key="other")
    scheduler.add_request(a)
    compute(scheduler, scheduler.step(), {a.id: 9})
    scheduler.blocks.fork(a, b)
    assert (b.n_computed, b.block_table) == (0, [])


# ---- pauses


def test_a_paused_sequence_keeps_blocks_and_rank():
    scheduler = make(n_blocks=12, budget=64)
    a, b = sequence(40, 9), sequence(20, 9)
    scheduler.add_request(a)
    compute(scheduler, scheduler.step(), {a.id: 9})
    scheduler.pause(a)
    assert (scheduler.running, scheduler.live, scheduler.drain_finished()) == ([], {}, [])
    assert (a.n_computed, len(a.block_table)) == (40, 3)
    with pytest.raises(GenerateError):
        scheduler.pause(a)
    scheduler.add_request(b)
    a.tokens.append(1)
    scheduler.add_request(a, beside=a)
    assert [s for s, _ in scheduler.step()] == [a, b]
    assert a.rank < b.rank


def test_a_paused_sequence_loses_its_blocks_to_running_ones():
    scheduler = make(n_blocks=4)
    a, b = sequence(40), sequence(60)
    scheduler.add_request(a)
    compute(scheduler, scheduler.step(), {a.id: 9})
    scheduler.pause(a)
    scheduler.add_request(b)
    assert scheduler.step() == [(b, 60)]
    assert (a.n_computed, a.block_table) == (0, [])
