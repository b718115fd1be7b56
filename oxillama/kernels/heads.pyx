"""Rows as heads side by side: one matrix per head, and heads of two parts taken apart and put together.

This is what multi-head latent attention does around attention itself (DeepSeek-V2, 2024): ``heads_matmul`` moves each
head's queries into the latent space that keys are cached in, and each head's result out of it.
"""

from cython.parallel cimport prange

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from oxillama.errors import ConfigError, QuantError

from oxillama.kernels._team cimport ROTATION, Team, region
from oxillama.kernels._threads cimport usable_threads
from oxillama.kernels.batch cimport Batch, adapters_of
from oxillama.kernels.matmul cimport Matrix, job, prepare, run, set_input
from oxillama.kernels.rows cimport Rows, Workspace, row_threads


def heads_matmul(Rows x, Matrix w, Batch batch=None):
    """``y[:, h] = x[:, h] @ w[h].T`` for each head h: Rows [n, heads * n_in] to Rows [n, heads * n_out].

    ``w`` is a stack of one matrix per head, in any format that has kernels; each head's values are rounded to 8 bits by
    themselves where it takes those. Raises QuantError for rows that are not one input per matrix.
    """
    cdef Workspace ws = x.workspace
    cdef int nt = usable_threads(ws.num_threads), i, n_heads = <int>w.n_experts
    cdef Rows y, heads
    cdef job *jobs
    if x.dim != n_heads * w.n_in:
        raise QuantError(f"{w.name}: input of width {x.dim} for {n_heads} heads of {w.n_in} values")
    y = ws.rows(x.n, n_heads * w.n_out)
    mark = ws.mark()
    heads = _as_heads(x, n_heads)
    jobs = <job *>ws.take(<size_t>n_heads * sizeof(job))
    for i in range(n_heads):
        prepare(&jobs[i], w, i, x.n, nt)
        set_input(&jobs[i], w, heads)
        jobs[i].x += <size_t>i * jobs[i].x_bytes
        jobs[i].x_bytes *= <size_t>n_heads
        jobs[i].y, jobs[i].y_stride = y.data + i * w.n_out, y.dim
        if n_heads >= 4 * nt:
            jobs[i].group = jobs[i].n_panels    # enough heads to share out: each is one task
    run(jobs, n_heads, ws)
    ws.release(mark)
    adapters = adapters_of(batch)
    if adapters is not None:
        adapters.add_heads(y, x, w)
    return y


cdef Rows _as_heads(Rows x, int64_t n_heads):
    """A view of rows with a row for each head: for its 8-bit twin, which belongs to whole rows."""
    cdef Rows r = Rows.__new__(Rows)
    r.data, r.n, r.dim, r.workspace = x.data, x.n * n_heads, x.dim // n_heads, x.workspace
    r._owner, r._offset = x._owner, x._offset
    return r


cdef void _split(Rows x, Rows a, Rows b, int64_t n_first, int64_t rest, int64_t i) noexcept nogil:
    memcpy(a.data + i * n_first, x.data + i * (n_first + rest), <size_t>n_first * 4)
    memcpy(b.data + i * rest, x.data + i * (n_first + rest) + n_first, <size_t>rest * 4)


def split_heads(Rows x, int64_t n_heads, int64_t n_first):
    """The first ``n_first`` values of each head, and the others: Rows [n, heads * n_first], Rows [n, heads * rest].

    Raises ConfigError for rows that are not ``n_heads`` heads with something in both parts.
    """
    cdef int64_t i, rest
    if n_heads < 1 or x.dim % n_heads or not 0 < n_first < x.dim // n_heads:
        raise ConfigError(f"rows of {x.dim} values can't be split into {n_heads} heads of {n_first} values and more")
    rest = x.dim // n_heads - n_first
    cdef Rows a = x.workspace.rows(x.n, n_heads * n_first)
    cdef Rows b = x.workspace.rows(x.n, n_heads * rest)
    cdef region r
    cdef Team team = x.workspace.team
    cdef int nt = row_threads(x, &r, ROTATION | 1 << 4)
    if nt == 1:
        with nogil:
            for i in range(x.n * n_heads):
                _split(x, a, b, n_first, rest, i)
            team.end(&r)
    else:
        with nogil:
            for i in prange(x.n * n_heads, num_threads=nt, schedule="static"):
                _split(x, a, b, n_first, rest, i)
            team.end(&r)
    return a, b


def join_heads(Rows a, Rows b, int64_t n_heads):
    """Heads made of a head of ``a`` and one of ``b``: Rows [n, a.dim + b.dim]. The reverse of :func:`split_heads`."""
    cdef int64_t i, n, rest
    if n_heads < 1 or a.n != b.n or a.dim % n_heads or b.dim % n_heads:
        raise ConfigError(f"rows of shapes {a.n} x {a.dim} and {b.n} x {b.dim} don't make {n_heads} heads")
    n, rest = a.dim // n_heads, b.dim // n_heads
    cdef Rows y = a.workspace.rows(a.n, a.dim + b.dim)
    with nogil:
        for i in range(a.n * n_heads):
            memcpy(y.data + i * (n + rest), a.data + i * n, <size_t>n * 4)
            memcpy(y.data + i * (n + rest) + n, b.data + i * rest, <size_t>rest * 4)
    return y
