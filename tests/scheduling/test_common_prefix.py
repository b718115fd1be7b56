"""The common prefix of token lists, against a loop over tokens."""

import random
from array import array

import pytest

from oxillama.scheduling.sequence import n_common


def one_by_one(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@pytest.mark.parametrize("seed", range(200))
def test_lists_and_arrays(seed):
    rng = random.Random(seed)
    a = [rng.randrange(-1, 3) for _ in range(rng.randrange(40))]
    b = [*a[: rng.randrange(40)], *(rng.randrange(-1, 3) for _ in range(rng.randrange(20)))]
    assert n_common(a, b) == n_common(b, a) == one_by_one(a, b)
    assert n_common(array("i", a), array("i", b)) == one_by_one(a, b)
    assert n_common(a, a) == len(a)
