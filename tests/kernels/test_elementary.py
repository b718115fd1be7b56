"""Functions of doubles that are our own: near the C library's, special values, and angles of any size."""

import math

import numpy as np
import pytest

from oxillama.kernels import elementary
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Workspace


def near(ours, theirs, units):
    """Within so many units in the last place."""
    assert (np.abs(ours - theirs) <= units * np.spacing(np.abs(theirs))).all()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7, 3)])
def test_shapes(shape):
    x = np.random.default_rng(1).uniform(0.1, 5, shape)
    for function in (elementary.exp, elementary.log, elementary.tanh):
        kept = x.copy()
        assert function(x).shape == shape
        assert (x == kept).all()


def test_values():
    random = np.random.default_rng(2)
    near(elementary.exp(x := random.uniform(-700, 709, 20000)), np.exp(x), 4)
    near(elementary.log(x := np.exp(random.uniform(-700, 700, 20000))), np.log(x), 2)
    near(elementary.log(x := random.uniform(0.5, 2, 20000)), np.log(x), 3)
    near(elementary.tanh(x := random.uniform(-3, 3, 20000)), np.tanh(x), 4)


def test_special_values():
    inf, nan = math.inf, math.nan
    np.testing.assert_array_equal(elementary.exp([0, -0.0, inf, -inf, nan, 710, -709]), [1, 1, inf, 0, nan, inf, 0])
    np.testing.assert_array_equal(elementary.log([1, 0, -0.0, inf, -1, nan]), [0, -inf, -inf, inf, nan, nan])
    np.testing.assert_array_equal(elementary.tanh([0, 50, -50, inf, -inf, nan]), [0, 1, -1, 1, -1, nan])
    assert elementary.log(5e-324) == math.log(5e-324)


@pytest.mark.parametrize("first", [0, 1, 1000, 100_003, 16_000_000, 1 << 30])
def test_angles(first):
    """Floats of cosines and sines at any position are the nearest ones."""
    frequencies = 10000.0 ** (-np.arange(32) / 32)
    batch = Batch([Span(list(range(8)), first, [0], "all")], Workspace(1))
    found = angles(batch, frequencies, 1.0).numpy()
    turned = (first + np.arange(8.0))[:, None] * frequencies
    expected = np.concatenate([np.cos(turned), np.sin(turned)], 1).astype(np.float32)
    assert np.abs(found - expected).max() <= 2**-24 * 2**-20
