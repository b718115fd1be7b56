"""Tables of blocks: shared without a copy, and never written while shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.errors import ConfigError, KvCacheFullError


def test_a_fork_shares_every_block_until_both_gave_it_back():
    pool = ox.KvCachePool(4)
    table = pool.alloc(3)
    forked = pool.fork(table)
    assert forked == table
    assert forked is not table
    assert pool.n_free == 1
    pool.free(table)
    assert pool.n_free == 1
    pool.free(forked)
    assert pool.n_free == 4
    with pytest.raises(ConfigError, match="was freed before"):
        pool.free(forked)
    with pytest.raises(ConfigError, match="was freed before"):
        pool.fork(table)
    with pytest.raises(ConfigError, match="not of this pool"):
        pool.fork([4])


def test_only_blocks_with_other_users_are_replaced():
    pool = ox.KvCachePool(8)
    table = pool.alloc(3)
    forked = pool.fork(table[:2])
    before = list(table)
    assert pool.n_shared(table, 1, 3) == 1
    replaced = pool.own(table, 1, 3)
    assert [old for old, _ in replaced] == before[1:2]
    assert table == [before[0], replaced[0][1], before[2]]
    assert pool.own(table, 1, 3) == []
    assert pool.own(forked, 1, 2) == []  # its only user now
    pool.free(table)
    pool.free(forked)
    assert pool.n_free == 8
    pool.check_invariants()


def test_without_room_nothing_is_replaced():
    pool = ox.KvCachePool(3)
    table = pool.alloc(2)
    pool.fork(table)
    before = list(table)
    with pytest.raises(KvCacheFullError, match="2 KV blocks were asked for, 1 of 3 are free"):
        pool.own(table, 0, 2)
    assert table == before
    assert [pool.n_users(b) for b in table] == [2, 2]


def test_one_block_is_taken_or_exchanged_as_lists_are():
    pool, other = ox.KvCachePool(4), ox.KvCachePool(4)
    assert [pool.take(), pool.take()] == other.alloc(2)
    assert pool.n_free == other.n_free == 2
    pool.pin(1, "node")
    pool.free([1])
    assert pool.n_idle == 1
    pool.exchange(0, 1)
    assert [pool.n_users(i) for i in range(4)] == [0, 2, 0, 0]
    assert (pool.n_free, pool.n_idle) == (3, 0)
    pool.check_invariants()


@given(st.lists(st.tuples(st.sampled_from(["new", "fork", "own", "free"]), st.integers(0, 5)), max_size=60))
def test_users_are_counted(steps):
    pool = ox.KvCachePool(12)
    tables = []
    for action, n in steps:
        table = tables[n % len(tables)] if tables else None
        if action == "new" and n <= pool.n_free:
            tables.append(pool.alloc(n))
        elif table is not None and action == "fork":
            tables.append(pool.fork(table))
        elif table is not None and action == "own" and pool.n_shared(table, 0, 9) <= pool.n_free:
            before = list(table)
            replaced = dict(pool.own(table, 0, 9))
            assert [replaced.get(b, b) for b in before] == table
            assert all(pool.n_users(b) == 1 for b in table)
        elif table is not None and action == "free":
            pool.free(tables.pop(n % len(tables)))
        held = [b for t in tables for b in t]
        assert all(pool.n_users(b) == held.count(b) for b in range(12))
        pool.check_invariants()
