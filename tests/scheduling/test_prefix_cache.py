"""The radix cache against a dictionary of prefixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.scheduling import prefix_cache
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.prefix_cache import BLOCK, STATE, PrefixKvCache

SIZE = 4


@pytest.fixture(scope="module", autouse=True)
def parts_of_any_length():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "LEAST_PART", 1)
        yield


def make(n_blocks=20):
    pool = SequencePool(n_blocks)
    return pool.blocks, PrefixKvCache(pool, SIZE)


def compute(pool, cache, tokens, key=""):
    """What a sequence does with its tokens: (path, table) of its full blocks."""
    path = cache.find(key, tokens, len(tokens))
    table = cache.acquire(path)[0]
    while len(table) < len(tokens) // SIZE:
        table += pool.alloc(1)
        cache.extend(key, tokens, path, [table])
    return path, table


def leave(pool, cache, path, table):
    cache.release(path)
    pool.free(table)


def test_a_longer_entry_serves_shorter_and_branching_prompts():
    pool, cache = make()
    leave(pool, cache, *compute(pool, cache, list(range(12))))
    whole = [n.ids[BLOCK] for n in cache.find("", list(range(12)), 12)]
    assert len(whole) == 3
    for tokens, n in (([*range(8)], 2), ([*range(9)], 2), ([*range(6), 99, 99], 1), ([*range(20)], 3), ([1, 2], 0)):
        assert [n.ids[BLOCK] for n in cache.find("", tokens, len(tokens))] == whole[:n]
    assert len(cache.find("", list(range(12)), 11)) == 2  # the last token is to be computed
    assert pool.n_free == 17


def test_prefixes_of_different_keys_never_match():
    pool, cache = make()
    tokens = list(range(8))
    leave(pool, cache, *compute(pool, cache, tokens, key=("lora", "f16", "tenant")))
    assert cache.find(("lora", "f16", None), tokens, 8) == []
    assert len(cache.find(("lora", "f16", "tenant"), tokens, 8)) == 2


def test_tokens_are_compared_and_not_only_their_hash():
    pool, cache = make()
    # hash(-1) == hash(-2) in CPython, so these tuples collide.
    assert hash((-1, 0, 0, 0)) == hash((-2, 0, 0, 0))
    leave(pool, cache, *compute(pool, cache, [-1, 0, 0, 0]))
    assert cache.find("", [-2, 0, 0, 0], 4) == []
    assert len(cache.find("", [-1, 0, 0, 0], 4)) == 1


def test_least_recently_used_leaves_are_evicted_first():
    pool, cache = make()
    a, b = [1] * 4 + [2] * 8, [1] * 4 + [3] * 8
    leave(pool, cache, *compute(pool, cache, a))
    leave(pool, cache, *compute(pool, cache, b))
    path, table = compute(pool, cache, a)
    leave(pool, cache, path, table)
    left = []
    while cache.evict(BLOCK, 1):
        left.append([len(cache.find("", t, 12)) for t in (a, b)])
        cache.check_invariants()
    assert left == [[3, 2], [3, 1], [2, 1], [1, 1], [0, 0]]
    assert (pool.n_free, cache._roots) == (20, {})


def test_acquired_nodes_are_not_evicted():
    pool, cache = make()
    path, table = compute(pool, cache, list(range(12)))
    leave(pool, cache, *compute(pool, cache, [7] * 8))
    assert cache.evict(BLOCK, 9) == 2
    assert [n.ids[BLOCK] for n in cache.find("", list(range(12)), 12)] == table
    cache.release(path, 2)
    pool.free(table[2:])
    assert cache.evict(BLOCK, 9) == 1
    assert (cache.n_blocks, cache.n_idle) == (2, 0)
    cache.check_invariants()


def test_two_sequences_with_the_same_tokens_end_up_with_one_copy():
    pool, cache = make()
    tokens = list(range(8))
    mine, path = pool.alloc(2), []
    other, other_path = pool.alloc(2), []
    for _ in range(2):
        cache.extend("", tokens, path, [mine])
        cache.extend("", tokens, other_path, [other])
    assert mine == other
    assert (pool.n_free, cache.n_blocks) == (18, 2)
    leave(pool, cache, path, mine)
    leave(pool, cache, other_path, other)
    cache.clear()
    assert pool.n_free == 20


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["compute", "leave", "end", "shorten", "evict"]),
            st.lists(st.integers(0, 1), max_size=14),
            st.sampled_from("ab"),
            st.integers(0, 3),
        ),
        max_size=40,
    )
)
def test_random_operations_agree_with_a_dictionary(steps):
    """Contents of blocks are followed: a path that is found always leads to the blocks of its tokens."""
    pool, cache = make(24)
    contents, held = {}, []
    for action, tokens, key, n in steps:
        if action == "compute":
            n_full = len(tokens) // SIZE
            found = cache.find(key, tokens, len(tokens))
            missing = n_full - len(found)
            table, path = cache.acquire(found)[0], found
            for i, block in enumerate(table):
                assert contents[block] == (key, tokens[: (i + 1) * SIZE])
            cache.evict(BLOCK, missing - pool.n_free)
            if missing > pool.n_free:
                leave(pool, cache, path, table)
                continue
            for i in range(len(table), n_full):
                table += pool.alloc(1)
                contents[table[i]] = (key, tokens[: (i + 1) * SIZE])
                cache.extend(key, tokens, path, [table])
            held.append((path, table, key, tokens))
            part, n_more = cache.match_partial(key, path, tokens, len(tokens))
            assert n_more == 0 or contents[part][1][: n_full * SIZE + n_more] == tokens[: n_full * SIZE + n_more]
            assert n_more <= len(tokens) % SIZE
        elif held and action == "leave":
            path, table, *_ = held.pop(n % len(held))
            leave(pool, cache, path, table)
        elif held and action == "end":
            path, table, its_key, its_tokens = held.pop(n % len(held))
            tail = tuple(its_tokens[len(table) * SIZE :])
            if tail and len(path) == len(its_tokens) // SIZE and pool.n_available:
                cache.evict(BLOCK, 1 - pool.n_free)
                (block,) = pool.alloc(1)
                contents[block] = (its_key, its_tokens)
                cache.keep_tail(its_key, tail, path, block)
                assert cache.match_partial(its_key, path, its_tokens, len(its_tokens))[1] == len(tail)
                table.append(block)
            leave(pool, cache, path, table)
        elif held and action == "shorten":
            path, table, *_ = held[n % len(held)]
            cache.release(path, n)
            pool.free(table[n:])
            del table[n:]
        elif action == "evict":
            cache.evict(BLOCK, n)
        cache.check_invariants()
        pool.check_invariants()
    for path, table, *_ in held:
        leave(pool, cache, path, table)
    assert pool.n_free == 24 - cache.n_blocks
    cache.clear()
    assert pool.n_free == 24


# ---- recurrent states


def leave_states(pool, cache, tokens, at):
    """A sequence that leaves a state after each number of blocks in `at`."""
    path, table = [], pool.blocks.alloc(len(tokens) // SIZE if pool.n_blocks else 0)
    for i in range(1, len(tokens) // SIZE + 1):
        cache.extend("", tokens, path, [table])
        if i in at:
            (slot,) = pool.slots.alloc(1)
            cache.add(STATE, path[-1], slot)
            pool.slots.free([slot])
    cache.release(path)
    pool.blocks.free(table)


@pytest.mark.parametrize("n_blocks", [0, 20])
def test_a_prefix_is_usable_up_to_its_last_state(n_blocks):
    pool = SequencePool(n_blocks, 9)
    cache = PrefixKvCache(pool, SIZE)
    tokens = list(range(20))
    leave_states(pool, cache, tokens, (2, 4))
    assert [len(cache.find("", tokens, n)) for n in (20, 17, 16, 15, 8, 7)] == [4, 4, 4, 2, 2, 0]
    # Without blocks, what follows the last state is of no use to anybody, and is gone.
    assert len(cache.match("", tokens, 20)) == (5 if n_blocks else 4)
    cache.check_invariants()
    assert cache.evict(STATE, 1) == 1  # the first to be left alone
    assert [len(cache.find("", tokens, n)) for n in (20, 15)] == [4, 0]
    assert cache.evict(STATE, 5) == 1
    assert len(cache.match("", tokens, 20)) == (5 if n_blocks else 0)
    cache.check_invariants()
    cache.clear()
    assert (pool.blocks.n_free, pool.slots.n_free, cache._roots) == (n_blocks, 9, {})


def test_a_state_goes_with_the_block_before_it_and_not_while_it_is_used():
    pool = SequencePool(3, 3)
    cache = PrefixKvCache(pool, SIZE)
    leave_states(pool, cache, list(range(12)), (1, 3))
    node = cache.find("", list(range(4)), 4)[0]
    pool.slots.share([node.ids[STATE]])
    assert cache.evict(STATE, 9) == 1
    assert cache.find("", list(range(12)), 12) == [node]
    cache.evict(BLOCK, 3)
    cache.check_invariants()
    assert (pool.blocks.n_free, pool.slots.n_free, pool.slots.n_kept) == (3, 2, 0)
