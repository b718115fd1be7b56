"""The delta rule whose change of the state is diagonal plus a matrix of rank one, over a batch, and Kimi's form of it.

Every span of a batch reads its state from one slot of a :class:`RecurrentSlab` and leaves it in another. Results are
equal to the bit however tokens are divided: a token's state is made from that of the token before, by the same
operations whichever call has them. Threads split heads.
"""

from cython.parallel cimport prange

from libc.math cimport sqrtf
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_dplr_args, ox_kernels, ox_scan_state, table
from oxillama.kernels._team cimport DPLR, Team, region
from oxillama.kernels.batch cimport Batch, span
from oxillama.kernels.recurrent cimport RecurrentSlab
from oxillama.kernels.rows cimport Rows, Vector, Workspace, each_row, row_job

cdef const ox_kernels *K = table()

cdef enum:
    STREAM_VALUES = 1 << 17     # of a layer's state: the states of a model's layers push each other out of the caches

cdef float L2_EPS = 1e-6        # of the norms of queries and keys, in the authors' code


cdef void _head(const ox_dplr_args *all_heads, int64_t state, RecurrentSlab slab, const span *p,
                int64_t h) noexcept nogil:
    """Head h of one span."""
    cdef ox_dplr_args a = all_heads[0]
    cdef int64_t keys = p.row * <int64_t>a.k_stride + h * a.k_dim
    a.q, a.w, a.k, a.a, a.b = a.q + keys, a.w + keys, a.k + keys, a.a + keys, a.b + keys
    a.v += p.row * <int64_t>a.v_stride + h * a.v_dim
    a.y += p.row * <int64_t>a.y_stride + h * a.v_dim
    a.n_tokens = p.n
    a.write = slab.row(p.write) + h * state
    a.read = slab.row(p.read)
    if a.read != NULL:
        a.read += h * state
    K.dplr(&a)


