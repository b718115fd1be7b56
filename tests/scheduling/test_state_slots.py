"""Checkpoints of recurrent states: their choice, and that no slot is lost or used twice."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oxillama.scheduling.pools import MAX_CHECKPOINTS, RefCountedPool, StateSlots


def owned(slots):
    """Every slot once, but that the newest checkpoint may be the current state."""
    ids = [*slots.spare, *(slot for _, slot in slots.checkpoints)]
    assert len(set(ids)) == len(ids)
    assert slots.current not in slots.spare
    return {*ids, slots.current} - {-1}


@pytest.mark.parametrize("n", [10, 200, 5000])
def test_rewinding_n_tokens_recomputes_about_n(n):
    """A checkpoint after each token: few are kept, but at distances that grow by about the same factor each."""
    slots, pool = StateSlots(), RefCountedPool(MAX_CHECKPOINTS + 3)
    slots.spare = pool.alloc(2)
    for i in range(n):
        slots.commit(pool)
        pool.free(slots.checkpoint(i + 1))
        assert len(slots.checkpoints) <= MAX_CHECKPOINTS
    kept = [at for at, _ in slots.checkpoints]
    assert kept[-1] == n
    for back in range(1, n):
        again = n - back - max((at for at in kept if at <= n - back), default=0)
        assert again <= 1.5 * n ** (1 / MAX_CHECKPOINTS) * back


@example(4, ["step", "keep", "lose"])
@given(
    st.integers(2, 8),
    st.lists(st.one_of(st.sampled_from(["step", "step", "keep", "lose", "drop"]), st.integers(0, 30)), max_size=60),
)
def test_checkpoints_agree_with_a_plain_model(n_slots, actions):
    """Every slot holds the number of tokens that it is the state of; what else the pool has is free."""
    pool, slots, n, holds = RefCountedPool(n_slots), StateSlots(), 0, {}
    for action in actions:
        if action == "step":
            slots.spare += pool.alloc(slots.n_missing(pool)) if slots.n_missing(pool) <= pool.n_free else []
            while slots.n_missing(pool) > 0:
                freed = slots.drop_checkpoint()
                pool.free(freed)
                slots.spare += pool.alloc(len(freed))
            read, write = slots.span()
            assert read != write
            assert holds.get(read, 0) == n
            holds[write] = n = n + 1
            slots.commit(pool)
        elif action == "keep" and n:
            pool.free(slots.checkpoint(n))
        elif action == "lose" and slots.checkpoints:
            pool.free(slots.drop_checkpoint())
        elif action == "drop":
            pool.free(slots.drop_spare())
        elif isinstance(action, int):
            best = max((at for at, _ in slots.checkpoints if at <= action), default=0)
            before, (n, freed) = n, slots.rewind(n, action)
            pool.free(freed)
            assert n == (before if before <= action else best)
        if n:
            assert holds[slots.current] == n
        assert (slots.current < 0) == (n == 0)
        assert [holds[slot] for _, slot in slots.checkpoints] == [at for at, _ in slots.checkpoints]
        assert [at for at, _ in slots.checkpoints] == sorted({at for at, _ in slots.checkpoints})
        assert pool.n_free + len(owned(slots)) == n_slots
