"""Rows of a pass divided among its spans: views, and the likeliest token where that alone is wanted."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.batch import Span, divide


def span(want, n=1):
    return Span(list(range(n)), 0, [0], want)


def test_rows_go_to_the_spans_that_want_them():
    rows = np.arange(40, dtype=np.float32).reshape(5, 8)
    found = divide(rows, [span("last", 3), span("none", 2), span("all", 2), span("likeliest", 4), span("last")])
    assert [None if own is None else np.shape(own) for own in found] == [(1, 8), None, (2, 8), (), (1, 8)]
    assert np.array_equal(found[0], rows[:1])
    assert np.array_equal(found[2], rows[1:3])
    assert found[3] == 7
    assert np.array_equal(found[4], rows[4:])
    assert all(np.shares_memory(found[i], rows) for i in (0, 2, 4))


def test_of_hidden_states_each_span_has_all():
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    found = divide(rows, [span(want, n) for want, n in (("last", 3), ("none", 1), ("likeliest", 2))], True)
    assert [own.tolist() for own in found] == [rows[:3].tolist(), rows[3:4].tolist(), rows[4:].tolist()]


@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 31, 64, 1000])
def test_the_likeliest_token_has_the_lowest_id_among_equals(n):
    rng = np.random.default_rng(n)
    values = np.array([-np.inf, -1.5, -0.0, 0.0, 0.5, 2.0], np.float32)
    rows = rng.choice(values, (50, n), p=[0.1, 0.2, 0.2, 0.2, 0.2, 0.1])
    rows[np.arange(50), rng.integers(n, size=50)] = rng.choice(values[2:], 50)
    assert divide(rows, [span("likeliest")] * 50) == rows.argmax(1).tolist()


@pytest.mark.parametrize("n", [1, 16, 33])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_damaged_row_has_no_likeliest_token(n, bad):
    for i in range(n):
        rows = np.zeros((3, n), np.float32)
        rows[1, i] = bad
        before, own, after = divide(rows, [span("likeliest")] * 3)
        assert (before, after) == (0, 0)
        assert np.array_equal(own, rows[1:2], equal_nan=True)
    rows = np.full((1, n), -np.inf, np.float32)
    assert np.array_equal(divide(rows, [span("likeliest")])[0], rows)


def test_too_few_rows_are_refused():
    with pytest.raises(ConfigError, match="1 rows for spans that want more"):
        divide(np.zeros((1, 4), np.float32), [span("likeliest")] * 2)
    with pytest.raises(ConfigError, match="want must be 'last', 'likeliest', 'all' or 'none', not 'best'"):
        span("best")
