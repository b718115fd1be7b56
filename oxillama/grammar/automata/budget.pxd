from libc.stdint cimport int64_t


cdef class Budget:
    cdef readonly int64_t limit, left
    cdef int64_t until_turn
    cpdef int spend(self, int64_t units, str what) except -1
