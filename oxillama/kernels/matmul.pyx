"""Products of activations with weight matrices, of which this is the only implementation.

A :class:`Matrix` is kept in panels of 16 interleaved rows (``repack``, at load), or stays where the file is mapped and
is packed panel by panel on the way into the same kernels: slower, equal bits, no memory. Or it is brought in page by
page whenever it is multiplied (``page``), by a pager that keeps as much of it as there is room for.
"""

from cython.parallel cimport prange, threadid

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

import numpy as np

from oxillama.errors import ConfigError, GenerateError, QuantError

from oxillama.kernels._table cimport (
    OX_PANEL, find_format, find_kernel_format, format_info, ox_bf16_row_bytes, ox_format_info, ox_gemm_args, ox_kernels,
    ox_q8_row_bytes, table,
)
from oxillama.kernels._threads cimport ox_await_zero, ox_count_down, usable_threads
from oxillama.kernels.convert import quantize  # no-cython-lint (the other way of dequantize)
from oxillama.kernels.rows cimport Rows, Vector, Workspace, add_bias_

cdef const ox_kernels *K = table()

cdef enum:
    MAX_JOBS = 8                # weights that share one input and one region
    SERIAL_WORK = 500_000       # multiplications (some 25 us) below which a region costs more than it saves
    REPACK_BYTES = 16 << 20     # of a matrix are resident twice while it is repacked
    GROUP_BYTES = 256 * 1024    # panels of a task: they stay in L2 while the tokens pass by
    FLOAT_GROUP = 16            # float panels of a task, of any width: their kernels share a copy of the input
    FLOAT_TOGETHER = 4          # float panels at least: their kernels multiply so many at once


