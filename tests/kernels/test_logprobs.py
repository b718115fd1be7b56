"""Log-probabilities of rows of logits, against plain loops in the same arithmetic and against exact sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.kernels.logprobs import log_sum_exp
from tests.plain_loop import plain_log_sum_exp

FLOATS = st.floats(width=32, allow_nan=False, max_value=float(np.finfo(np.float32).max))


@given(st.lists(FLOATS, min_size=1, max_size=70).filter(lambda row: max(row) > -math.inf))
def test_bits_are_those_of_the_plain_loop(row):
    row = np.array(row, np.float32)
    assert log_sum_exp(row) == plain_log_sum_exp(row.tolist())


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, 150_001])
def test_probabilities_add_up_to_one(n):
    row = (np.random.default_rng(n).standard_normal(n) * 5).astype(np.float32)
    total = log_sum_exp(row)
    # Each term of a sum of n is off by half a unit of the last place at most, and so is each addition.
    assert abs(math.fsum(math.exp(x - total) for x in row.tolist()) - 1) < (n + 40) * 2**-52


@pytest.mark.parametrize("bad", [[], [math.nan], [1, math.nan, 2], [math.nan, 5], [math.inf, 0], [-math.inf] * 3])
def test_what_has_no_distribution_is_told(bad):
    assert math.isnan(log_sum_exp(np.array(bad, np.float32)))


def test_what_is_impossible_adds_nothing():
    assert log_sum_exp(np.array([-math.inf, 2, -math.inf], np.float32)) == 2


def test_other_arrays_are_refused():
    for wrong in (np.zeros(3), np.zeros((2, 2), np.float32), None, np.zeros(6, np.float32)[::2]):
        with pytest.raises((ValueError, TypeError)):
            log_sum_exp(wrong)
