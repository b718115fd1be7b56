"""The feed-forward layers of a mixture of experts, for all rows that use them.

Rows are grouped by expert, so that an expert's weights are read once for all its rows, and those of experts that no row
chose are not read at all. Each pair's values depend on its row alone, and a row adds up its pairs in their order.
"""

from cython.parallel cimport prange, threadid

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from oxillama.errors import ConfigError, QuantError

from oxillama.kernels._table cimport OX_PANEL, ox_kernels, table
from oxillama.kernels._team cimport EXPERTS, Team, region
from oxillama.kernels._threads cimport usable_threads
from oxillama.kernels.batch cimport Batch, adapters_of
from oxillama.kernels.matmul cimport Matrix, _task, job, prepare, run, set_input
from oxillama.kernels.routing cimport Routing
from oxillama.kernels.rows cimport Rows, Workspace, row_threads

cdef const ox_kernels *K = table()

ctypedef void (*gated_fn)(const float *gate, const float *up, float *y, int64_t n) noexcept nogil
ctypedef void (*plain_fn)(float *x, int64_t n) noexcept nogil


cdef void _swiglu_oai(const float *gate, const float *up, float *y, int64_t n) noexcept nogil:
    K.swiglu_oai(gate, up, y, n, 1.702, 7)


cdef int _find_activation(str name, gated_fn *gated, plain_fn *plain) except -1:
    """The function of layers that have a gate, or that of layers that have none."""
    if gated != NULL:
        if name not in ("silu", "gelu", "relu", "swiglu_oai"):
            raise ConfigError(f"experts with a gate and the activation {name!r}; known: silu, gelu, relu, swiglu_oai")
        gated[0] = (K.swiglu if name == "silu" else K.geglu if name == "gelu" else K.reglu if name == "relu"
                    else _swiglu_oai)
        return 0
    if name not in ("silu", "gelu", "gelu_erf", "relu2"):
        raise ConfigError(f"experts without a gate and the activation {name!r}; known: silu, gelu, gelu_erf, relu2")
    plain[0] = K.silu if name == "silu" else K.gelu if name == "gelu" else K.gelu_erf if name == "gelu_erf" else K.relu2
    return 0


cdef int _experts_in_use(Routing r) noexcept:
    cdef int n = 0
    cdef int64_t e
    for e in range(r.n_experts):
        n += r.first[e + 1] > r.first[e]
    return n


cdef int _check_routed(Rows x, Routing r, Matrix w, bint by_pair) except -1:
    """C follows the routing blindly: every row and every expert that it names must be there."""
    if x.n != (r.n * r.k if by_pair else r.n) or x.workspace is not r.workspace:
        raise QuantError(f"{x.n} rows for a routing of {r.n} rows to {r.k} experts each, by_pair={bool(by_pair)}")
    if w.n_experts != r.n_experts:
        raise QuantError(f"{w.name}: {w.n_experts} experts for a routing among {r.n_experts}")
    return 0


cdef job *_expert_jobs(Rows x, Routing r, Matrix w, Rows y, bint by_pair, int n_active, int nt) except NULL:
    """Job of each expert in use: the product of its rows of ``x`` with its matrix, to its pairs' rows of ``y``."""
    cdef job *jobs = <job *>x.workspace.take(<size_t>max(n_active, 1) * sizeof(job))
    cdef int64_t e
    cdef int i = 0
    _check_routed(x, r, w, by_pair)
    for e in range(r.n_experts):
        if r.first[e + 1] == r.first[e]:
            continue
        prepare(&jobs[i], w, e, r.first[e + 1] - r.first[e], nt)
        set_input(&jobs[i], w, x)
        jobs[i].x_rows = (r.pair_of if by_pair else r.row_of) + r.first[e]
        jobs[i].y_rows = r.pair_of + r.first[e]
        jobs[i].y = y.data
        i += 1
    return jobs


# The first half of the experts in use: of each the product with its gate, ``left``, and the other, ``right``, in tasks
# of the same columns; of experts without a gate the one product is ``left``.
cdef struct layer:
    job *left
    job *right                  # or NULL
    gated_fn gated
    float limit                 # of swiglu_limited, which replaces the function; 0 without
    plain_fn plain
    int32_t *experts            # which they are
    int n_active
    int64_t n_tasks, n_columns  # a task's columns of ``right``, for all rows of an expert
    const float *left_bias      # [n_experts, dim], or NULL
    const float *right_bias
    float *y                    # [pairs, dim]
    uint8_t *q8                 # its 8-bit twin, or NULL
    size_t q8_stride
    int64_t dim


