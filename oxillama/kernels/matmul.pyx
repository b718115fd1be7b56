"""Products of activations with weight matrices, of which this is the only implementation.

What is not in panels is packed panel by panel on the way into the same kernels, or for few tokens multiplied as it is:
equal bits, in up to 1.4 times the time. Pages that a pager brings in are one or the other.
"""

from cython.parallel cimport prange, threadid

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memchr, memset

import numpy as np

from oxillama.errors import ConfigError, GenerateError, QuantError

from oxillama.kernels._at_hand cimport prefetch_bytes, read_if_cached
from oxillama.kernels._table cimport (
    OX_PANEL, find_kernel_format, format_info, ox_bf16_row_bytes, ox_format_info, ox_gemm_args, ox_kernels,
    ox_q8_row_bytes, table,
)
from oxillama.kernels._team cimport PRODUCTS, Team, region
from oxillama.kernels._threads cimport ox_await_zero, ox_count_down, usable_threads
from oxillama.kernels.batch cimport Batch, adapters_of
from oxillama.kernels.convert import block_size, dequantize, quantize  # no-cython-lint (names that are public here)
from oxillama.kernels.rows cimport Rows, Workspace, add_bias_

cdef const ox_kernels *K = table()

cdef enum:
    MAX_JOBS = 8                # weights that share one input and one region
    GROUP_BYTES = 256 * 1024    # panels of a task: they stay in L2 while the tokens pass by
    FLOAT_GROUP = 16            # float panels of a task, of any width: their kernels share a copy of the input
    FLOAT_TOGETHER = 4          # float panels at least: their kernels multiply so many at once
    FEW = 4                     # tokens at most for which stored rows go without packing, where a kernel can
    STRIP = 256                 # columns that are packed at a time: whole blocks of every format
    READ_BYTES = 128 * 1024     # read at once by the multiplying thread: calls cost nothing then, and bytes stay in L2


cdef int prepare(job *j, Matrix w, int64_t expert, int64_t n_tokens, int nt) except -1:
    """Describe ``y = x w[expert]`` and choose how many panels make a task."""
    cdef int64_t pages
    j.packed = w.packed + <size_t>(expert * w.n_panels) * w.panel_bytes if w.packed != NULL else NULL
    j.raw = w.raw + <size_t>(expert * w.n_out) * w.row_bytes if w.raw != NULL else NULL
    j.panel_bytes, j.row_bytes, j.kernel, j.gemm = w.panel_bytes, w.row_bytes, w.kernel, w.gemm
    j.gemm_rows = K.gemm_bf16_rows if w.rounds else K.gemm_rows[w.kernel]
    j.n_in, j.n_out, j.n_panels, j.n_tokens = w.n_in, w.n_out, w.n_panels, n_tokens
    j.integer, j.from_memory = w.integer, w.from_memory
    j.in_panels = w.pager is not None and w.pages_in_panels
    _choose_group(j, nt)
    j.y_stride = w.n_out
    j.x_rows = j.y_rows = NULL
    j.accumulate = 0
    j.pager = NULL
    j.file = -1
    j.first_panel = j.n_changes = 0
    j.left = NULL
    j.scales = NULL
    if w.pager is not None:
        pages = (w.n_panels + w.page_panels - 1) // w.page_panels
        j.pager, j.first_page, j.page_panels = <void *>w.pager, w.first_page + expert * pages, w.page_panels
    return 0


