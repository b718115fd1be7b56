"""Mixture of experts: which experts a row uses, and their feed-forward layers for all rows that use them.

Rows are grouped by expert, so that an expert's weights are read once for all its rows, and those of experts that no row
chose are not read at all. A row and one of its experts are a pair; pair ``row * k + i`` is the row's i-th expert, best
first. Each pair's values depend on its row alone, and a row adds up its pairs in their order.
"""

from cython.parallel cimport prange, threadid

from libc.math cimport INFINITY, expf, fabsf, fmaxf
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

import numpy as np

from oxillama.errors import ConfigError, QuantError

from oxillama.kernels._table cimport OX_PANEL, ox_kernels, table
from oxillama.kernels._threads cimport usable_threads
from oxillama.kernels.matmul cimport Matrix, _task, job, prepare, run, set_input
from oxillama.kernels.rows cimport Rows, Vector, Workspace, row_threads

cdef const ox_kernels *K = table()

cdef enum:
    SERIAL_WORK = 500_000       # multiplications below which a region costs more than it saves
    SERIAL_SCORES = 8192        # scores below which routing is not shared out
    PACKED_AT_ONCE = 4          # panels, at most, of a matrix that is packed on the way

cdef enum gating:
    SOFTMAX, SIGMOID, SOFTMAX_CHOSEN, SPARSEMIXER

GATINGS = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "softmax_chosen": SOFTMAX_CHOSEN, "sparsemixer": SPARSEMIXER}


cdef class Routing:
    """For each row its ``k`` of ``n_experts`` experts with their weights, and the same grouped by expert.

    It lives in the workspace of the logits that it was made from, until their memory is taken back.
    """

    cdef readonly int64_t n, k, n_experts
    cdef readonly Workspace workspace
    cdef Rows _memory
    cdef int32_t *chosen        # [n, k]
    cdef float *shares          # [n, k]
    cdef int32_t *pair_of       # pairs, grouped by expert, in their order
    cdef int32_t *row_of        # the rows of these pairs
    cdef int32_t *first         # [n_experts + 1]: where in these an expert's begin; and one word to sort with

    cdef int32_t[::1] _words(self, void *start, int64_t n):
        return <int32_t[:max(n, 1)]><int32_t *>start

    @property
    def experts(self):
        """int32 [n, k]: a copy."""
        return np.array(self._words(self.chosen, self.n * self.k))[:self.n * self.k].reshape(self.n, self.k)

    @property
    def weights(self):
        """float32 [n, k]: a copy."""
        words = np.array(self._words(self.shares, self.n * self.k))[:self.n * self.k]
        return words.view(np.float32).reshape(self.n, self.k)

    @property
    def counts(self):
        """Rows that use each expert, int32 [n_experts]."""
        return np.diff(np.array(self._words(self.first, self.n_experts + 1)))


cdef Routing _new_routing(Rows logits, int64_t k):
    cdef Routing r = Routing.__new__(Routing)
    cdef int64_t pairs = logits.n * k
    cdef int32_t *words
    r.n, r.k, r.n_experts, r.workspace = logits.n, k, logits.dim, logits.workspace
    r._memory = r.workspace.rows(1, 4 * pairs + r.n_experts + 2)
    words = <int32_t *>r._memory.data
    r.chosen, r.shares, r.pair_of, r.row_of = words, <float *>(words + pairs), words + 2 * pairs, words + 3 * pairs
    r.first = words + 4 * pairs
    return r


