"""Workspaces, and operations on rows against numpy in float64."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.matmul import linear, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import (
    Vector,
    Workspace,
    add_,
    add_bias_,
    add_scaled_,
    clamp_,
    gate_sigmoid_,
    scale_,
    softcap_,
    take_rows,
    zeros,
)


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(params=[1, 3])
def workspace(request):
    return Workspace(request.param)


def test_elementwise(workspace):
    x, y, b = floats(0, 60, 200), floats(1, 60, 200), floats(2, 200)
    rows = workspace.from_array(x)
    add_(rows, workspace.from_array(y))
    add_bias_(rows, Vector(b))
    assert (rows.numpy() == (x + y) + b).all()
    g = floats(3, 60, 1)
    gate_sigmoid_(rows, workspace.from_array(g))
    np.testing.assert_allclose(rows.numpy(), (x + y + b) / (1 + np.exp(-g)), rtol=2e-6, atol=1e-6)
    assert (take_rows(workspace.from_array(x), np.array([5, 0, 5], np.int32)).numpy() == x[[5, 0, 5]]).all()
    assert (zeros(workspace, 3, 7).numpy() == 0).all()


@pytest.mark.parametrize("n", [1, 60])
def test_scaled_capped_and_clamped(workspace, n):
    x, y = 9 * floats(0, n, 201), floats(1, n, 201)
    wide, rows = x.astype(np.float64), workspace.from_array(x)
    add_scaled_(rows, workspace.from_array(y), 0.3)
    np.testing.assert_allclose(rows.numpy(), wide + 0.3 * y, rtol=1e-6, atol=1e-6)
    for change, number, expected in (
        (scale_, 0.3, x * np.float32(0.3)),
        (clamp_, 2.5, np.clip(x, -2.5, 2.5)),
        (softcap_, 5.0, 5 * np.tanh(wide / 5)),
    ):
        rows = workspace.from_array(x)
        change(rows, number)
        np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-6, atol=0)
        alone = workspace.from_array(x[-1:])
        change(alone, number)
        assert (alone.numpy() == rows.numpy()[-1]).all()


def test_what_does_not_fit_is_refused():
    ws = Workspace(1)
    x, other = ws.from_array(floats(0, 2, 12)), ws.from_array(floats(0, 3, 12))
    for add in (add_, lambda x, y: add_scaled_(x, y, 1.0)):
        with pytest.raises(ConfigError, match="2 x 12 and 3 x 12"):
            add(x, other)
    with pytest.raises(ConfigError, match="bias of 5 values for rows of 12"):
        add_bias_(x, Vector(floats(0, 5)))
    for number in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ConfigError, match="a limit of"):
            clamp_(x, number)
        with pytest.raises(ConfigError, match="a soft cap of"):
            softcap_(x, number)


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
