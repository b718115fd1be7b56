"""Recurrent states saved from their slots and restored, bit by bit."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kv_cache.arrays import StateArrays
from oxillama.kv_cache.kv_io import copy_state, restore_state, save_state
from oxillama.layer_state import KvShape, RecurrentShape

STATES = [(KvShape(1, 8, 8), RecurrentShape(5)), (RecurrentShape(33),), (KvShape(1, 8, 8),)]


@pytest.fixture
def arrays():
    arrays = StateArrays(STATES, kv_type="f32", block_tokens=16, n_blocks=1, n_slots=4)
    rng = np.random.default_rng(0)
    for slab in slabs(arrays):
        bits = rng.integers(0, 1 << 32, slab.data.shape, np.uint32)  # infinities, NaNs and tiny numbers too
        slab.data[:] = bits.view(np.float32)
    return arrays


def slabs(arrays):
    return arrays.layers[0][1], arrays.layers[1][0]


def bits(state):
    return [values.view(np.uint32).tolist() for values in state]


def everything(arrays):
    return [bits(save_state(arrays, slot)) for slot in range(4)]


def test_a_saved_state_is_restored_bit_by_bit(arrays):
    before = everything(arrays)
    saved = save_state(arrays, 2)
    assert [v.shape for v in saved] == [(5,), (33,)]
    for slab in slabs(arrays):
        slab.data[2] = 0
    assert bits(save_state(arrays, 2)) != before[2] == bits(saved)
    restore_state(arrays, 2, saved)
    assert everything(arrays) == before
    restore_state(arrays, 0, saved)
    assert everything(arrays) == [before[2], *before[1:]]


def test_a_state_is_copied_between_slots(arrays):
    before = everything(arrays)
    copy_state(arrays, 1, 3)
    assert everything(arrays) == [*before[:3], before[1]]


@pytest.mark.parametrize("slot", [-1, 4])
def test_slots_that_do_not_exist_are_refused(arrays, slot):
    before, saved = everything(arrays), save_state(arrays, 0)
    for use in (
        lambda: save_state(arrays, slot),
        lambda: restore_state(arrays, slot, saved),
        lambda: copy_state(arrays, slot, 0),
        lambda: copy_state(arrays, 0, slot),
    ):
        with pytest.raises(ConfigError, match=f"recurrent slot {slot} is none of the model's 4"):
            use()
    assert everything(arrays) == before


def test_states_of_another_model_change_nothing(arrays):
    before, (small, large) = everything(arrays), save_state(arrays, 0)
    for saved, why in (
        ([small], "1 recurrent layers; the model has 2"),
        ([small, large, large], "3 recurrent layers"),
        ([small, large[:-1]], r"layer 1 .* float32 \[32\]; the model's is float32 \[33\]"),
        ([small.reshape(1, 5), large], r"layer 0 .*\[1, 5\]"),
        ([small, large.astype(np.float64)], "layer 1 .*float64"),
    ):
        with pytest.raises(ConfigError, match=why):
            restore_state(arrays, 1, saved)
        assert everything(arrays) == before
