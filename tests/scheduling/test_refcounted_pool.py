"""The pool allocates no block twice, and frees only its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.scheduling.pools import RefCountedPool


def test_all_blocks_can_be_allocated_once():
    pool = RefCountedPool(5)
    got = pool.alloc(2) + pool.alloc(3)
    assert sorted(got) == [0, 1, 2, 3, 4]
    assert pool.n_free == 0


def test_a_too_large_allocation_takes_none_and_names_the_numbers():
    pool = RefCountedPool(4, "KV block")
    pool.alloc(1)
    with pytest.raises(KvCacheFullError, match=r"4 KV blocks.*3 of 4 are free") as e:
        pool.alloc(4)
    assert isinstance(e.value, MemoryError)
    assert pool.n_free == 3
    assert len(pool.alloc(3)) == 3


def test_an_allocation_of_zero_blocks_is_empty():
    assert RefCountedPool(1).alloc(0) == []


@pytest.mark.parametrize("blocks", [[3], [-1], [0, 3]])
def test_a_foreign_block_is_refused(blocks):
    pool = RefCountedPool(3)
    pool.alloc(3)
    with pytest.raises(ConfigError, match="not of this pool"):
        pool.free(blocks)
    assert pool.n_free == 0


def test_a_block_freed_twice_is_refused():
    pool = RefCountedPool(3)
    a, b = pool.alloc(2)
    pool.free([a])
    with pytest.raises(ConfigError, match=f"block {a} is not in use"):
        pool.free([b, a])
    assert pool.n_free == 2
    with pytest.raises(ConfigError, match="twice"):
        pool.free([b, b])
    pool.free([b])
    assert pool.n_free == 3


def test_no_negative_pools():
    with pytest.raises(ConfigError, match="at least 0 slots, not -1"):
        RefCountedPool(-1, "slot")


def test_an_empty_pool():
    pool = RefCountedPool(0)
    assert pool.alloc(0) == []
    with pytest.raises(KvCacheFullError, match="1 blocks were asked for, 0 of 0"):
        pool.alloc(1)
    with pytest.raises(ConfigError, match="not of this pool"):
        pool.free([0])


def test_a_negative_count_is_refused():
    with pytest.raises(ConfigError, match="-1"):
        RefCountedPool(2).alloc(-1)


@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=40))
def test_owned_and_free_blocks_are_always_all_blocks(n_blocks, steps):
    pool = RefCountedPool(n_blocks)
    owned = []
    for take, n in steps:
        if take and n <= pool.n_free:
            got = pool.alloc(n)
            assert len(got) == n
            assert not set(got) & set(owned)
            owned += got
        elif not take:
            pool.free(owned[:n])
            del owned[:n]
        assert pool.n_free + len(owned) == n_blocks
    assert sorted(owned + pool.alloc(pool.n_free)) == list(range(n_blocks))


def test_a_shared_block_is_free_with_its_last_reference():
    pool = RefCountedPool(2)
    (a,) = pool.alloc(1)
    pool.share([a])
    pool.free([a])
    assert (pool.n_users(a), pool.n_free) == (1, 1)
    pool.check_invariants()
    pool.free([a])
    assert (pool.n_users(a), pool.n_free) == (0, 2)
    with pytest.raises(ConfigError, match=f"block {a} is not in use"):
        pool.share([a])
    with pytest.raises(ConfigError, match="not of this pool"):
        pool.n_users(2)


def test_check_invariants_finds_faults():
    pool = RefCountedPool(2)
    pool._free.append(0)
    with pytest.raises(AssertionError, match="twice"):
        pool.check_invariants()
    pool = RefCountedPool(2)
    pool.users[1] = 1
    with pytest.raises(AssertionError, match="block 1 has 1 users"):
        pool.check_invariants()
