"""Functions of one number that are rounded correctly: near the C library's, and equal where a result is a number."""

import math
import random

import numpy as np
import pytest

from oxillama._util import rounded


def test_values():
    draw = random.Random(1)
    for _ in range(300):
        x, p = draw.uniform(-50, 50), 10.0 ** draw.uniform(-9, 9)
        for ours, theirs in (
            (rounded.exp(x), math.exp(x)),
            (rounded.expm1(x), math.expm1(x)),
            (rounded.log(p), math.log(p)),
            (rounded.log2(p), math.log2(p)),
            (rounded.power(p, x / 10), math.pow(p, x / 10)),
        ):
            assert abs(ours - theirs) <= 2 * math.ulp(theirs)


def test_results_that_are_numbers():
    assert [rounded.power(2.0, float(n)) for n in (-3, 0, 10, 1023)] == [0.125, 1.0, 1024.0, 2.0**1023]
    assert [rounded.log2(x) for x in (0.5, 1.0, 1024.0)] == [-1.0, 0.0, 10.0]
    assert (rounded.power(4.0, -0.5), rounded.power(0.0, 3.0), rounded.power(1.0, 1e9)) == (0.5, 0.0, 1.0)
    assert (rounded.log(1.0), rounded.exp(0.0), rounded.expm1(0.0), rounded.expm1(-1e-20)) == (0.0, 1.0, 0.0, -1e-20)


@pytest.mark.parametrize(
    ("function", "given", "error"),
    [
        (rounded.log, (0.0,), ValueError),
        (rounded.log2, (-1.0,), ValueError),
        (rounded.exp, (1e4,), OverflowError),
        (rounded.expm1, (1e4,), OverflowError),
        (rounded.power, (10.0, 1e9), OverflowError),
        (rounded.power, (0.0, -1.0), ValueError),
    ],
)
def test_errors_are_those_of_math(function, given, error):
    with pytest.raises(error):
        function(*given)


def test_square_roots_by_power_are_the_same_float_on_every_machine():
    """Scales of models are ``n ** -0.5`` and ``n ** 0.5``, by the C library's pow: as floats, its last bit is gone."""
    n = np.arange(1, 1 << 16, dtype=np.float64)
    for root in (n**-0.5, n**0.5):
        low, high = (root * (1 + e * 2.0**-50) for e in (-1, 1))
        exact = np.sqrt(n) == np.rint(np.sqrt(n))  # powers of whole numbers are exact everywhere
        assert ((low.astype(np.float32) == high.astype(np.float32)) | exact).all()