cdef void _group(Routing r) noexcept nogil:
    """Counting sort: ``first[e + 1]`` moves from where the pairs of expert e begin to where they end."""
    cdef int64_t i, pairs = r.n * r.k
    cdef int32_t place
    memset(r.first, 0, <size_t>(r.n_experts + 2) * 4)
    for i in range(pairs):
        r.first[r.chosen[i] + 2] += 1
    for i in range(r.n_experts):
        r.first[i + 2] += r.first[i + 1]
    for i in range(pairs):
        place = r.first[r.chosen[i] + 1]
        r.first[r.chosen[i] + 1] += 1
        r.pair_of[place] = <int32_t>i
        r.row_of[place] = <int32_t>(i // r.k)


cdef struct router:
    int gating
    int normalise
    float scale
    const float *bias           # or NULL
    int64_t n_experts, k, n_groups, n_groups_used


cdef int64_t _best(const float *x, int64_t n) noexcept nogil:
    """The largest; ties go to the lower id."""
    cdef int64_t best = 0, e
    for e in range(1, n):
        if x[e] > x[best]:
            best = e
    return best


cdef float _group_score(const router *o, const float *x, int64_t n) noexcept nogil:
    """The sum of a group's two best scores under sigmoid gating (DeepSeek-V3), else its best (DeepSeek-V2)."""
    cdef int64_t best = _best(x, n), e
    cdef float second = -INFINITY
    if o.gating != SIGMOID or n == 1:
        return x[best]
    for e in range(n):
        if e != best:
            second = fmaxf(second, x[e])
    return x[best] + second


cdef void _limit_groups(const router *o, float *choice, float *scores) noexcept nogil:
    """Leaves the experts of the best groups to choose from; ties go to the lower group."""
    cdef int64_t size = o.n_experts // o.n_groups, g, e, worst
    for g in range(o.n_groups):
        scores[g] = _group_score(o, choice + g * size, size)
    for _ in range(o.n_groups - o.n_groups_used):
        worst = 0
        for g in range(1, o.n_groups):
            if scores[g] <= scores[worst]:
                worst = g
        scores[worst] = INFINITY
        for e in range(size):
            choice[worst * size + e] = -INFINITY


cdef float _sparsemixer_share(const float *x, int64_t n, float best) noexcept nogil:
    """The best score's probability among those within 2 % of it: Liu et al., "GRIN", 2024, section 2.2, and Phi-3.5."""
    cdef float total = 0
    cdef int64_t e
    for e in range(n):
        if not (best - x[e]) / fmaxf(fabsf(x[e]), best) > 0.02:
            total += expf(x[e] - best)
    return 1 / total


cdef void _route_row(const router *o, float *scores, float *choice, int32_t *chosen, float *shares) noexcept nogil:
    """``choice`` has room for a row of scores and for those of the groups."""
    cdef int64_t e, i
    cdef float total = 1e-20    # as DeepSeek-V3: nothing to sums that are not nothing themselves
    if o.gating == SOFTMAX:
        K.softmax(scores, o.n_experts)
    elif o.gating == SIGMOID:
        for e in range(o.n_experts):
            scores[e] = 1 / (1 + expf(-scores[e]))
    memcpy(choice, scores, <size_t>o.n_experts * 4)
    if o.bias != NULL:
        K.add(o.bias, choice, o.n_experts)
    if o.n_groups_used < o.n_groups:
        _limit_groups(o, choice, choice + o.n_experts)
    for i in range(o.k):
        e = _best(choice, o.n_experts)
        chosen[i] = <int32_t>e
        shares[i] = _sparsemixer_share(choice, o.n_experts, choice[e]) if o.gating == SPARSEMIXER else scores[e]
        choice[e] = -INFINITY
    if o.gating == SOFTMAX_CHOSEN:
        K.softmax(shares, o.k)
    if o.normalise:
        for i in range(o.k):
            total += shares[i]
        for i in range(o.k):
            shares[i] /= total
    if o.scale != 1:
        for i in range(o.k):
            shares[i] *= o.scale


def route(Rows logits, int64_t k, *, str gating="softmax", bint normalise=True, float scale=1.0, Vector bias=None,
          int64_t n_groups=1, int64_t n_groups_used=1):
    """The ``k`` experts of each row with the highest scores, best first, and their weights; ties go to the lower id.

    ``logits`` [n, n_experts] are overwritten. ``gating``: scores are the softmax over all logits (``"softmax"``), the
    sigmoid of each (``"sigmoid"``), or the logits themselves, of which the chosen are softmaxed (``"softmax_chosen"``)
    or weighed among those that come near them (``"sparsemixer"``, Phi-3.5). ``bias`` [n_experts] is added to the scores
    for choosing alone. Only the best ``n_groups_used`` of ``n_groups`` runs of experts are chosen from (DeepSeek-V2 and
    -V3). The scores of the chosen are the weights, scaled to sum to one (``normalise``) and multiplied by ``scale``.
    ConfigError for numbers that don't fit.
    """
    cdef router o
    cdef Routing r
    cdef Rows choice
    cdef int64_t i
    cdef int nt = usable_threads(logits.workspace.num_threads) if logits.n * logits.dim >= SERIAL_SCORES else 1
    _check_route(logits, k, gating, bias, n_groups, n_groups_used)
    o.gating, o.normalise, o.scale, o.bias = GATINGS[gating], normalise, scale, bias.data if bias is not None else NULL
    o.n_experts, o.k, o.n_groups, o.n_groups_used = logits.dim, k, n_groups, n_groups_used
    r = _new_routing(logits, k)
    choice = logits.workspace.rows(logits.n, logits.dim + n_groups)
    if nt == 1:
        with nogil:
            for i in range(r.n):
                _route_row(&o, logits.data + i * logits.dim, choice.data + i * choice.dim, r.chosen + i * k,
                           r.shares + i * k)
    else:
        for i in prange(r.n, nogil=True, num_threads=nt, schedule="static"):
            _route_row(&o, logits.data + i * logits.dim, choice.data + i * choice.dim, r.chosen + i * k,
                       r.shares + i * k)
    _group(r)
    return r


cdef int _check_route(Rows logits, k, gating, Vector bias, n_groups, n_groups_used) except -1:
    n = logits.dim
    if not 1 <= k <= n:
        raise ConfigError(f"{k} of {n} experts")
    if gating not in GATINGS:
        raise ConfigError(f"gating={gating!r}; one of {', '.join(GATINGS)} is needed")
    if bias is not None and bias.n != n:
        raise ConfigError(f"a bias of {bias.n} values for {n} experts")
    if not 1 <= n_groups_used <= n_groups <= n or n % n_groups or k > n // n_groups * n_groups_used:
        raise ConfigError(f"{k} of {n} experts, in {n_groups_used} of {n_groups} groups")
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
    """For each expert in use, the product of its rows of ``x`` with its matrix, to its pairs' rows of ``y``."""
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


# The first half of the experts in use: of each a product with ``gate`` and one with ``up``, in equal tasks.
cdef struct layer:
    job *gate
    job *up
    int32_t *experts            # which they are
    int n_active
    int64_t n_tasks, n_columns  # a task's columns of ``up``, for all rows of an expert
    const float *gate_bias      # [n_experts, dim], or NULL
    const float *up_bias
    float *y                    # [pairs, dim]
    uint8_t *q8                 # its 8-bit twin, or NULL
    size_t q8_stride
    int64_t dim


cdef int _share_out(layer *h, Routing r, int nt, bint serial) except -1:
    """Tasks of the same columns of both products: whole chunks of 32, and all of them if nobody shares the work."""
    cdef int64_t group, e, n_panels
    cdef int i = 0
    h.n_tasks = h.n_columns = 0
    for e in range(r.n_experts):
        if r.first[e + 1] > r.first[e]:
            h.experts[i] = <int32_t>e
            i += 1
    for i in range(h.n_active):
        n_panels = h.gate[i].n_panels
        group = n_panels if serial else max(<int64_t>2, min(h.gate[i].group, h.up[i].group) // 2 * 2)
        h.gate[i].group = h.up[i].group = group
        h.gate[i].first_task = h.n_tasks
        h.n_tasks += (n_panels + group - 1) // group
        h.n_columns = max(h.n_columns, h.gate[i].n_tokens * group * OX_PANEL)
    return 0


cdef void _hidden(const layer *h, int64_t task, uint8_t *scratch, float *columns) noexcept nogil:
    """The columns of one task of one expert, for all its rows; those of the second product go to ``columns``."""
    cdef int i = 0, end = h.n_active, middle
    cdef int64_t width, first, n, t, pair
    cdef float *g
    cdef float *u
    cdef job right
    while end - i > 1:
        middle = (i + end) // 2
        if h.gate[middle].first_task <= task:
            i = middle
        else:
            end = middle
    width, task = h.gate[i].group * OX_PANEL, task - h.gate[i].first_task
    first = task * width
    n = min(h.dim - first, width)
    right = h.up[i]
    right.y, right.y_stride, right.y_rows = columns - first, width, NULL
    _task(&h.gate[i], task, scratch)
    _task(&right, task, scratch)
    for t in range(right.n_tokens):
        pair = h.gate[i].y_rows[t]
        g, u = h.y + pair * h.dim + first, columns + t * width
        if h.gate_bias != NULL:
            K.add(h.gate_bias + h.experts[i] * h.dim + first, g, n)
        if h.up_bias != NULL:
            K.add(h.up_bias + h.experts[i] * h.dim + first, u, n)
        K.swiglu(g, u, g, n)
        if h.q8 != NULL:
            K.quantise_q8(g, h.q8 + <size_t>pair * h.q8_stride, h.dim, first, n)


def expert_hidden(Rows x, Routing routing, Matrix gate, Matrix up, bint codes=False):
    """``silu(x @ gate[e].T) * (x @ up[e].T)``, biases included, of all pairs: Rows [n * k, n_out].

    A thread takes the same columns of both products and goes on with them while they are in its cache. ``codes``: an
    integer matrix will read the result, and its 8-bit twin is made in the same pass. Raises QuantError for rows or
    stacks that the routing isn't made for.
    """
    cdef Workspace ws = x.workspace
    cdef layer h
    cdef int64_t task, work = 2 * routing.n * routing.k * gate.n_out * gate.n_in
    cdef bint serial = work < SERIAL_WORK
    cdef int nt = 1 if serial else usable_threads(ws.num_threads)
    cdef size_t scratch_bytes = 0
    cdef uint8_t *scratch = NULL
    cdef float *columns
    if up.n_in != gate.n_in or up.n_out != gate.n_out or codes and gate.n_out % 32:
        raise QuantError(f"{gate.name} {gate.shape} and {up.name} {up.shape} don't make a gated layer")
    cdef Rows y = ws.rows(routing.n * routing.k, gate.n_out)
    if codes:
        y.make_room()
    h.n_active = _experts_in_use(routing)
    h.gate = _expert_jobs(x, routing, gate, y, False, h.n_active, nt)
    h.up = _expert_jobs(x, routing, up, y, False, h.n_active, nt)
    h.experts = <int32_t *>ws.take(<size_t>max(h.n_active, 1) * 4)
    h.gate_bias = gate.bias.data if gate.bias is not None else NULL
    h.up_bias = up.bias.data if up.bias is not None else NULL
    h.y, h.q8, h.q8_stride, h.dim = y.data, y.q8 if codes else NULL, y.q8_stride, y.dim
    _share_out(&h, routing, nt, serial)
    columns = <float *>ws.take(<size_t>(h.n_columns * nt) * 4)
    if gate.packed == NULL or up.packed == NULL:
        scratch_bytes = max(gate.panel_bytes * <size_t>PACKED_AT_ONCE, up.panel_bytes * <size_t>PACKED_AT_ONCE)
        scratch_bytes = (scratch_bytes + 63) // 64 * 64
        scratch = <uint8_t *>ws.take(scratch_bytes * <size_t>nt)
    if serial:
        for task in range(h.n_tasks):
            _hidden(&h, task, scratch, columns)
    elif nt == 1:
        with nogil:
            for task in range(h.n_tasks):
                _hidden(&h, task, scratch, columns)
    else:
        for task in prange(h.n_tasks, nogil=True, num_threads=nt, schedule="dynamic"):
            _hidden(&h, task, scratch + scratch_bytes * <size_t>threadid(), columns + h.n_columns * threadid())
    return y


def expert_add_(Rows y, Rows hidden, Routing routing, Matrix down):
    """``y[r] += sum_i weight[r, i] * (hidden[r * k + i] @ down[e].T)``, biases included, in place, in the order of i.

    Raises QuantError for rows or stacks that the routing isn't made for.
    """
    cdef Workspace ws = y.workspace
    cdef int n_active = _experts_in_use(routing), nt
    cdef int64_t r
    cdef Rows pairs
    cdef job *jobs
    cdef const float *bias = down.bias.data if down.bias is not None else NULL
    if y.n != routing.n or y.dim != down.n_out:
        raise QuantError(f"{down.name}: output of {y.n} x {y.dim} for {routing.n} rows and a stack of {down.shape}")
    pairs = ws.rows(routing.n * routing.k, down.n_out)
    jobs = _expert_jobs(hidden, routing, down, pairs, True, n_active, usable_threads(ws.num_threads))
    run(jobs, n_active, ws)
    nt = row_threads(y)
    if nt == 1:
        with nogil:
            for r in range(y.n):
                _combine(routing, r, pairs.data, bias, y.data + r * y.dim, y.dim)
    else:
        for r in prange(y.n, nogil=True, num_threads=nt, schedule="static"):
            _combine(routing, r, pairs.data, bias, y.data + r * y.dim, y.dim)
    y.q8 = NULL


cdef void _combine(Routing routing, int64_t r, float *pairs, const float *bias, float *y, int64_t dim) noexcept nogil:
    cdef int64_t i
    for i in range(r * routing.k, (r + 1) * routing.k):
        if bias != NULL:
            K.add(bias + routing.chosen[i] * dim, pairs + i * dim, dim)
        K.add_scaled(pairs + i * dim, routing.shares[i], y, dim)