cdef void _choose_group(job *j, int nt) noexcept:
    """Panels of a task, and of those how many are packed, or read, at once where that is done on the way."""
    cdef int64_t group = j.n_panels
    if j.n_tokens > 8:
        group = max(<int64_t>1, <int64_t>(GROUP_BYTES // j.panel_bytes)) if j.integer else FLOAT_GROUP
    j.together = 1 if j.integer else FLOAT_TOGETHER
    j.group = max(j.together, min(group, j.n_panels // (4 * nt)))
    if j.integer and j.group % 2 and (j.group + 1) * j.panel_bytes <= GROUP_BYTES + GROUP_BYTES // 4:
        j.group += 1            # kernels of some formats take two at a time
    if j.n_tokens > 8 and j.integer:
        j.together = j.group    # a tile of tokens, once loaded, is multiplied by all of them
    j.at_once = max(j.together, <int64_t>(READ_BYTES // _stored_bytes(j)) // j.together * j.together)


cdef inline size_t _stored_bytes(const job *j) noexcept nogil:
    """Bytes of 16 rows as they are stored where they are read."""
    return j.panel_bytes if j.in_panels else OX_PANEL * j.row_bytes


cdef inline size_t _n_stored(const job *j, int64_t first, int64_t n) noexcept nogil:
    """Bytes of n panels from one on, of which the last may have fewer rows, but not in panels."""
    return <size_t>n * j.panel_bytes if j.in_panels else <size_t>min(
        j.n_out - first * OX_PANEL, n * OX_PANEL) * j.row_bytes


cdef void _task(const job *j, int64_t task, uint8_t *scratch) noexcept nogil:
    """One group of panels for all tokens of a job, with what adapters add to them."""
    cdef int64_t first = task * j.group, end = _multiply(j, first, min(first + j.group, j.n_panels), scratch)
    cdef int i
    if j.scales != NULL:
        _scale(j, first, end)
        ox_count_down(j.left, end - first)
    if j.n_changes:
        ox_await_zero(j.left)
        for i in range(j.n_changes):
            _multiply(&j.changes[i], j.first_panel + first, j.first_panel + end, scratch)


cdef int64_t _multiply(const job *j, int64_t first, int64_t last, uint8_t *scratch) noexcept nogil:
    """Some panels for all tokens. Returns the panel before which it stopped: one not in the page cache, or ``last``."""
    cdef int64_t n
    cdef const uint8_t *rows
    cdef ox_gemm_args a
    a.panel_bytes, a.k, a.x, a.x_bytes = j.panel_bytes, j.n_in, j.x, j.x_bytes
    a.x_rows, a.y_rows, a.n_tokens, a.accumulate = j.x_rows, j.y_rows, j.n_tokens, j.accumulate
    a.from_memory = False           # what is packed, or read, on the way is in a cache
    a.y_stride = <size_t>j.y_stride
    if j.packed != NULL:
        a.w = j.packed + <size_t>first * j.panel_bytes
        a.y = j.y + first * OX_PANEL
        a.n_rows = min(j.n_out, last * OX_PANEL) - first * OX_PANEL
        a.from_memory = j.from_memory
        j.gemm(&a)
        return last
    a.w = scratch
    while first < last:
        n = min(j.at_once, last - first)
        rows = _rows(j, first, n, scratch + _packed_bytes(j))
        if rows == NULL:
            memset(j.missed + first, 1, <size_t>(last - first))
            return first
        if j.in_panels:
            a.w, a.y = rows, j.y + first * OX_PANEL
            a.n_rows = min(j.n_out - first * OX_PANEL, n * OX_PANEL)
            a.from_memory = j.from_memory and j.file < 0
            j.gemm(&a)
        else:
            _multiply_raw(j, first, first + n, rows, &a, scratch)
        first += n
    return last


cdef const uint8_t *_rows(const job *j, int64_t first, int64_t n, uint8_t *room) noexcept nogil:
    """The rows of n panels as they are stored, perhaps read from the page cache; NULL if they are not there."""
    cdef size_t start = <size_t>first * _stored_bytes(j), n_bytes = _n_stored(j, first, n)
    cdef uint8_t *rows = <uint8_t *>j.raw + start if j.raw != NULL else room
    if j.file >= 0 and not read_if_cached(j.file, rows, n_bytes, j.offset + <int64_t>start):
        return NULL
    return rows


cdef void _multiply_raw(const job *j, int64_t first, int64_t last, const uint8_t *rows, ox_gemm_args *a,
                        uint8_t *packed) noexcept nogil:
    """Panels ``first`` to ``last``, whose ``rows`` are packed here, or few tokens multiplied by as they are stored."""
    cdef int64_t p, n
    cdef size_t bytes = OX_PANEL * j.row_bytes
    if j.n_tokens <= FEW and j.gemm_rows != NULL:
        n = min(last, j.n_out // OX_PANEL) - first      # panels with all rows
        _multiply_stored(j, first, n, rows, a[0])
        first += n
        rows += <size_t>n * bytes
    while first < last:
        n = min(j.together, last - first)
        for p in range(n):
            _pack(j, rows, min(j.n_out - (first + p) * OX_PANEL, <int64_t>OX_PANEL), packed + <size_t>p * j.panel_bytes)
            rows += bytes
        a.y = j.y + first * OX_PANEL
        a.n_rows = min(j.n_out - first * OX_PANEL, n * OX_PANEL)
        j.gemm(a)
        first += n


cdef void _multiply_stored(const job *j, int64_t first, int64_t n, const uint8_t *rows, ox_gemm_args a) noexcept nogil:
    """n whole panels from `rows`, as they are stored."""
    a.w, a.panel_bytes = rows, OX_PANEL * j.row_bytes
    a.y = j.y + first * OX_PANEL
    a.n_rows = n * OX_PANEL
    j.gemm_rows(&a)


cdef void _pack(const job *j, const uint8_t *rows, int64_t n_rows, uint8_t *panel) noexcept nogil:
    """One panel. Its 16 rows are too many streams for the hardware to see, and what lies behind them, the next panel,
    too much to ask for at once: the core's few miss buffers would hold up the packing. So columns and requests take
    turns."""
    cdef int64_t first = 0, step = min(j.n_in, <int64_t>STRIP) if j.n_in % 32 == 0 else j.n_in
    cdef size_t row = j.row_bytes * <size_t>step // <size_t>j.n_in
    cdef size_t packed = j.panel_bytes * <size_t>step // <size_t>j.n_in
    cdef const uint8_t *next = rows + OX_PANEL * j.row_bytes
    while first < j.n_in:
        if j.file < 0:
            prefetch_bytes(next, OX_PANEL * row)
            next += OX_PANEL * row
        K.pack[j.kernel](rows, j.row_bytes, n_rows, min(step, j.n_in - first), panel)
        rows += row
        panel += packed
        first += step


cdef void _scale(const job *j, int64_t first, int64_t last) noexcept nogil:
    cdef int64_t i, end = min(j.n_out, last * OX_PANEL)
    for i in range(j.n_tokens):
        K.scale(j.y + i * j.y_stride + first * OX_PANEL, j.scales[i] * j.scale, end - first * OX_PANEL)


cdef size_t _packed_bytes(const job *j) noexcept nogil:
    return (j.panel_bytes * <size_t>j.together + 63) // 64 * 64


cdef size_t _scratch_bytes(const job *j) noexcept:
    """Bytes that a thread packs panels in, and reads them into."""
    cdef size_t found = 0
    cdef int i
    if j.packed == NULL:
        found = _packed_bytes(j) + (<size_t>j.at_once * _stored_bytes(j) if j.file >= 0 and j.raw == NULL else 0)
    for i in range(j.n_changes):
        found = max(found, _scratch_bytes(&j.changes[i]))
    return found


cdef int run(job *jobs, int n_jobs, workspace) except -1:
    """All jobs: in one parallel region, or where a pager brings weights in, in one for what is there each time."""
    cdef int i
    for i in range(n_jobs):
        if jobs[i].pager != NULL:
            return _run_paged(jobs, n_jobs, workspace)
    return _run(jobs, n_jobs, workspace)


cdef int _run_paged(job *jobs, int n_jobs, workspace) except -1:
    """Output rows are independent: pages are multiplied in whatever order they come."""
    cdef int i, n = 0
    cdef int64_t k, panels
    cdef dict wanted = {}           # page -> what is left to do with it: (job, first panel, end)
    cdef job *parts
    pager = None
    memory = np.empty(n_jobs * sizeof(job), np.uint8)
    parts = <job *><uintptr_t>memory.ctypes.data
    for i in range(n_jobs):
        if jobs[i].pager == NULL:
            parts[n] = jobs[i]
            n += 1
            continue
        pager, panels = <object>jobs[i].pager, jobs[i].page_panels
        for k in range((jobs[i].n_panels + panels - 1) // panels):
            wanted.setdefault(jobs[i].first_page + k, []).append((i, 0, min(panels, jobs[i].n_panels - k * panels)))
    call = pager.begin(list(wanted))
    try:
        if n:
            _run(parts, n, workspace)
        while call.n_open:
            pages = pager.take(call)
            n_bytes = _run_pages(jobs, wanted, pages, workspace)
            pager.done(call, [page for page, _, _, _ in pages if wanted[page]], n_bytes)
    finally:
        pager.end(call)
    return 0


cdef int64_t _run_pages(job *jobs, dict wanted, list pages, workspace) except -1:
    """Runs the pieces of pages in memory or in the page cache; ``wanted`` keeps the others. Returns the bytes read."""
    cdef int nt = usable_threads(workspace.num_threads), i, n = 0
    cdef int64_t first, end, offset, skipped, done = 0
    cdef uintptr_t address
    cdef job *parts
    pieces = [piece for page, _, _, _ in pages for piece in wanted[page]]
    memory = np.empty(len(pieces) * sizeof(job), np.uint8)
    parts = <job *><uintptr_t>memory.ctypes.data
    marks = np.zeros(sum([end - first for _, first, end in pieces]), np.uint8)
    cdef uint8_t[::1] missed = marks
    for page, address, file, offset in pages:
        for i, first, end in wanted[page]:
            _cut(&parts[n], &jobs[i], (page - jobs[i].first_page) * jobs[i].page_panels + first, end - first, nt)
            skipped = first * <int64_t>_stored_bytes(&jobs[i])
            parts[n].raw = <const uint8_t *>(address + <size_t>skipped) if address else NULL
            parts[n].file, parts[n].offset, parts[n].missed = file, offset + skipped, &missed[done]
            done += end - first
            n += 1
    _run(parts, n, workspace)
    _keep_missed(wanted, pages, marks, memchr(&missed[0], 1, <size_t>missed.shape[0]) != NULL)
    return _bytes_read(parts, n)


cdef _keep_missed(dict wanted, list pages, marks, bint some):
    """Leaves of pages that were multiplied the panels that are marked, if any are."""
    cdef int64_t at = 0
    for page, _, _, _ in pages:
        pieces, wanted[page] = wanted[page], []
        for i, first, end in pieces if some else ():
            edges = (first + np.flatnonzero(np.diff(marks[at:at + end - first], prepend=0, append=0))).tolist()
            wanted[page] += [(i, a, b) for a, b in zip(edges[::2], edges[1::2])]
            at += end - first


cdef int64_t _bytes_read(const job *parts, int n) noexcept:
    cdef int64_t p, found = 0
    cdef int i
    for i in range(n):
        for p in range(parts[i].n_panels if parts[i].file >= 0 else 0):
            if not parts[i].missed[p]:
                found += <int64_t>_n_stored(&parts[i], p, 1)
    return found


cdef void _cut(job *part, const job *j, int64_t first, int64_t n_panels, int nt) noexcept:
    """Some panels of a paged matrix."""
    part[0] = j[0]
    part.pager, part.packed, part.first_panel = NULL, NULL, first
    part.n_panels = n_panels
    part.n_out = min(j.n_out - first * OX_PANEL, n_panels * OX_PANEL)
    part.y = j.y + first * OX_PANEL
    _choose_group(part, nt)


cdef int _run(job *jobs, int n_jobs, workspace) except -1:
    """All jobs in one parallel region. Threads share out groups of output rows, never a sum."""
    cdef Workspace ws = workspace
    cdef Team team = ws.team
    cdef region r
    cdef int nt = team.begin(&r, _kind(jobs), _work(jobs, n_jobs)), i
    cdef int64_t t, n_tasks = 0
    cdef size_t scratch_bytes = 0
    cdef uint8_t *scratch = NULL
    mark = ws.mark()
    for i in range(n_jobs):
        if nt == 1 and (r.brief or jobs[i].n_tokens <= 8):
            jobs[i].group = jobs[i].n_panels    # for a single thread, all panels in one call of the kernel
        jobs[i].first_task = n_tasks
        n_tasks += (jobs[i].n_panels + jobs[i].group - 1) // jobs[i].group
        scratch_bytes = max(scratch_bytes, _scratch_bytes(&jobs[i]))
    if scratch_bytes:
        scratch_bytes = (scratch_bytes + 63) // 64 * 64
        scratch = <uint8_t *>ws.take(scratch_bytes * <size_t>nt)
    if nt == 1 and r.brief:
        for t in range(n_tasks):
            _dispatch(jobs, n_jobs, t, scratch)
        team.end(&r)
    elif nt == 1:
        with nogil:
            for t in range(n_tasks):
                _dispatch(jobs, n_jobs, t, scratch)
            team.end(&r)
    else:
        with nogil:
            for t in prange(n_tasks, num_threads=nt, schedule="dynamic"):
                _dispatch(jobs, n_jobs, t, scratch + scratch_bytes * <size_t>threadid())
            team.end(&r)
    if scratch_bytes:
        ws.release(mark)
    return 0


cdef uint64_t _kind(const job *jobs) noexcept:
    """Costs are those of a format, in panels or as it is stored, for one token or for many."""
    cdef bint in_panels = jobs.packed != NULL or jobs.in_panels
    return PRODUCTS | <uint64_t>(jobs.kernel << 8 | in_panels << 4 | (jobs.n_tokens > 8) << 5)


cdef int64_t _work(const job *jobs, int n_jobs) noexcept:
    """Multiplications."""
    cdef int64_t work = 0
    cdef int i
    for i in range(n_jobs):
        work += jobs[i].n_tokens * jobs[i].n_out * jobs[i].n_in
    return work


cdef void _dispatch(const job *jobs, int n_jobs, int64_t task, uint8_t *scratch) noexcept nogil:
    cdef int i = 0, end = n_jobs, middle
    while end - i > 1:
        middle = (i + end) // 2
        if jobs[middle].first_task <= task:
            i = middle
        else:
            end = middle
    _task(&jobs[i], task - jobs[i].first_task, scratch)


cdef int set_input(job *j, Matrix w, Rows x) except -1:
    """The job reads ``x``, in the form that the matrix takes."""
    if x.dim != w.n_in:
        raise QuantError(f"{w.name}: input of width {x.dim} for a matrix of shape {w.shape}")
    if w.integer:
        j.x, j.x_bytes = x.quantised(), ox_q8_row_bytes(<size_t>x.dim)
    elif w.rounds:
        j.x, j.x_bytes = x.rounded(), ox_bf16_row_bytes(<size_t>x.dim)
    else:
        j.x, j.x_bytes = <const uint8_t *>x.data, <size_t>(x.dim * 4)
    return 0


cdef int describe(job *j, Matrix w, Rows x, int nt) except -1:
    """The product of all rows with one matrix."""
    if w.n_experts > 1:
        raise QuantError(f"{w.name}: a stack of {w.n_experts} matrices where one is needed; expert_matmul takes those")
    prepare(j, w, 0, x.n, nt)
    set_input(j, w, x)
    return 0


cdef int _run_changed(job *jobs, int n_jobs, Rows x, tuple weights, Batch batch) except -1:
    """The jobs of these weights, with what the batch's adapters change in them."""
    cdef uintptr_t address = <uintptr_t>jobs
    adapters = adapters_of(batch)
    if adapters is not None:
        address, n_jobs = adapters.beside(x, weights, address)
    return run(<job *>address, n_jobs, x.workspace)


def matmul(Rows x, *weights, Batch batch=None):
    """``x @ w.T`` (+ bias) for each of up to eight matrices, in one region: a list of Rows [x.n, w.n_out].

    ``batch``, here and in all products: the one that ``x`` are rows of, whose adapters change the result; None for rows
    that no adapter changes.
    """
    cdef job jobs[MAX_JOBS]
    cdef int i = 0
    cdef Matrix w
    cdef Rows y
    cdef int nt = usable_threads(x.workspace.num_threads)
    cdef bint biased = False
    if len(weights) > MAX_JOBS:
        raise ConfigError(f"{len(weights)} matrices in one call; at most {MAX_JOBS}")
    out = []
    for w in weights:
        y = x.workspace.rows(x.n, w.n_out)
        describe(&jobs[i], w, x, nt)
        jobs[i].y = y.data
        biased = biased or w.bias is not None
        out.append(y)
        i += 1
    _run_changed(jobs, i, x, weights, batch)
    if biased:
        for y, w in zip(out, weights):
            if w.bias is not None:
                add_bias_(y, w.bias)
    return out


def linear(Rows x, Matrix w, Batch batch=None):
    """``x @ w.T`` (+ bias): Rows [x.n, w.n_out]."""
    cdef job j
    cdef Rows y = x.workspace.rows(x.n, w.n_out)
    describe(&j, w, x, usable_threads(x.workspace.num_threads))
    j.y = y.data
    _run_changed(&j, 1, x, (w,), batch)
    if w.bias is not None:
        add_bias_(y, w.bias)
    return y


def linear_add_(Rows y, Rows x, Matrix w, Batch batch=None):
    """``y += x @ w.T`` (+ bias), in place."""
    cdef job j
    if y.n != x.n or y.dim != w.n_out:
        raise QuantError(f"{w.name}: output of {y.n} x {y.dim} for {x.n} rows and a matrix of shape {w.shape}")
    describe(&j, w, x, usable_threads(x.workspace.num_threads))
    j.y, j.accumulate = y.data, 1
    _run_changed(&j, 1, x, (w,), batch)
    if w.bias is not None:
        add_bias_(y, w.bias)
    y.q8 = NULL


def embed(Workspace workspace, data, str type, int64_t dim, const int32_t[::1] tokens):
    """Rows ``tokens`` of an embedding table as files store it (uint8), dequantised: Rows [len(tokens), dim].

    GenerateError for a token that is not a row of the table.
    """
    cdef const uint8_t[::1] raw = data
    cdef const ox_format_info *f = format_info(find_kernel_format(type))
    cdef size_t row_bytes = <size_t>(dim // f.values * f.bytes)
    cdef Rows y = workspace.rows(tokens.shape[0], dim)
    cdef Py_ssize_t i
    cdef int64_t n_rows = <int64_t>(<size_t>raw.shape[0] // row_bytes)
    for i in range(tokens.shape[0]):
        if not 0 <= tokens[i] < n_rows:
            raise GenerateError(f"token id {tokens[i]} is not in 0..{n_rows - 1}")
        K.dequantise[f.kernel](&raw[0] + <size_t>tokens[i] * row_bytes, y.data + i * dim, dim)
    return y
