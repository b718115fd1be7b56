"""Recurrent layers over a batch: short causal convolutions and the selective scans of Mamba and Mamba-2.

Every span of a batch reads its state from one slot of a :class:`RecurrentSlab` and leaves it in another. The state of a
scan starts at value ``at`` of a slot, a multiple of 16; a convolution's at 0. Results are equal to the bit however
tokens are divided into spans and batches, and for every number of threads: these split channels and heads.
"""

from cython.parallel cimport prange

from libc.stdint cimport int64_t
from libc.string cimport memcpy

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_conv1d_args, ox_kernels, ox_scan_args, ox_scan_state, table
from oxillama.kernels._team cimport CONVOLUTION, ROTATION, SCAN, Team, region
from oxillama.kernels.batch cimport Batch, span
from oxillama.kernels.recurrent cimport RecurrentSlab
from oxillama.kernels.rows cimport Rows, Vector, Workspace, row_threads

cdef const ox_kernels *K = table()

cdef enum:
    CONV_CHANNELS = 256     # of a task: their inputs of n_taps tokens stay in the nearest cache
    SCAN_CHANNELS = 64      # of a task of scan1
    STREAM_VALUES = 1 << 17     # of a layer's state: the states of a model's layers push each other out of the caches


cdef class Convolution:
    """Weights ``w`` [n_channels, n_taps], the last tap for the token itself, and ``bias`` [n_channels] or None.

    ``n_values`` is the size of its state: the last n_taps - 1 inputs. ConfigError for shapes that don't fit.
    """

    def __init__(self, w, bias=None, *, bint silu=False):
        w = np.asarray(w, np.float32)
        if w.ndim != 2 or not w.size or bias is not None and np.shape(bias) != (len(w),):
            raise ConfigError(f"a convolution of weights {w.shape} and bias {np.shape(bias)}: [n_channels, n_taps] and "
                              "[n_channels] are needed")
        self.n_channels, self.n_taps, self.silu = w.shape[0], w.shape[1], silu
        self.n_values = self.n_channels * (self.n_taps - 1)
        self.w = Vector(w.T)
        self.bias = None if bias is None else Vector(bias)


