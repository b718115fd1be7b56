"""The gated delta rule over a batch: linear attention whose state forgets, and replaces what a key stood for.

Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024. Spans read and write slots of a :class:`RecurrentSlab` as
in :mod:`.ssm`, and results are equal to the bit however tokens are divided: a token's state is made from that of the
token before, by the same operations whichever call has them. Threads split heads.
"""

from cython.parallel cimport prange

from libc.math cimport sqrtf
from libc.stdint cimport int64_t

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_delta_args, ox_delta_state, ox_kernels, table
from oxillama.kernels._team cimport DELTA, Team, region
from oxillama.kernels.batch cimport Batch, span
from oxillama.kernels.recurrent cimport RecurrentSlab
from oxillama.kernels.rows cimport Rows, Vector, Workspace, row_threads

cdef const ox_kernels *K = table()

cdef enum:
    STREAM_VALUES = 1 << 17     # of a layer's state: the states of a model's layers push each other out of the caches

cdef float L2_EPS = 1e-6        # of the norms of queries and keys, in the authors' code


cdef class Delta:
    """Heads of values: ``a``, which is -exp(A_log), and ``dt_bias`` [n_heads], ``norm`` [v_dim] with its ``eps``.

    Heads share ``n_keys`` heads of queries and keys, each of ``k_dim``: those that are ``neighbours``, or those whose
    numbers are equal modulo ``n_keys``. ``n_values`` is the size of the state: columns rounded up to panels of 16, and
    for each head what they are multiplied by.
    ConfigError for shapes that don't fit.
    """

    def __init__(self, a, dt_bias, norm, *, int64_t k_dim, int64_t n_keys, float eps, bint neighbours):
        a, dt_bias, norm = [np.array(v, np.float32) for v in (a, dt_bias, norm)]
        if a.ndim != 1 or norm.ndim != 1 or not a.size or not norm.size or a.shape != dt_bias.shape:
            raise ConfigError(f"a delta rule of a {a.shape}, dt_bias {dt_bias.shape} and norm {norm.shape}: [n_heads], "
                              "[n_heads] and [v_dim] are needed")
        if k_dim < 1 or n_keys < 1 or len(a) % n_keys:
            raise ConfigError(f"a delta rule of {len(a)} heads with {n_keys} of keys, each {k_dim} wide: as many heads "
                              "for each of the keys are needed")
        self.n_keys, self.n_heads, self.k_dim, self.v_dim = n_keys, len(a), k_dim, len(norm)
        self.eps, self.neighbours = eps, neighbours
        self.n_values = self.n_heads * <int64_t>ox_delta_state(<size_t>k_dim, <size_t>self.v_dim)
        self.a, self.dt_bias, self.norm = Vector(a), Vector(dt_bias), Vector(norm)


cdef struct job:
    ox_delta_args a             # head 0 of row 0
    const float *z
    const float *norm
    float eps
    int64_t at, state           # where the state starts in a slot; values of a head's
    int64_t n_keys, together   # heads of a key that are neighbours; 1 where they are n_keys apart


cdef void _prepare(Rows x, Rows dt, Rows beta, Delta rule, int64_t i) noexcept nogil:
    """Queries and keys of row i become unit vectors, queries scaled; time steps decays, and beta what is learnt."""
    cdef int64_t h
    cdef float *head = x.data + i * x.dim
    cdef float scale = 1 / sqrtf(<float>rule.k_dim)
    for h in range(2 * rule.n_keys):
        K.l2_norm(head, head, rule.k_dim, L2_EPS, scale if h < rule.n_keys else 1)
        head += rule.k_dim
    K.decay(dt.data + i * dt.dim, rule.dt_bias.data, rule.a.data, dt.data + i * dt.dim, dt.dim)
    K.sigmoid(beta.data + i * beta.dim, beta.dim)


cdef int _prepare_all(Rows x, Rows dt, Rows beta, Delta rule) except -1:
    cdef int64_t i
    cdef region r
    cdef Team team = x.workspace.team
    cdef int nt = row_threads(x, &r, DELTA | 1 << 4)
    if nt == 1:
        with nogil:
            for i in range(x.n):
                _prepare(x, dt, beta, rule, i)
            team.end(&r)
    else:
        with nogil:
            for i in prange(x.n, num_threads=nt, schedule="static"):
                _prepare(x, dt, beta, rule, i)
            team.end(&r)
    x.q8 = dt.q8 = beta.q8 = NULL
    return 0


