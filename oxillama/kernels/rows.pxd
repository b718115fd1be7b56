from libc.stdint cimport int64_t, uint8_t, uint64_t

from oxillama.kernels._team cimport Team, region


cdef class Workspace:
    cdef readonly int num_threads
    cdef readonly Team team
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


# What an operation on single rows is about; each uses the fields that it needs.
ctypedef struct row_job:
    const float *x                  # another input: rows, or one vector for all of them
    const float *w                  # weights and biases, or NULL
    const float *b
    float *y                        # the rows that are made or changed, [n, dim]
    int64_t dim
    int64_t part, w_step            # values normalised together; from the weights of one part to those of the next
    float a, c                      # numbers of the formula
    uint8_t *codes                  # the result's 8-bit twin, or NULL
    size_t code_bytes               # of a row of it

ctypedef void (*row_fn)(const row_job *j, int64_t i) noexcept nogil

cdef int row_threads(Rows x, region *r, uint64_t kind) noexcept
cdef int each_row(Rows x, row_fn f, const row_job *j) except -1
cdef int change_rows(Rows x, row_fn f, row_job *j) except -1
cdef int check_alike(Rows x, Rows y) except -1
cpdef int add_bias_(Rows x, Vector bias) except -1
