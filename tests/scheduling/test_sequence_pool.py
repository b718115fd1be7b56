"""Blocks and slots in one pool: all requested ids, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.errors import ConfigError, KvCacheFullError


def free_of(pool):
    return pool.blocks.n_free, pool.slots.n_free


def test_blocks_and_slots_are_numbered_apart():
    pool = ox.SequencePool(3, 2)
    assert (pool.n_blocks, pool.n_slots) == (3, 2)
    blocks, slots = pool.acquire(3, 2)
    assert (sorted(blocks), sorted(slots)) == ([0, 1, 2], [0, 1])
    assert repr(pool) == "<SequencePool 0 of 3 KV blocks, 0 of 2 recurrent slots free>"
    pool.release([1], [1])
    assert pool.acquire(1, 1) == ([1], [1])


@pytest.mark.parametrize(("n_blocks", "n_slots", "what"), [(4, 1, "4 KV blocks"), (1, 3, "3 recurrent slots")])
def test_an_exhausted_pool_takes_none(n_blocks, n_slots, what):
    pool = ox.SequencePool(3, 2)
    with pytest.raises(KvCacheFullError, match=f"{what} were asked for"):
        pool.acquire(n_blocks, n_slots)
    assert free_of(pool) == (3, 2)
    with pytest.raises(ConfigError, match="at least 0"):
        pool.acquire(1, -1)
    assert free_of(pool) == (3, 2)


@pytest.mark.parametrize(
    ("blocks", "slots", "why"),
    [
        ([0, 3], [0], "KV block 3 is not of this pool"),
        ([0], [-1], "recurrent slot -1 is not of this pool"),
        ([0, 2], [0], "KV block 2 is not in use"),
        ([0], [0, 1], "recurrent slot 1 is not in use"),
        ([0, 0], [0], "a KV block is given twice"),
        ([0], [0, 0], "a recurrent slot is given twice"),
    ],
)
def test_a_wrong_release_frees_none(blocks, slots, why):
    pool = ox.SequencePool(3, 2)
    assert pool.acquire(2, 1) == ([0, 1], [0])
    with pytest.raises(ConfigError, match=why):
        pool.release(blocks, slots)
    assert free_of(pool) == (1, 1)
    pool.release([0], [0])
    with pytest.raises(ConfigError, match="is not in use"):
        pool.release([0])
    with pytest.raises(ConfigError, match="is not in use"):
        pool.release(slots=[0])


def test_a_model_without_one_kind_has_none_of_it():
    pool = ox.SequencePool(0, 4)
    assert pool.acquire(0, 2) == ([], [0, 1])
    with pytest.raises(KvCacheFullError, match="0 of 0 are free"):
        pool.acquire(1, 1)
    with pytest.raises(ConfigError, match="not -1"):
        ox.SequencePool(1, -1)


@given(st.integers(0, 6), st.integers(0, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 7))))
def test_no_id_is_lost_or_allocated_twice(n_blocks, n_slots, steps):
    pool = ox.SequencePool(n_blocks, n_slots)
    blocks, slots = [], []
    for take, b, s in steps:
        if not take:
            pool.release(blocks[:b], slots[:s])
            del blocks[:b], slots[:s]
        elif b <= n_blocks - len(blocks) and s <= n_slots - len(slots):
            new_blocks, new_slots = pool.acquire(b, s)
            assert len(new_blocks) == b
            assert len(new_slots) == s
            blocks += new_blocks
            slots += new_slots
        else:
            with pytest.raises(KvCacheFullError):
                pool.acquire(b, s)
        assert len(set(blocks)) == len(blocks)
        assert len(set(slots)) == len(slots)
        assert free_of(pool) == (n_blocks - len(blocks), n_slots - len(slots))
