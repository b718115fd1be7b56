"""Norms against numpy in float64, on every tier, and from Python."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels import _check, _table
from oxillama.kernels.matmul import linear, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.norms import (
    layer_norm,
    layer_norm_,
    layer_norm_heads_,
    rms_norm,
    rms_norm_groups,
    rms_norm_heads_,
)
from oxillama.kernels.rows import Vector, Workspace

TIERS = _table.usable_tiers()
WIDTHS = [1, 2, 5, 8, 15, 16, 17, 31, 33, 64, 100, 257]


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rms(x, w, eps):
    x = x.astype(np.float64)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * w


def layer(x, w, b, eps):
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps)
    return y * (1 if w is None else w) + (0 if b is None else b)


@pytest.fixture(params=[1, 3])
def workspace(request):
    return Workspace(request.param)


@pytest.mark.parametrize("parts", ["", "w", "b", "wb"])
@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("tier", TIERS)
def test_layer_norm_of_a_tier(tier, n, parts):
    x, w, b, y = floats(1, n) + 3, floats(2, n), floats(3, n), np.zeros(n, np.float32)
    w, b = (v if name in parts else None for name, v in (("w", w), ("b", b)))
    view = [None if v is None else v.view(np.uint8) for v in (x, w, b, y)]
    _check.Tier(tier).layer_norm(*view, n, 1e-5)
    np.testing.assert_allclose(y, layer(x, w, b, 1e-5), rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_comes_out_as_nan(tier, bad):
    x, y = floats(0, 37), np.zeros(37, np.float32)
    x[30] = bad
    _check.Tier(tier).layer_norm(x.view(np.uint8), None, None, y.view(np.uint8), 37, 1e-5)
    assert np.isnan(y).all()


@pytest.mark.parametrize(("n", "dim"), [(1, 5), (3, 64), (200, 100)])
def test_whole_rows(workspace, n, dim):
    x, w, b = floats(0, n, dim), floats(1, dim), floats(2, dim)
    rows = workspace.from_array(x)
    near = {"rtol": 2e-6, "atol": 2e-6}
    np.testing.assert_allclose(rms_norm(rows, Vector(w), 1e-5).numpy(), rms(x, w, 1e-5), **near)
    np.testing.assert_allclose(layer_norm(rows, Vector(w), Vector(b), 1e-5).numpy(), layer(x, w, b, 1e-5), **near)
    np.testing.assert_allclose(layer_norm(rows, Vector(w), None, 1e-5).numpy(), layer(x, w, None, 1e-5), **near)
    np.testing.assert_allclose(layer_norm(rows, None, None, 1e-5).numpy(), layer(x, None, None, 1e-5), **near)
    assert (rows.numpy() == x).all()


@pytest.mark.parametrize(("n", "dim"), [(1, 5), (3, 64), (200, 100)])
@pytest.mark.parametrize("parts", ["", "wb"])
def test_layer_norm_in_place(workspace, n, dim, parts):
    w, b = (Vector(floats(i, dim)) for i in (1, 2)) if parts else (None, None)
    rows = workspace.from_array(floats(0, n, dim))
    expected = layer_norm(rows, w, b, 1e-5).numpy().copy()
    layer_norm_(rows, w, b, 1e-5)
    assert (rows.numpy() == expected).all()


def test_the_twin_of_what_stood_there_is_forgotten(workspace):
    matrix = Matrix(quantize(floats(3, 8, 64), "Q8_0"), "Q8_0", (8, 64))
    rows = workspace.from_array(floats(0, 3, 64))
    linear(rows, matrix)
    layer_norm_(rows, None, None, 1e-5)
    assert (linear(rows, matrix).numpy() == linear(workspace.from_array(rows.numpy()), matrix).numpy()).all()


@pytest.mark.parametrize("n", [1, 3, 200])
def test_groups_are_normalised_alone(workspace, n):
    x, w = floats(0, n, 3 * 44), floats(1, 3 * 44)
    expected = rms(x.reshape(n, 3, 44), w.reshape(3, 44), 1e-5).reshape(n, -1)
    got = rms_norm_groups(workspace.from_array(x), Vector(w), 3, 1e-5).numpy()
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)
    whole = rms_norm_groups(workspace.from_array(x), Vector(w), 1, 1e-5).numpy()
    assert (whole == rms_norm(workspace.from_array(x), Vector(w), 1e-5).numpy()).all()


@pytest.mark.parametrize("n", [1, 70])
def test_heads_share_their_weights(workspace, n):
    x, w = floats(0, n, 6 * 32), floats(1, 32)
    rows = workspace.from_array(x)
    rms_norm_heads_(rows, Vector(w), 1e-6)
    expected = rms(x.reshape(n, 6, 32), w, 1e-6).reshape(n, -1)
    np.testing.assert_allclose(rows.numpy(), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("n", [1, 70])
def test_layer_norm_of_heads_with_weights_of_their_own(workspace, n):
    x, w = floats(0, n, 6 * 33) + 2, floats(1, 6 * 33)
    rows = workspace.from_array(x)
    layer_norm_heads_(rows, Vector(w), 33, 1e-5)
    expected = layer(x.reshape(n, 6, 33), w.reshape(6, 33), None, 1e-5).reshape(n, -1)
    np.testing.assert_allclose(rows.numpy(), expected, rtol=2e-6, atol=2e-6)
    alone = workspace.from_array(x[-1:])
    layer_norm_heads_(alone, Vector(w), 33, 1e-5)
    assert (alone.numpy() == rows.numpy()[-1]).all()


NORMS = {
    "rms": lambda x, w, b, codes: rms_norm(x, w, 1e-5, codes),
    "layer": lambda x, w, b, codes: layer_norm(x, w, b, 1e-5, codes),
    "groups": lambda x, w, b, codes: rms_norm_groups(x, w, 3, 1e-5, codes),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_rows_alone_and_in_company(workspace, norm):
    x, w, b = floats(0, 90, 99), Vector(floats(1, 99)), Vector(floats(2, 99))
    together = norm(workspace.from_array(x), w, b, False).numpy()
    for i in (0, 41, 89):
        assert (norm(workspace.from_array(x[i : i + 1]), w, b, False).numpy() == together[i]).all()


@pytest.mark.parametrize("n", [1, 5, 300])
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_codes_are_those_made_afterwards(workspace, norm, n):
    m = Matrix(quantize(floats(3, 40, 96), "Q8_0"), "Q8_0", (40, 96))
    x, w, b = workspace.from_array(floats(0, n, 96)), Vector(floats(1, 96)), Vector(floats(2, 96))
    plain, both = norm(x, w, b, False), norm(x, w, b, True)
    assert (both.numpy() == plain.numpy()).all()
    assert (linear(both, m).numpy() == linear(plain, m).numpy()).all()


def test_what_does_not_fit_is_refused():
    x, w, short = Workspace(1).from_array(floats(0, 2, 12)), Vector(floats(1, 12)), Vector(floats(1, 5))
    with pytest.raises(ConfigError, match="5 weights for rows of 12"):
        rms_norm(x, short, 1e-5)
    with pytest.raises(ConfigError, match="5 weights for rows of 12"):
        layer_norm(x, short, None, 1e-5)
    with pytest.raises(ConfigError, match="5 biases for rows of 12"):
        layer_norm(x, w, short, 1e-5)
    with pytest.raises(ConfigError, match="no whole heads"):
        rms_norm_heads_(x, short, 1e-5)
    with pytest.raises(ConfigError, match="5 weights for rows of 12"):
        layer_norm_heads_(x, short, 4, 1e-5)
    for head_dim in (0, 5, -4):
        with pytest.raises(ConfigError, match=f"12 values are no whole heads of {head_dim}"):
            layer_norm_heads_(x, w, head_dim, 1e-5)
    for n_groups in (0, 5, -1):
        with pytest.raises(ConfigError, match=f"12 values don't make {n_groups} equal groups"):
            rms_norm_groups(x, w, n_groups, 1e-5)
    nothing = Vector(np.zeros(0, np.float32))
    with pytest.raises(ConfigError, match="no whole heads"):
        rms_norm_heads_(x, nothing, 1e-5)
    with pytest.raises(ConfigError, match="0 values don't make 1 equal groups"):
        rms_norm_groups(Workspace(1).from_array(np.zeros((2, 0), np.float32)), nothing, 1, 1e-5)