cdef void _head(const job *j, RecurrentSlab slab, const span *p, int64_t h) noexcept nogil:
    """Head h of one span, normalised and gated."""
    cdef ox_delta_args a = j.a
    cdef int64_t _, key = h // j.together % j.n_keys, values = h * a.v_dim
    cdef float *y = a.y + p.row * <int64_t>a.y_stride + values
    cdef const float *z = j.z + p.row * <int64_t>a.y_stride + values
    a.q += p.row * <int64_t>a.q_stride + key * a.k_dim
    a.k += p.row * <int64_t>a.k_stride + key * a.k_dim
    a.v += p.row * <int64_t>a.v_stride + values
    a.decay += p.row * <int64_t>a.decay_stride + h
    a.beta += p.row * <int64_t>a.beta_stride + h
    a.y, a.n_tokens = y, p.n
    a.write = slab.row(p.write) + j.at + h * j.state
    a.read = slab.row(p.read)
    if a.read != NULL:
        a.read += j.at + h * j.state
    K.delta(&a)
    for _ in range(p.n):
        K.gated_norm(y, z, j.norm, y, a.v_dim, j.eps)
        y += a.y_stride
        z += a.y_stride


cdef int _check(Rows x, Rows z, Rows dt, Rows beta, Delta rule, int64_t at, RecurrentSlab slab, Batch batch) except -1:
    cdef int64_t keys = rule.n_keys * rule.k_dim, values = rule.n_heads * rule.v_dim, n = batch.n_rows
    if x.n != n or z.n != n or dt.n != n or beta.n != n:
        raise ConfigError(f"{x.n}, {z.n}, {dt.n} and {beta.n} rows for a batch of {n}")
    if x.dim != 2 * keys + values or z.dim != values or dt.dim != rule.n_heads or beta.dim != rule.n_heads:
        raise ConfigError(f"a delta rule of {rule.n_heads} heads needs rows of {2 * keys + values} values for queries, "
                          f"keys and values, {values} for its gate and {rule.n_heads} for time steps and beta, not "
                          f"{x.dim}, {z.dim}, {dt.dim} and {beta.dim}")
    if at < 0 or at % 16 or at > slab.n_values - rule.n_values:
        raise ConfigError(f"a state of {rule.n_values} values at {at} of a slot of {slab.n_values}")
    return slab.check(batch)


def delta(Rows x, Rows z, Rows dt, Rows beta, Delta rule, int64_t at, RecurrentSlab slab, Batch batch):
    """The gated delta rule, normalised and gated: Rows [n, n_heads * v_dim].

    ``x`` are queries and keys [n_keys * k_dim each] and values [n_heads * v_dim], ``z`` the gate before silu, ``dt``
    and ``beta`` [n_heads] time steps before softplus and what is learnt before the sigmoid. All but ``z`` are changed
    on the way. The state starts at value ``at`` of a slot, a multiple of 16. ConfigError for rows that don't fit.
    """
    cdef job j
    cdef Workspace ws = x.workspace
    cdef int64_t keys = rule.n_keys * rule.k_dim, task, n = rule.n_heads
    cdef region r
    cdef Team team = ws.team
    cdef int nt
    _check(x, z, dt, beta, rule, at, slab, batch)
    cdef Rows y = ws.rows(x.n, z.dim)
    _prepare_all(x, dt, beta, rule)
    j.a.q, j.a.k, j.a.v, j.a.decay, j.a.beta = x.data, x.data + keys, x.data + 2 * keys, dt.data, beta.data
    j.a.q_stride = j.a.k_stride = j.a.v_stride = <size_t>x.dim
    j.a.decay_stride = j.a.beta_stride = <size_t>n
    j.a.y, j.a.y_stride, j.a.k_dim, j.a.v_dim = y.data, <size_t>y.dim, rule.k_dim, rule.v_dim
    j.a.stream = rule.n_values >= STREAM_VALUES
    j.z, j.norm, j.eps, j.at, j.state = z.data, rule.norm.data, rule.eps, at, rule.n_values // n
    j.n_keys, j.together = rule.n_keys, n // rule.n_keys if rule.neighbours else 1
    nt = team.begin(&r, DELTA, batch.n_rows * rule.n_values)
    if nt == 1:
        with nogil:
            for task in range(n * batch.n_spans):
                _head(&j, slab, &batch.span[task // n], task % n)
            team.end(&r)
    else:
        with nogil:
            for task in prange(n * batch.n_spans, num_threads=nt, schedule="static"):
                _head(&j, slab, &batch.span[task // n], task % n)
            team.end(&r)
    return y
