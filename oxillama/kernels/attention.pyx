"""Attention of a batch over paged keys and values."""

from cython.parallel cimport prange, threadid

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uintptr_t

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_attn_args, ox_attn_scratch, ox_kernels, table
from oxillama.kernels._threads cimport usable_threads
from oxillama.kernels.batch cimport Batch, span
from oxillama.kernels.rows cimport Rows, Workspace

cdef const ox_kernels *K = table()

cdef enum:
    TASK_ROWS = 64          # query heads that share the loads of keys and values
    SERIAL_WORK = 200_000   # multiplications below which a region costs more than it saves


cdef class KvSlab:
    """Keys and values of one layer: blocks of ``block_tokens`` tokens for any number of sequences.

    ``k``: [n_blocks, n_heads, block_tokens / 16, head_dim, 16], ``v``: [n_blocks, n_heads, block_tokens, head_dim
    rounded up to 16]; both float16 or both float32, C-contiguous.
    """

    cdef readonly object k, v
    cdef readonly int n_blocks, n_heads, head_dim, block_tokens
    cdef readonly bint f16
    cdef uint8_t *k_data
    cdef uint8_t *v_data
    cdef size_t k_head, v_head

    def __init__(self, k, v):
        cdef uintptr_t k_start = k.ctypes.data, v_start = v.ctypes.data
        blocks, heads, panels, dim, lanes = k.shape
        if (lanes != 16 or v.shape != (blocks, heads, panels * 16, (dim + 15) // 16 * 16) or k.dtype != v.dtype
                or k.dtype.name not in ("float16", "float32") or not (k.flags.c_contiguous and v.flags.c_contiguous)):
            raise ConfigError(f"keys {k.shape} {k.dtype} and values {v.shape} {v.dtype} don't belong together")
        if panels * 16 > 64 and panels % 4 or panels * 16 < 64 and 4 % panels:
            raise ConfigError(f"kv_block_size={panels * 16} neither divides the attention tile, 64, nor is a multiple")
        self.k, self.v = k, v
        self.n_blocks = blocks
        self.n_heads, self.head_dim, self.block_tokens, self.f16 = heads, dim, panels * 16, k.dtype.itemsize == 2
        self.k_data, self.v_data = <uint8_t *>k_start, <uint8_t *>v_start
        self.k_head, self.v_head = panels * dim * 16 * k.dtype.itemsize, v.shape[2] * v.shape[3] * v.dtype.itemsize


cdef int _check(KvSlab s, Batch b, Rows rows) except -1:
    """The block tables must cover the batch and stay inside the slab: C follows them blindly."""
    cdef int i
    cdef span *p
    if rows.n != b.n_rows or rows.dim % (s.n_heads * s.head_dim):
        raise ConfigError(f"{rows.n} rows of {rows.dim} values for a batch of {b.n_rows} rows and "
                          f"{s.n_heads} key/value heads of {s.head_dim}")
    for i in range(b.n_spans):
        p = &b.span[i]
        if p.start + p.n > p.n_blocks * s.block_tokens:
            raise ConfigError(f"span {i} ends at position {p.start + p.n}, but its block table of {p.n_blocks} blocks "
                              f"covers {p.n_blocks * s.block_tokens}")
        if p.highest_block >= s.n_blocks:
            raise ConfigError(f"span {i}: block id {p.highest_block} in its block table; there are {s.n_blocks} blocks")
    return 0


cdef void _store_row(KvSlab s, const span *p, int64_t i, const float *k, const float *v) noexcept nogil:
    """Keys and values of row ``i`` of a span to their place."""
    cdef int64_t pos = p.start + i, in_block = pos % s.block_tokens, head, d
    cdef int64_t dims = (s.head_dim + 15) // 16 * 16
    cdef size_t block = <size_t>p.blocks[pos // s.block_tokens] * <size_t>s.n_heads
    cdef uint8_t *kp
    cdef uint8_t *vp
    for head in range(s.n_heads):
        kp = s.k_data + (block + <size_t>head) * s.k_head
        vp = s.v_data + (block + <size_t>head) * s.v_head
        if s.f16:
            K.kv_store_f16(k + head * s.head_dim, kp + in_block // 16 * s.head_dim * 32, in_block % 16, s.head_dim)
            K.to_f16(v + head * s.head_dim, <uint16_t *>vp + in_block * dims, s.head_dim)
        else:
            K.kv_store_f32(k + head * s.head_dim, kp + in_block // 16 * s.head_dim * 64, in_block % 16, s.head_dim)
            for d in range(s.head_dim):
                (<float *>vp)[in_block * dims + d] = v[head * s.head_dim + d]


cdef void _store(KvSlab s, Batch b, const float *k, const float *v, int64_t row) noexcept nogil:
    cdef int i = 0
    cdef int64_t dim = s.n_heads * s.head_dim
    while row >= b.span[i].row + b.span[i].n:
        i += 1
    _store_row(s, &b.span[i], row - b.span[i].row, k + row * dim, v + row * dim)


def store(Rows k, Rows v, KvSlab slab, Batch batch):
    """Put the keys and values of a batch where its block tables say."""
    cdef int64_t row, n = batch.n_rows
    cdef int nt = usable_threads(k.workspace.num_threads)
    cdef float *kd = k.data
    cdef float *vd = v.data
    _check(slab, batch, k)
    if v.n != n or k.dim != slab.n_heads * slab.head_dim or v.dim != k.dim:
        raise ConfigError(f"keys of {k.dim} and values of {v.dim} for {slab.n_heads} heads of {slab.head_dim}")
    if n * k.dim < SERIAL_WORK or nt == 1:
        with nogil:
            for row in range(n):
                _store(slab, batch, kd, vd, row)
    else:
        for row in prange(n, nogil=True, num_threads=nt, schedule="static"):
            _store(slab, batch, kd, vd, row)


cdef void _task(ox_attn_args a, KvSlab s, Batch b, const float *q, float *out, int64_t queries, int64_t task,
                float *scratch) noexcept nogil:
    """One group of heads and one run of at most ``queries`` positions."""
    cdef int i = 0
    cdef int64_t head = task % s.n_heads, chunk = task // s.n_heads, dim = <int64_t>a.q_stride, first, n
    while True:
        n = (b.span[i].n + queries - 1) // queries
        if chunk < n:
            break
        chunk -= n
        i += 1
    first = chunk * queries
    a.q = q + (b.span[i].row + first) * dim + head * a.group * a.head_dim
    a.out = out + (b.span[i].row + first) * dim + head * a.group * a.head_dim
    a.k = s.k_data + <size_t>head * s.k_head
    a.v = s.v_data + <size_t>head * s.v_head
    a.blocks = b.span[i].blocks
    a.n_queries = <int32_t>min(queries, b.span[i].n - first)
    a.pos = b.span[i].start + first
    a.scratch = scratch
    K.attention(&a)


def attend(Rows q, KvSlab slab, Batch batch, float scale, int64_t window=0):
    """Softmax attention of ``q`` [n_rows, n_heads * head_dim] over each row's own past: Rows of the same shape.

    Query heads share key/value heads in equal groups. ``window`` limits a row to the last ``window`` positions, itself
    included; 0 is no limit. The batch's own keys and values must have been stored.
    """
    _check(slab, batch, q)
    cdef Workspace ws = q.workspace
    cdef Rows out = ws.rows(q.n, q.dim)
    cdef ox_attn_args a
    cdef int nt = usable_threads(ws.num_threads), i
    cdef int64_t group = q.dim // slab.head_dim // slab.n_heads, queries = max(<int64_t>1, TASK_ROWS // group), t
    cdef int64_t n_tasks = 0, work = 0
    cdef size_t scratch_floats = (ox_attn_scratch(<size_t>(queries * group), <size_t>slab.head_dim) + 15) // 16 * 16
    cdef float *qd = q.data
    cdef float *od = out.data
    for i in range(batch.n_spans):
        n_tasks += (batch.span[i].n + queries - 1) // queries * slab.n_heads
        work += batch.span[i].n * (batch.span[i].start + batch.span[i].n) * q.dim
    a.q_stride = a.out_stride = <size_t>q.dim
    a.k_block_bytes, a.v_block_bytes = slab.k_head * <size_t>slab.n_heads, slab.v_head * <size_t>slab.n_heads
    a.block_tokens, a.group, a.head_dim = slab.block_tokens, <int32_t>group, slab.head_dim
    a.window, a.scale, a.kv_f16 = window, scale, slab.f16
    mark = ws.mark()
    cdef float *scratch = <float *>ws.take(scratch_floats * 4 * <size_t>nt)
    if work < SERIAL_WORK or nt == 1:
        with nogil:
            for t in range(n_tasks):
                _task(a, slab, batch, qd, od, queries, t, scratch)
    else:
        for t in prange(n_tasks, nogil=True, num_threads=nt, schedule="dynamic"):
            _task(a, slab, batch, qd, od, queries, t, scratch + scratch_floats * <size_t>threadid())
    ws.release(mark)
    return out
