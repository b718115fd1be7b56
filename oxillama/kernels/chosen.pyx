"""Attention of a batch over keys that an index of shorter keys chooses for each row.

DeepSeek-AI, "DeepSeek-V3.2", 2025, chooses single positions, MiniMax, "MiniMax-M3", 2026, blocks of them. What a row
chooses is a function of its own query and of the keys before it, and among equal scores the lowest positions are taken,
so that results are equal to the bit however tokens are divided. The keys of a choice are attended to in ascending
order, as if they stood side by side: in tiles of 64 and spans of 512 of the choice. Rows with no more keys than may be
chosen attend to all of them, and nothing is scored for them.
"""

from cython.parallel cimport prange, threadid

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memmove, memset

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport (
    OX_ATTN_SPAN, ox_attn_args, ox_attn_scratch, ox_attn_state, ox_kernels, table,
)
from oxillama.kernels._team cimport CHOSEN_KEYS, INDEX_SCORES, Team, region
from oxillama.kernels.attention cimport Attention, KvSlab, attend_spans, check_tables
from oxillama.kernels.batch cimport Batch, span
from oxillama.kernels.rows cimport Rows, Workspace

cdef const ox_kernels *K = table()

cdef enum:
    CHUNK = 4096                # keys whose scores are one task: a multiple of OX_ATTN_SPAN
    MOST_SCORES = 1 << 20       # that are kept at a time


cdef struct long_row:
    int64_t row, pos            # of the batch, of its sequence
    int32_t span


cdef class Choice:
    """Units chosen for each row of a batch and each of ``n_heads`` key/value heads: ``k``, of ``unit`` positions in a
    row.

    Units are counted from position 0 of a sequence; the ``local`` ones that end with the row's own are always chosen.
    A row at a position below ``limit``, k * unit, chooses everything, and needs no :func:`choose`. The memory is of the
    batch's workspace, as it stands now. ConfigError for counts that are not positive, and for more local units than
    are chosen.
    """

    cdef readonly int64_t n_heads, k, unit, local, limit
    cdef Batch batch            # whose rows choose
    cdef bint made              # they have
    cdef Rows words             # int32 [rows, n_heads, k], ascending; of rows at limit or later alone

    def __init__(self, Batch batch, int64_t k, *, int64_t unit=1, int64_t n_heads=1, int64_t local=0):
        cdef int64_t i, n = 0
        if not (0 < k < 1 << 24 and 0 < unit < 1 << 24 and 0 < n_heads < 1 << 16 and 0 <= local <= k):
            raise ConfigError(f"a choice of {k} units of {unit} positions, {local} of them local, for {n_heads} heads: "
                              "all must be positive, and no more can be local than are chosen")
        self.k, self.unit, self.n_heads, self.local, self.limit = k, unit, n_heads, local, k * unit
        for i in range(batch.n_rows):
            if batch.position[i] >= self.limit:
                n = batch.n_rows
        self.batch, self.words = batch, batch.workspace.rows(n, n_heads * k)

    cdef int32_t *of_row(self, int64_t row) noexcept nogil:
        return <int32_t *>self.words.data + row * self.n_heads * self.k

    @property
    def chooses(self):
        """Whether any row of the batch has so many positions that it chooses."""
        return self.words.n > 0

    def take_outputs(self, Batch batch):
        """The choice of ``batch.outputs`` in the place of that of ``batch``, in place."""
        cdef const int32_t[::1] rows = batch.output_rows
        cdef int64_t i
        if self.batch is not batch:
            raise ConfigError("the choice is that of another batch")
        if self.words.n:
            for i in range(rows.shape[0]):
                memmove(self.of_row(i), self.of_row(rows[i]), <size_t>(self.n_heads * self.k * 4))
        self.batch = batch.outputs


