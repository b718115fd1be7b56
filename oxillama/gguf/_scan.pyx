"""Loops over GGUF string arrays: ``count`` strings one after another, each a little-endian uint64 length and its bytes.

Every length is compared with the number of bytes left before it advances the position, so that no sum can overflow and
nothing outside ``data`` is read. Works on any host byte order.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t

import numpy as np

cdef enum:
    PREFIX = 8


cdef inline uint64_t read_u64(const unsigned char *p) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(8):
        value |= <uint64_t> p[i] << (8 * i)
    return value


cdef uint64_t walk(const unsigned char *p, uint64_t size, uint64_t count, uint64_t *index,
                   int64_t *offsets) noexcept nogil:
    """Position after `count` strings, or of the first that doesn't fit; `index` is its number (count: all fit).

    `offsets`, if not NULL, has room for count + 1 positions: of each string's length, and of the end.
    """
    cdef uint64_t position = 0
    cdef uint64_t length
    cdef uint64_t i
    for i in range(count):
        index[0] = i
        if size - position < PREFIX:
            return position
        length = read_u64(p + position)
        if length > size - position - PREFIX:
            return position
        if offsets != NULL:
            offsets[i] = <int64_t> position
        position += PREFIX + length
    index[0] = count
    if offsets != NULL:
        offsets[count] = <int64_t> position
    return position


def skip_strings(const unsigned char[::1] data not None, uint64_t count):
    """``(position, index)``: where ``count`` strings at the start of ``data`` end, with ``index == count``; or where
    the string ``index`` starts, which doesn't fit into ``data``."""
    cdef uint64_t index = 0
    cdef uint64_t position = 0
    cdef uint64_t size = <uint64_t> data.shape[0]
    cdef const unsigned char *p = &data[0] if size else NULL
    with nogil:
        position = walk(p, size, count, &index, NULL)
    return position, index


def string_offsets(const unsigned char[::1] data not None, Py_ssize_t count):
    """int64 ``[count + 1]``: string ``i`` is ``data[o[i] + 8 : o[i + 1]]``; None if the strings don't fill ``data``.

    The caller has checked that ``8 * count`` is no more than the size of ``data``.
    """
    cdef uint64_t index = 0
    cdef uint64_t position = 0
    cdef uint64_t size = <uint64_t> data.shape[0]
    cdef const unsigned char *p = &data[0] if size else NULL
    offsets = np.empty(count + 1, np.int64)
    cdef int64_t[::1] view = offsets
    with nogil:
        position = walk(p, size, <uint64_t> count, &index, &view[0])
    return offsets if index == <uint64_t> count and position == size else None


def bytes_list(const unsigned char[::1] data not None, const int64_t[::1] offsets not None):
    """The strings as bytes; ``offsets`` come from `string_offsets` of the same ``data``."""
    cdef Py_ssize_t i, n = offsets.shape[0] - 1
    cdef const char *p = <const char *> &data[0] if data.shape[0] else NULL
    cdef list result = [None] * n
    for i in range(n):
        result[i] = PyBytes_FromStringAndSize(p + offsets[i] + PREFIX, offsets[i + 1] - offsets[i] - PREFIX)
    return result


def text_list(const unsigned char[::1] data not None, const int64_t[::1] offsets not None):
    """The strings as str; UnicodeDecodeError at the first that is not UTF-8."""
    cdef Py_ssize_t i, n = offsets.shape[0] - 1
    cdef const char *p = <const char *> &data[0] if data.shape[0] else NULL
    cdef list result = [None] * n
    for i in range(n):
        result[i] = PyUnicode_DecodeUTF8(p + offsets[i] + PREFIX, offsets[i + 1] - offsets[i] - PREFIX, NULL)
    return result
