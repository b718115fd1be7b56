"""One matrix per head against each head's own product, and heads taken apart and put together against slices."""

import numpy as np
import pytest

from oxillama.errors import ConfigError, QuantError
from oxillama.kernels.heads import heads_matmul, join_heads, split_heads
from oxillama.kernels.matmul import linear, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("type", "n_in"), [("F32", 24), ("F16", 8), ("BF16", 40), ("Q8_0", 64), ("Q4_K", 256)])
@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 9])
def test_products_equal_those_of_each_head_alone(type, n_in, repack, heads):
    w = floats(1, heads, 21, n_in)
    stack = Matrix(quantize(w, type), type, w.shape, repack=repack)
    single = [Matrix(quantize(m, type), type, m.shape) for m in w]
    for n, threads in ((1, 1), (1, 2), (7, 3), (40, 2)):
        ws = Workspace(threads)
        x = floats(2, n, heads * n_in)
        got = heads_matmul(ws.from_array(x), stack).numpy()
        assert got.shape == (n, heads * 21)
        for h in range(heads):
            alone = linear(ws.from_array(x[:, h * n_in : (h + 1) * n_in]), single[h]).numpy()
            assert (got[:, h * 21 : (h + 1) * 21] == alone).all()


def test_enough_work_for_threads_changes_no_bit():
    w = floats(3, 12, 128, 64)
    x = floats(4, 96, 12 * 64)
    stack = Matrix(quantize(w, "Q8_0"), "Q8_0", w.shape)
    first, *others = (heads_matmul(Workspace(n).from_array(x), stack).numpy().copy() for n in (1, 2, 3, 5))
    for other in others:
        assert (other == first).all()


def test_the_input_stays_usable_as_whole_rows():
    """Its 8-bit twin as whole rows and that as heads are not mistaken for each other."""
    w, whole = floats(5, 2, 32, 32), floats(6, 48, 64)
    stack, matrix = (Matrix(quantize(a, "Q8_0"), "Q8_0", a.shape) for a in (w, whole))
    ws, x = Workspace(1), floats(7, 5, 64)
    rows = ws.from_array(x)
    before = linear(rows, matrix).numpy().copy()
    first, second = heads_matmul(rows, stack).numpy().copy(), heads_matmul(rows, stack).numpy().copy()
    assert (first == second).all()
    assert (linear(rows, matrix).numpy() == before).all()


def test_input_of_another_width_is_refused():
    ws = Workspace(1)
    stack = Matrix(quantize(floats(0, 2, 4, 32), "F32"), "F32", (2, 4, 32), name="blk.0.attn_k_b.weight")
    with pytest.raises(QuantError, match=r"attn_k_b.*input of width 96 for 2 heads of 32 values"):
        heads_matmul(ws.from_array(floats(1, 1, 96)), stack)


@pytest.mark.parametrize(("n", "heads", "first", "rest"), [(1, 1, 1, 1), (5, 3, 7, 2), (40, 1, 32, 8)])
def test_heads_are_split_and_joined(n, heads, first, rest):
    ws = Workspace(2)
    x = floats(8, n, heads * (first + rest))
    a, b = split_heads(ws.from_array(x), heads, first)
    by_head = x.reshape(n, heads, -1)
    assert (a.numpy() == by_head[:, :, :first].reshape(n, -1)).all()
    assert (b.numpy() == by_head[:, :, first:].reshape(n, -1)).all()
    assert (join_heads(a, b, heads).numpy() == x).all()


@pytest.mark.parametrize(("heads", "first"), [(0, 1), (-1, 1), (5, 1), (3, 0), (3, 4), (3, -1)])
def test_what_is_no_split_is_refused(heads, first):
    with pytest.raises(ConfigError, match=f"rows of 12 values can't be split into {heads} heads of {first} values"):
        split_heads(Workspace(1).from_array(floats(9, 2, 12)), heads, first)


@pytest.mark.parametrize(("a", "b", "heads"), [((2, 6), (3, 6), 2), ((2, 5), (2, 6), 2), ((2, 6), (2, 6), 0)])
def test_what_does_not_join_is_refused(a, b, heads):
    ws = Workspace(1)
    with pytest.raises(ConfigError, match=f"don't make {heads} heads"):
        join_heads(ws.from_array(floats(10, *a)), ws.from_array(floats(11, *b)), heads)