cdef class Scan1:
    """Mamba: ``a`` [n_channels, n_state], which is -exp(A_log), and ``d`` [n_channels].

    ``n_values`` is the size of its state, channels rounded up to panels of 16. ConfigError for shapes that don't fit.
    """

    def __init__(self, a, d):
        a = np.asarray(a, np.float32)
        if a.ndim != 2 or not a.size or np.shape(d) != (len(a),):
            raise ConfigError(f"a scan of a {a.shape} and d {np.shape(d)}: [n_channels, n_state] and [n_channels] are "
                              "needed")
        self.n_channels, self.n_state = a.shape[0], a.shape[1]
        self.n_values = <int64_t>ox_scan_state(<size_t>self.n_channels, <size_t>self.n_state)
        panels = np.zeros((self.n_values // (16 * self.n_state) * 16, self.n_state), np.float32)
        panels[:self.n_channels] = a
        self.a = Vector(panels.reshape(-1, 16, self.n_state).transpose(0, 2, 1))
        self.d = Vector(d)


cdef class Scan2:
    """Mamba-2: ``a``, which is -exp(A_log), ``d`` and ``dt_bias`` [n_heads]; neighbours share a group's b and c.

    ``n_values`` is the size of its state, channels of a head rounded up to panels of 16. ConfigError for shapes that
    don't fit.
    """

    def __init__(self, a, d, dt_bias, *, int head_dim, int n_state, int n_groups=1):
        shapes = {np.shape(v) for v in (a, d, dt_bias)}
        heads = len(a) if np.ndim(a) == 1 else 0
        if shapes != {(heads,)} or not heads or head_dim < 1 or n_state < 1 or n_groups < 1 or heads % n_groups:
            raise ConfigError(f"a scan of a {np.shape(a)}, d {np.shape(d)} and dt_bias {np.shape(dt_bias)} with "
                              f"{n_groups} groups, {head_dim} channels in a head and {n_state} values of state: one of "
                              "each for each head is needed, and as many heads in each group")
        self.n_heads, self.n_groups, self.n_state, self.head_dim = heads, n_groups, n_state, head_dim
        self.n_channels = <int64_t>heads * head_dim
        self.n_values = heads * <int64_t>ox_scan_state(<size_t>head_dim, <size_t>n_state)
        self.a, self.d, self.dt_bias = Vector(np.array(a)), Vector(np.array(d)), Vector(np.array(dt_bias))


cdef int _check_slab(RecurrentSlab slab, Batch batch, Rows x, int64_t at, int64_t n_values) except -1:
    if x.n != batch.n_rows:
        raise ConfigError(f"{x.n} rows for a batch of {batch.n_rows}")
    if at < 0 or at % 16 or at > slab.n_values - n_values:
        raise ConfigError(f"a state of {n_values} values at {at} of a slot of {slab.n_values}")
    return slab.check(batch)


cdef int _check_columns(Rows x, int64_t n_rows, int64_t first, int64_t n, str what) except -1:
    if x.n != n_rows or n < 0 or not 0 <= first <= x.dim - n:
        raise ConfigError(f"{what}: {n} columns from {first} on of {n_rows} rows are needed, not {x.n} rows of {x.dim}")
    return 0


cdef void _conv_task(ox_conv1d_args a, RecurrentSlab slab, const span *p, int64_t first) noexcept nogil:
    """Channels first.. of one span."""
    cdef int64_t x = p.row * <int64_t>a.x_stride + first
    a.n_tokens, a.n_channels = p.n, min(a.n_channels - first, <int64_t>CONV_CHANNELS)
    a.x, a.w, a.y = a.x + x, a.w + first, a.y + p.row * <int64_t>a.y_stride + first
    if a.bias != NULL:
        a.bias += first
    if a.in_gate != NULL:
        a.in_gate += x
    if a.out_gate != NULL:
        a.out_gate += x
    a.write = slab.row(p.write) + first
    a.read = slab.row(p.read)
    if a.read != NULL:
        a.read += first
    K.conv1d(&a)


cdef Rows _conv(Rows x, ox_conv1d_args a, Convolution conv, RecurrentSlab slab, Batch batch):
    cdef Workspace ws = x.workspace
    cdef Rows y = ws.rows(x.n, conv.n_channels)
    cdef int64_t tasks = (conv.n_channels + CONV_CHANNELS - 1) // CONV_CHANNELS, task
    cdef region r
    cdef Team team = ws.team
    cdef int nt
    _check_slab(slab, batch, x, 0, conv.n_values)
    a.x_stride, a.y_stride, a.w_stride = <size_t>x.dim, <size_t>y.dim, <size_t>conv.n_channels
    a.w, a.bias, a.y = conv.w.data, conv.bias.data if conv.bias is not None else NULL, y.data
    a.n_channels, a.n_taps, a.silu = conv.n_channels, conv.n_taps, conv.silu
    nt = team.begin(&r, CONVOLUTION, x.n * conv.n_channels * conv.n_taps)
    if nt == 1:
        with nogil:
            for task in range(tasks * batch.n_spans):
                _conv_task(a, slab, &batch.span[task // tasks], task % tasks * CONV_CHANNELS)
            team.end(&r)
    else:
        with nogil:
            for task in prange(tasks * batch.n_spans, num_threads=nt, schedule="dynamic"):
                _conv_task(a, slab, &batch.span[task // tasks], task % tasks * CONV_CHANNELS)
            team.end(&r)
    return y


def conv1d(Rows x, int64_t first, Convolution conv, RecurrentSlab slab, Batch batch):
    """Causal depthwise convolution of the columns from ``first`` on, then silu if it has one: Rows [n, n_channels]."""
    cdef ox_conv1d_args a
    _check_columns(x, batch.n_rows, first, conv.n_channels, "inputs of a convolution")
    a.x, a.in_gate, a.out_gate = x.data + first, NULL, NULL
    return _conv(x, a, conv, slab, batch)


def gated_conv1d(Rows x, Convolution conv, RecurrentSlab slab, Batch batch):
    """``c * conv(b * u)`` of rows ``[b | c | u]``: Rows [n, n_channels]. The short convolution of LFM2 (2025)."""
    cdef ox_conv1d_args a
    cdef int64_t n = conv.n_channels
    _check_columns(x, batch.n_rows, 0, 3 * n, "gates and inputs of a convolution")
    a.in_gate, a.out_gate, a.x = x.data, x.data + n, x.data + 2 * n
    return _conv(x, a, conv, slab, batch)


cdef struct job:
    ox_scan_args a              # the first task of row 0
    int64_t n_tasks             # of a span: heads, or runs of channels
    int64_t channels            # of a task
    int64_t heads_per_group     # 0 for scan1
    int64_t at, state           # where the state starts in a slot; values of a task's


cdef void _scan_task(const job *j, RecurrentSlab slab, const span *p, int64_t i) noexcept nogil:
    """Head i, or channels i * channels.., of one span."""
    cdef ox_scan_args a = j.a
    cdef int64_t first = i * j.channels, own = i if j.heads_per_group else first, bc = p.row * <int64_t>a.bc_stride
    if j.heads_per_group:
        bc += i // j.heads_per_group * a.n_state
    a.x, a.y = a.x + p.row * <int64_t>a.x_stride + first, a.y + p.row * <int64_t>a.y_stride + first
    a.z, a.dt = a.z + p.row * <int64_t>a.z_stride + first, a.dt + p.row * <int64_t>a.dt_stride + own
    a.b, a.c, a.d = a.b + bc, a.c + bc, a.d + own
    a.a = a.a + (i if j.heads_per_group else i * j.state)
    if a.dt_bias != NULL:
        a.dt_bias += own
    a.write = slab.row(p.write) + j.at + i * j.state
    a.read = slab.row(p.read)
    if a.read != NULL:
        a.read += j.at + i * j.state
    a.n_tokens, a.n_channels = p.n, min(a.n_channels - first, j.channels)
    if j.heads_per_group:
        K.scan2(&a)
    else:
        K.scan1(&a)


cdef int _scan(job *j, RecurrentSlab slab, Batch batch, Workspace ws, int64_t n_values) except -1:
    cdef int64_t task, n = j.n_tasks
    cdef region r
    cdef Team team = ws.team
    cdef int nt = team.begin(&r, SCAN, batch.n_rows * n_values)
    j.a.stream = n_values >= STREAM_VALUES
    if nt == 1:
        with nogil:
            for task in range(n * batch.n_spans):
                _scan_task(j, slab, &batch.span[task // n], task % n)
            team.end(&r)
    else:
        with nogil:
            for task in prange(n * batch.n_spans, num_threads=nt, schedule="static"):
                _scan_task(j, slab, &batch.span[task // n], task % n)
            team.end(&r)
    return 0


def scan1(Rows x, Rows dt, Rows bc, Rows z, Scan1 scan, int64_t at, RecurrentSlab slab, Batch batch):
    """The selective scan of Mamba, gated: Rows [n, n_channels]. Gu and Dao, 2023, algorithm 2.

    ``x`` and ``dt`` [n, n_channels], the latter before softplus; the last 2 * n_state columns of ``bc`` are b and c,
    the last n_channels of ``z`` the gate, before silu. ConfigError for rows that don't fit.
    """
    cdef job j
    cdef int64_t n = scan.n_channels, b = bc.dim - 2 * scan.n_state
    _check_slab(slab, batch, x, at, scan.n_values)
    _check_columns(x, batch.n_rows, 0, n, "inputs of a scan")
    _check_columns(dt, batch.n_rows, 0, n, "time steps of a scan")
    _check_columns(bc, batch.n_rows, b, 2 * scan.n_state, "b and c of a scan")
    _check_columns(z, batch.n_rows, z.dim - n, n, "the gate of a scan")
    cdef Rows y = x.workspace.rows(x.n, n)
    j.a.x, j.a.dt, j.a.z, j.a.b, j.a.c = x.data, dt.data, z.data + z.dim - n, bc.data + b, bc.data + b + scan.n_state
    j.a.x_stride, j.a.dt_stride = <size_t>x.dim, <size_t>dt.dim
    j.a.z_stride, j.a.bc_stride = <size_t>z.dim, <size_t>bc.dim
    j.a.a, j.a.d, j.a.dt_bias, j.a.y, j.a.y_stride = scan.a.data, scan.d.data, NULL, y.data, <size_t>n
    j.a.n_channels, j.a.n_state = n, scan.n_state
    j.n_tasks, j.channels, j.heads_per_group = (n + SCAN_CHANNELS - 1) // SCAN_CHANNELS, SCAN_CHANNELS, 0
    j.at, j.state = at, <int64_t>ox_scan_state(SCAN_CHANNELS, <size_t>scan.n_state)
    _scan(&j, slab, batch, x.workspace, scan.n_values)
    return y


def scan2(Rows x, Rows projected, Scan2 scan, int64_t at, RecurrentSlab slab, Batch batch):
    """The scan of Mamba-2, gated: Rows [n, n_channels]. Dao and Gu, 2024, section 3 with a scalar for each head.

    ``x`` [n, n_channels + 2 n_groups n_state] are inputs, b and c. ``projected`` is what those were made of by a
    convolution, between n_channels columns of the gate, before silu, and n_heads of time steps, before softplus.
    ConfigError for rows that don't fit.
    """
    cdef job j
    cdef int64_t n = scan.n_channels, bc = scan.n_groups * <int64_t>scan.n_state, heads = scan.n_heads
    cdef int64_t dt = projected.dim - heads
    _check_slab(slab, batch, x, at, scan.n_values)
    if x.dim != n + 2 * bc or projected.dim != n + x.dim + heads or projected.n != x.n:
        raise ConfigError(f"a scan of {n} channels in {heads} heads, with {bc} columns for each of b and c, can't have "
                          f"{x.n} rows of {x.dim} inputs and {projected.n} of {projected.dim} projected ones")
    cdef Rows y = x.workspace.rows(x.n, n)
    j.a.x, j.a.b, j.a.c, j.a.z, j.a.dt = x.data, x.data + n, x.data + n + bc, projected.data, projected.data + dt
    j.a.x_stride = j.a.bc_stride = <size_t>x.dim
    j.a.z_stride = j.a.dt_stride = <size_t>projected.dim
    j.a.a, j.a.d, j.a.dt_bias, j.a.y, j.a.y_stride = scan.a.data, scan.d.data, scan.dt_bias.data, y.data, <size_t>n
    j.a.n_channels, j.a.n_state = n, scan.n_state
    j.n_tasks, j.channels, j.heads_per_group = heads, scan.head_dim, heads // scan.n_groups
    j.at, j.state = at, scan.n_values // heads
    _scan(&j, slab, batch, x.workspace, scan.n_values)
    return y


def columns(Rows x, int64_t first, int64_t n):
    """Copies of n columns of each row: Rows [x.n, n]."""
    cdef Rows y
    cdef int64_t i
    _check_columns(x, x.n, first, n, "columns to copy")
    y = x.workspace.rows(x.n, n)
    for i in range(x.n):
        memcpy(y.data + i * n, x.data + i * x.dim + first, <size_t>n * 4)
    return y


def rms_norm_columns_(Rows x, int64_t first, Vector w, float eps):
    """RMS norm of the ``w.n`` columns from ``first`` on of each row, in place."""
    cdef int64_t i
    cdef region r
    cdef Team team = x.workspace.team
    cdef int nt
    cdef float *data = x.data + first
    _check_columns(x, x.n, first, w.n, "columns to normalise")
    nt = row_threads(x, &r, ROTATION | 1 << 6)
    if nt == 1:
        with nogil:
            for i in range(x.n):
                K.rms_norm(data + i * x.dim, w.data, data + i * x.dim, w.n, eps)
            team.end(&r)
    else:
        with nogil:
            for i in prange(x.n, num_threads=nt, schedule="static"):
                K.rms_norm(data + i * x.dim, w.data, data + i * x.dim, w.n, eps)
            team.end(&r)
    x.q8 = NULL
