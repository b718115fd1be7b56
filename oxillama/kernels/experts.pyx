"""Mixture of experts: which experts a row uses, and one matrix product per expert for all rows that use it."""

from libc.stdint cimport int32_t, int64_t, uintptr_t

import numpy as np

from oxillama.errors import ConfigError, QuantError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels._threads cimport usable_threads
from oxillama.kernels.matmul cimport Matrix, job, prepare, run, set_input
from oxillama.kernels.rows cimport Rows

cdef const ox_kernels *K = table()


cdef class Routing:
    """For each row its ``k`` experts, best first, with their weights; and the same grouped by expert.

    Pair ``row * k + i`` is the row's i-th expert. ``experts`` int32 [n, k], ``weights`` float32 [n, k].
    """

    cdef readonly object experts, weights, counts
    cdef readonly int64_t n, k
    cdef object _token_of, _pair_of
    cdef const int32_t *token_of    # rows, grouped by expert
    cdef const int32_t *pair_of     # pairs, grouped by expert

    def __init__(self, experts, weights, int64_t n_experts):
        cdef uintptr_t tokens, pairs
        self.experts, self.weights = experts, weights
        self.n, self.k = experts.shape[0], experts.shape[1]
        flat = experts.reshape(-1)
        self._pair_of = np.argsort(flat, kind="stable").astype(np.int32)
        self._token_of = self._pair_of // np.int32(self.k)
        self.counts = np.bincount(flat, minlength=n_experts)
        tokens, pairs = self._token_of.ctypes.data, self._pair_of.ctypes.data
        self.token_of, self.pair_of = <const int32_t *>tokens, <const int32_t *>pairs


def route_softmax(Rows logits, int64_t k, bint normalise):
    """The ``k`` most probable experts of each row under a softmax over all; ties go to the lower id.

    ``normalise``: the chosen weights are scaled to sum to one (Mixtral's softmax over the chosen logits is the same).
    """
    cdef int64_t i, j, e, best, n = logits.n, n_experts = logits.dim
    cdef float total
    cdef float *p
    experts, weights = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    cdef int32_t[:, ::1] chosen = experts
    cdef float[:, ::1] w = weights
    if not 1 <= k <= n_experts:
        raise ConfigError(f"{k} of {n_experts} experts")
    with nogil:
        for i in range(n):
            p = logits.data + i * n_experts
            K.softmax(p, n_experts)
            total = 0
            for j in range(k):
                best = 0
                for e in range(1, n_experts):
                    if p[e] > p[best]:
                        best = e
                chosen[i, j], w[i, j] = <int32_t>best, p[best]
                total += p[best]
                p[best] = -1
            if normalise:
                for j in range(k):
                    w[i, j] /= total
    return Routing(experts, weights, n_experts)


def expert_matmul(Rows x, Routing routing, weights, bint by_pair=False):
    """Products with each row's experts, for each stack of matrices in ``weights``: list of Rows [n * k, n_out].

    Row ``r * k + i`` of a result belongs to the i-th expert of row r. ``by_pair``: ``x`` has a row per pair already.
    Only the weights of experts that were chosen are read.

    Raises QuantError for rows or stacks that the routing isn't made for.
    """
    cdef Matrix w
    cdef Rows y
    cdef int64_t e, first
    cdef int i = 0, nt = usable_threads(x.workspace.num_threads), n_jobs
    cdef job *jobs
    _check_routed(x, routing, weights, by_pair)
    active = [int(c) for c in np.flatnonzero(routing.counts)]
    counts = [int(c) for c in routing.counts]
    mark_jobs = np.empty(len(active) * len(weights) * sizeof(job), np.uint8)
    cdef uintptr_t memory = mark_jobs.ctypes.data
    jobs = <job *>memory
    out = []
    for w in weights:
        y = x.workspace.rows(routing.n * routing.k, w.n_out)
        out.append(y)
        first = 0
        for e in range(w.n_experts):
            if not counts[e]:
                continue
            prepare(&jobs[i], w, e, counts[e], nt)
            set_input(&jobs[i], w, x)
            jobs[i].x_rows = (routing.pair_of if by_pair else routing.token_of) + first
            jobs[i].y_rows = routing.pair_of + first
            jobs[i].y = y.data
            first += counts[e]
            i += 1
    n_jobs = i
    run(jobs, n_jobs, x.workspace)
    return out


cdef int _check_routed(Rows x, Routing routing, weights, bint by_pair) except -1:
    """C follows the routing blindly: every row and every expert that it names must be there."""
    cdef Matrix w
    if x.n != (routing.n * routing.k if by_pair else routing.n):
        raise QuantError(f"{x.n} rows for a routing of {routing.n} rows to {routing.k} experts each, "
                         f"by_pair={bool(by_pair)}")
    for w in weights:
        if w.n_experts != len(routing.counts):
            raise QuantError(f"{w.name}: {w.n_experts} experts for a routing among {len(routing.counts)}")
    return 0


def combine_(Rows y, Rows pairs, Routing routing):
    """``y[r] += sum_i weight[r, i] * pairs[r * k + i]``, in place, in the order of i."""
    cdef const float[:, ::1] w = routing.weights
    cdef int64_t r, i
    if y.n != routing.n or pairs.n != routing.n * routing.k or pairs.dim != y.dim:
        raise ConfigError(f"{pairs.n} x {pairs.dim} for {routing.n} x {routing.k} choices, into {y.n} x {y.dim}")
    with nogil:
        for r in range(routing.n):
            for i in range(routing.k):
                K.add_scaled(pairs.data + (r * routing.k + i) * y.dim, w[r, i], y.data + r * y.dim, y.dim)
    y.q8 = NULL
