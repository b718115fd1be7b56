"""Sums of streams, magnitudes and what lies above a row's mean, against float64."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.rows import Vector, Workspace
from oxillama.kernels.streams import add_weighted_, match_magnitude_, mul_columns_, take_above_

SHAPES = [(1, 1), (1, 7), (3, 64), (500, 65)]


def made(seed, n, dim):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


@pytest.mark.parametrize(("n", "dim"), SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_each_row_has_a_weight_of_its_own(n, dim, threads):
    ws, x, y, weights = Workspace(threads), made(0, n, dim), made(1, n, dim), made(2, n, 5)
    rows = ws.from_array(x)
    add_weighted_(rows, ws.from_array(y), ws.from_array(weights), 3)
    assert np.abs(rows.numpy() - (x + weights[:, 3:4].astype(np.float64) * y)).max() < 1e-6


@pytest.mark.parametrize(("n", "dim"), SHAPES)
def test_each_column_has_a_weight_of_its_own(n, dim):
    ws, x, w = Workspace(2), made(0, n, dim), made(1, 1, dim)[0]
    rows = ws.from_array(x)
    mul_columns_(rows, Vector(w))
    assert (rows.numpy() == x * w).all()


@pytest.mark.parametrize(("n", "dim"), SHAPES)
def test_magnitudes_match(n, dim):
    ws, x, like = Workspace(2), made(0, n, dim), 5 * made(1, n, dim)
    rows = ws.from_array(x)
    match_magnitude_(rows, ws.from_array(like), 1e-5)
    sizes = [np.sqrt(np.square(a.astype(np.float64)).mean(1)) for a in (rows.numpy(), like)]
    assert np.abs(sizes[0] / sizes[1] - 1).max() < 1e-6


def test_small_rows_stay_small():
    ws = Workspace(1)
    rows = ws.from_array(np.array([[1e-4, -1e-4], [0.0, 0.0]], np.float32))
    match_magnitude_(rows, ws.from_array(np.ones((2, 2), np.float32)), 1e-2)
    assert np.abs(rows.numpy() - [[1e-3, -1e-3], [0, 0]]).max() < 1e-9


@pytest.mark.parametrize(("n", "dim"), SHAPES)
@pytest.mark.parametrize("deviations", [-0.5, 0.0, 1.6448536])
def test_what_is_above(n, dim, deviations):
    ws, x = Workspace(2), 3 + made(0, n, dim)
    rows = ws.from_array(x)
    take_above_(rows, deviations)
    exact = x.astype(np.float64)
    cutoff = exact.mean(1, keepdims=True) + deviations * exact.std(1, keepdims=True)
    assert np.abs(rows.numpy() - np.maximum(exact - cutoff, 0)).max() < 1e-6


def test_what_does_not_fit_is_refused():
    ws = Workspace(1)
    x, y, w = ws.new(3, 4), ws.new(3, 5), ws.new(2, 4)
    for call, match in (
        (lambda: add_weighted_(x, y, w, 0), "don't go together"),
        (lambda: add_weighted_(x, x, w, 0), "column 0 of 2 x 4 weights for 3 rows"),
        (lambda: add_weighted_(x, x, y, 5), "column 5"),
        (lambda: add_weighted_(x, x, y, -1), "column -1"),
        (lambda: mul_columns_(x, Vector(np.ones(5, np.float32))), "5 weights for rows of 4"),
        (lambda: match_magnitude_(x, y, 1.0), "don't go together"),
        (lambda: match_magnitude_(x, x, 0.0), "must be positive"),
    ):
        with pytest.raises(ConfigError, match=match):
            call()
