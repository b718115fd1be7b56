"""What the gated delta rule takes and refuses; `test_ssm` has what it computes."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.delta import Delta, delta
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Workspace
from tests.kernels.delta_layer import AT, EPS, DeltaLayer
from tests.kernels.ssm_layers import T, floats, run

SIZES = {"k_dim": 8, "n_keys": 2, "eps": 1e-6, "neighbours": True}


@pytest.mark.parametrize(
    ("heads", "biases", "norm", "changed"),
    [
        (0, 0, 16, {}), (4, 3, 16, {}), (4, 4, 0, {}), (3, 3, 16, {}),
        (4, 4, 16, {"k_dim": 0}), (4, 4, 16, {"n_keys": 0}), (4, 4, 16, {"n_keys": -2}), (4, 4, 16, {"k_dim": -8}),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(heads, biases, norm, changed):
    with pytest.raises(ConfigError, match="a delta rule of"):
        Delta(floats(0, heads), floats(1, biases), floats(2, norm), **SIZES | changed)


def test_sizes():
    rule = Delta(floats(0, 4), floats(1, 4), floats(2, 19), **SIZES)
    assert (rule.n_heads, rule.n_keys, rule.k_dim, rule.v_dim) == (4, 2, 8, 19)
    assert rule.n_values == 4 * (32 * 8 + 16)  # columns in panels of 16, and a factor


def test_columns_that_do_not_fit():
    ws, slab = Workspace(1), RecurrentSlab(2, 20000)
    batch = Batch([Span(range(4), 0, [], slots=(-1, 1))], ws)
    rule = Delta(floats(0, 4), floats(1, 4), floats(2, 16), **SIZES)
    good = (96, 64, 4, 4)
    for place in range(4):
        sizes = [n + (i == place) for i, n in enumerate(good)]
        with pytest.raises(ConfigError, match="a delta rule of 4 heads needs rows of 96 values"):
            delta(*(ws.from_array(floats(0, 4, n)) for n in sizes), rule, 0, slab, batch)
        rows = [ws.from_array(floats(0, 4 - (i == place), n)) for i, n in enumerate(good)]
        with pytest.raises(ConfigError, match="rows for a batch of 4"):
            delta(*rows, rule, 0, slab, batch)
    for at in (8, -16, 20000 - 16, 2**63 - 64):
        with pytest.raises(ConfigError, match=f"576 values at {at} of a slot"):
            delta(*(ws.from_array(floats(0, 4, n)) for n in good), rule, at, slab, batch)


@pytest.mark.parametrize("steps", [-200.0, 200.0])
def test_nothing_or_everything_is_forgotten(steps):
    layer = DeltaLayer(2, 1, 16, 16, T)
    layer.x[:, -4:-2] = steps
    expected = layer.expected()
    np.testing.assert_allclose(run(layer, [T])[0], expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_a_key_brings_back_its_value():
    """Without forgetting and with beta 1, what was last stored under a key is what a query like it gets."""
    layer = DeltaLayer(1, 1, 8, 16, 3)
    layer.x[:, -2], layer.x[:, -1] = -200, 200
    keys, values = np.eye(8, dtype=np.float32), floats(3, 3, 16)
    layer.x[:, 8:16], layer.x[:, 16:32] = keys[[0, 1, 0]], values
    layer.x[2, :8] = keys[1]
    _, state = run(layer, [3])
    np.testing.assert_allclose(state[AT : AT + 8 * 16].reshape(8, 16)[:2], values[[2, 1]], atol=5e-6)


def test_zeros_have_no_direction():
    """A key or a query of zeros, as an unused channel leaves, is no division by zero."""
    layer = DeltaLayer(2, 1, 8, 16, T)
    layer.x[:, :16] = 0
    assert (run(layer, [T])[0] == 0).all()


def test_the_product_of_decays_stays_in_bounds():
    """What the state is multiplied by is kept beside it; where it would become too small, it is multiplied in."""
    layer = DeltaLayer(1, 1, 8, 16, T)
    layer.a = np.full(1, -1.0, np.float32)
    layer.rule = Delta(layer.a, layer.bias, layer.norm, k_dim=8, n_keys=1, eps=EPS, neighbours=False)
    layer.x[:, -2] = 3 - layer.bias  # a decay of about 1/21
    products, whole = [], run(layer, [T])[0]
    for n in range(1, T):
        y, state = run(layer, [n])
        products.append(state[AT + 8 * 16])
        assert (y == whole[:n]).all()
    assert 2.0**-40 <= min(products) < 2.0**-35
    assert [i for i, p in enumerate(products) if p == 1] == [9, 19, 29, 39]  # 21^-9 > 2^-40 > 21^-10
    expected = layer.expected()
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
