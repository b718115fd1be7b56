"""The amx tier: the bits of avx512 for quantised weights, its own order for BF16, in any thread and forked child."""

import numpy as np
import pytest

from oxillama.kernels import _check, _table
from oxillama.kernels.matmul import linear
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace
from tests.kernels.products import INTEGER, bf16, blocks, floats, gemm
from tests.processes import fork, in_child, in_threads

pytestmark = pytest.mark.skipif("amx" not in _table.usable_tiers(), reason="this machine has no AMX")

# Around the numbers from which tiles and whole groups are used, and of tokens that fill no tile.
SIZES = [1, 4, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 79, 80, 85, 113, 130]


@pytest.mark.parametrize("type", INTEGER)
@pytest.mark.parametrize("wide", [512, 1024])  # from which on 32, and 16 tokens go through tiles
def test_quantised_weights_give_the_bits_of_avx512(type, wide):
    k = wide + (32 if _check.packed_block(type)[0] == 32 else 0)
    rows, x = blocks(type, 150, k), floats(3, max(SIZES), k)
    for n in SIZES:
        below, tiles = (gemm(tier, type, rows, x[:n], 150) for tier in ("avx512", "amx"))
        assert (below.view(np.uint32) == tiles.view(np.uint32)).all(), n


def values_of_bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def in_order(w, x):
    """Chains over even and over odd columns of each 32, and their sum added: what gemm_bf16.c says of the instruction.

    Products of 8-bit significands and sums of these magnitudes are exact in double precision before each rounding.
    """
    sums = np.zeros((len(x), len(w)), np.float32)
    for first in range(0, w.shape[1], 32):
        chains = np.zeros((2, len(x), len(w)), np.float32)
        for i in range(first, min(first + 32, w.shape[1])):
            product = x[:, i, None].astype(np.float64) * w[None, :, i]
            chains[i % 2] = (chains[i % 2] + product).astype(np.float32)
        sums += chains[0] + chains[1]
    return sums


@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 63, 95, 160, 544, 1057])
def test_bf16_is_added_in_the_documented_order(k):
    random = np.random.default_rng(k)
    rows = (random.integers(0x3E00, 0x4100, (37, k)) | random.integers(0, 2, (37, k)) << 15).astype(np.uint16)
    x = random.uniform(-2, 2, (70, k)).astype(np.float32)
    expected = in_order(values_of_bf16(rows), bf16(x))
    for n in (1, 2, 5, 16, 17, 32, 33, 70):
        assert (gemm("amx", "bf16 rows", rows.view(np.uint8), x[:n], 37) == expected[:n]).all(), n


@fork
def test_threads_and_children_may_use_tiles():
    rows, x = blocks("Q8_0", 32, 1024), floats(5, 20, 1024)
    expected = gemm("amx", "Q8_0", rows, x, 32)

    def multiply():
        return (gemm("amx", "Q8_0", rows, x, 32) == expected).all()

    assert all(in_threads(multiply, multiply))
    assert in_child(multiply) == 0


@pytest.mark.parametrize("k", [31, 63, 95])
def test_rows_as_stored_end_with_their_own_last_column(k):
    """A row of 2 k bytes that fill a tile but for one value: what follows is the next row's, here NaN."""
    weights = np.ones((32, k), np.float32)
    weights[5, 0] = np.nan
    data = (weights.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
    x = Workspace(1).from_array(np.ones((1, k), np.float32))
    stored, packed = (linear(x, Matrix(data, "BF16", (32, k), repack=r)).numpy().copy() for r in (False, True))
    assert np.isnan(stored[0, 5])
    assert (np.delete(stored[0], 5) == k).all()
    np.testing.assert_array_equal(stored, packed)
