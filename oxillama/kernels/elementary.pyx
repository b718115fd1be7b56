"""Elementary functions of arrays of doubles, whose bits depend neither on the CPU nor on a library.

numpy's own take other instructions, and round otherwise, from one CPU to the next.
"""

import numpy as np

cdef extern from "ox_math.h":
    double exp_double "ox_exp_double"(double x) noexcept nogil
    double log_double "ox_log_double"(double x) noexcept nogil
    double tanh_double "ox_tanh_double"(double x) noexcept nogil

ctypedef double function(double x) noexcept nogil


cdef object _mapped(x, function *f):
    found = np.array(x, np.float64, order="C")
    cdef double[::1] values = found.reshape(-1)
    cdef Py_ssize_t i
    with nogil:
        for i in range(values.shape[0]):
            values[i] = f(values[i])
    return found


def exp(x):
    """``e ** x`` of each number, to some units in the last place; 0 below -708."""
    return _mapped(x, exp_double)


def log(x):
    """The natural logarithm of each number; minus infinity of zero, NaN of what is below."""
    return _mapped(x, log_double)


def tanh(x):
    """The hyperbolic tangent of each number."""
    return _mapped(x, tanh_double)
