"""The first half of a gated feed-forward layer in one parallel region."""

from cython.parallel cimport prange, threadid

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint64_t

from oxillama.errors import ConfigError, QuantError

from oxillama.kernels._table cimport OX_PANEL, ox_kernels, table
from oxillama.kernels._team cimport GATED, Team, region
from oxillama.kernels.batch cimport Batch, adapters_of
from oxillama.kernels.matmul cimport Matrix, _task, describe, job
from oxillama.kernels.activations import geglu_, geglu_erf_, swiglu_, swiglu_limited_, swiglu_oai_
from oxillama.kernels.matmul import matmul
from oxillama.kernels.rows cimport Rows, Workspace

cdef const ox_kernels *K = table()


ctypedef void (*gated_fn)(const float *gate, const float *up, float *y, int64_t n) noexcept nogil


cdef void _swiglu_oai(const float *gate, const float *up, float *y, int64_t n) noexcept nogil:
    K.swiglu_oai(gate, up, y, n, 1.702, 7)


cdef gated_fn _activation(str name) except? NULL:
    if name == "silu":
        return K.swiglu
    if name == "gelu":
        return K.geglu
    if name == "gelu_erf":
        return K.geglu_erf
    if name == "swiglu_oai":
        return _swiglu_oai
    raise ConfigError(f"a gated layer with the activation {name!r}; known: silu, gelu, gelu_erf, swiglu_oai")


def _change(Rows left, Rows right, str activation, float limit):
    if limit:
        return swiglu_limited_(left, right, limit)
    kinds = {"silu": swiglu_, "gelu": geglu_, "gelu_erf": geglu_erf_, "swiglu_oai": swiglu_oai_}
    return kinds[activation](left, right)


cdef int _describe(job *jobs, Rows x, Matrix gate, Matrix up, int nt) except -1:
    """Both products in tasks of the same columns: whole chunks of 32, and all of them with a single thread."""
    cdef int64_t group
    describe(&jobs[0], gate, x, nt)
    describe(&jobs[1], up, x, nt)
    group = max(<int64_t>2, min(jobs[0].group, jobs[1].group) // 2 * 2)
    jobs[0].group = jobs[1].group = gate.n_panels if nt == 1 and x.n == 1 else group
    return 0


cdef void _columns(const job *jobs, Matrix gate, Matrix up, Rows y, gated_fn activation, float limit, bint codes,
                   int64_t task, uint8_t *scratch, float *columns) noexcept nogil:
    """The columns of one task, for all rows; those of the second product go to ``columns``, [y.n, width]."""
    cdef int64_t width = jobs[0].group * OX_PANEL, first = task * width, i
    cdef int64_t n = min(y.dim - first, width)
    cdef job right = jobs[1]
    cdef float *g
    cdef float *u
    right.y, right.y_stride = columns - first, width
    _task(&jobs[0], task, scratch)
    _task(&right, task, scratch)
    for i in range(y.n):
        g = jobs[0].y + i * y.dim + first
        u = columns + i * width
        if gate.bias is not None:
            K.add(gate.bias.data + first, g, n)
        if up.bias is not None:
            K.add(up.bias.data + first, u, n)
        if limit:
            K.swiglu_limited(g, u, g, n, limit)
        else:
            activation(g, u, g, n)
        if codes:
            K.quantise_q8(g, y.q8 + <size_t>i * y.q8_stride, y.dim, first, n)


cdef int _run(job *jobs, Matrix gate, Matrix up, Rows y, gated_fn f, float limit, bint codes,
              region *r) except -1:
    """All tasks, each thread with columns of its own, and with room for panels of what is not packed."""
    cdef Workspace ws = y.workspace
    cdef Team team = ws.team
    cdef int nt = r.n
    cdef int64_t task, n_tasks = (gate.n_panels + jobs[0].group - 1) // jobs[0].group
    cdef int64_t n_columns = max(y.n, <int64_t>1) * jobs[0].group * OX_PANEL
    cdef float *columns = <float *>ws.take(<size_t>(n_columns * nt) * 4)
    cdef size_t scratch_bytes = 0
    cdef uint8_t *scratch = NULL
    if gate.packed == NULL or up.packed == NULL:
        scratch_bytes = max(gate.panel_bytes * <size_t>jobs[0].together, up.panel_bytes * <size_t>jobs[1].together)
        scratch_bytes = (scratch_bytes + 63) // 64 * 64
        scratch = <uint8_t *>ws.take(scratch_bytes * <size_t>nt)
    if nt == 1 and r.brief:
        for task in range(n_tasks):
            _columns(jobs, gate, up, y, f, limit, codes, task, scratch, columns)
        team.end(r)
    elif nt == 1:
        with nogil:
            for task in range(n_tasks):
                _columns(jobs, gate, up, y, f, limit, codes, task, scratch, columns)
            team.end(r)
    else:
        with nogil:
            for task in prange(n_tasks, num_threads=nt, schedule="dynamic"):
                _columns(jobs, gate, up, y, f, limit, codes, task, scratch + scratch_bytes * <size_t>threadid(),
                         columns + n_columns * threadid())
            team.end(r)
    return 0


def gated(Rows x, Matrix gate, Matrix up, str activation, bint codes=False, float limit=0, Batch batch=None):
    """``activation(x @ gate.T) * (x @ up.T)``, biases included: Rows [x.n, gate.n_out]. Shazeer, "GLU Variants", 2020.

    ``activation`` is "silu", "gelu" by the formula with tanh, "gelu_erf", or "swiglu_oai" as
    :func:`.activations.swiglu_oai_`. With a ``limit`` other than 0, of "silu" alone, it is
    :func:`.activations.swiglu_limited_`.

    A thread takes the same columns of both products and goes on with them while they are in its cache. ``codes``: an
    integer matrix will read the result, and its 8-bit twin is made in the same pass. The same bits as matmul() and
    swiglu_() and its like. QuantError for matrices that don't fit, ConfigError for another activation or limit.
    """
    cdef Workspace ws = x.workspace
    cdef job jobs[2]
    cdef region r
    cdef gated_fn f = _activation(activation)
    if not 0 <= limit < INFINITY or limit and activation != "silu":
        raise ConfigError(f"a limit of {limit} for {activation}; it must be positive and finite, and is one of silu")
    if up.n_in != gate.n_in or up.n_out != gate.n_out or codes and gate.n_out % 32:
        raise QuantError(f"{gate.name} {gate.shape} and {up.name} {up.shape} don't make a gated layer")
    adapters = adapters_of(batch)
    if gate.pager is not None or up.pager is not None or adapters is not None and adapters.changes(gate, up):
        left, right = matmul(x, gate, up, batch=batch)
        return _change(left, right, activation, limit)
    cdef Rows y = ws.rows(x.n, gate.n_out)
    if codes:
        y.make_room()
    ws.team.begin(&r, GATED | <uint64_t>(gate.kernel << 8 | (x.n > 8) << 4), 2 * x.n * gate.n_out * gate.n_in)
    _describe(jobs, x, gate, up, r.n)
    jobs[0].y = y.data
    mark = ws.mark()
    _run(jobs, gate, up, y, f, limit, codes, &r)
    ws.release(mark)
    y._q8_releases = ws._releases    # the twin was made before the mark
    return y
