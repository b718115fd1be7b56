"""RWKV-7's state over a batch: what becomes of its projections before and after the rule that evolves it."""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels.batch cimport Batch
from oxillama.kernels.dplr import dplr
from oxillama.kernels.recurrent cimport RecurrentSlab
from oxillama.kernels.rows cimport Rows, Vector, each_row, row_job

cdef const ox_kernels *K = table()

cdef float L2_EPS = 1e-24       # of the square: the authors' code bounds a key's length by 1e-12
cdef float LEAST_LOG_DECAY = <float>-0.6065306597126334     # -exp(-1/2)


cdef class Rwkv7:
    """Vectors of a layer's time mix, [n_heads * width] each, and the ``eps`` of its norms of heads.

    w0: bias of decays. k_k, k_a: factors of what keys remove, and of how far they give way to it. r_k: weights of the
    token's own value. weight, bias: of the norm. ConfigError for shapes that don't fit.
    """

    def __init__(self, w0, k_k, k_a, r_k, weight, bias, *, int64_t width, float eps):
        found = [np.array(v, np.float32) for v in (w0, k_k, k_a, r_k, weight, bias)]
        n = found[0].size
        if any([v.shape != (n,) for v in found]) or width < 1 or not n or n % width:
            raise ConfigError(f"vectors of {[v.shape for v in found]} for heads {width} wide: all must be as long, and "
                              "whole heads")
        self.n_heads, self.width, self.eps = n // width, width, eps
        self.w0, self.k_k, self.k_a, self.r_k, self.weight, self.bias = [Vector(v) for v in found]
        with np.errstate(all="ignore"):
            self.rest = Vector(1 - found[2])


cdef struct mix_job:
    row_job rows                # y: what goes into decays, and becomes them
    float *k
    float *v
    float *a
    float *removes
    float *adds
    const float *r
    const float *w0
    const float *k_k
    const float *k_a
    const float *rest
    const float *r_k
    int64_t width


cdef void _prepare_row(const row_job *j, int64_t i) noexcept nogil:
    """Decays; minus the unit vector that is removed, and what its share of the state is added to; keys."""
    cdef const mix_job *m = <const mix_job *>j
    cdef int64_t h, n = j.dim, at = i * n
    cdef float *k = m.k + at
    cdef float *a = m.a + at
    cdef float *removes = m.removes + at
    cdef float *adds = m.adds + at
    K.bounded_decay(j.y + at, m.w0, 1, LEAST_LOG_DECAY, j.y + at, n)
    K.sigmoid(a, n)
    memcpy(removes, k, <size_t>n * 4)
    K.mul(m.k_k, removes, n)
    for h in range(n // m.width):
        K.l2_norm(removes + h * m.width, removes + h * m.width, m.width, L2_EPS, -1)
    memcpy(adds, removes, <size_t>n * 4)
    K.mul(a, adds, n)
    K.scale(adds, -1, n)
    K.mul(k, a, n)              # k (1 + (a - 1) k_a) = k (1 - k_a) + k a k_a
    K.mul(m.k_a, a, n)
    K.mul(m.rest, k, n)
    K.add(a, k, n)


cdef void _finish_row(const row_job *j, int64_t i) noexcept nogil:
    """Each head's output normalised, and the token's own value beside it."""
    cdef const mix_job *m = <const mix_job *>j
    cdef int64_t h, d, first, at = i * j.dim
    cdef float *y = j.y + at
    cdef const float *r = m.r + at
    cdef double share
    for h in range(j.dim // m.width):
        first = h * m.width
        K.layer_norm(y + first, j.w + first, j.b + first, y + first, m.width, j.a)
        share = 0
        for d in range(first, first + m.width):
            share += <double>r[d] * m.k[at + d] * m.r_k[d]
        K.add_scaled(m.v + at + first, <float>share, y + first, m.width)


def rwkv7(Rows r, Rows w, Rows k, Rows v, Rows a, Rwkv7 mix, RecurrentSlab slab, Batch batch):
    """Outputs of the heads of a layer, normalised: Rows [n, n_heads * width].

    Peng et al., "RWKV-7 Goose", 2025. ``w`` is what goes into decays before its bias, ``a`` into the rates of learning
    before the sigmoid; both and ``k`` are changed on the way. The slab holds the states alone. ConfigError for rows
    that don't fit.
    """
    cdef mix_job j
    cdef int64_t n = batch.n_rows, inner = mix.n_heads * mix.width
    cdef Rows x
    for x in (r, w, k, v, a):
        if x.n != n or x.dim != inner:
            raise ConfigError(f"{mix.n_heads} heads need {n} rows of {inner} values, not {x.n} rows of {x.dim}")
    cdef Rows removes = r.workspace.rows(n, inner), adds = r.workspace.rows(n, inner)
    j.rows.y, j.rows.dim, j.rows.w, j.rows.b, j.rows.a = w.data, inner, mix.weight.data, mix.bias.data, mix.eps
    j.k, j.v, j.a, j.removes, j.adds, j.r = k.data, v.data, a.data, removes.data, adds.data, r.data
    j.w0, j.k_k, j.k_a, j.rest, j.r_k = mix.w0.data, mix.k_k.data, mix.k_a.data, mix.rest.data, mix.r_k.data
    j.width = mix.width
    each_row(w, _prepare_row, &j.rows)
    w.q8 = k.q8 = a.q8 = NULL
    cdef Rows y = dplr(r, w, k, adds, removes, v, mix.n_heads, slab, batch)
    j.rows.y = y.data
    each_row(y, _finish_row, &j.rows)
    return y
