cimport cython
from libc.stdint cimport int32_t


@cython.final
cdef class Pair:
    cdef public list ways
    cdef readonly bint required
    cdef int32_t one

    cdef int32_t expr(self)


@cython.final
cdef class Plan:
    cdef public list groups
    cdef readonly list others, wanted
    cdef public object least, most

    cdef list pairs(self)
