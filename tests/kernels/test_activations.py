"""Activations against numpy in float64: every tier over the whole range of floats, then from Python."""

import math

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels import _check, _table
from oxillama.kernels.activations import (
    geglu_,
    geglu_erf_,
    gelu_,
    gelu_erf_,
    reglu_,
    relu2_,
    relu_,
    sigmoid_,
    silu_,
    softplus_,
    swiglu_,
    swiglu_limited_,
    swiglu_oai_,
    xielu_,
)
from oxillama.kernels.matmul import linear, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace, mul_, mul_heads_

TIERS = _table.usable_tiers()
WIDTHS = [1, 2, 5, 8, 15, 16, 17, 31, 33, 64, 100, 257]
EPS = np.finfo(np.float32).eps


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x):
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu_erf(x):
    return 0.5 * x * np.vectorize(math.erfc)(-x / math.sqrt(2))


def relu(x):
    return np.where(x < 0, 0, x)


def relu2(x):
    return np.where(x < 0, 0, x) ** 2


def swiglu_oai(g, u, alpha=1.702, limit=7.0):
    g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    return g * sigmoid(alpha * g) * (u + 1)


def swiglu_limited(g, u, limit=1.25):
    return np.minimum(silu(g), limit) * np.clip(u, -limit, limit)


PLAIN = {"silu": silu, "gelu": gelu, "gelu_erf": gelu_erf, "relu": relu, "relu2": relu2}
GATED = {
    "swiglu": lambda g, u: silu(g) * u,
    "geglu": lambda g, u: gelu(g) * u,
    "geglu_erf": lambda g, u: gelu_erf(g) * u,
    "reglu": lambda g, u: np.maximum(g, 0) * u,
    "swiglu_limited": swiglu_limited,
    "swiglu_oai": swiglu_oai,
}
NUMBERS = {"swiglu_oai": (1.702, 7.0), "swiglu_limited": (1.25,)}
FUNCTIONS = {"silu": silu_, "gelu": gelu_, "gelu_erf": gelu_erf_, "relu": relu_, "relu2": relu2_}
GATED_FUNCTIONS = {
    "swiglu": swiglu_,
    "geglu": geglu_,
    "geglu_erf": geglu_erf_,
    "reglu": reglu_,
    "swiglu_limited": lambda gate, up: swiglu_limited_(gate, up, 1.25),
    "swiglu_oai": swiglu_oai_,
}


def run(tier, name, x, *numbers):
    """A slot that changes a row in place."""
    y = np.array(x, np.float32)
    getattr(_check.Tier(tier), name)(y.view(np.uint8), *numbers, len(y))
    return y


def run_gated(tier, name, g, u):
    y = np.zeros(len(g), np.float32)
    more = NUMBERS.get(name, ())
    getattr(_check.Tier(tier), name)(
        *(np.array(v, np.float32).view(np.uint8) for v in (g, u)), y.view(np.uint8), len(g), *more
    )
    return y


# Where tails, differences and polynomials of different ranges show. The exponential of gelu's tail multiplies the last
# digit of its argument by its size, up to 80; values are below 1e-3 there.
@pytest.mark.parametrize(("low", "high", "of_gelu"), [(-0.7, 0.7, 4), (-3, 3, 8), (0.1, 30, 4), (-13, 0, 100)])
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("tier", TIERS)
def test_relative_errors(tier, name, low, high, of_gelu):
    x = np.linspace(low, high, 20001, dtype=np.float32)
    expected = PLAIN[name](x.astype(np.float64))
    error = (np.abs(run(tier, name, x) - expected) / np.maximum(np.abs(expected), 1e-30)).max()
    assert error <= (of_gelu if name == "gelu" else 4) * EPS, error / EPS


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("tier", TIERS)
def test_extreme_values(tier, name):
    x = np.array([0, 1e-40, -1e-40, 1e-30, 50, -50, 87, -88, -89, 1e5, -1e5, 1e18, -3e18, -1e38, -3.4e38], np.float32)
    np.testing.assert_allclose(run(tier, name, x), PLAIN[name](x.astype(np.float64)), rtol=4 * EPS, atol=1e-30)
    with np.errstate(over="ignore"):
        largest = np.float32(PLAIN[name](np.float64(3.4e38)))
    y = run(tier, name, [3.4e38, np.nan, 1, np.inf, -np.inf, -1e30])
    assert y[0] == largest
    assert np.isnan(y[1])
    assert y[3] == np.inf
    assert y[4] == 0 if name in ("relu", "relu2") else np.isnan(y[4])
    assert np.isfinite(y[[2, 5]]).all()


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("tier", TIERS)
def test_gated(tier, name, n):
    g, u = 6 * floats(n, n), 6 * floats(n + 1, n)
    expected = GATED[name](g.astype(np.float64), u.astype(np.float64))
    np.testing.assert_allclose(run_gated(tier, name, g, u), expected, rtol=40 * EPS, atol=EPS)


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("tier", TIERS)
def test_gated_keeps_nan(tier, name):
    y = run_gated(tier, name, [np.nan, 1, -1e30, 1] * 5, [1, np.nan, 1, 1] * 5).reshape(5, 4)
    assert np.isnan(y[:, :2]).all()
    assert (y[:, 2] == 0).all()
    assert np.isfinite(y[:, 3]).all()


