from libc.stdint cimport int64_t, uint8_t


cdef class Workspace:
    cdef readonly int num_threads
    cdef list _chunks
    cdef object _chunk
    cdef uint8_t *_base
    cdef size_t _size, _used, _padding
    cdef int _current
    cdef int64_t _releases
    cdef void *take(self, size_t n_bytes) except NULL
    cdef Rows rows(self, int64_t n, int64_t dim)
    cdef int _use(self, int index) except -1


cdef class Vector:
    cdef const float *data
    cdef readonly int64_t n
    cdef object _owner


cdef class Rows:
    cdef float *data
    cdef readonly int64_t n, dim
    cdef readonly Workspace workspace
    cdef uint8_t *q8                # the 8-bit or bfloat16 twin, rows of q8_stride bytes
    cdef size_t q8_stride
    cdef int64_t _q8_releases
    cdef bint _rounds
    cdef object _owner
    cdef size_t _offset
    cdef uint8_t *quantised(self) except NULL
    cdef uint8_t *rounded(self) except NULL
    cdef uint8_t *_twin(self, bint rounds) except NULL
    cdef int make_room(self, bint rounds=*) except -1
    cdef void quantise_row(self, int64_t i) noexcept nogil


cdef int row_threads(Rows x) noexcept
cpdef int add_bias_(Rows x, Vector bias) except -1
