"""Activations: float32 rows in a workspace, and the operations on single rows.

A :class:`Workspace` hands out memory by moving a mark and takes all of it back at once, so that a forward pass
allocates nothing once it has run. :class:`Rows` is a float32 matrix in it; it remembers its 8-bit or bfloat16 twin, so
that several matrix products quantise their common input once.
"""

cimport cython
from cython.parallel cimport prange

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_bf16_row_bytes, ox_kernels, ox_q8_row_bytes, table
from oxillama.kernels._team cimport ROW_WORK, TWINS, Team, region

cdef const ox_kernels *K = table()
cdef object ndarray = np.ndarray, FLOAT32 = np.dtype(np.float32)


cdef class Workspace:
    """Memory for one forward pass at a time, and the number of threads it may use."""

    def __init__(self, int num_threads, size_t n_bytes=1 << 20):
        if num_threads < 1:
            raise ConfigError(f"num_threads must be at least 1, not {num_threads}")
        self.num_threads, self.team = num_threads, Team(num_threads)
        self._chunks = []
        self._grow(n_bytes)

    def _grow(self, size_t n_bytes):
        self._chunks.append(np.empty(n_bytes + 64, np.uint8))
        self._use(len(self._chunks) - 1)

    cdef int _use(self, int index) except -1:
        cdef uintptr_t start
        self._current = index
        self._chunk = self._chunks[index]
        start = self._chunk.ctypes.data
        self._base = <uint8_t *>((start + 63) // 64 * 64)
        self._padding = <size_t>(<uintptr_t>self._base - start)
        self._size = self._chunk.nbytes - 64
        self._used = 0
        return 0

    cdef void *take(self, size_t n_bytes) except NULL:
        """64-byte aligned memory, valid until the mark before it is released."""
        cdef size_t need = (n_bytes + 63) // 64 * 64
        while self._used + need > self._size:
            if self._current + 1 < len(self._chunks):
                self._use(self._current + 1)
            else:
                self._grow(max(need, 2 * self._size))
        self._used += need
        return self._base + self._used - need

    cdef Rows rows(self, int64_t n, int64_t dim):
        cdef Rows r = Rows.__new__(Rows)
        r.data = <float *>self.take(<size_t>(max(n * dim, 1) * 4))
        r.n, r.dim, r.workspace = n, dim, self
        r._owner = self._chunk
        r._offset = self._padding + <size_t>(<uint8_t *>r.data - self._base)
        return r

    def mark(self):
        """Mark of the workspace's present use, for :meth:`release`."""
        return self._current, self._used

    def release(self, mark):
        """Take back everything handed out since ``mark``."""
        cdef int index = mark[0]
        self._releases += 1
        if index != self._current:
            self._use(index)
        self._used = mark[1]

    def reset(self):
        """Take back everything; memory that came in pieces becomes one piece."""
        self._releases += 1
        if len(self._chunks) > 1:
            total = sum([c.nbytes for c in self._chunks])
            del self._chunks[1:]
            self._use(0)            # all there is if there is no memory for one piece
            self._grow(total)
            del self._chunks[0]
            self._use(0)
        self._used = 0

    @property
    def nbytes(self):
        """Bytes held."""
        return sum([c.nbytes for c in self._chunks])

    def new(self, int64_t n, int64_t dim):
        """An uninitialised float32 matrix."""
        return self.rows(n, dim)

    def from_array(self, array):
        """A copy of a 2-D array."""
        cdef const float[:, ::1] a = np.ascontiguousarray(array, np.float32)
        cdef Rows r = self.rows(a.shape[0], a.shape[1])
        if r.n * r.dim:
            memcpy(r.data, &a[0, 0], <size_t>(r.n * r.dim * 4))
        return r


cdef class Vector:
    """A float32 vector of a model: a norm's weight, a bias."""

    def __init__(self, array):
        cdef const float[::1] a = np.ascontiguousarray(array, np.float32).reshape(-1)
        self._owner, self.n = a.base, a.shape[0]
        self.data = &a[0]

    def numpy(self):
        """The values, float32 [n]."""
        return np.asarray(self._owner).reshape(-1)


@cython.freelist(64)
@cython.no_gc
cdef class Rows:
    """A float32 matrix [n, dim] in a :class:`Workspace`."""

    def numpy(self):
        """The values as an array that shares their memory: copy it if it must outlive the forward pass."""
        return ndarray((self.n, self.dim), FLOAT32, self._owner, self._offset)

    cdef uint8_t *quantised(self) except NULL:
        """Rows of ox_q8_row_bytes(dim) for integer kernels."""
        return self._twin(False)

    cdef uint8_t *rounded(self) except NULL:
        """Rows of ox_bf16_row_bytes(dim) for K.gemm_bf16, where the table has it."""
        return self._twin(True)

    cdef uint8_t *_twin(self, bint rounds) except NULL:
        """The rows in the form that a kernel takes, made on first use. One form is kept: matrices seldom mix them.

        Made anew after any release: the memory of the first may have been taken back, though not that of ``self``.
        """
        cdef int64_t i, n = self.n
        cdef int nt
        cdef region r
        cdef Team team = self.workspace.team
        if self.q8 == NULL or self._rounds != rounds or self._q8_releases != self.workspace._releases:
            self.make_room(rounds)
            nt = row_threads(self, &r, TWINS)
            if r.brief and nt == 1:
                for i in range(n):
                    self.quantise_row(i)
                team.end(&r)
            elif nt == 1:
                with nogil:
                    for i in range(n):
                        self.quantise_row(i)
                    team.end(&r)
            else:
                with nogil:
                    for i in prange(n, num_threads=nt, schedule="static"):
                        self.quantise_row(i)
                    team.end(&r)
        return self.q8

    cdef int make_room(self, bint rounds=False) except -1:
        """Memory for the quantised copy, which the caller fills."""
        self.q8_stride = (ox_bf16_row_bytes if rounds else ox_q8_row_bytes)(<size_t>self.dim)
        self.q8 = <uint8_t *>self.workspace.take(self.q8_stride * <size_t>max(self.n, 1))
        self._rounds, self._q8_releases = rounds, self.workspace._releases
        return 0

    cdef void quantise_row(self, int64_t i) noexcept nogil:
        if self._rounds:
            K.round_bf16(self.data + i * self.dim, self.q8 + <size_t>i * self.q8_stride, self.dim)
        else:
            K.quantise_q8(self.data + i * self.dim, self.q8 + <size_t>i * self.q8_stride, self.dim, 0, self.dim)


cdef int row_threads(Rows x, region *r, uint64_t kind) noexcept:
    """Threads for a region that does something row by row; its end has to be told to the workspace's team."""
    if x.n <= 1:    # nothing to share out, and too short to measure or to let go of the interpreter
        r.start, r.brief = 0, True
        return 1
    return x.workspace.team.begin(r, kind, x.n * x.dim)


cdef int each_row(Rows x, row_fn f, const row_job *j) except -1:
    """``f(j, i)`` for each row i of ``x``, shared among threads where that pays."""
    cdef int64_t i, n = x.n
    cdef region r
    cdef Team team = x.workspace.team
    cdef int nt = row_threads(x, &r, ROW_WORK + (<uint64_t><uintptr_t>f << 4))
    if nt == 1 and r.brief:
        for i in range(n):
            f(j, i)
        team.end(&r)
    elif nt == 1:
        with nogil:
            for i in range(n):
                f(j, i)
            team.end(&r)
    else:
        with nogil:
            for i in prange(n, num_threads=nt, schedule="static"):
                f(j, i)
            team.end(&r)
    return 0


cdef int change_rows(Rows x, row_fn f, row_job *j) except -1:
    """Changes rows in place: ``j.y`` becomes the rows of ``x``, whose twin is forgotten."""
    j.y, j.dim = x.data, x.dim
    x.q8 = NULL
    return each_row(x, f, j)


cdef int check_alike(Rows x, Rows y) except -1:
    if x.n != y.n or x.dim != y.dim:
        raise ConfigError(f"rows of shapes {x.n} x {x.dim} and {y.n} x {y.dim} don't go together")
    return 0


cdef void _add_bias_row(const row_job *j, int64_t i) noexcept nogil:
    K.add(j.x, j.y + i * j.dim, j.dim)


cpdef int add_bias_(Rows x, Vector bias) except -1:
    """Add a vector to each row, in place."""
    cdef row_job j
    if bias.n != x.dim:
        raise ConfigError(f"a bias of {bias.n} values for rows of {x.dim}")
    j.x = bias.data
    return change_rows(x, _add_bias_row, &j)


cdef void _add_row(const row_job *j, int64_t i) noexcept nogil:
    K.add(j.x + i * j.dim, j.y + i * j.dim, j.dim)


def add_(Rows x, Rows y):
    """Add ``y`` to ``x``, in place. ConfigError for other shapes."""
    cdef row_job j
    check_alike(x, y)
    j.x = y.data
    change_rows(x, _add_row, &j)


cdef void _add_scaled_row(const row_job *j, int64_t i) noexcept nogil:
    K.add_scaled(j.x + i * j.dim, j.a, j.y + i * j.dim, j.dim)


def add_scaled_(Rows x, Rows y, float a):
    """``x += a * y``, in place. ConfigError for other shapes."""
    cdef row_job j
    check_alike(x, y)
    j.x, j.a = y.data, a
    change_rows(x, _add_scaled_row, &j)


cdef void _mul_row(const row_job *j, int64_t i) noexcept nogil:
    K.mul(j.x + i * j.dim, j.y + i * j.dim, j.dim)


def mul_(Rows x, Rows y):
    """Multiply ``x`` by ``y``, value by value, in place. ConfigError for other shapes."""
    cdef row_job j
    check_alike(x, y)
    j.x = y.data
    change_rows(x, _mul_row, &j)


cdef void _mul_heads_row(const row_job *j, int64_t i) noexcept nogil:
    cdef int64_t n = j.dim // j.part, h
    for h in range(n):
        K.scale(j.y + i * j.dim + h * j.part, j.x[i * n + h], j.part)


def mul_heads_(Rows x, Rows y):
    """Multiply each of a row's heads by its value in ``y`` [x.n, heads], in place. ConfigError for other shapes."""
    cdef row_job j
    if y.n != x.n or not y.dim or x.dim % y.dim:
        raise ConfigError(f"rows of shapes {x.n} x {x.dim} and {y.n} x {y.dim} don't go together by heads")
    j.x, j.part = y.data, x.dim // y.dim
    change_rows(x, _mul_heads_row, &j)


cdef void _scale_row(const row_job *j, int64_t i) noexcept nogil:
    K.scale(j.y + i * j.dim, j.a, j.dim)


def scale_(Rows x, float a):
    """``x *= a``, in place."""
    cdef row_job j
    j.a = a
    change_rows(x, _scale_row, &j)


cdef void _softcap_row(const row_job *j, int64_t i) noexcept nogil:
    K.softcap(j.y + i * j.dim, j.a, j.dim)


def softcap_(Rows x, float cap):
    """``x = cap * tanh(x / cap)``, in place: Gemma 2, 2024. ConfigError unless ``cap`` is positive."""
    cdef row_job j
    _check_bound("soft cap", cap)
    j.a = cap
    change_rows(x, _softcap_row, &j)


cdef void _clamp_row(const row_job *j, int64_t i) noexcept nogil:
    K.clamp(j.y + i * j.dim, j.a, j.dim)


def clamp_(Rows x, float limit):
    """Values below ``-limit`` become that, those above ``limit`` that, in place; NaN stays.

    ConfigError unless ``limit`` is positive.
    """
    cdef row_job j
    _check_bound("limit", limit)
    j.a = limit
    change_rows(x, _clamp_row, &j)


cdef int _check_bound(str name, float value) except -1:
    if not 0 < value < INFINITY:
        raise ConfigError(f"a {name} of {value}; it must be positive and finite")
    return 0


def gate_sigmoid_(Rows x, Rows gate):
    """Multiply each row of ``x`` by the sigmoid of its one value in ``gate`` [n, 1], in place."""
    cdef int64_t i, j
    cdef float s
    if gate.n != x.n or gate.dim != 1:
        raise ConfigError(f"a gate of {gate.n} x {gate.dim} for {x.n} rows; it has one value for each")
    with nogil:
        for i in range(x.n):
            s = gate.data[i]
            K.sigmoid(&s, 1)
            for j in range(x.dim):
                x.data[i * x.dim + j] *= s
    x.q8 = NULL


def take_rows(Rows x, const int32_t[::1] index):
    """Copies of the rows ``index``."""
    cdef Rows y = x.workspace.rows(index.shape[0], x.dim)
    cdef Py_ssize_t i
    for i in range(index.shape[0]):
        if not 0 <= index[i] < x.n:
            raise ConfigError(f"row {index[i]} of {x.n}")
        memcpy(y.data + i * x.dim, x.data + index[i] * x.dim, <size_t>x.dim * 4)
    return y


def zeros(Workspace workspace, int64_t n, int64_t dim):
    """A matrix of zeros."""
    cdef Rows r = workspace.rows(n, dim)
    memset(r.data, 0, <size_t>(n * dim * 4))
    return r
