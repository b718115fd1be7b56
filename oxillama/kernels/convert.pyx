"""Tensor formats into one another: decoded to floats, and encoded again, a piece of whole blocks at a time.

Blocks don't depend on one another, so any division into pieces and threads gives the same bytes; and the quantisers do
the same operations in the same order on every CPU tier.
"""

from cython.parallel cimport prange, threadid

from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t

import numpy as np

from oxillama.errors import QuantError

from oxillama.kernels._table cimport find_format, find_kernel_format, format_info, ox_format_info, ox_kernels, table
from oxillama.kernels._threads cimport start_team

cdef const ox_kernels *K = table()

cdef enum:
    PIECE = 8192                # values: whole blocks of every format, and as floats they stay in L1
    INFINITY_BITS = 0x7f800000
    CHECKED_BITS = 0x46800000   # 16384: scales are at most twice the largest value, so below it none overflows
    NVFP4_BITS = 0x45280000     # 2688 = 6 * 448, its largest value; its scales saturate

cdef enum:
    GOOD, NOT_FINITE, TOO_LARGE


cdef struct task:
    const uint8_t *source
    uint8_t *out
    const ox_format_info *before
    const ox_format_info *after
    int64_t n
    uint32_t limit              # bits of the largest magnitude that is never too large; 0: the blocks tell


cdef uint32_t _magnitude(const float *x, int64_t n) noexcept nogil:
    """The largest magnitude as bits: integers order as the floats do, infinity and NaN above them."""
    cdef const uint32_t *bits = <const uint32_t *>x
    cdef uint32_t largest = 0, b
    cdef int64_t i
    for i in range(n):
        b = bits[i] & 0x7fffffff
        largest = b if b > largest else largest
    return largest


cdef int8_t _convert_piece(const task *t, int64_t piece, float *scratch) noexcept nogil:
    cdef int64_t first = piece * PIECE, n = min(t.n - first, <int64_t>PIECE)
    cdef uint8_t *out = t.out + first // t.after.values * t.after.bytes
    cdef uint32_t largest
    K.dequantise[t.before.kernel](t.source + first // t.before.values * t.before.bytes, scratch, n)
    largest = _magnitude(scratch, n)
    if largest >= INFINITY_BITS:
        return NOT_FINITE
    K.quantise[t.after.kernel](scratch, out, n)
    if t.limit:
        return TOO_LARGE if largest > t.limit else GOOD
    if largest > CHECKED_BITS:
        K.dequantise[t.after.kernel](out, scratch, n)
        if _magnitude(scratch, n) >= INFINITY_BITS:
            return TOO_LARGE
    return GOOD


def convert(data, str source, str type, *, str name="", int num_threads=1):
    """Blocks of format ``type`` for the values of blocks of format ``source`` (uint8): uint8 [nbytes].

    Equal for every number of threads and every CPU tier. QuantError, which begins with ``name`` if there is one, when
    we don't write the format, the values are not whole blocks of it, or one is NaN, infinite or too large for it.
    """
    cdef const uint8_t[::1] raw = data
    cdef task t
    t.before, t.after = format_info(find_kernel_format(source)), format_info(find_kernel_format(type))
    where = f"{name}: " if name else ""
    if K.quantise[t.after.kernel] == NULL:
        raise QuantError(f"{where}quantising to {type} is not supported")
    if raw.shape[0] % t.before.bytes:
        raise QuantError(f"{where}{raw.shape[0]} bytes are not whole blocks of {source}, {t.before.bytes} bytes each")
    t.n = raw.shape[0] // t.before.bytes * t.before.values
    if t.n % t.after.values:
        raise QuantError(f"{where}{t.n} values are not whole blocks of {type}, {t.after.values} values each")
    out = np.empty(t.n // t.after.values * t.after.bytes, np.uint8)
    if t.n:
        status = _convert(&t, raw, out, NVFP4_BITS if type == "NVFP4" else 0, num_threads)
        if (status == NOT_FINITE).any():
            raise QuantError(f"{where}NaN or infinity can't be quantised to {type}")
        if status.any():
            raise QuantError(f"{where}the values are too large for {type}")
    return out


cdef _convert(task *t, const uint8_t[::1] raw, out, uint32_t limit, int num_threads):
    """Runs all pieces; int8 [pieces], what became of each."""
    cdef int nt = start_team(num_threads)
    cdef int64_t piece, n_pieces = (t.n + PIECE - 1) // PIECE
    cdef uint8_t[::1] y = out
    cdef float[:, ::1] scratch = np.empty((nt, PIECE), np.float32)
    status = np.zeros(n_pieces, np.int8)
    cdef int8_t[::1] found = status
    t.source, t.out, t.limit = &raw[0], &y[0], limit
    for piece in prange(n_pieces, nogil=True, num_threads=nt, schedule="dynamic"):
        found[piece] = _convert_piece(t, piece, &scratch[threadid(), 0])
    return status


def quantize(array, str type, *, str name="", int num_threads=1):
    """Blocks of a format for numbers, as float32, whose count is a multiple of the block's: uint8 [nbytes].

    QuantError as for `convert`.
    """
    values = np.ascontiguousarray(array, np.float32).reshape(-1)
    return convert(values.view(np.uint8), "F32", type, name=name, num_threads=num_threads)


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