cdef class Matrix:
    """A weight matrix [n_out, n_in], or a stack of them [n_experts, n_out, n_in].

    ``data`` is the tensor as files store it, uint8 [nbytes]; ``bias``, [n_out] or [n_experts * n_out], is added to
    whatever a matrix gives. ``rounds``: BF16 is multiplied by activations in BF16 where the CPU does that. Raises
    QuantError when the format has no kernels or the sizes don't fit.
    """

    def __init__(self, data, str type, shape, *, Vector bias=None, str name="?", bint repack=True, bint rounds=True):
        cdef const uint8_t[::1] raw = data
        cdef const ox_format_info *f = format_info(find_kernel_format(type))
        self.name, self.type = name, type
        experts, n_out, n_in = shape if len(shape) == 3 else (1, *shape)
        self.n_experts, self.n_out, self.n_in = experts, n_out, n_in
        if (min(experts, n_out, n_in) < 1 or n_in % f.values
                or raw.shape[0] != experts * n_out * n_in // f.values * f.bytes):  # in Python's integers: no overflow
            raise QuantError(f"{name}: {raw.shape[0]} bytes of {type} are not a matrix of shape {tuple(shape)}")
        if bias is not None and bias.n != experts * n_out:
            raise QuantError(f"{name}: a bias of {bias.n} values for a matrix of shape {tuple(shape)}")
        self.bias = bias
        self.kernel = f.kernel
        self.integer = f.values > 1
        self.rounds = rounds and f.name == b"BF16" and K.gemm_bf16 != NULL
        self.gemm = K.gemm_bf16 if self.rounds else K.gemm[self.kernel]
        self.row_bytes = <size_t>(self.n_in // f.values * f.bytes)
        self.n_panels = (self.n_out + OX_PANEL - 1) // OX_PANEL
        self.panel_bytes = <size_t>((self.n_in + f.packed_values - 1) // f.packed_values * f.packed_bytes)
        self.raw, self._raw_owner = &raw[0], data
        if repack:
            self.repack()

    def repack(self, *, int num_threads=1, release=None, allocate=None):
        """Moves the weights into panels, in memory that ``allocate(n_bytes)`` gives (uint8).

        ``release(part of data)`` is called for each part that is done with. Does nothing a second time.
        """
        # Rows that fill no panel are padded to one: a stack of tiny matrices would grow sixteenfold, and stays as is.
        padded = self.n_experts * self.n_panels * <int64_t>self.panel_bytes
        if self.raw != NULL and padded <= 2 * self.file_nbytes + (1 << 20):
            buffer = (allocate or (lambda n_bytes: np.empty(n_bytes, np.uint8)))(padded + 64)
            self._repack(buffer, num_threads, release or (lambda part: None))

    def _repack(self, buffer, int num_threads, release):
        cdef int64_t i, first, last, total = self.n_experts * self.n_panels
        cdef int64_t step = max(<int64_t>1, <int64_t>(REPACK_BYTES // self.panel_bytes))
        cdef int nt = usable_threads(num_threads)
        cdef uintptr_t start = buffer.ctypes.data
        self.packed, self._packed_owner = <uint8_t *>((start + 63) // 64 * 64), buffer
        for first in range(0, total, step):
            last = min(first + step, total)
            for i in prange(first, last, nogil=True, num_threads=nt, schedule="static"):
                self._pack(i)
            release(self._raw_owner[self._first_byte(first):self._first_byte(last)])
        self.raw, self._raw_owner, self.repacked = NULL, None, True

    def hold(self, data):
        """Takes the weights from ``data``, as files store them (uint8 [file_nbytes]), instead of from where they were.

        QuantError when they are not as many bytes.
        """
        cdef const uint8_t[::1] raw = data
        if raw.shape[0] != self.file_nbytes:
            raise QuantError(f"{self.name}: {raw.shape[0]} bytes for a matrix of {self.file_nbytes}")
        self._forget()
        self.raw, self._raw_owner = &raw[0], data

    def page(self, pager, int64_t first_page, int64_t page_panels):
        """Lets go of the weights: from now on each product asks for those that it reads.

        The rows of each matrix of a stack are cut into pages of ``page_panels`` panels of 16, the last of them shorter,
        with numbers from ``first_page`` on. ``pager.bring(numbers)`` yields lists of ``(number, address)``: pages that
        are in memory, as files store them, until it is asked for the next ones; each page once. QuantError for pages
        that can't be.
        """
        if first_page < 0 or page_panels < 1:
            raise QuantError(f"{self.name}: pages of {page_panels} panels from number {first_page} on")
        self._forget()
        self.pager, self.first_page, self.page_panels = pager, first_page, page_panels

    def _forget(self):
        self.raw = self.packed = NULL
        self._raw_owner = self._packed_owner = self.pager = None
        self.repacked = False

    cdef size_t _first_byte(self, int64_t i) noexcept nogil:
        """Where the rows of panel ``i`` begin in the file's tensor."""
        return <size_t>(i // self.n_panels * self.n_out + i % self.n_panels * OX_PANEL) * self.row_bytes

    cdef void _pack(self, int64_t i) noexcept nogil:
        cdef int64_t rows = min(self.n_out - i % self.n_panels * OX_PANEL, <int64_t>OX_PANEL)
        K.pack[self.kernel](self.raw + self._first_byte(i), self.row_bytes, rows, self.n_in,
                            self.packed + <size_t>i * self.panel_bytes)

    @property
    def shape(self):
        matrix = (self.n_out, self.n_in)
        return (self.n_experts, *matrix) if self.n_experts > 1 else matrix

    @property
    def raw_nbytes(self):
        """Bytes of the file's tensor, until it is repacked."""
        return 0 if self._raw_owner is None else self._raw_owner.nbytes

    @property
    def nbytes(self):
        """Bytes held beside the file's own."""
        return 0 if self._packed_owner is None else self._packed_owner.nbytes

    @property
    def file_nbytes(self):
        """Bytes of the tensor as files store it."""
        return self.n_experts * self.n_out * <int64_t>self.row_bytes

    @property
    def held_nbytes(self):
        """Bytes that the matrix would take in memory, repacked if that is done at all."""
        padded = self.n_experts * self.n_panels * <int64_t>self.panel_bytes
        return padded + 64 if padded <= 2 * self.file_nbytes + (1 << 20) else self.file_nbytes

    def __repr__(self):
        return f"Matrix({self.name!r}, {self.type}, {self.shape}, repacked={bool(self.repacked)})"


cdef int prepare(job *j, Matrix w, int64_t expert, int64_t n_tokens, int nt) except -1:
    """Describe ``y = x w[expert]`` and choose how many panels make a task."""
    cdef int64_t pages
    j.packed = w.packed + <size_t>(expert * w.n_panels) * w.panel_bytes if w.packed != NULL else NULL
    j.raw = w.raw + <size_t>(expert * w.n_out) * w.row_bytes if w.raw != NULL else NULL
    j.panel_bytes, j.row_bytes, j.kernel, j.gemm = w.panel_bytes, w.row_bytes, w.kernel, w.gemm
    j.n_in, j.n_out, j.n_panels, j.n_tokens = w.n_in, w.n_out, w.n_panels, n_tokens
    j.integer = w.integer
    _choose_group(j, nt)
    j.y_stride = w.n_out
    j.x_rows = j.y_rows = NULL
    j.accumulate = 0
    j.pager = NULL
    j.first_panel = j.n_changes = 0
    j.left = NULL
    j.scales = NULL
    if w.pager is not None:
        pages = (w.n_panels + w.page_panels - 1) // w.page_panels
        j.pager, j.first_page, j.page_panels = <void *>w.pager, w.first_page + expert * pages, w.page_panels
    return 0


cdef void _choose_group(job *j, int nt) noexcept:
    """Panels of a task, and of those how many are packed at once where that is done on the way."""
    cdef int64_t group = j.n_panels
    if j.n_tokens > 8:
        group = max(<int64_t>1, <int64_t>(GROUP_BYTES // j.panel_bytes)) if j.integer else FLOAT_GROUP
    j.together = 1 if j.integer else FLOAT_TOGETHER
    j.group = max(j.together, min(group, j.n_panels // (4 * nt)))
    if j.n_tokens > 8 and j.integer:
        j.together = j.group    # a tile of tokens, once loaded, is multiplied by all of them


cdef void _task(const job *j, int64_t task, uint8_t *scratch) noexcept nogil:
    """One group of panels for all tokens of a job, with what adapters add to them."""
    cdef int64_t first = task * j.group, last = min(first + j.group, j.n_panels)
    cdef int i
    _multiply(j, first, last, scratch)
    if j.scales != NULL:
        _scale(j, first, last)
        ox_count_down(j.left, last - first)
    if j.n_changes:
        ox_await_zero(j.left)
        for i in range(j.n_changes):
            _multiply(&j.changes[i], j.first_panel + first, j.first_panel + last, scratch)


cdef void _multiply(const job *j, int64_t first, int64_t last, uint8_t *scratch) noexcept nogil:
    """Some panels for all tokens."""
    cdef int64_t p, n
    cdef ox_gemm_args a
    a.panel_bytes, a.k, a.x, a.x_bytes = j.panel_bytes, j.n_in, j.x, j.x_bytes
    a.x_rows, a.y_rows, a.n_tokens, a.accumulate = j.x_rows, j.y_rows, j.n_tokens, j.accumulate
    a.y_stride = <size_t>j.y_stride
    if j.packed != NULL:
        a.w = j.packed + <size_t>first * j.panel_bytes
        a.y = j.y + first * OX_PANEL
        a.n_rows = min(j.n_out, last * OX_PANEL) - first * OX_PANEL
        j.gemm(&a)
        return
    a.w = scratch
    while first < last:
        n = min(j.together, last - first)
        for p in range(n):
            _pack_rows(j, first + p, scratch + <size_t>p * j.panel_bytes)
        a.y = j.y + first * OX_PANEL
        a.n_rows = min(j.n_out - first * OX_PANEL, n * OX_PANEL)
        j.gemm(&a)
        first += n


cdef void _scale(const job *j, int64_t first, int64_t last) noexcept nogil:
    cdef int64_t i, end = min(j.n_out, last * OX_PANEL)
    for i in range(j.n_tokens):
        K.scale(j.y + i * j.y_stride + first * OX_PANEL, j.scales[i] * j.scale, end - first * OX_PANEL)


cdef void _pack_rows(const job *j, int64_t p, uint8_t *panel) noexcept nogil:
    K.pack[j.kernel](j.raw + <size_t>(p * OX_PANEL) * j.row_bytes, j.row_bytes,
                     min(j.n_out - p * OX_PANEL, <int64_t>OX_PANEL), j.n_in, panel)


cdef int run(job *jobs, int n_jobs, workspace, int64_t serial_work=SERIAL_WORK) except -1:
    """All jobs: in one parallel region, or where a pager brings weights in, in one for what is there each time."""
    cdef int i
    for i in range(n_jobs):
        if jobs[i].pager != NULL:
            return _run_paged(jobs, n_jobs, workspace, serial_work)
    return _run(jobs, n_jobs, workspace, serial_work)


cdef int _run_paged(job *jobs, int n_jobs, workspace, int64_t serial_work) except -1:
    """Output rows are independent: pages are multiplied in whatever order they come."""
    cdef int nt = usable_threads(workspace.num_threads), i, n = 0
    cdef int64_t k, page
    cdef uintptr_t address
    cdef dict wanted = {}           # page -> jobs that read it
    cdef job *parts
    pager = None
    memory = np.empty(n_jobs * sizeof(job), np.uint8)
    parts = <job *><uintptr_t>memory.ctypes.data
    for i in range(n_jobs):
        if jobs[i].pager == NULL:
            parts[n] = jobs[i]
            n += 1
            continue
        pager = <object>jobs[i].pager
        for k in range((jobs[i].n_panels + jobs[i].page_panels - 1) // jobs[i].page_panels):
            wanted.setdefault(jobs[i].first_page + k, []).append(i)
    ready = pager.bring(list(wanted))
    if n:
        _run(parts, n, workspace, serial_work)
    for pages in ready:
        n = 0
        memory = np.empty(sum([len(wanted[page]) for page, _ in pages]) * sizeof(job), np.uint8)
        parts = <job *><uintptr_t>memory.ctypes.data
        for page, address in pages:
            for i in wanted[page]:
                _cut(&parts[n], &jobs[i], page - jobs[i].first_page, address, nt)
                n += 1
        _run(parts, n, workspace, serial_work)
    return 0


cdef void _cut(job *part, const job *j, int64_t page, uintptr_t address, int nt) noexcept:
    """The rows of one page."""
    cdef int64_t first = page * j.page_panels
    part[0] = j[0]
    part.pager, part.raw, part.packed, part.first_panel = NULL, <const uint8_t *>address, NULL, first
    part.n_panels = min(j.page_panels, j.n_panels - first)
    part.n_out = min(j.n_out - first * OX_PANEL, part.n_panels * OX_PANEL)
    part.y = j.y + first * OX_PANEL
    _choose_group(part, nt)


cdef int _run(job *jobs, int n_jobs, workspace, int64_t serial_work) except -1:
    """All jobs in one parallel region. Threads share out groups of output rows, never a sum."""
    cdef Workspace ws = workspace
    cdef int nt = usable_threads(ws.num_threads), i
    cdef int64_t t, n_tasks = 0, work = 0
    cdef size_t scratch_bytes = 0
    cdef uint8_t *scratch = NULL
    mark = ws.mark()
    for i in range(n_jobs):
        jobs[i].first_task = n_tasks
        n_tasks += (jobs[i].n_panels + jobs[i].group - 1) // jobs[i].group
        work += jobs[i].n_tokens * jobs[i].n_out * jobs[i].n_in
        scratch_bytes = max(scratch_bytes, _scratch_bytes(&jobs[i]))
    if scratch_bytes:
        scratch = <uint8_t *>ws.take(scratch_bytes * <size_t>nt)
    if work < serial_work:
        # Nobody to share with, and too short to let go of the interpreter: all panels in one call of the kernel.
        for i in range(n_jobs):
            jobs[i].group = jobs[i].n_panels
            _task(&jobs[i], 0, scratch)
    elif nt == 1:
        with nogil:
            for t in range(n_tasks):
                _dispatch(jobs, n_jobs, t, scratch)
    else:
        for t in prange(n_tasks, nogil=True, num_threads=nt, schedule="dynamic"):
            _dispatch(jobs, n_jobs, t, scratch + scratch_bytes * <size_t>threadid())
    if scratch_bytes:
        ws.release(mark)
    return 0


cdef size_t _scratch_bytes(const job *j) noexcept:
    """What a thread packs panels in."""
    cdef size_t found = 0
    cdef int i
    if j.packed == NULL:
        found = (j.panel_bytes * <size_t>j.together + 63) // 64 * 64
    for i in range(j.n_changes):
        found = max(found, _scratch_bytes(&j.changes[i]))
    return found


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


cdef int _run_changed(job *jobs, int n_jobs, Rows x, tuple weights) except -1:
    """The jobs of these weights, with what adapters change in them."""
    cdef uintptr_t address = <uintptr_t>jobs
    if x.workspace.adapters is not None:
        address, n_jobs = x.workspace.adapters.beside(x, weights, address)
    return run(<job *>address, n_jobs, x.workspace)


def matmul(Rows x, *weights):
    """``x @ w.T`` (+ bias) for each of up to eight matrices, in one region: a list of Rows [x.n, w.n_out]."""
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
    _run_changed(jobs, i, x, weights)
    if biased:
        for y, w in zip(out, weights):
            if w.bias is not None:
                add_bias_(y, w.bias)
    return out


def linear(Rows x, Matrix w):
    """``x @ w.T`` (+ bias): Rows [x.n, w.n_out]."""
    cdef job j
    cdef Rows y = x.workspace.rows(x.n, w.n_out)
    describe(&j, w, x, usable_threads(x.workspace.num_threads))
    j.y = y.data
    _run_changed(&j, 1, x, (w,))
    if w.bias is not None:
        add_bias_(y, w.bias)
    return y


def linear_add_(Rows y, Rows x, Matrix w):
    """``y += x @ w.T`` (+ bias), in place."""
    cdef job j
    if y.n != x.n or y.dim != w.n_out:
        raise QuantError(f"{w.name}: output of {y.n} x {y.dim} for {x.n} rows and a matrix of shape {w.shape}")
    describe(&j, w, x, usable_threads(x.workspace.num_threads))
    j.y, j.accumulate = y.data, 1
    _run_changed(&j, 1, x, (w,))
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


def dequantize(data, str type, n):
    """``n`` values of a format's blocks (uint8): float32 [n]. QuantError when the sizes don't fit."""
    cdef const uint8_t[::1] raw = data
    cdef const ox_format_info *f = format_info(find_kernel_format(type))
    if n % f.values or raw.shape[0] != n // f.values * f.bytes:
        raise QuantError(f"{raw.shape[0]} bytes of {type} ({f.bytes} for {f.values} values) are not {n} values")
    out = np.empty(n, np.float32)
    cdef float[::1] y = out
    if n:
        with nogil:
            K.dequantise[f.kernel](&raw[0], &y[0], y.shape[0])
    return out


def block_size(str type):
    """``(values, bytes)`` of a block of any known format."""
    cdef const ox_format_info *f = format_info(find_format(type))
    return f.values, f.bytes