cdef int64_t _long_rows(Batch batch, int64_t limit, Workspace ws, long_row **found) except -1:
    """The rows at a position of ``limit`` or later: their number."""
    cdef int64_t row, n = 0
    cdef int i
    cdef const span *p
    found[0] = <long_row *>ws.take(<size_t>max(batch.n_rows, <int64_t>1) * sizeof(long_row))
    for i in range(batch.n_spans):
        p = &batch.span[i]
        for row in range(max(<int64_t>0, limit - p.start), p.n):
            found[0][n].row, found[0][n].pos, found[0][n].span = p.row + row, p.start + row, i
            n += 1
    return n


cdef struct index_job:
    ox_attn_args a              # row 0
    const float *weights
    size_t weight_stride
    const span *spans
    const long_row *rows        # those of this group
    float *scores               # [rows][n_scores][stride]
    int64_t n_scores, stride    # one sum over heads, or each head's
    bint windowed
    float *largest              # [threads][stride] of units, if a unit is more than a position


cdef void _score(const index_job *j, int64_t i, int64_t chunk, float *scratch) noexcept nogil:
    """Scores of one row's keys in a chunk."""
    cdef ox_attn_args a = j.a
    cdef const long_row *r = &j.rows[i]
    if chunk * CHUNK > r.pos:
        return
    a.q += r.row * <int64_t>a.q_stride
    a.out = j.scores + i * j.n_scores * j.stride
    a.blocks = j.spans[r.span].tables[j.windowed].blocks
    a.pos, a.n_keys, a.scratch = r.pos, min(r.pos + 1, (chunk + 1) * CHUNK), scratch
    a.span = chunk * (CHUNK // OX_ATTN_SPAN)
    K.index_scores(&a, j.weights + r.row * <int64_t>j.weight_stride if j.weights != NULL else NULL, 0)


cdef void _choose(const index_job *j, Choice c, int64_t i, int64_t head, int thread) noexcept nogil:
    """One row's choice for a head, of its scores."""
    cdef const long_row *r = &j.rows[i]
    cdef float *x = j.scores + (i * j.n_scores + head) * j.stride
    cdef int64_t n = r.pos // c.unit + 1, u
    if c.unit > 1:
        K.block_max(x, r.pos + 1, c.unit, j.largest + thread * j.stride)
        x = j.largest + thread * j.stride
    for u in range(n - c.local, n):
        x[u] = INFINITY
    K.choose(x, n, c.k, c.of_row(r.row) + head * c.k)


cdef int _check_index(Rows q, Rows weights, KvSlab slab, Batch batch, Choice choice) except -1:
    cdef int64_t n_heads = q.dim // slab.k_dim
    check_tables(slab, batch, q, slab.k_dim, 0)
    if slab.n_heads != 1:
        raise ConfigError(f"an index of {slab.n_heads} heads of keys; one is needed")
    if weights is None:
        if n_heads != choice.n_heads:
            raise ConfigError(f"{n_heads} heads of queries choose for {choice.n_heads} heads of keys")
    elif weights.n != q.n or weights.dim != n_heads or choice.n_heads != 1:
        raise ConfigError(f"weights of {weights.n} x {weights.dim} for {q.n} queries of {n_heads} heads, which choose "
                          f"for {choice.n_heads} heads of keys")
    return 0


def choose(Rows q, Rows weights, KvSlab slab, Batch batch, Choice choice, float scale=1):
    """Each row's choice of the keys of its past, its own among them, by those of ``slab``, which must be stored.

    ``q`` [n, heads * k_dim]. With ``weights`` [n, heads] the score of a key for the one head of the choice is ``sum
    over heads of weights * max(scale * q . k, 0)``; without, each head of the choice has its own query, and the score
    is ``scale * q . k``. A unit's score is the largest of its keys'. ConfigError for rows that don't fit.
    """
    cdef Workspace ws = q.workspace
    cdef index_job j
    cdef long_row *rows
    cdef int64_t n, longest = 0, i
    _check_index(q, weights, slab, batch, choice)
    choice.made = False
    mark = ws.mark()
    n = _long_rows(batch, choice.limit, ws, &rows)
    if n and choice.words.n < batch.n_rows:
        ws.release(mark)
        raise ConfigError(f"a choice of {choice.words.n} rows for {batch.n_rows}")
    if n:
        for i in range(n):
            longest = max(longest, rows[i].pos + 1)
        memset(&j, 0, sizeof(j))
        j.a.q, j.a.q_stride, j.a.k, j.a.k_block_bytes = q.data, <size_t>q.dim, slab.k_data, slab.k_head
        j.a.block_tokens, j.a.kv_type, j.a.n_queries, j.a.k_dim = slab.block_tokens, <int32_t>slab.type, 1, slab.k_dim
        j.a.group, j.a.causal, j.a.scale = <int32_t>(q.dim // slab.k_dim), 1, scale
        j.weights = NULL if weights is None else weights.data
        j.weight_stride = <size_t>j.a.group
        j.spans, j.windowed, j.n_scores = batch.span, slab.windowed, choice.n_heads
        j.stride = (longest + 63) // 64 * 64
        j.a.out_stride = <size_t>j.stride
        _choose_all(&j, rows, n, choice, ws)
    choice.batch, choice.made = batch, True
    ws.release(mark)


cdef int _choose_all(index_job *j, const long_row *rows, int64_t n, Choice choice, Workspace ws) except -1:
    """The choice of each of n rows, as many at a time as there may be scores."""
    cdef int64_t n_chunks = (j.stride + CHUNK - 1) // CHUNK, n_heads = choice.n_heads, first, t
    cdef int64_t group = min(n, max(<int64_t>1, MOST_SCORES // (n_heads * j.stride)))
    cdef region r
    cdef Team team = ws.team
    cdef int nt = team.begin(&r, INDEX_SCORES | <uint64_t>j.a.kv_type << 4, n * j.stride * j.a.group * j.a.k_dim)
    cdef size_t floats = (ox_attn_scratch(<size_t>j.a.group, <size_t>j.a.k_dim, 0) + 15) // 16 * 16
    cdef float *scratch = <float *>ws.take(floats * 4 * <size_t>nt)
    j.scores = <float *>ws.take(<size_t>(group * n_heads * j.stride) * 4)
    j.largest = <float *>ws.take(<size_t>(nt * j.stride) * 4) if choice.unit > 1 else NULL
    for first in range(0, n, group):
        j.rows, group = rows + first, min(group, n - first)
        if nt == 1:
            with nogil:
                for t in range(group * n_chunks):
                    _score(j, t // n_chunks, t % n_chunks, scratch)
                for t in range(group * n_heads):
                    _choose(j, choice, t // n_heads, t % n_heads, 0)
        else:
            for t in prange(group * n_chunks, nogil=True, num_threads=nt, schedule="dynamic"):
                _score(j, t // n_chunks, t % n_chunks, scratch + floats * <size_t>threadid())
            for t in prange(group * n_heads, nogil=True, num_threads=nt, schedule="dynamic"):
                _choose(j, choice, t // n_heads, t % n_heads, threadid())
    team.end(&r)
    return 0


cdef struct chosen_job:
    ox_attn_args a              # what all tasks share
    const float *q
    float *out
    const uint8_t *k
    const uint8_t *v
    size_t k_head, v_head, k_panel, v_panel
    const float *sinks
    const span *spans
    const long_row *rows
    bint windowed
    int64_t n_heads, q_head, out_head
    int64_t block_tokens, most_spans
    size_t scratch_bytes        # of a thread's room: scratch; a table of panels; keys and values of one span; states
    size_t k_room               # bytes of a span's keys there; 0: the panels of the cache are used
    size_t panel_place, state_place, state_floats, room_bytes


cdef int64_t _n_keys(Choice c, const int32_t *ids, int64_t pos) noexcept nogil:
    """Keys of one row's choice: all of its units but the last are whole."""
    return (c.k - 1) * c.unit + min(c.unit, pos + 1 - ids[c.k - 1] * c.unit)


cdef const int32_t *_ids_of(const chosen_job *j, Choice c, int64_t i, int64_t head) noexcept nogil:
    """Units that one row has chosen for a head of keys, or for this and its neighbours."""
    return c.of_row(j.rows[i].row) + head // (j.n_heads // c.n_heads) * c.k


cdef void _find(const chosen_job *j, Choice c, const int32_t *ids, const int32_t *blocks, int64_t i, size_t *block,
                int64_t *in_block) noexcept nogil:
    """Place of the i-th key of a choice: its block, and its place there."""
    cdef int64_t pos = ids[i // c.unit] * c.unit + i % c.unit
    block[0] = <size_t>blocks[pos // j.block_tokens]
    in_block[0] = pos % j.block_tokens


cdef void _gather(const chosen_job *j, Choice c, ox_attn_args *a, const int32_t *ids, const int32_t *blocks,
                  uint8_t *room) noexcept nogil:
    """The keys and values of span ``a.span`` of a choice to panels of their own."""
    cdef const void *keys[16]
    cdef const void *values[16]
    cdef int32_t lanes[16]
    cdef int64_t first = a.span * OX_ATTN_SPAN, i, in_block, end = min(a.n_keys, first + OX_ATTN_SPAN)
    cdef int lane
    cdef size_t block, panel
    cdef const uint8_t *cached_k = <const uint8_t *>a.k
    cdef const uint8_t *cached_v = <const uint8_t *>a.v
    cdef uint8_t *k = room
    cdef uint8_t *v = room + j.k_room
    a.k, a.v = k, v
    for i in range(first, end, 16):
        for lane in range(<int>min(<int64_t>16, end - i)):
            _find(j, c, ids, blocks, i + lane, &block, &in_block)
            panel, lanes[lane] = <size_t>(in_block // 16), <int32_t>(in_block % 16)
            keys[lane] = cached_k + block * j.a.k_block_bytes + panel * j.k_panel
            values[lane] = cached_v + block * j.a.v_block_bytes + panel * j.v_panel
        K.gather_keys[a.kv_type](keys, lanes, min(<int64_t>16, end - i), k, a.k_dim)
        K.gather_values[a.kv_type](values, lanes, min(<int64_t>16, end - i), v, a.v_dim)
        k += j.k_panel
        v += j.v_panel


cdef void _point(const chosen_job *j, Choice c, const ox_attn_args *a, const int32_t *ids, const int32_t *blocks,
                 int32_t *panels) noexcept nogil:
    """The panels of span ``a.span`` of a choice, where units are whole ones: a block table of blocks of 16."""
    cdef int64_t first = a.span * OX_ATTN_SPAN, i, in_block
    cdef size_t block
    for i in range(first, min(a.n_keys, first + OX_ATTN_SPAN), 16):
        _find(j, c, ids, blocks, i, &block, &in_block)
        panels[i // 16] = <int32_t>(<int64_t>block * j.n_heads * (j.block_tokens // 16) + in_block // 16)


cdef ox_attn_args _of_row(const chosen_job *j, Choice c, int64_t i, int64_t head, uint8_t *room) noexcept nogil:
    """One row and a group of its heads: keys are those of its choice."""
    cdef ox_attn_args a = j.a
    cdef const long_row *r = &j.rows[i]
    cdef int64_t n = _n_keys(c, _ids_of(j, c, i, head), r.pos)
    a.q = j.q + r.row * <int64_t>a.q_stride + head * j.q_head
    a.out = j.out + r.row * <int64_t>a.out_stride + head * j.out_head
    a.sinks = j.sinks + head * a.group if j.sinks != NULL else NULL
    a.k, a.v = j.k + <size_t>head * j.k_head, j.v + <size_t>head * j.v_head
    a.pos, a.n_keys, a.scratch = n - 1, n, <float *>room
    return a


cdef int64_t _n_spans(int64_t n) noexcept nogil:
    return (n + OX_ATTN_SPAN - 1) // OX_ATTN_SPAN


cdef void _part(const chosen_job *j, Choice c, int64_t i, int64_t head, int64_t index, uint8_t *room,
                float *states) noexcept nogil:
    """The index-th span of one row's choice for a head, if there is one, to its state."""
    cdef ox_attn_args a = _of_row(j, c, i, head, room)
    cdef const int32_t *ids = _ids_of(j, c, i, head)
    cdef const int32_t *blocks = j.spans[j.rows[i].span].tables[j.windowed].blocks
    cdef int32_t *panels = <int32_t *>(room + j.scratch_bytes)
    if index >= _n_spans(a.n_keys):
        return
    a.span, a.state, a.blocks = index, states + index * <int64_t>j.state_floats, panels
    if j.k_room:
        memset(panels, 0, <size_t>j.most_spans * 4)    # all spans lie in one place, one after another
        _gather(j, c, &a, ids, blocks, room + j.panel_place)
        a.block_tokens = OX_ATTN_SPAN
    else:
        _point(j, c, &a, ids, blocks, panels)
        a.block_tokens, a.k_block_bytes, a.v_block_bytes = 16, j.k_panel, j.v_panel
    K.attention(&a)


cdef void _merge(const chosen_job *j, Choice c, int64_t i, int64_t head, uint8_t *room, float *states) noexcept nogil:
    cdef ox_attn_args a = _of_row(j, c, i, head, room)
    a.state = states
    K.attention_merge(&a, _n_spans(a.n_keys))


cdef void _whole(const chosen_job *j, Choice c, int64_t task, uint8_t *room) noexcept nogil:
    """All spans of one row's choice for a head, one after another."""
    cdef int64_t i = task // j.n_heads, head = task % j.n_heads, index
    cdef float *states = <float *>(room + j.state_place)
    for index in range(j.most_spans):
        _part(j, c, i, head, index, room, states)
    _merge(j, c, i, head, room, states)


cdef int _attend_long(Rows q, Rows out, KvSlab slab, Batch batch, Attention rule, Choice c) except -1:
    """Rows at the choice's limit or later."""
    cdef Workspace ws = q.workspace
    cdef chosen_job j
    cdef long_row *rows
    cdef int64_t n = _long_rows(batch, c.limit, ws, &rows), group = q.dim // slab.k_dim // slab.n_heads
    if n == 0:
        return 0
    if not c.made:
        raise ConfigError(f"{n} rows have not chosen their keys")
    memset(&j, 0, sizeof(j))
    j.a.q_stride, j.a.out_stride, j.a.kv_type = <size_t>q.dim, <size_t>out.dim, <int32_t>slab.type
    j.a.k_block_bytes, j.a.v_block_bytes = slab.k_head * <size_t>slab.n_heads, slab.v_head * <size_t>slab.n_heads
    j.a.n_queries, j.a.group, j.a.k_dim, j.a.v_dim = 1, <int32_t>group, slab.k_dim, slab.v_dim
    j.a.causal, j.a.scale, j.a.softcap = 1, rule.scale, rule.softcap
    j.q, j.out, j.k, j.v, j.sinks = q.data, out.data, slab.k_data, slab.v_data, rule.sink
    j.k_head, j.v_head, j.k_panel, j.v_panel = slab.k_head, slab.v_head, slab.k_panel, slab.v_panel
    j.spans, j.rows, j.windowed, j.n_heads = batch.span, rows, slab.windowed, slab.n_heads
    j.q_head, j.out_head, j.block_tokens = group * slab.k_dim, group * slab.v_dim, slab.block_tokens
    j.most_spans = _n_spans(c.limit)
    _make_room(&j, slab, c)
    return _run(&j, n * j.n_heads, c, ws)


cdef int _run(chosen_job *j, int64_t n_tasks, Choice c, Workspace ws) except -1:
    """Tasks are rows and heads, and spans too where there are few of those."""
    cdef int64_t t, n_heads = j.n_heads, spans = j.most_spans
    cdef size_t state = j.state_floats * <size_t>spans
    cdef region r
    cdef Team team = ws.team
    cdef int nt = team.begin(&r, CHOSEN_KEYS | <uint64_t>j.a.kv_type << 4, n_tasks * c.limit * j.a.group * j.a.k_dim)
    cdef uint8_t *room = <uint8_t *>ws.take(j.room_bytes * <size_t>nt)
    if nt == 1:
        with nogil:
            for t in range(n_tasks):
                _whole(j, c, t, room)
            team.end(&r)
        return 0
    if n_tasks >= 2 * nt or spans == 1:
        with nogil:
            for t in prange(n_tasks, num_threads=nt, schedule="dynamic"):
                _whole(j, c, t, room + j.room_bytes * <size_t>threadid())
            team.end(&r)
        return 0
    cdef float *states = <float *>ws.take(state * 4 * <size_t>n_tasks)
    with nogil:
        for t in prange(n_tasks * spans, num_threads=nt, schedule="dynamic"):
            _part(j, c, t // spans // n_heads, t // spans % n_heads, t % spans,
                  room + j.room_bytes * <size_t>threadid(), states + state * <size_t>(t // spans))
        for t in prange(n_tasks, num_threads=nt, schedule="static"):
            _merge(j, c, t // n_heads, t % n_heads, room + j.room_bytes * <size_t>threadid(),
                   states + state * <size_t>t)
        team.end(&r)
    return 0


cdef void _make_room(chosen_job *j, KvSlab slab, Choice c) noexcept:
    """Allocates the memory of each thread: scratch, a table of panels, panels of one span unless units are panels,
    states."""
    cdef size_t group = <size_t>j.a.group, place
    cdef bint in_panels = c.unit % 16 == 0 and <int64_t>slab.n_blocks * j.n_heads * (j.block_tokens // 16) < 1 << 31
    j.scratch_bytes = _rounded(ox_attn_scratch(group, <size_t>slab.k_dim, <size_t>slab.v_dim) * 4)
    place = j.panel_place = j.scratch_bytes + _rounded(<size_t>j.most_spans * (OX_ATTN_SPAN // 16) * 4)
    if not in_panels:
        j.k_room = (OX_ATTN_SPAN // 16) * slab.k_panel
        place += j.k_room + (OX_ATTN_SPAN // 16) * slab.v_panel
    j.state_floats, j.state_place = ox_attn_state(group, <size_t>slab.v_dim), _rounded(place)
    j.room_bytes = _rounded(j.state_place + <size_t>j.most_spans * j.state_floats * 4)


cdef size_t _rounded(size_t n) noexcept:
    return (n + 63) // 64 * 64


def attend_chosen(Rows q, KvSlab slab, Batch batch, Attention rule, Choice choice):
    """Softmax attention of ``q`` [n, heads * k_dim] over the keys that each row has chosen: Rows [n, heads * v_dim].

    As :func:`.attention.attend`, over :func:`choose`'s keys of this batch, or of one whose outputs it is; a choice for
    fewer heads than there are of keys counts for as many neighbours each. ConfigError for rows that don't fit, for
    another batch, and for rules with a window, slopes or no causality.
    """
    cdef Workspace ws = q.workspace
    cdef span *clipped
    cdef int64_t n
    cdef int i, n_clipped = 0
    check_tables(slab, batch, q, slab.k_dim, 0)
    rule._check_heads(q.dim // slab.k_dim)
    if rule.window or rule.slopes is not None or not rule.causal:
        raise ConfigError("attention over chosen keys is causal and has neither a window nor slopes")
    if choice.batch is not batch or slab.n_heads % choice.n_heads:
        raise ConfigError(f"a choice for {choice.n_heads} heads, of {'this' if choice.batch is batch else 'another'} "
                          f"batch, for keys of {slab.n_heads} heads")
    cdef Rows out = ws.rows(q.n, q.dim // slab.k_dim * slab.v_dim)
    mark = ws.mark()
    clipped = <span *>ws.take(<size_t>batch.n_spans * sizeof(span))
    for i in range(batch.n_spans):
        n = min(batch.span[i].n, choice.limit - batch.span[i].start)
        if n > 0:
            clipped[n_clipped] = batch.span[i]
            clipped[n_clipped].n = n
            n_clipped += 1
    if n_clipped:
        attend_spans(q, out, slab, clipped, n_clipped, rule)
    _attend_long(q, out, slab, batch, rule, choice)
    ws.release(mark)
    return out
