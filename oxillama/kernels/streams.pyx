"""Sums of several residual streams with a weight for each row, and what else Gemma 3n does row by row."""

from libc.math cimport sqrt
from libc.stdint cimport int64_t

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels.rows cimport Rows, Vector, change_rows, check_alike, row_job

cdef const ox_kernels *K = table()


cdef void _add_weighted_row(const row_job *j, int64_t i) noexcept nogil:
    K.add_scaled(j.x + i * j.dim, j.w[i * j.w_step], j.y + i * j.dim, j.dim)


def add_weighted_(Rows x, Rows y, Rows weights, int64_t column):
    """``x += w * y``, in place; ``w`` is the row's value in a column of ``weights``. ConfigError for other shapes."""
    cdef row_job j
    check_alike(x, y)
    if weights.n != x.n or not 0 <= column < weights.dim:
        raise ConfigError(f"column {column} of {weights.n} x {weights.dim} weights for {x.n} rows")
    j.x, j.w, j.w_step = y.data, weights.data + column, weights.dim
    change_rows(x, _add_weighted_row, &j)


cdef void _mul_columns_row(const row_job *j, int64_t i) noexcept nogil:
    K.mul(j.w, j.y + i * j.dim, j.dim)


def mul_columns_(Rows x, Vector w not None):
    """Multiply each column by its value in ``w`` [x.dim], in place. ConfigError for another length."""
    cdef row_job j
    if w.n != x.dim:
        raise ConfigError(f"{w.n} weights for rows of {x.dim} values")
    j.w = w.data
    change_rows(x, _mul_columns_row, &j)


cdef double _mean_square(const float *x, int64_t n) noexcept nogil:
    cdef double total = 0
    cdef int64_t k
    for k in range(n):
        total += <double>x[k] * x[k]
    return total / n


cdef void _match_row(const row_job *j, int64_t i) noexcept nogil:
    cdef double own = _mean_square(j.y + i * j.dim, j.dim), wanted = _mean_square(j.x + i * j.dim, j.dim)
    K.scale(j.y + i * j.dim, <float>(sqrt(wanted) / sqrt(max(own, <double>j.a))), j.dim)


def match_magnitude_(Rows x, Rows like, float least):
    """Give each row of ``x`` the root mean square of the same row of ``like``, in place. ConfigError for other shapes.

    A mean square of ``x`` below ``least``, which must be positive, counts as this.
    """
    cdef row_job j
    check_alike(x, like)
    if not least > 0:
        raise ConfigError(f"a least mean square of {least}; it must be positive")
    j.x, j.a = like.data, least
    change_rows(x, _match_row, &j)


cdef void _above_row(const row_job *j, int64_t i) noexcept nogil:
    """Mean and variance in double precision: thousands of values whose differences count are summed."""
    cdef float *x = j.y + i * j.dim
    cdef double mean = 0, variance = 0
    cdef float cutoff
    cdef int64_t k
    for k in range(j.dim):
        mean += x[k]
    mean /= j.dim
    for k in range(j.dim):
        variance += (x[k] - mean) * (x[k] - mean)
    cutoff = <float>(mean + j.a * sqrt(variance / j.dim))
    for k in range(j.dim):
        x[k] = 0 if x[k] <= cutoff else x[k] - cutoff


def take_above_(Rows x, float deviations):
    """Takes of each value what is above ``mean + deviations * standard deviation`` of its row, 0 if nothing is; in
    place.

    Google, "Gemma 3n", 2025: of normally distributed values a known part remains.
    """
    cdef row_job j
    j.a = deviations
    change_rows(x, _above_row, &j)
