"""Workspaces, and operations on rows against numpy in float64."""

import numpy as np
import pytest

from oxillama.kernels.matmul import Matrix, linear, quantize
from oxillama.kernels.rows import (
    Vector,
    Workspace,
    add_,
    add_bias_,
    gate_sigmoid_,
    rms_norm,
    rms_norm_heads_,
    swiglu_,
    take_rows,
    zeros,
)


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(params=[1, 3])
def workspace(request):
    return Workspace(request.param)


@pytest.mark.parametrize(("n", "dim"), [(1, 5), (3, 64), (200, 100)])
def test_rms_norm(workspace, n, dim):
    x, w = floats(0, n, dim), floats(1, dim)
    expected = x / np.sqrt(np.square(x.astype(np.float64)).mean(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(
        rms_norm(workspace.from_array(x), Vector(w), 1e-5).numpy(), expected, rtol=2e-6, atol=1e-7
    )


def test_rms_norm_of_heads(workspace):
    x, w = floats(0, 70, 6 * 32), floats(1, 32)
    heads = x.reshape(70, 6, 32).astype(np.float64)
    expected = heads / np.sqrt(np.square(heads).mean(-1, keepdims=True) + 1e-6) * w
    rows = workspace.from_array(x)
    rms_norm_heads_(rows, Vector(w), 1e-6)
    np.testing.assert_allclose(rows.numpy(), expected.reshape(70, -1), rtol=2e-6, atol=1e-7)


def test_elementwise(workspace):
    x, y, b = floats(0, 60, 200), floats(1, 60, 200), floats(2, 200)
    rows = workspace.from_array(x)
    add_(rows, workspace.from_array(y))
    add_bias_(rows, Vector(b))
    assert (rows.numpy() == (x + y) + b).all()
    gate = swiglu_(workspace.from_array(x), workspace.from_array(y))
    np.testing.assert_allclose(gate.numpy(), x / (1 + np.exp(-x.astype(np.float64))) * y, rtol=2e-6, atol=1e-7)
    g = floats(3, 60, 1)
    gate_sigmoid_(rows, workspace.from_array(g))
    np.testing.assert_allclose(rows.numpy(), (x + y + b) / (1 + np.exp(-g)), rtol=2e-6, atol=1e-6)
    assert (take_rows(workspace.from_array(x), np.array([5, 0, 5], np.int32)).numpy() == x[[5, 0, 5]]).all()
    assert (zeros(workspace, 3, 7).numpy() == 0).all()


def test_memory_is_handed_out_once_and_taken_back():
    w = Workspace(1, 4096)
    a = w.from_array(floats(0, 4, 16))
    kept = a.numpy().copy()
    mark = w.mark()
    big = [w.from_array(floats(i, 100, 64)) for i in range(5)]
    for i, rows in enumerate(big):
        assert (rows.numpy() == floats(i, 100, 64)).all()
        assert rows.numpy().ctypes.data % 64 == 0
    w.release(mark)
    again = w.new(2, 2).numpy()
    assert (a.numpy() == kept).all()
    assert not np.shares_memory(again, a.numpy())
    w.reset()
    held = w.nbytes
    for _ in range(3):
        w.reset()
        for i in range(5):
            w.from_array(floats(i, 100, 64))
    assert w.nbytes == held


def test_views_outlive_their_workspace():
    view = Workspace(1).from_array(floats(0, 3, 3)).numpy()
    assert (view == floats(0, 3, 3)).all()


def test_quantised_twin_does_not_outlive_its_memory():
    """A row made before a mark, quantised after it, and used again when that memory has been taken back."""
    w = Workspace(1, 1 << 16)
    m = Matrix(quantize(floats(1, 16, 64), "Q8_0"), "Q8_0", (16, 64))
    x = w.from_array(floats(0, 2, 64))
    mark = w.mark()
    first = linear(x, m).numpy().copy()
    w.release(mark)
    for i in range(20):
        w.from_array(floats(i, 8, 64))
    assert (linear(x, m).numpy() == first).all()