cdef int _share_out(layer *h, Routing r, bint serial) except -1:
    """Tasks of the same columns of both products: whole chunks of 32, and all of them with a single thread."""
    cdef int64_t group, e, n_panels
    cdef int i = 0
    h.n_tasks = h.n_columns = 0
    for e in range(r.n_experts):
        if r.first[e + 1] > r.first[e]:
            h.experts[i] = <int32_t>e
            i += 1
    for i in range(h.n_active):
        n_panels = h.left[i].n_panels
        group = h.left[i].group if h.right == NULL else min(h.left[i].group, h.right[i].group)
        h.left[i].group = n_panels if serial else max(<int64_t>2, group // 2 * 2)
        h.left[i].first_task = h.n_tasks
        h.n_tasks += (n_panels + h.left[i].group - 1) // h.left[i].group
        if h.right != NULL:
            h.right[i].group = h.left[i].group
            h.n_columns = max(h.n_columns, h.left[i].n_tokens * h.left[i].group * OX_PANEL)
    return 0


cdef void _hidden(const layer *h, int64_t task, uint8_t *scratch, float *columns) noexcept nogil:
    """The columns of one task of one expert, for all its rows; those of ``right`` go to ``columns``."""
    cdef int i = 0, end = h.n_active, middle
    cdef int64_t width, first, n, t, pair
    cdef job right
    while end - i > 1:
        middle = (i + end) // 2
        if h.left[middle].first_task <= task:
            i = middle
        else:
            end = middle
    width, task = h.left[i].group * OX_PANEL, task - h.left[i].first_task
    first = task * width
    n = min(h.dim - first, width)
    _task(&h.left[i], task, scratch)
    if h.right != NULL:
        right = h.right[i]
        right.y, right.y_stride, right.y_rows = columns - first, width, NULL
        _task(&right, task, scratch)
    for t in range(h.left[i].n_tokens):
        pair = h.left[i].y_rows[t]
        _activate(h, h.experts[i] * h.dim + first, h.y + pair * h.dim + first, columns + t * width, n)
        if h.q8 != NULL:
            K.quantise_q8(h.y + pair * h.dim + first, h.q8 + <size_t>pair * h.q8_stride, h.dim, first, n)


cdef void _activate(const layer *h, int64_t bias, float *y, float *up, int64_t n) noexcept nogil:
    """Some columns of one pair, in place; ``bias``: where theirs are."""
    if h.left_bias != NULL:
        K.add(h.left_bias + bias, y, n)
    if h.right == NULL:
        h.plain(y, n)
        return
    if h.right_bias != NULL:
        K.add(h.right_bias + bias, up, n)
    if h.limit:
        K.swiglu_limited(y, up, y, n, h.limit)
    else:
        h.gated(y, up, y, n)


cdef int _prepare_layer(layer *h, Rows x, Routing r, Matrix gate, Matrix up, Rows y, bint codes, int nt) except -1:
    cdef Matrix left = up if gate is None else gate
    cdef Workspace ws = x.workspace
    h.n_active = _experts_in_use(r)
    h.left = _expert_jobs(x, r, left, y, False, h.n_active, nt)
    h.right = NULL if gate is None else _expert_jobs(x, r, up, y, False, h.n_active, nt)
    h.left_bias = left.bias.data if left.bias is not None else NULL
    h.right_bias = up.bias.data if gate is not None and up.bias is not None else NULL
    h.experts = <int32_t *>ws.take(<size_t>max(h.n_active, 1) * 4)
    h.y, h.q8, h.q8_stride, h.dim = y.data, y.q8 if codes else NULL, y.q8_stride, y.dim
    return 0


cdef size_t _packed_at_once(const job *jobs, int n_jobs) noexcept:
    """Bytes for panels that a thread packs on the way."""
    cdef size_t most = 0
    cdef int i
    if jobs != NULL:
        for i in range(n_jobs):
            if jobs[i].packed == NULL:
                most = max(most, jobs[i].panel_bytes * <size_t>jobs[i].together)
    return (most + 63) // 64 * 64


cdef int _run_layer(const layer *h, uint8_t *scratch, size_t scratch_bytes, float *columns, Team team,
                    region *r) except -1:
    cdef int64_t task
    cdef int nt = r.n
    if nt == 1 and r.brief:
        for task in range(h.n_tasks):
            _hidden(h, task, scratch, columns)
        team.end(r)
    elif nt == 1:
        with nogil:
            for task in range(h.n_tasks):
                _hidden(h, task, scratch, columns)
            team.end(r)
    else:
        with nogil:
            for task in prange(h.n_tasks, num_threads=nt, schedule="dynamic"):
                _hidden(h, task, scratch + scratch_bytes * <size_t>threadid(), columns + h.n_columns * threadid())
            team.end(r)
    return 0


def expert_hidden(Rows x, Routing routing, Matrix gate, Matrix up, str activation="silu", bint codes=False,
                  float limit=0, Batch batch=None):
    """``activation(x @ gate[e].T) * (x @ up[e].T)``, biases included, of all pairs: Rows [n * k, n_out].

    ``activation`` is "silu", "gelu" by the formula with tanh, "relu", or "swiglu_oai" as
    :func:`.activations.swiglu_oai_`. With a ``limit`` other than 0, of "silu" alone, it is
    :func:`.activations.swiglu_limited_`. Without ``gate`` (None) it is ``activation(x @ up[e].T)``, where "gelu_erf"
    and "relu2" are known, too.

    A thread takes the same columns of both products and goes on with them while they are in its cache. ``codes``: an
    integer matrix will read the result, and its 8-bit twin is made in the same pass. Raises QuantError for rows or
    stacks that the routing isn't made for, ConfigError for another activation.
    """
    cdef Workspace ws = x.workspace
    cdef layer h
    cdef region r
    cdef int nt
    cdef size_t scratch_bytes = 0
    cdef uint8_t *scratch = NULL
    cdef float *columns
    if gate is not None and (up.n_in != gate.n_in or up.n_out != gate.n_out) or codes and up.n_out % 32:
        raise QuantError(f"{'no gate' if gate is None else gate.name} and {up.name} {up.shape} don't make a layer")
    _find_activation(activation, &h.gated if gate is not None else NULL, &h.plain)
    if not 0 <= limit < INFINITY or limit and (gate is None or activation != "silu"):
        raise ConfigError(f"a limit of {limit} for {activation}; it must be positive and finite, and is one of silu")
    h.limit = limit
    cdef Rows y = ws.rows(routing.n * routing.k, up.n_out)
    paged = up.pager is not None or gate is not None and gate.pager is not None
    adapters = adapters_of(batch)
    if paged or adapters is not None and adapters.changes(gate, up):
        return _changed(&h, x, routing, gate, up, y, adapters)
    if codes:
        y.make_room()
    nt = ws.team.begin(&r, EXPERTS | <uint64_t>(up.kernel << 4), 2 * routing.n * routing.k * up.n_out * up.n_in)
    _prepare_layer(&h, x, routing, gate, up, y, codes, nt)
    _share_out(&h, routing, nt == 1 and r.brief)
    columns = <float *>ws.take(<size_t>max(h.n_columns * nt, <int64_t>1) * 4)
    scratch_bytes = max(_packed_at_once(h.left, h.n_active), _packed_at_once(h.right, h.n_active))
    if scratch_bytes:
        scratch = <uint8_t *>ws.take(scratch_bytes * <size_t>nt)
    _run_layer(&h, scratch, scratch_bytes, columns, ws.team, &r)
    return y


cdef Rows _changed(layer *h, Rows x, Routing r, Matrix gate, Matrix up, Rows y, adapters):
    """Computes the same bits where nothing changes, product by product: changes come before the activation.

    Weights that a pager brings in are taken so, too: of both products what is there first.
    """
    cdef Workspace ws = x.workspace
    cdef Rows other = y if gate is None else ws.rows(y.n, y.dim)
    cdef int64_t i, pair, n, pairs = r.n * r.k
    cdef job *both
    cdef region rows
    cdef Team team = ws.team
    cdef int nt
    _prepare_layer(h, x, r, gate, up, y, False, usable_threads(ws.num_threads))
    n = h.n_active
    both = <job *>ws.take(<size_t>max(2 * n, <int64_t>1) * sizeof(job))
    for i in range(n):
        both[i] = h.left[i]
        if h.right != NULL:
            both[n + i] = h.right[i]
            both[n + i].y = other.data
    run(both, <int>(n if h.right == NULL else 2 * n), ws)
    if adapters is not None:
        adapters.add_experts(y, x, r, up if gate is None else gate, False)
        if h.right != NULL:
            adapters.add_experts(other, x, r, up, False)
    nt = row_threads(y, &rows, EXPERTS | 1 << 12)
    with nogil:
        for pair in prange(pairs, num_threads=nt, schedule="static"):
            _activate(h, r.chosen[pair] * y.dim, y.data + pair * y.dim, other.data + pair * y.dim, y.dim)
        team.end(&rows)
    y.q8 = NULL
    return y


def expert_hidden_joint(Rows x, Routing routing, Matrix both, str activation="silu", Batch batch=None):
    """:func:`expert_hidden` of experts whose gate and other matrix are one: its rows are the gate's, then the other's.

    The same bits as with two matrices. Raises QuantError for a matrix that doesn't hold two, or has biases.
    """
    cdef Workspace ws = x.workspace
    cdef gated_fn f
    cdef plain_fn unused
    cdef job *jobs
    cdef int64_t n = both.n_out // 2, pairs = routing.n * routing.k, pair
    cdef Rows joint, y
    cdef region r
    cdef Team team = ws.team
    cdef int n_active, nt
    if both.n_out % 2 or both.bias is not None:
        raise QuantError(f"{both.name} {both.shape} does not hold two matrices of equal size, without biases")
    _find_activation(activation, &f, &unused)
    y = ws.rows(pairs, n)
    joint = ws.rows(pairs, 2 * n)
    n_active = _experts_in_use(routing)
    jobs = _expert_jobs(x, routing, both, joint, False, n_active, usable_threads(ws.num_threads))
    run(jobs, n_active, ws)
    adapters = adapters_of(batch)
    if adapters is not None:
        adapters.add_experts(joint, x, routing, both, False)
    nt = row_threads(y, &r, EXPERTS | 2 << 12)
    if nt == 1:
        with nogil:
            for pair in range(pairs):
                f(joint.data + 2 * pair * n, joint.data + (2 * pair + 1) * n, y.data + pair * n, n)
            team.end(&r)
    else:
        with nogil:
            for pair in prange(pairs, num_threads=nt, schedule="static"):
                f(joint.data + 2 * pair * n, joint.data + (2 * pair + 1) * n, y.data + pair * n, n)
            team.end(&r)
    return y


def expert_add_(Rows y, Rows hidden, Routing routing, Matrix down, Batch batch=None):
    """``y[r] += sum_i weight[r, i] * (hidden[r * k + i] @ down[e].T)``, biases included, in place, in the order of i.

    Raises QuantError for rows or stacks that the routing isn't made for.
    """
    cdef Workspace ws = y.workspace
    cdef int n_active = _experts_in_use(routing), nt
    cdef region rows
    cdef Team team = ws.team
    cdef int64_t r
    cdef Rows pairs
    cdef job *jobs
    cdef const float *bias = down.bias.data if down.bias is not None else NULL
    if y.n != routing.n or y.dim != down.n_out:
        raise QuantError(f"{down.name}: output of {y.n} x {y.dim} for {routing.n} rows and a stack of {down.shape}")
    pairs = ws.rows(routing.n * routing.k, down.n_out)
    jobs = _expert_jobs(hidden, routing, down, pairs, True, n_active, usable_threads(ws.num_threads))
    run(jobs, n_active, ws)
    adapters = adapters_of(batch)
    if adapters is not None:
        adapters.add_experts(pairs, hidden, routing, down, True)
    nt = row_threads(y, &rows, EXPERTS | 3 << 12)
    if nt == 1:
        with nogil:
            for r in range(y.n):
                _combine(routing, r, pairs.data, bias, y.data + r * y.dim, y.dim)
            team.end(&rows)
    else:
        with nogil:
            for r in prange(y.n, num_threads=nt, schedule="static"):
                _combine(routing, r, pairs.data, bias, y.data + r * y.dim, y.dim)
            team.end(&rows)
    y.q8 = NULL


cdef void _combine(Routing routing, int64_t r, float *pairs, const float *bias, float *y, int64_t dim) noexcept nogil:
    cdef int64_t i
    for i in range(r * routing.k, (r + 1) * routing.k):
        if bias != NULL:
            K.add(bias + routing.chosen[i] * dim, pairs + i * dim, dim)
        K.add_scaled(pairs + i * dim, routing.shares[i], y, dim)
