"""Routing of rows to the experts of a mixture, with their weights.

A row and one of its experts are a pair; pair ``row * k + i`` is the row's i-th expert, best first.
"""

from cython.parallel cimport prange

from libc.math cimport INFINITY, fabsf, fmaxf
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels._team cimport ROUTING, Team, region
from oxillama.kernels.rows cimport Rows, Vector, row_threads

cdef extern from "ox_math.h":
    double exp "ox_exp_double"(double x) noexcept nogil

cdef const ox_kernels *K = table()


cdef enum gating:
    SOFTMAX, SIGMOID, SOFTMAX_CHOSEN, SPARSEMIXER

GATINGS = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "softmax_chosen": SOFTMAX_CHOSEN, "sparsemixer": SPARSEMIXER}


cdef class Routing:
    """Experts of each row, ``k`` of ``n_experts``, with their weights, and the same grouped by expert.

    It lives in the workspace of the logits that it was made from, until their memory is taken back.
    """

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
            total += <float>exp(x[e] - best)
    return 1 / total


cdef void _route_row(const router *o, float *scores, float *choice, int32_t *chosen, float *shares) noexcept nogil:
    """``choice`` has room for a row of scores and for those of the groups."""
    cdef int64_t e, i
    cdef float total = 1e-20    # as DeepSeek-V3: nothing to sums that are not nothing themselves
    if o.gating == SOFTMAX:
        K.softmax(scores, o.n_experts)
    elif o.gating == SIGMOID:
        K.sigmoid(scores, o.n_experts)
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
    cdef region rows
    cdef Team team = logits.workspace.team
    cdef int nt
    _check_route(logits, k, gating, bias, n_groups, n_groups_used)
    o.gating, o.normalise, o.scale, o.bias = GATINGS[gating], normalise, scale, bias.data if bias is not None else NULL
    o.n_experts, o.k, o.n_groups, o.n_groups_used = logits.dim, k, n_groups, n_groups_used
    r = _new_routing(logits, k)
    choice = logits.workspace.rows(logits.n, logits.dim + n_groups)
    nt = row_threads(logits, &rows, ROUTING)
    if nt == 1:
        with nogil:
            for i in range(r.n):
                _route_row(&o, logits.data + i * logits.dim, choice.data + i * choice.dim, r.chosen + i * k,
                           r.shares + i * k)
            team.end(&rows)
    else:
        with nogil:
            for i in prange(r.n, num_threads=nt, schedule="static"):
                _route_row(&o, logits.data + i * logits.dim, choice.data + i * choice.dim, r.chosen + i * k,
                           r.shares + i * k)
            team.end(&rows)
    _group(r)
    return r


def take_weights(Routing routing):
    """The weights of each row's experts, Rows [n, k], which become ones in the routing."""
    cdef Rows weights = routing.workspace.rows(routing.n, routing.k)
    cdef int64_t i
    memcpy(weights.data, routing.shares, <size_t>(routing.n * routing.k) * 4)
    for i in range(routing.n * routing.k):
        routing.shares[i] = 1
    return weights


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
