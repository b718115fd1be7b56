"""Attention of a batch over paged keys and values, and of plain arrays."""

from cython.parallel cimport prange, threadid

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t

import math

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport (
    OX_ATTN_SPAN, OX_ATTN_TILE, OX_KV_F32, OX_KV_F16, OX_KV_Q8_0, OX_KV_Q4_0, ox_attn_args, ox_attn_bias, ox_attn_end,
    ox_attn_first, ox_attn_scratch, ox_attn_state, ox_k_panel_bytes, ox_kernels, ox_kv_type, ox_v_panel_bytes, table,
)
from oxillama.kernels._team cimport ATTENTION, STORE, Team, region
from oxillama.kernels.batch cimport Batch, block_table, span
from oxillama.kernels.rows cimport Rows, Workspace

from oxillama.kernels._cores import default_num_threads

cdef const ox_kernels *K = table()

KV_TYPES = {"f32": OX_KV_F32, "f16": OX_KV_F16, "q8_0": OX_KV_Q8_0, "q4_0": OX_KV_Q4_0}

cdef enum:
    TASK_ROWS = 64          # query heads that share the loads of keys and values


def kv_bytes(str kv_type, int64_t block_tokens, int64_t k_dim, int64_t v_dim):
    """Bytes of a block of keys, and of one of values, of one head; values may have no width.

    Raises ConfigError for what can't be stored.
    """
    if kv_type not in KV_TYPES:
        raise ConfigError(f"kv_type must be one of {', '.join(KV_TYPES)}, not {kv_type!r}")
    if block_tokens < 16 or block_tokens not in (16, 32) and block_tokens % 64:
        raise ConfigError(f"kv_block_size={block_tokens} is neither 16 nor 32 nor a multiple of the attention tile, 64")
    if k_dim < 1 or v_dim < 0 or max(k_dim, v_dim) > 1 << 20:
        raise ConfigError(f"heads of {k_dim} key and {v_dim} value dimensions: 1 to 1048576 can be stored, or no "
                          "values")
    cdef ox_kv_type type = KV_TYPES[kv_type]
    return (block_tokens // 16 * <int64_t>ox_k_panel_bytes(type, <size_t>k_dim),
            block_tokens // 16 * <int64_t>ox_v_panel_bytes(type, <size_t>v_dim))


cdef class KvSlab:
    """Keys and values of one layer: blocks of ``block_tokens`` tokens for any number of sequences.

    ``k`` and ``v`` are the stored bytes, uint8 [n_blocks, n_heads, bytes of a block of one head], which start at zero;
    their layout is that of ``ox_kv_type`` in ``ox_kernels.h``. ``kv_type`` is "f32", "f16", "q8_0" or "q4_0": codes of
    8 or 4 bits with a half-precision scale for each 32 values of a token, dimensions rounded up to 32. ``windowed``:
    of the two block tables of a span, its blocks stand in the second, which need not reach back beyond the layer's
    window.
    """

    def __init__(self, str kv_type, int n_blocks, int n_heads, int block_tokens, int k_dim, v_dim=None,
                 bint windowed=False):
        cdef uintptr_t k_start, v_start
        self.v_dim = k_dim if v_dim is None else v_dim
        self.k_head, self.v_head = kv_bytes(kv_type, block_tokens, k_dim, self.v_dim)
        if n_blocks < 1 or n_heads < 1:
            raise ConfigError(f"{n_blocks} blocks of {n_heads} heads: both must be at least 1")
        self.kv_type, self.type, self.windowed = kv_type, KV_TYPES[kv_type], windowed
        self.n_blocks, self.n_heads, self.block_tokens, self.k_dim = n_blocks, n_heads, block_tokens, k_dim
        self.k_panel = ox_k_panel_bytes(self.type, <size_t>k_dim)
        self.v_panel = ox_v_panel_bytes(self.type, <size_t>self.v_dim)
        self.k, self.v = [_aligned(n_blocks, n_heads, n) for n in (self.k_head, self.v_head)]
        k_start, v_start = self.k.ctypes.data, self.v.ctypes.data
        self.k_data, self.v_data = <uint8_t *>k_start, <uint8_t *>v_start


def _aligned(*shape):
    """Zero bytes from an address that is a multiple of 64, so that no vector of a panel lies in two cache lines."""
    memory = np.zeros(math.prod(shape) + 63, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start:start + math.prod(shape)].reshape(shape)


cdef class Attention:
    """Rule of one layer's attention, beside its inputs; fixed when a model is loaded.

    Scores are ``q . k * scale``. ``softcap`` > 0 bends them to ``softcap * tanh(score / softcap)`` (Gemma 2, 2024);
    ``slopes``, one for each query head, takes ``slope * |distance|`` off (ALiBi: Press et al., 2021); ``sinks``, one
    for each query head, is a score that joins the sum of a row's weights without a value (gpt-oss, 2025). ``bias``, for
    each query head one for each distance of a key from its query, -far to far, is added, and that of the furthest to
    what is further away (Raffel et al., "T5", 2020). ``window``: a row sees positions at a distance below it; 0 is no
    limit. ``chunked``: of the runs of ``window`` positions, from the sequence's first on, a row sees its own (Llama 4,
    2025). ``causal``: a row sees no position after its own.

    Raises ConfigError for numbers that are not finite, or negative where that means nothing.
    """

    def __init__(self, scale, *, window=0, softcap=0.0, slopes=None, sinks=None, bias=None, causal=True,
                 chunked=False):
        cdef uintptr_t at
        for name, value in (("scale", scale), ("softcap", softcap)):
            if not np.isfinite(np.float32(value)):
                raise ConfigError(f"attention {name} must be a finite number, not {value}")
        if softcap < 0 or not 0 <= window < 1 << 62:
            raise ConfigError(f"attention softcap={softcap} and window={window} can't be negative; 0 is none")
        if chunked and not causal:
            raise ConfigError("attention in chunks is causal")
        self.scale, self.softcap, self.window, self.causal, self.chunked = scale, softcap, window, causal, chunked
        self.slopes, self.sinks = _per_head("slopes", slopes), _per_head("sinks", sinks)
        if self.slopes is not None:
            at = self.slopes.ctypes.data
            self.slope = <const float *>at
        if self.sinks is not None:
            at = self.sinks.ctypes.data
            self.sink = <const float *>at
        if bias is not None:
            self.bias, self.far = _by_distance(bias)
            at = self.bias.ctypes.data
            self.biases = <const float *>at

    def _check_heads(self, int64_t n_heads):
        for name, values in (("slopes", self.slopes), ("sinks", self.sinks), ("bias", self.bias)):
            if values is not None and len(values) != n_heads:
                raise ConfigError(f"attention {name} of {len(values)} heads for {n_heads} query heads")


def _per_head(name, values):
    if values is None:
        return None
    array = np.array(values, np.float32)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ConfigError(f"attention {name} must be finite numbers, one for each query head; shape {array.shape}")
    array.flags.writeable = False
    return array


def _by_distance(bias):
    """Biases [heads, 2 far + 1] as kernels read them, with those at both ends repeated; and far."""
    array = np.array(bias, np.float32)
    if array.ndim != 2 or not array.size or array.shape[1] % 2 == 0 or not np.isfinite(array).all():
        raise ConfigError("attention bias must be finite numbers, for each query head one for each distance from -far "
                          f"to far; shape {array.shape}")
    far = array.shape[1] // 2
    array = np.pad(array, ((0, 0), (OX_ATTN_TILE - 1, OX_ATTN_TILE - 1)), "edge")
    array.flags.writeable = False
    return array, far


cdef int check_tables(KvSlab s, Batch b, Rows rows, int head_dim, int64_t window) except -1:
    """The block tables must cover the batch, and what it sees, inside the slab: C follows them blindly."""
    cdef int i
    cdef int64_t seen
    cdef span *p
    cdef block_table *t
    if rows.n != b.n_rows or not rows.dim or rows.dim % (s.n_heads * head_dim):
        raise ConfigError(f"{rows.n} rows of {rows.dim} values for a batch of {b.n_rows} rows and "
                          f"{s.n_heads} key/value heads of {head_dim}")
    for i in range(b.n_spans):
        p = &b.span[i]
        t = &p.tables[s.windowed]
        if p.start + p.n > t.n * s.block_tokens:
            raise ConfigError(f"span {i} ends at position {p.start + p.n}, but its block table of {t.n} blocks "
                              f"covers {t.n * s.block_tokens}")
        # Tiles are read as a whole, also where the window begins within one.
        seen = max(<int64_t>0, p.start + 1 - window) // OX_ATTN_TILE * OX_ATTN_TILE if window else 0
        if t.first * s.block_tokens > seen:
            raise ConfigError(f"span {i} sees position {seen}, but its first {t.first} blocks of {s.block_tokens} "
                              "tokens were given back")
        if t.highest >= s.n_blocks:
            raise ConfigError(f"span {i}: block id {t.highest} in its block table; there are {s.n_blocks} blocks")
    return 0


cdef void _store_row(KvSlab s, const int32_t *blocks, int64_t pos, const float *k, const float *v) noexcept nogil:
    """Keys and values of one position to their place."""
    cdef int64_t in_block = pos % s.block_tokens, head, lane = in_block % 16
    cdef size_t place = <size_t>blocks[pos // s.block_tokens] * <size_t>s.n_heads, panel = <size_t>(in_block // 16)
    for head in range(s.n_heads):
        K.store_key[<int>s.type](k + head * s.k_dim, s.k_data + place * s.k_head + panel * s.k_panel, lane, s.k_dim)
        K.store_value[<int>s.type](v + head * s.v_dim, s.v_data + place * s.v_head + panel * s.v_panel, lane, s.v_dim)
        place += 1


cdef void _store(KvSlab s, Batch b, Rows k, Rows v, int64_t row) noexcept nogil:
    cdef int i = 0
    while row >= b.span[i].row + b.span[i].n:
        i += 1
    _store_row(s, b.span[i].tables[s.windowed].blocks, b.span[i].start + row - b.span[i].row,
               k.data + row * k.dim, v.data + row * v.dim)


def store(Rows k, Rows v, KvSlab slab, Batch batch):
    """Put the keys and values of a batch where its block tables say. ``v`` None: of a slab of keys alone."""
    cdef int64_t row, n = batch.n_rows
    cdef region r
    cdef Team team = k.workspace.team
    cdef int nt
    check_tables(slab, batch, k, slab.k_dim, 1)
    if v is None:
        v = k.workspace.rows(n, 0)
    if v.n != n or k.dim != slab.n_heads * slab.k_dim or v.dim != slab.n_heads * slab.v_dim:
        raise ConfigError(f"keys of {k.dim} and values of {v.dim} for {slab.n_heads} heads of "
                          f"{slab.k_dim} and {slab.v_dim}")
    nt = team.begin(&r, STORE | <uint64_t>slab.type << 4, n * (k.dim + v.dim))
    if nt == 1:
        with nogil:
            for row in range(n):
                _store(slab, batch, k, v, row)
            team.end(&r)
    else:
        with nogil:
            for row in prange(n, num_threads=nt, schedule="static"):
                _store(slab, batch, k, v, row)
            team.end(&r)


def attend(Rows q, KvSlab slab, Batch batch, Attention rule):
    """Softmax attention of ``q`` [n_rows, heads * k_dim] over each row's own sequence: Rows [n_rows, heads * v_dim].

    Query heads share key/value heads in equal groups. The keys and values of every position up to the batch's last of
    a sequence, its own among them, must have been stored.
    """
    check_tables(slab, batch, q, slab.k_dim, rule.window)
    cdef Workspace ws = q.workspace
    cdef Rows out = ws.rows(q.n, q.dim // slab.k_dim * slab.v_dim)
    attend_spans(q, out, slab, batch.span, batch.n_spans, rule)
    return out


def attend_source(Rows q, KvSlab slab, Batch batch, Attention rule):
    """Attends like :func:`attend`, over what the encoder left of each row's sequence: its first ``n_source`` positions.

    Raises ConfigError for a sequence without any, and for a rule by which positions matter.
    """
    cdef int i
    check_tables(slab, batch, q, slab.k_dim, rule.window)
    if rule.causal or rule.window or rule.slope != NULL or rule.biases != NULL:
        raise ConfigError("attention to what an encoder left knows no positions: no bias, slopes or window, not causal")
    cdef Workspace ws = q.workspace
    cdef Rows out = ws.rows(q.n, q.dim // slab.k_dim * slab.v_dim)
    mark = ws.mark()
    cdef span *spans = <span *>ws.take(batch.n_spans * sizeof(span))
    for i in range(batch.n_spans):
        spans[i] = batch.span[i]
        if not 0 < spans[i].n_source <= spans[i].start:
            raise ConfigError(f"span {i} at position {spans[i].start} has an encoder's {spans[i].n_source} positions "
                              "before it; at least one is needed")
        spans[i].start = spans[i].n_source - spans[i].n  # so that they end where its keys do
    attend_spans(q, out, slab, spans, batch.n_spans, rule)
    ws.release(mark)
    return out


cdef struct job:
    ox_attn_args a              # what all tasks share
    const float *q
    float *out
    const uint8_t *k
    const uint8_t *v
    const float *slopes
    const float *sinks
    const float *bias
    size_t k_head, v_head
    const span *spans
    bint windowed               # which of their block tables
    int64_t n_heads, queries    # key/value heads; positions in a task
    int64_t q_head, out_head    # floats from one key/value head to the next
    float *states               # NULL: a task does all keys of its rows
    size_t state_floats


cdef int64_t _keys(const ox_attn_args *a, int64_t *first) noexcept nogil:
    """Spans of keys that a chunk of queries sees, at least one; ``first`` is the first."""
    first[0] = ox_attn_first(a, a.pos) // OX_ATTN_SPAN
    return max(<int64_t>1, (ox_attn_end(a, a.pos + a.n_queries - 1) + OX_ATTN_SPAN - 1) // OX_ATTN_SPAN - first[0])


cdef ox_attn_args _chunk(const job *j, int i, int64_t chunk, int64_t head) noexcept nogil:
    """The chunk of positions of a sequence, and one group of heads."""
    cdef ox_attn_args a = j.a
    cdef const span *p = &j.spans[i]
    cdef int64_t first = chunk * j.queries
    a.q = j.q + (p.row + first) * <int64_t>a.q_stride + head * j.q_head
    a.out = j.out + (p.row + first) * <int64_t>a.out_stride + head * j.out_head
    a.k, a.v = j.k + <size_t>head * j.k_head, j.v + <size_t>head * j.v_head
    a.blocks = p.tables[j.windowed].blocks
    a.slopes = j.slopes + head * a.group if j.slopes != NULL else NULL
    a.sinks = j.sinks + head * a.group if j.sinks != NULL else NULL
    a.bias = j.bias + head * a.group * <int64_t>ox_attn_bias(a.far) if j.bias != NULL else NULL
    a.n_queries, a.pos = <int32_t>min(j.queries, p.n - first), p.start + first
    a.n_keys = max(<int64_t>0, p.start + p.n)
    a.span = -1
    return a


cdef void _task(const job *j, int64_t task, float *scratch) noexcept nogil:
    """All keys of a chunk, without merging: chunks of all sequences are numbered, heads fastest."""
    cdef int i = 0
    cdef int64_t chunk = task // j.n_heads, n
    cdef ox_attn_args a
    while True:
        n = (j.spans[i].n + j.queries - 1) // j.queries
        if chunk < n:
            break
        chunk -= n
        i += 1
    a = _chunk(j, i, chunk, task % j.n_heads)
    a.scratch = scratch
    K.attention(&a)


cdef void _part(const job *j, int n_spans, int64_t part, float *scratch, bint merge) noexcept nogil:
    """The part-th span of keys of all chunks; or, as a merge, the part-th chunk of all from its spans' states."""
    cdef int i
    cdef int64_t chunk, head, first = 0, n, state = 0, index = 0
    cdef size_t own
    cdef ox_attn_args a
    for i in range(n_spans):
        for chunk in range((j.spans[i].n + j.queries - 1) // j.queries):
            for head in range(j.n_heads):
                a = _chunk(j, i, chunk, head)
                n = _keys(&a, &first)
                if index == part if merge else part < state + n:
                    a.state, a.scratch = j.states + state * <int64_t>j.state_floats, scratch
                    if merge:
                        K.attention_merge(&a, n)
                    else:
                        # A chunk's states lie as close as its own rows need, in the place of the largest chunk's.
                        own = ox_attn_state(<size_t>(a.n_queries * a.group), <size_t>a.v_dim)
                        a.state += (part - state) * <int64_t>own
                        a.span = first + part - state
                        K.attention(&a)
                    return
                state += n
                index += 1


cdef int attend_spans(Rows q, Rows out, KvSlab slab, const span *spans, int n_spans, Attention rule) except -1:
    """Tasks are chunks of queries times heads, and spans of keys too where there are too few for the threads."""
    cdef Workspace ws = q.workspace
    cdef region r
    cdef Team team = ws.team
    cdef int nt, i
    cdef int64_t group = q.dim // slab.k_dim // slab.n_heads, t, n, first = 0, chunk
    cdef int64_t n_tasks = 0, n_parts = 0, work = 0, largest = 0
    cdef job j
    rule._check_heads(q.dim // slab.k_dim)
    j.a.q_stride, j.a.out_stride, j.a.block_tokens = <size_t>q.dim, <size_t>out.dim, slab.block_tokens
    j.a.k_block_bytes, j.a.v_block_bytes = slab.k_head * <size_t>slab.n_heads, slab.v_head * <size_t>slab.n_heads
    j.a.kv_type, j.a.group, j.a.k_dim, j.a.v_dim = <int32_t>slab.type, <int32_t>group, slab.k_dim, slab.v_dim
    j.a.window, j.a.causal, j.a.scale, j.a.softcap = rule.window, rule.causal, rule.scale, rule.softcap
    j.a.chunked, j.a.far = rule.chunked, rule.far
    j.q, j.out, j.k, j.v, j.k_head, j.v_head = q.data, out.data, slab.k_data, slab.v_data, slab.k_head, slab.v_head
    j.slopes, j.sinks, j.bias, j.n_heads = rule.slope, rule.sink, rule.biases, slab.n_heads
    j.spans, j.windowed = spans, slab.windowed
    j.queries, j.q_head, j.out_head = max(<int64_t>1, TASK_ROWS // group), group * slab.k_dim, group * slab.v_dim
    for i in range(n_spans):
        for chunk in range((spans[i].n + j.queries - 1) // j.queries):
            j.a = _chunk(&j, i, chunk, 0)
            n = _keys(&j.a, &first)
            n_tasks, n_parts, work = n_tasks + j.n_heads, n_parts + n * j.n_heads, work + n * j.a.n_queries * j.n_heads
            largest = max(largest, n * j.a.n_queries)
    nt = team.begin(&r, ATTENTION | <uint64_t>slab.type << 4, work * OX_ATTN_SPAN * group * (slab.k_dim + slab.v_dim))
    if n_parts <= 1:
        r.n = nt = 1    # or all of the team, never a part: the library ends threads that a smaller region leaves out
    mark = ws.mark()
    cdef size_t rows = <size_t>(j.queries * group)
    cdef size_t floats = (ox_attn_scratch(rows, <size_t>slab.k_dim, <size_t>slab.v_dim) + 15) // 16 * 16
    cdef float *scratch = <float *>ws.take(floats * 4 * <size_t>nt)
    if nt > 1 and 2 * largest * nt > work and n_parts > n_tasks:
        _split(&j, n_spans, n_tasks, n_parts, ws, scratch, floats, &r)
    elif nt == 1:
        with nogil:
            for t in range(n_tasks):
                _task(&j, t, scratch)
            team.end(&r)
    else:
        with nogil:
            for t in prange(n_tasks, num_threads=nt, schedule="dynamic"):
                _task(&j, t, scratch + floats * <size_t>threadid())
            team.end(&r)
    ws.release(mark)
    return 0


cdef int _split(job *j, int n_spans, int64_t n_tasks, int64_t n_parts, Workspace ws, float *scratch, size_t floats,
                region *r) except -1:
    """Each span of keys is a task; then each chunk merges its own."""
    cdef int64_t t
    cdef int nt = r.n
    cdef Team team = ws.team
    j.state_floats = ox_attn_state(<size_t>(j.queries * j.a.group), <size_t>j.a.v_dim)
    j.states = <float *>ws.take(<size_t>n_parts * j.state_floats * 4)
    with nogil:
        for t in prange(n_parts, num_threads=nt, schedule="dynamic"):
            _part(j, n_spans, t, scratch + floats * <size_t>threadid(), False)
        for t in prange(n_tasks, num_threads=nt, schedule="static"):
            _part(j, n_spans, t, scratch + floats * <size_t>threadid(), True)
        team.end(r)
    return 0


def flash_attention(q, k, v, *, num_heads, head_dim, softmax_scale=None, causal=True, num_threads=None):
    """Softmax attention of plain arrays, by the kernel that models run on: float32 [n_queries, num_heads, head_dim].

    ``q`` [n_queries, num_heads, head_dim], ``k`` and ``v`` [n_keys, kv_heads, head_dim], of any real type and strides;
    or two-dimensional, [tokens, heads * head_dim]. Query heads share key/value heads in equal groups. Scores are scaled
    by ``softmax_scale``, by default ``head_dim ** -0.5``. ``causal``: the last query sees all keys, each one before it
    one less. A query that sees nothing gives zeros. ``num_threads``: default all cores; it changes no bit.

    Raises ConfigError for shapes that don't belong together, and numbers out of range.
    """
    cdef int64_t row
    cdef span s
    cdef const int32_t[::1] block = np.zeros(1, np.int32)
    arrays = [_plain(name, a, head_dim) for name, a in (("q", q), ("k", k), ("v", v))]
    rule = Attention(head_dim ** -0.5 if softmax_scale is None else softmax_scale, causal=causal)
    n_queries, n_keys, kv_heads = arrays[0].shape[0], arrays[1].shape[0], arrays[1].shape[1]
    if (num_heads < 1 or arrays[0].shape[1] != num_heads or arrays[1].shape != arrays[2].shape or not kv_heads
            or num_heads % kv_heads):
        raise ConfigError(f"q {np.shape(q)}, k {np.shape(k)} and v {np.shape(v)} don't belong together for "
                          f"{num_heads} heads of {head_dim}: [tokens, heads, head_dim], k and v alike")
    if not n_queries or not n_keys:
        return np.zeros((n_queries, num_heads, head_dim), np.float32)
    cdef Workspace ws = Workspace(default_num_threads() if num_threads is None else num_threads)
    cdef KvSlab slab = KvSlab("f32", 1, kv_heads, -(-n_keys // 64) * 64, head_dim)
    cdef Rows qr, kr, vr
    qr, kr, vr = [ws.from_array(a.reshape(len(a), a.shape[1] * head_dim)) for a in arrays]
    s.row, s.n, s.start = 0, n_queries, n_keys - n_queries
    s.tables[0].blocks, s.tables[0].n, s.tables[0].highest, s.tables[0].first = &block[0], 1, 0, 0
    s.read = s.write = -1
    with nogil:
        for row in range(kr.n):
            _store_row(slab, s.tables[0].blocks, row, kr.data + row * kr.dim, vr.data + row * vr.dim)
    cdef Rows out = ws.rows(qr.n, qr.dim)
    attend_spans(qr, out, slab, &s, 1, rule)
    return out.numpy().copy().reshape(n_queries, num_heads, head_dim)


def _plain(name, array, head_dim):
    """An array as contiguous float32 [tokens, heads, head_dim]."""
    a = np.asarray(array)
    if a.ndim == 2 and head_dim > 0 and a.shape[1] % head_dim == 0:
        a = a.reshape(a.shape[0], a.shape[1] // head_dim, head_dim)
    if a.ndim != 3 or head_dim < 1 or a.shape[2] != head_dim or a.dtype.kind not in "fiub":
        raise ConfigError(f"{name} {a.shape} {a.dtype} must be numbers [tokens, heads, head_dim], head_dim={head_dim}")
    return np.ascontiguousarray(a, np.float32)