def dplr(Rows q, Rows w, Rows k, Rows a, Rows b, Rows v, int64_t n_heads, RecurrentSlab slab, Batch batch):
    """``S = diag(w) S + a (b^T S) + k v^T; y = S^T q`` of each head: Rows [n, v.dim].

    All but ``v`` are [n, n_heads * k_dim]. Peng et al., "RWKV-7 Goose", 2025. The slab holds the states alone: for each
    head k_dim rows in panels of 16 columns. ConfigError for rows that don't fit.
    """
    cdef ox_dplr_args job
    cdef Workspace ws = v.workspace
    cdef int64_t task, state, n = batch.n_rows
    cdef region r
    cdef Team team = ws.team
    cdef int nt
    cdef Rows x
    for x in (q, w, k, a, b):
        if x.n != n or x.dim != q.dim or v.n != n or n_heads < 1 or x.dim % n_heads or v.dim % n_heads:
            raise ConfigError(f"a rule of {n_heads} heads over a batch of {n}: {x.n} rows of {x.dim} values, {q.n} of "
                              f"{q.dim} and {v.n} of {v.dim}")
    job.k_dim, job.v_dim = q.dim // n_heads, v.dim // n_heads
    state = <int64_t>ox_scan_state(<size_t>job.v_dim, <size_t>job.k_dim)
    if slab.n_values != n_heads * state:
        raise ConfigError(f"a state of {n_heads * state} values for all of a slot of {slab.n_values}")
    slab.check(batch)
    cdef Rows y = ws.rows(n, v.dim)
    job.q, job.w, job.k, job.a, job.b, job.v, job.y = q.data, w.data, k.data, a.data, b.data, v.data, y.data
    job.k_stride, job.v_stride, job.y_stride = <size_t>q.dim, <size_t>v.dim, <size_t>y.dim
    job.stream = slab.n_values >= STREAM_VALUES
    nt = team.begin(&r, DPLR, n * slab.n_values)
    if nt == 1:
        with nogil:
            for task in range(n_heads * batch.n_spans):
                _head(&job, state, slab, &batch.span[task // n_heads], task % n_heads)
            team.end(&r)
    else:
        with nogil:
            for task in prange(n_heads * batch.n_spans, num_threads=nt, schedule="static"):
                _head(&job, state, slab, &batch.span[task // n_heads], task % n_heads)
            team.end(&r)
    return y


def decaying(Rows q, Rows k, Rows v, Vector decays, int64_t n_heads, RecurrentSlab slab, Batch batch):
    """``S = diag(decays) S + k v^T; y = S^T q`` of each head: Rows [n, v.dim].

    ``decays`` [q.dim]. Qin et al., "Lightning Attention-2", 2024: linear attention whose past fades, which is the rule
    of `dplr` without its matrix of rank one. ConfigError for rows that don't fit.
    """
    cdef Workspace ws = q.workspace
    cdef Rows w = ws.rows(q.n, q.dim), none = ws.rows(q.n, q.dim)
    cdef int64_t i
    if decays.n != q.dim:
        raise ConfigError(f"{decays.n} decays for queries of {q.dim} values")
    for i in range(q.n):
        memcpy(w.data + i * q.dim, decays.data, <size_t>q.dim * 4)
    memset(none.data, 0, <size_t>(q.n * q.dim) * 4)
    return dplr(q, w, k, none, none, v, n_heads, slab, batch)


cdef class ChannelDelta:
    """``a`` [n_heads], which is -exp(A_log), ``dt_bias`` [n_heads * dim], and ``norm`` [dim] with its ``eps``.

    With a ``bound`` below 0, which is that of logarithms of decays, ``a`` is exp(A_log). ConfigError for shapes that
    don't fit.
    """

    def __init__(self, a, dt_bias, norm, *, float eps, float bound=0):
        a, dt_bias, norm = [np.array(v, np.float32) for v in (a, dt_bias, norm)]
        if a.ndim != 1 or norm.ndim != 1 or not a.size or not norm.size or dt_bias.shape != (len(a) * len(norm),):
            raise ConfigError(f"a delta rule of a {a.shape}, dt_bias {dt_bias.shape} and norm {norm.shape}: [n_heads], "
                              "[n_heads * dim] and [dim] are needed")
        self.n_heads, self.dim, self.eps, self.bound = len(a), len(norm), eps, bound
        self.a, self.dt_bias, self.norm = Vector(np.repeat(a, len(norm))), Vector(dt_bias), Vector(norm)


cdef struct rule_job:
    row_job rows                # y: decays; x: unused
    float *q
    float *k
    float *a
    float *b
    float *beta
    int64_t n_heads, dim
    float bound


cdef void _prepare_row(const row_job *j, int64_t i) noexcept nogil:
    """Unit queries and keys; decays; b = decay k, a = -beta k, k = beta k, by which the rule is Kimi's."""
    cdef const rule_job *r = <const rule_job *>j
    cdef int64_t h, n = r.dim, at = i * j.dim
    cdef float *beta = r.beta + i * r.n_heads
    if r.bound == 0:
        K.decay(j.y + at, j.b, j.w, j.y + at, j.dim)
    K.sigmoid(beta, r.n_heads)
    for h in range(r.n_heads):
        if r.bound != 0:
            K.bounded_decay(j.y + at, j.b + h * n, j.w[h * n], r.bound, j.y + at, n)
        K.l2_norm(r.q + at, r.q + at, n, L2_EPS, 1 / sqrtf(<float>n))
        K.l2_norm(r.k + at, r.k + at, n, L2_EPS, 1)
        memcpy(r.a + at, r.k + at, <size_t>n * 4)
        memcpy(r.b + at, r.k + at, <size_t>n * 4)
        K.mul(j.y + at, r.b + at, n)
        K.scale(r.a + at, -beta[h], n)
        K.scale(r.k + at, beta[h], n)
        at += n


cdef void _finish_row(const row_job *j, int64_t i) noexcept nogil:
    """Each head's output normalised, times the sigmoid of its gate ``x``, which is changed."""
    cdef int64_t h, at = i * j.dim
    cdef float *gate = <float *>j.x + at
    for h in range(j.dim // j.part):
        K.rms_norm(j.y + at + h * j.part, j.w, j.y + at + h * j.part, j.part, j.a)
    K.sigmoid(gate, j.dim)
    K.mul(gate, j.y + at, j.dim)


def channel_delta(Rows q, Rows k, Rows v, Rows gate, Rows steps, Rows beta, ChannelDelta rule, RecurrentSlab slab,
                  Batch batch):
    """The delta rule whose every channel of keys has a decay of its own, normalised and gated: Rows [n, n_heads * dim].

    Moonshot AI, "Kimi Linear", 2025. ``steps`` [n_heads * dim] are before softplus, or before the sigmoid where decays
    have a bound, ``beta`` [n_heads] and ``gate`` before the sigmoid. All but ``v`` are changed on the way. The slab
    holds the rule's states alone. ConfigError for rows that don't fit.
    """
    cdef rule_job j
    cdef row_job end
    cdef Workspace ws = q.workspace
    cdef int64_t n = batch.n_rows, inner = rule.n_heads * rule.dim
    cdef Rows x
    for x in (q, k, v, gate, steps):
        if x.n != n or x.dim != inner or beta.n != n or beta.dim != rule.n_heads:
            raise ConfigError(f"a delta rule of {rule.n_heads} heads needs {n} rows of {inner} values, and of "
                              f"{rule.n_heads} for beta, not {x.n} rows of {x.dim} and {beta.n} of {beta.dim}")
    cdef Rows a = ws.rows(n, inner), b = ws.rows(n, inner)
    j.rows.y, j.rows.dim, j.rows.w, j.rows.b = steps.data, inner, rule.a.data, rule.dt_bias.data
    j.q, j.k, j.a, j.b, j.beta, j.n_heads, j.dim = q.data, k.data, a.data, b.data, beta.data, rule.n_heads, rule.dim
    j.bound = rule.bound
    each_row(steps, _prepare_row, &j.rows)
    q.q8 = k.q8 = steps.q8 = beta.q8 = gate.q8 = NULL
    cdef Rows y = dplr(q, steps, k, a, b, v, rule.n_heads, slab, batch)
    end.x, end.w, end.y, end.dim, end.part, end.a = gate.data, rule.norm.data, y.data, inner, rule.dim, rule.eps
    each_row(y, _finish_row, &end)
    return y
