"""Low-rank changes of matrices, for some of the rows of a step: ``y[r] += scale * (x[r] @ a.T) @ b.T``.

Hu et al., "LoRA", 2021. The product with the matrix itself runs once for all rows, whatever changes they use, and each
part of its output is changed while it is in the cache. Both factors are multiplied in float32, by rows of float32, in
the order of the float kernels: a row's result depends on that row and its own changes, and on nothing else in the step.
"""

from itertools import chain

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy

import numpy as np

from oxillama.errors import ConfigError, QuantError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels._threads cimport usable_threads
from oxillama.kernels.matmul cimport Matrix, job, prepare, run, set_input
from oxillama.kernels.matmul import embed
from oxillama.kernels.routing cimport Routing
from oxillama.kernels.rows cimport Rows, Workspace

cdef const ox_kernels *K = table()


cdef class LowRank:
    """``b @ a`` of a matrix [n_out, n_in], ``a`` [rank, n_in] and ``b`` [n_out, rank]; or of each one in a stack.

    A factor of a stack is a stack of as many, or a single matrix that all share. Of an embedding table, whose rows
    [n_vocab, rank] are looked up, ``a`` is not a matrix but ``(uint8 data, type)``, and ``b`` [n_embd, rank]. The
    product is multiplied by ``scale``, and by the scale of the row's adapter. Raises QuantError for factors that don't
    fit each other.
    """

    def __init__(self, a, Matrix b, float scale=1.0):
        cdef int64_t n_stack
        self.b, self.rank, self.scale = b, b.n_in, scale
        if isinstance(a, Matrix):
            self.a = a
            n_stack = max(b.n_experts, self.a.n_experts)
            if self.a.n_out != b.n_in or min(b.n_experts, self.a.n_experts) not in (1, n_stack):
                raise QuantError(f"{b.name}: factors of shapes {a.shape} and {b.shape} don't make a change")
            if self.a.integer or self.a.rounds:
                raise QuantError(f"{b.name}: a factor in {self.a.type}; they are multiplied in float32")
        else:
            self.table, self.type = a
        if b.integer or b.rounds:
            raise QuantError(f"{b.name}: a factor in {b.type}; they are multiplied in float32")

    @property
    def nbytes(self):
        """Bytes held."""
        held = self.a.nbytes + self.a.raw_nbytes if self.a is not None else self.table.nbytes
        return held + self.b.nbytes + self.b.raw_nbytes


cdef class _Users:
    """The rows that use one adapter, in their order, each with its scale."""

    def __init__(self, changes, rows, scales):
        self.rows = np.ascontiguousarray(rows, np.int32)
        self.scales = np.ascontiguousarray(scales, np.float32)
        cdef const int32_t[::1] r = self.rows
        cdef const float[::1] s = self.scales
        self.changes, self.n = changes, r.shape[0]
        self.row, self.scale = &r[0], &s[0]