@pytest.mark.parametrize("tier", TIERS)
def test_clamps_of_gpt_oss(tier):
    y = run_gated(tier, "swiglu_oai", [100, np.inf, 2, 2, -3], [0, 0, 50, -50, 1])
    expected = swiglu_oai(np.array([7, 7, 2, 2, -3.0]), np.array([0, 0, 7, -7, 1.0]))
    np.testing.assert_allclose(y, expected, rtol=4 * EPS)


@pytest.mark.parametrize("tier", TIERS)
def test_limits_of_step(tier):
    """The gate is bounded after the activation and from above alone, the other from both sides."""
    y = run_gated(tier, "swiglu_limited", [100, np.inf, 2, 2, -3, -100], [1, -1, 50, -50, 1, 50])
    expected = swiglu_limited(np.array([100, 100, 2, 2, -3.0, -100]), np.array([1, -1, 50, -50, 1.0, 50]))
    np.testing.assert_allclose(y, expected, rtol=4 * EPS, atol=1e-30)


XIELU = (0.9, 1.4, 0.5, -1e-6)


def xielu(x, p, q, beta, eps):
    return np.where(x > 0, p * x * x, q * (np.expm1(np.minimum(x, eps)) - x)) + beta * x


@pytest.mark.parametrize("numbers", [XIELU, (0.01, 3.0, 0.2, 0.0), (2.0, 0.3, -0.4, -0.25)])
@pytest.mark.parametrize("tier", TIERS)
def test_xielu(tier, numbers):
    """Absolute errors of the size of the input, where the function crosses zero; larger eps is seen from above."""
    for low, high in ((-1e-3, 1e-3), (-0.7, 0.7), (-30, 30)):
        x = np.linspace(low, high, 20001, dtype=np.float32)
        expected = xielu(x.astype(np.float64), *numbers)
        scale = np.maximum(np.abs(expected), np.maximum(np.abs(x), abs(numbers[3])))
        assert (np.abs(run(tier, "xielu", x, *numbers) - expected) <= 8 * EPS * scale).all()


@pytest.mark.parametrize("tier", TIERS)
def test_extremes_of_xielu(tier):
    """Both sides rise without end, since the second number is larger than the third."""
    x = np.array([np.nan, np.inf, -np.inf, 0, 1e-45, -1e-45, -50, -200, -1e30, 1e15], np.float32)
    y = run(tier, "xielu", x, *XIELU)
    assert np.isnan(y[0])
    assert (y[1:3] == np.inf).all()
    np.testing.assert_allclose(y[3:], xielu(x[3:].astype(np.float64), *XIELU), rtol=8 * EPS, atol=1e-12)


def test_numbers_of_xielu_that_are_none():
    x = Workspace(1).from_array(floats(0, 2, 12))
    for numbers in (
        (1.0, 1.0, 0.5, 1e-6),
        (math.nan, 1.0, 0.5, 0.0),
        (1.0, math.inf, 0.5, 0.0),
        (1.0, 1.0, 0.5, -math.inf),
    ):
        with pytest.raises(ConfigError, match="finite numbers are needed, and eps at most 0"):
            xielu_(x, *numbers)


@pytest.mark.parametrize("tier", TIERS)
def test_sigmoid_and_softplus(tier):
    x = np.concatenate([np.linspace(-85, 85, 20001), [0, 1e-30, -1e-30]]).astype(np.float32)
    exact = x.astype(np.float64)
    for name, expected in (("sigmoid", sigmoid(exact)), ("softplus", np.logaddexp(0, exact))):
        assert (np.abs(run(tier, name, x) - expected) / expected).max() <= 4 * EPS
        y = run(tier, name, [np.nan, np.inf, -np.inf, 3e38, -3e38, 1])
        assert np.isnan(y[0])
        np.testing.assert_allclose(y[1:5], [1, 0, 1, 0] if name == "sigmoid" else [np.inf, 0, 3e38, 0], rtol=EPS)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("tier", TIERS)
