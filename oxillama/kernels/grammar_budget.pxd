from libc.stdint cimport int64_t


cdef class Budget:
    cdef readonly int64_t limit, left
    cpdef int spend(self, int64_t units, str what) except -1
