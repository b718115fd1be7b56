"""Factors of a tensor's change, divided among the matrices that the tensor became."""

import numpy as np

from oxillama.models.adaptable import one_of_stack

A, B = np.arange(12.0).reshape(2, 6), np.arange(10.0).reshape(5, 2)


def test_a_matrix_of_a_stack_gets_its_factors_or_those_that_all_share():
    stacked = np.stack([A, A + 1, A + 2])
    for i in range(3):
        a, b = one_of_stack(i)((stacked, B[None]))
        assert (a == A + i).all()
        assert (b == B).all()


def test_a_stack_of_one_takes_factors_of_a_matrix():
    a, b = one_of_stack(0)((A, B))
    assert a is A
    assert b is B
