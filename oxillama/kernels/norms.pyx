"""Norms of rows: each row, or each part of it, by itself."""

from libc.stdint cimport int64_t

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels.rows cimport Rows, Vector, change_rows, each_row, row_job

cdef const ox_kernels *K = table()


cdef Rows _result(Rows x, row_job *j, float eps, bint codes):
    """Rows like those of ``x``, where ``codes`` asks for it with room for an 8-bit twin that the operation fills."""
    cdef Rows y = x.workspace.rows(x.n, x.dim)
    if codes:
        y.make_room()
    j.x, j.y, j.dim, j.a = x.data, y.data, x.dim, eps
    j.codes, j.code_bytes = y.q8, y.q8_stride
    return y


cdef void _make_codes(const row_job *j, int64_t i) noexcept nogil:
    if j.codes != NULL:
        K.quantise_q8(j.y + i * j.dim, j.codes + <size_t>i * j.code_bytes, j.dim, 0, j.dim)


cdef int _check(str what, Vector v, int64_t dim) except -1:
    if v is not None and v.n != dim:
        raise ConfigError(f"a norm of {v.n} {what} for rows of {dim} values")
    return 0


cdef void _rms_row(const row_job *j, int64_t i) noexcept nogil:
    K.rms_norm(j.x + i * j.dim, j.w, j.y + i * j.dim, j.dim, j.a)
    _make_codes(j, i)


def rms_norm(Rows x, Vector w not None, float eps, bint codes=False):
    """``x / sqrt(mean(x**2) + eps) * w`` of each row: Zhang and Sennrich, 2019.

    ``codes``: an integer matrix will read the result, and its 8-bit twin is made in the same pass.
    """
    cdef row_job j
    cdef Rows y
    _check("weights", w, x.dim)
    y = _result(x, &j, eps, codes)
    j.w = w.data
    each_row(x, _rms_row, &j)
    return y


cdef const float *_values_of(Vector v) noexcept:
    if v is None:
        return NULL
    return v.data


cdef void _layer_row(const row_job *j, int64_t i) noexcept nogil:
    K.layer_norm(j.x + i * j.dim, j.w, j.b, j.y + i * j.dim, j.dim, j.a)
    _make_codes(j, i)


def layer_norm(Rows x, Vector w, Vector b, float eps, bint codes=False):
    """``(x - mean(x)) / sqrt(variance(x) + eps) * w + b`` of each row: Ba, Kiros and Hinton, 2016.

    ``w`` and ``b`` may be None: one, and nothing added. ``codes`` as in :func:`rms_norm`.
    """
    cdef row_job j
    cdef Rows y
    _check("weights", w, x.dim)
    _check("biases", b, x.dim)
    y = _result(x, &j, eps, codes)
    j.w, j.b = _values_of(w), _values_of(b)
    each_row(x, _layer_row, &j)
    return y


def layer_norm_(Rows x, Vector w, Vector b, float eps):
    """:func:`layer_norm` in place."""
    cdef row_job j
    _check("weights", w, x.dim)
    _check("biases", b, x.dim)
    j.x, j.codes, j.a = x.data, NULL, eps
    j.w, j.b = _values_of(w), _values_of(b)
    change_rows(x, _layer_row, &j)


cdef void _parts_row(const row_job *j, int64_t i) noexcept nogil:
    cdef int64_t k
    cdef const float *x = j.x + i * j.dim
    cdef float *y = j.y + i * j.dim
    for k in range(j.dim // j.part):
        K.rms_norm(x + k * j.part, j.w + k * j.w_step, y + k * j.part, j.part, j.a)
    _make_codes(j, i)


def rms_norm_groups(Rows x, Vector w not None, int64_t n_groups, float eps, bint codes=False):
    """RMS norm of each of a row's ``n_groups`` equal parts by itself, with weights for the whole row (Mamba-2).

    ``codes`` as in :func:`rms_norm`.
    """
    cdef row_job j
    cdef Rows y
    _check("weights", w, x.dim)
    if not 1 <= n_groups <= x.dim or x.dim % n_groups:
        raise ConfigError(f"rows of {x.dim} values don't make {n_groups} equal groups")
    y = _result(x, &j, eps, codes)
    j.w, j.part = w.data, x.dim // n_groups
    j.w_step = j.part
    each_row(x, _parts_row, &j)
    return y


def rms_norm_heads_(Rows x, Vector w not None, float eps):
    """RMS norm of each head (each run of ``w.n`` values of a row), in place."""
    cdef row_job j
    if not w.n or x.dim % w.n:
        raise ConfigError(f"a norm of {w.n} weights for rows of {x.dim} values, which are no whole heads")
    j.x, j.w, j.part, j.w_step, j.a, j.codes = x.data, w.data, w.n, 0, eps, NULL
    change_rows(x, _parts_row, &j)


cdef void _layer_parts_row(const row_job *j, int64_t i) noexcept nogil:
    cdef int64_t k
    cdef float *y = j.y + i * j.dim
    for k in range(j.dim // j.part):
        K.layer_norm(y + k * j.part, j.w + k * j.part, NULL, y + k * j.part, j.part, j.a)


def layer_norm_heads_(Rows x, Vector w not None, int64_t head_dim, float eps):
    """Layer norm of each head (each run of ``head_dim`` values of a row), with weights for the whole row, in place."""
    cdef row_job j
    _check("weights", w, x.dim)
    if head_dim < 1 or x.dim % head_dim:
        raise ConfigError(f"rows of {x.dim} values are no whole heads of {head_dim}")
    j.w, j.part, j.a = w.data, head_dim, eps
    change_rows(x, _layer_parts_row, &j)
