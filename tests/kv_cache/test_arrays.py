"""Memory of layer states, against sizes worked out by hand."""

import numpy as np
import pytest

from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.kernels.attention import KvSlab
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kv_cache.arrays import StateArrays, block_bytes, slot_bytes
from oxillama.layer_state import KvShape, RecurrentShape


@pytest.mark.parametrize(
    ("kv_type", "k_dim", "v_dim", "per_token"),
    [
        ("f32", 64, 64, 512),
        ("f16", 64, 64, 256),
        ("q8_0", 64, 64, 136),
        ("f32", 20, 20, 4 * (20 + 32)),
        ("q8_0", 20, 20, 34 + 34),
        ("f16", 192, 128, 2 * (192 + 128)),
        ("q8_0", 576, 512, (18 + 16) * 34),
        ("q4_0", 64, 64, 72),
        ("q4_0", 20, 80, 18 + 3 * 18),
    ],
)
def test_block_bytes(kv_type, k_dim, v_dim, per_token):
    states = [(KvShape(2, k_dim, v_dim),)] * 3
    assert block_bytes(states, 32, kv_type) == 3 * 2 * 32 * per_token
    arrays = StateArrays(states, kv_type=kv_type, block_tokens=32, n_blocks=5, n_slots=0)
    slabs = [slab for (slab,) in arrays.layers]
    assert arrays.kv_bytes == 5 * 3 * 2 * 32 * per_token == sum(s.k.nbytes + s.v.nbytes for s in slabs)
    assert all(s.k.ctypes.data % 64 == s.v.ctypes.data % 64 == 0 for s in slabs)
    assert arrays.recurrent_bytes == 0


def test_layers_of_different_shapes():
    states = [(KvShape(2, 8, 8), RecurrentShape(17)), (), (RecurrentShape(32),), (KvShape(1, 16, 4),)]
    assert slot_bytes(states) == 4 * (32 + 32)
    assert block_bytes(states, 16, "f32") == 4 * 16 * (2 * (8 + 16) + 16 + 16)  # values come in sixteens
    arrays = StateArrays(states, kv_type="f32", block_tokens=16, n_blocks=3, n_slots=7)
    assert [tuple(map(type, layer)) for layer in arrays.layers] == [
        (KvSlab, RecurrentSlab), (), (RecurrentSlab,), (KvSlab,),
    ]  # fmt: skip
    (kv, recurrent), (wide,) = arrays.layers[0], arrays.layers[2]
    assert (kv.n_heads, kv.k_dim, kv.v_dim, kv.n_blocks, kv.block_tokens) == (2, 8, 8, 3, 16)
    assert (recurrent.n_slots, recurrent.n_values, wide.n_values) == (7, 17, 32)
    assert arrays.recurrent_bytes == 7 * slot_bytes(states)


def test_too_large_arrays_are_refused():
    huge = {"kv_type": "f32", "block_tokens": 64}
    with pytest.raises(KvCacheFullError, match="lower kv_budget"):
        StateArrays([(KvShape(1 << 20, 1 << 15, 1 << 15),)], n_blocks=1 << 28, n_slots=0, **huge)
    with pytest.raises(KvCacheFullError, match=r"recurrent states.*lower kv_budget"):
        StateArrays([(RecurrentShape(1 << 30),)], n_blocks=0, n_slots=1 << 30, **huge)
    with pytest.raises(ConfigError, match="q4"):
        block_bytes([(KvShape(1, 16, 16),)], 16, "q4")
    with pytest.raises(ConfigError, match="0 slots of 5"):
        StateArrays([(RecurrentShape(5),)], n_blocks=0, n_slots=0, **huge)


def test_a_block_is_copied_in_all_layers():
    states = [(KvShape(2, 8, 8), RecurrentShape(17)), (), (KvShape(1, 16, 4),)]
    arrays = StateArrays(states, kv_type="q8_0", block_tokens=16, n_blocks=3, n_slots=3)
    slabs = [arrays.layers[0][0], arrays.layers[2][0]]
    for i, slab in enumerate(slabs):
        for j, values in enumerate((slab.k, slab.v)):
            values[:] = np.random.default_rng(2 * i + j).integers(0, 256, values.shape, np.uint8)
    arrays.layers[0][1].data[:] = np.arange(3)[:, None]
    before = [(slab.k.copy(), slab.v.copy()) for slab in slabs]
    arrays.copy_block(2, 0)
    for slab, (k, v) in zip(slabs, before, strict=True):
        assert (slab.k == k[[2, 1, 2]]).all()
        assert (slab.v == v[[2, 1, 2]]).all()
    assert arrays.layers[0][1].data[:, 0].tolist() == [0, 1, 2]  # slots are copied by `saving`
    for source, target in ((3, 0), (0, -1)):
        with pytest.raises(ConfigError, match="none of the model's 3"):
            arrays.copy_block(source, target)
