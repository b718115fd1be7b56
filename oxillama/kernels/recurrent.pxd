from oxillama.kernels.batch cimport Batch


cdef class RecurrentSlab:
    cdef readonly int n_slots, n_values
    cdef readonly object data
    cdef float *_start
    cdef size_t _stride
    cdef float *row(self, int slot) noexcept nogil
    cdef int check(self, Batch batch) except -1