cdef class Adapters:
    """Adapters that the rows of a batch use.

    ``lengths``: the number of rows of each span. ``sets``: for each span ``((changes, scale), ...)``, where ``changes``
    maps what is changed, a Matrix or whatever stands for a table, to its LowRank. Two spans that use the same adapter
    give the same mapping, and the order of each is that in which changes are added: it must not depend on the other
    sequences of the batch.
    """

    cdef int64_t _n
    cdef list _turns                # of users: no row is twice in one, and a row's are in the order of its adapters
    cdef dict _changed

    def __init__(self, lengths, sets):
        if len(sets) != len(lengths):
            raise ConfigError(f"{len(sets)} sets of adapters for {len(lengths)} spans")
        spans = []
        for n in lengths:
            spans.append(np.arange(self._n, self._n + n, dtype=np.int32))
            self._n += n
        self._turns = _take_turns(spans, sets)
        self._changed = {}
        for changes in {id(c): c for one in sets for c, _ in one}.values():
            self._changed.update(changes)

    def of_rows(self, rows):
        """Adapters that these rows use, in a batch of them alone."""
        cdef Adapters found = Adapters.__new__(Adapters)
        place = np.full(self._n, -1, np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        found._n, found._changed = len(rows), self._changed
        found._turns = [[users for users in [_placed(u, place) for u in turn] if users is not None]
                        for turn in self._turns]
        return found

    def changes(self, *weights):
        """Whether any row may use a change of any of these."""
        for w in weights:
            if w in self._changed:
                return True
        return False

    def beside(self, Rows x, tuple weights, uintptr_t address):
        """The jobs at ``address``, one of each of ``weights``, with their changes: ``(address, number)`` of all jobs.

        First products are short and have few rows to share out: in the region of the product that is changed, ahead of
        it, they cost no wait, nor do second ones, panel by panel behind it.
        """
        cdef _Users users
        cdef list turn, todo = []
        if not self.changes(*weights):
            return address, len(weights)
        for i, w in enumerate(weights):
            for turn in self._turns_of(x.n):
                for users in turn:
                    change = users.changes.get(w)
                    if change is not None:
                        todo.append((i, users, change, x.workspace.rows(users.n, change.rank)))
        return _beside(todo, x, <job *>address, <int>len(weights))

    def add_rows(self, Rows y, looked_up, tokens):
        """``y`` += the change of an embedding table, in its rows ``tokens``."""
        cdef _Users users
        cdef LowRank change
        cdef Rows t
        cdef job j
        if looked_up not in self._changed:
            return
        for users in chain(*self._turns_of(y.n)):
            change = users.changes.get(looked_up)
            if change is not None:
                wanted = np.ascontiguousarray(np.asarray(tokens)[users.rows])
                t = embed(y.workspace, change.table, change.type, change.rank, wanted)
                _scale(users, change, t)
                _second(&j, change, 0, users.n, t, y.data, y.dim, usable_threads(y.workspace.num_threads))
                j.y_rows = users.row
                run(&j, 1, y.workspace)
        y.q8 = NULL

    def add_heads(self, Rows y, Rows x, Matrix w):
        """Adds the change of a matrix per head: heads side by side in ``x`` and in ``y``."""
        cdef _Users users
        cdef LowRank change
        if w not in self._changed:
            return
        for users in chain(*self._turns_of(x.n)):
            change = users.changes.get(w)
            if change is not None:
                _add_heads(users, change, x, y, <int>w.n_experts)
        y.q8 = NULL

    def add_experts(self, Rows y, Rows x, Routing routing, Matrix w, bint by_pair):
        """Adds the change for rows that were routed to the matrices of a stack.

        ``y`` has a row for each pair of a row and one of its experts, and so has ``x``, if ``by_pair``.
        """
        cdef _Users users
        cdef LowRank change
        if w not in self._changed:
            return
        for users in chain(*self._turns_of(routing.n)):
            change = users.changes.get(w)
            if change is not None:
                _add_experts(users, change, x, y, routing, by_pair)
        y.q8 = NULL

    cdef list _turns_of(self, int64_t n):
        """The rows that use each change, turn by turn, for Rows of this length, which must be the batch's."""
        if n != self._n:
            raise ConfigError(f"{n} rows in a step of {self._n}")
        return self._turns


def _take_turns(spans, sets):
    """Users of each adapter, turn by turn: those whose first it is, those whose second it is, and so on."""
    turns = []
    for k in range(max([len(one) for one in sets], default=0)):
        found = {}
        for rows, one in zip(spans, sets):
            if k < len(one):
                changes, scale = one[k]
                _, parts, scales = found.setdefault(id(changes), (changes, [], []))
                parts.append(rows)
                scales.append(np.full(len(rows), scale, np.float32))
        turns.append([_Users(c, np.concatenate(parts), np.concatenate(s)) for c, parts, s in found.values()])
    return turns


def _placed(users, place):
    """Users of one adapter among the rows that have a place; None if there are none."""
    rows = place[users.rows]
    kept = rows >= 0
    return _Users(users.changes, rows[kept], users.scales[kept]) if kept.any() else None


cdef int _first(job *j, LowRank change, int64_t i, int64_t n, Rows x, Rows t, int nt) except -1:
    """``t = x @ a[i].T``."""
    prepare(j, change.a, i if change.a.n_experts > 1 else 0, n, nt)
    set_input(j, change.a, x)
    j.y = t.data
    return 0


cdef int _second(job *j, LowRank change, int64_t i, int64_t n, Rows t, float *y, int64_t dim, int nt) except -1:
    """``y += t @ b[i].T``, in rows of ``dim`` values."""
    if dim % change.b.n_out:
        raise QuantError(f"{change.b.name}: a change of {change.b.n_out} values in rows of {dim}")
    prepare(j, change.b, i if change.b.n_experts > 1 else 0, n, nt)
    set_input(j, change.b, t)
    j.y, j.y_stride, j.accumulate = y, dim, 1
    return 0


cdef int _scale(_Users users, LowRank change, Rows t) except -1:
    cdef int64_t i
    for i in range(users.n):
        K.scale(t.data + i * t.dim, users.scale[i] * change.scale, t.dim)
    return 0


cdef tuple _beside(list todo, Rows x, job *jobs, int n_jobs):
    """First products, then the jobs, which know their second ones."""
    cdef Workspace ws = x.workspace
    cdef int nt = usable_threads(ws.num_threads), n = <int>len(todo), which, i = 0
    cdef job *first = <job *>ws.take(<size_t>(n + n_jobs) * sizeof(job))
    cdef job *changed = first + n
    cdef job *second = <job *>ws.take(<size_t>max(n, 1) * sizeof(job))
    cdef int64_t *left = <int64_t *>ws.take(sizeof(int64_t))
    cdef _Users users
    cdef LowRank change
    cdef Rows t
    memcpy(changed, jobs, <size_t>n_jobs * sizeof(job))
    left[0] = 0
    for which, users, change, t in todo:
        _first(&first[i], change, 0, users.n, x, t, nt)
        first[i].x_rows, first[i].scales, first[i].scale, first[i].left = users.row, users.scale, change.scale, left
        left[0] += first[i].n_panels
        _second(&second[i], change, 0, users.n, t, jobs[which].y, jobs[which].y_stride, nt)
        second[i].y_rows = users.row
        if not changed[which].n_changes:
            changed[which].changes, changed[which].left = &second[i], left
        changed[which].n_changes += 1
        i += 1
    return <uintptr_t>first, n + n_jobs


cdef int _add_heads(_Users users, LowRank change, Rows x, Rows y, int n_heads) except -1:
    cdef Workspace ws = x.workspace
    cdef int nt = usable_threads(ws.num_threads), i
    cdef job *first = <job *>ws.take(<size_t>n_heads * sizeof(job))
    cdef job *second = <job *>ws.take(<size_t>n_heads * sizeof(job))
    cdef int64_t n_in = x.dim // n_heads, n_out = y.dim // n_heads
    cdef Rows t
    cdef list ts = []
    if change.a.n_in != n_in or change.b.n_out != n_out:
        raise QuantError(f"{change.b.name}: a change of {change.a.n_in} to {change.b.n_out} values for heads of {n_in} "
                         f"and {n_out}")
    for i in range(n_heads):
        t = ws.rows(users.n, change.rank)
        ts.append(t)
        prepare(&first[i], change.a, i if change.a.n_experts > 1 else 0, users.n, nt)
        first[i].x, first[i].x_bytes = <const uint8_t *>(x.data + i * n_in), <size_t>x.dim * 4
        first[i].x_rows, first[i].y = users.row, t.data
        _second(&second[i], change, i, users.n, t, y.data + i * n_out, y.dim, nt)
        second[i].y_rows = users.row
    run(first, n_heads, ws)
    for t in ts:
        _scale(users, change, t)
    run(second, n_heads, ws)
    return 0


cdef int _add_experts(_Users users, LowRank change, Rows x, Rows y, Routing r, bint by_pair) except -1:
    """Adds the change of each expert in use to the pairs whose rows use it."""
    cdef Workspace ws = x.workspace
    cdef int nt = usable_threads(ws.num_threads), n_jobs = 0
    cdef int64_t n_pairs = max(<int64_t>1, r.n * r.k), e, i, start, n = 0
    cdef float *scale = _scale_of_rows(users, ws, r.n)
    cdef int32_t *xs = <int32_t *>ws.take(<size_t>n_pairs * 4)
    cdef int32_t *ys = <int32_t *>ws.take(<size_t>n_pairs * 4)
    cdef job *first = <job *>ws.take(<size_t>r.n_experts * sizeof(job))
    cdef job *second = <job *>ws.take(<size_t>r.n_experts * sizeof(job))
    cdef Rows t = ws.rows(n_pairs, change.rank)
    for e in range(r.n_experts):
        start = n
        for i in range(r.first[e], r.first[e + 1]):
            if scale[r.row_of[i]] != 0:
                xs[n], ys[n] = r.pair_of[i] if by_pair else r.row_of[i], r.pair_of[i]
                n += 1
        if n > start:
            _first(&first[n_jobs], change, e, n - start, x, t, nt)
            _second(&second[n_jobs], change, e, n - start, t, y.data, y.dim, nt)
            first[n_jobs].x_rows, second[n_jobs].y_rows = xs + start, ys + start
            first[n_jobs].y += start * change.rank
            second[n_jobs].x += <size_t>start * second[n_jobs].x_bytes
            n_jobs += 1
    run(first, n_jobs, ws)
    for i in range(n):
        K.scale(t.data + i * t.dim, scale[ys[i] // r.k] * change.scale, t.dim)
    run(second, n_jobs, ws)
    return 0


cdef float *_scale_of_rows(_Users users, Workspace ws, int64_t n_rows) except NULL:
    """The scale of each row, 0 for those that don't use the adapter: no row uses one with a scale of 0."""
    cdef float *scale = <float *>ws.take(<size_t>max(n_rows, <int64_t>1) * 4)
    cdef int64_t i
    for i in range(n_rows):
        scale[i] = 0
    for i in range(users.n):
        scale[users.row[i]] = users.scale[i]
    return scale
