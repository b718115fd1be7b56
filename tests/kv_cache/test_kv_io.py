"""Keys and values saved from their blocks and restored, in blocks of any size."""

import numpy as np
import pytest

from oxillama.kernels.attention import KV_TYPES, KvSlab, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rows import Workspace
from oxillama.kv_cache.kv_io import hold_kv, n_panels, panel_shapes, panels_of, restore_kv, save_kv, values_of
from tests.kernels.paged_attention import normal, stored_in_four_bits

HEADS, K_DIM, V_DIM = 2, 12, 20


def slab_of(kv_type, block_tokens=16, n_blocks=8, dims=(K_DIM, V_DIM)):
    return KvSlab(kv_type, n_blocks, HEADS, block_tokens, *dims)


def fill(slab, seed):
    rng = np.random.default_rng(seed)
    for data in (slab.k, slab.v):
        data[:] = rng.integers(0, 256, data.shape, np.uint8)


def table_of(slab, n_tokens):
    n = -(-n_tokens // slab.block_tokens)
    return np.random.default_rng(1).permutation(slab.n_blocks)[:n].tolist()


def stored(slab, keys, values, n_tokens):
    """A table whose blocks hold these, as a model stores them."""
    table = table_of(slab, n_tokens)
    workspace = Workspace(1)
    batch = Batch([Span(range(n_tokens), 0, table)], workspace)
    rows = []
    for array in (keys, values):
        rows.append(workspace.new(n_tokens, HEADS * array.shape[-1]))
        rows[-1].numpy()[:] = array.reshape(n_tokens, -1)
    store(*rows, slab, batch)
    return table


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("n_tokens", [1, 16, 17, 45, 64, 100])
def test_panels_do_not_depend_on_the_size_of_blocks(kv_type, n_tokens):
    saved = None
    for block_tokens in (16, 32, 64, 128):
        slab = slab_of(kv_type, block_tokens)
        fill(slab, 0)
        table = table_of(slab, n_tokens)
        if saved is not None:
            restore_kv(slab, table, 0, saved)
        for first in sorted({0, n_panels(n_tokens) // 2, n_panels(n_tokens)}):
            pair = save_kv(slab, table, first, n_tokens)
            assert [a.shape for a in pair] == [(n_panels(n_tokens) - first, *shape) for shape in panel_shapes(slab)]
            if saved is not None:
                assert all(np.array_equal(a, b[first:]) for a, b in zip(pair, saved, strict=True))
        saved = save_kv(slab, table, 0, n_tokens)


@pytest.mark.parametrize("block_tokens", [16, 64])
@pytest.mark.parametrize(
    "table",
    [
        list(range(3, 15)),  # as they lie
        [*range(9), 12, 11, 10],
        [5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6],
        [0, 1, 2, 3, 9, 10, 11, 12, 4, 5, 6, 7],
        [7],
    ],
)
def test_held_panels_equal_saved_panels(table, block_tokens):
    slab = slab_of("f16", block_tokens, n_blocks=15)
    fill(slab, 0)
    for n_tokens in {1, len(table) * block_tokens, len(table) * block_tokens - 5, block_tokens + 1}:
        used = table[: -(-n_tokens // block_tokens)]
        for first in sorted({0, 1, n_panels(n_tokens) // 2, n_panels(n_tokens)} & {*range(n_panels(n_tokens) + 1)}):
            if n_tokens > len(table) * block_tokens:
                continue
            wanted = save_kv(slab, used, first, n_tokens)
            for held, panels in zip(hold_kv(slab, used, first, n_tokens), wanted, strict=True):
                assert held.shape == panels.shape
                assert np.array_equal(held[:], panels)
                assert b"".join(piece.tobytes() for piece in held.pieces()) == panels.tobytes()


def test_blocks_in_a_row_are_not_copied():
    slab = slab_of("f32", n_blocks=15)
    keys, _ = hold_kv(slab, [1, 2, 3, 4, 7, 8, 9, 10], 0, 8 * 16)
    pieces = list(keys.pieces())
    assert [len(piece) for piece in pieces] == [4, 4]
    assert all(np.shares_memory(piece, slab.k) for piece in pieces)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("n_tokens", [1, 5, 15, 17, 30])
def test_the_last_panel_has_no_values_of_other_sequences(kv_type, n_tokens):
    saved = []
    rng = np.random.default_rng(3)
    keys = rng.standard_normal((n_tokens, HEADS, K_DIM)).astype(np.float32)
    values = rng.standard_normal((n_tokens, HEADS, V_DIM)).astype(np.float32)
    for used in (False, True):
        slab = slab_of(kv_type)
        if used:  # by others before
            stored(slab, *(rng.standard_normal((128, HEADS, dim)).astype(np.float32) for dim in (K_DIM, V_DIM)), 128)
        table = stored(slab, keys, values, n_tokens)
        saved.append(save_kv(slab, table, 0, n_tokens))
    assert all(np.array_equal(a, b) for a, b in zip(*saved, strict=True))


@pytest.mark.parametrize("dims", [(K_DIM, V_DIM), (64, 96), (320, 576), (128, 0)])
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_values_of_panels_round_trip(kv_type, dims):
    n_tokens = 37
    rng = np.random.default_rng(5)
    keys, values = (normal(rng, (n_tokens, HEADS, dim)) for dim in dims)
    slab = slab_of(kv_type, dims=dims)
    found = values_of(slab, save_kv(slab, stored(slab, keys, values, n_tokens), 0, n_tokens), n_tokens)
    # Half of the last place: 2^-11 of a half; of 8 bits, half of the largest value's 127th, and a half's error of that.
    bound = {"f32": 0.0, "f16": 2.0**-11, "q8_0": 0.51 / 127 + 2.0**-11, "q4_0": 1e-6}[kv_type]
    for a, b in zip(found, (keys, values), strict=True):
        kept = stored_in_four_bits(b) if kv_type == "q4_0" and b.size else b
        assert np.abs(a - kept).max(initial=0) <= bound * np.abs(b).max(initial=0)
    if kv_type == "f32":
        assert all(
            np.array_equal(a, b)
            for a, b in zip(
                panels_of(slab, keys, values), save_kv(slab, table_of(slab, n_tokens), 0, n_tokens), strict=True
            )
        )