def test_products(tier, n):
    x, y = floats(n, n), floats(n + 1, n)
    got = y.copy()
    _check.Tier(tier).mul(x.view(np.uint8), got.view(np.uint8), n)
    assert (got == x * y).all()


def test_gates_of_rows():
    """Every value or every head of a row by its own factor, in one thread and in several."""
    x, g = floats(0, 7, 24), floats(1, 7, 24)
    for threads in (1, 3):
        ws = Workspace(threads)
        rows = ws.from_array(x)
        mul_(rows, ws.from_array(g))
        assert (rows.numpy() == x * g).all()
        rows = ws.from_array(x)
        mul_heads_(rows, ws.from_array(g[:, :3]))
        assert (rows.numpy() == x * np.repeat(g[:, :3], 8, axis=1)).all()
        with pytest.raises(ConfigError, match="7 x 24 and 7 x 5"):
            mul_heads_(rows, ws.from_array(g[:, :5]))
        with pytest.raises(ConfigError, match="7 x 24 and 6 x 24"):
            mul_(rows, ws.from_array(g[:6]))
        for change, function in ((sigmoid_, sigmoid), (softplus_, lambda v: np.logaddexp(0, v))):
            rows = ws.from_array(x)
            change(rows)
            np.testing.assert_allclose(rows.numpy(), function(x.astype(np.float64)), rtol=8 * EPS)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("tier", TIERS)
def test_scale_cap_and_clamp(tier, n):
    x = 40 * floats(n, n)
    assert (run(tier, "scale", x, 0.3) == x * np.float32(0.3)).all()
    assert (run(tier, "clamp", x, 12.5) == np.clip(x, -12.5, 12.5)).all()
    expected = 30 * np.tanh(x.astype(np.float64) / 30)
    np.testing.assert_allclose(run(tier, "softcap", x, 30), expected, rtol=6 * EPS)


@pytest.mark.parametrize("tier", TIERS)
def test_caps_of_what_is_not_finite(tier):
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 0] * 5, np.float32)
    with np.errstate(all="ignore"):
        for y in (run(tier, "softcap", x, 30), run(tier, "clamp", x, 30)):
            np.testing.assert_array_equal(y[:5], [np.nan, 30, -30, 30, -30])
            np.testing.assert_allclose(y[5:7], x[5:7], atol=1e-42)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_alone_and_in_company(num_threads, name):
    ws, x = Workspace(num_threads), 3 * floats(0, 90, 99)
    together = ws.from_array(x)
    FUNCTIONS[name](together)
    np.testing.assert_allclose(together.numpy(), PLAIN[name](x.astype(np.float64)), rtol=40 * EPS, atol=EPS)
    for i in (0, 41, 89):
        alone = ws.from_array(x[i : i + 1])
        FUNCTIONS[name](alone)
        assert (alone.numpy() == together.numpy()[i]).all()


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", GATED_FUNCTIONS)
def test_gated_rows_alone_and_in_company(num_threads, name):
    ws, g, u = Workspace(num_threads), 3 * floats(0, 90, 99), floats(1, 90, 99)
    rows, up = ws.from_array(g), ws.from_array(u)
    together = GATED_FUNCTIONS[name](rows, up)
    assert together is rows
    assert (up.numpy() == u).all()
    expected = GATED[name](g.astype(np.float64), u.astype(np.float64))
    np.testing.assert_allclose(together.numpy(), expected, rtol=40 * EPS, atol=EPS)
    for i in (0, 41, 89):
        alone = GATED_FUNCTIONS[name](ws.from_array(g[i : i + 1]), ws.from_array(u[i : i + 1]))
        assert (alone.numpy() == together.numpy()[i]).all()


def test_the_twin_of_what_was_changed_is_forgotten():
    ws = Workspace(1)
    m = Matrix(quantize(floats(1, 16, 64), "Q8_0"), "Q8_0", (16, 64))
    for change in FUNCTIONS.values():
        x = ws.from_array(floats(0, 2, 64))
        before = linear(x, m).numpy().copy()
        change(x)
        after = linear(x, m).numpy()
        assert (after == linear(ws.from_array(x.numpy()), m).numpy()).all()
        assert (after != before).any()


def test_what_does_not_fit_is_refused():
    ws = Workspace(1)
    x, other = ws.from_array(floats(0, 2, 12)), ws.from_array(floats(0, 3, 12))
    for gated in GATED_FUNCTIONS.values():
        with pytest.raises(ConfigError, match="2 x 12 and 3 x 12"):
            gated(x, other)
    for limit in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="limit of"):
            swiglu_oai_(x, x, limit=limit)
        with pytest.raises(ConfigError, match="limit of"):
            swiglu_limited_(x, x, limit)
