from libc.stdint cimport int32_t, int64_t

from oxillama.kernels.rows cimport Workspace


cdef struct span:
    int64_t row, n, start          # rows of the batch, their number, position of the first
    const int32_t *blocks
    int64_t n_blocks                # length of the block table
    int64_t highest_block           # in it
    int32_t read, write             # recurrent slots; -1: none, and to read zeros


cdef class Batch:
    cdef readonly int64_t n_rows
    cdef readonly int n_spans
    cdef readonly object tokens, positions
    cdef object _tables, _spans
    cdef const int32_t *position
    cdef span *span
    cdef readonly object poll
    cdef object _outputs, _output_rows
    cdef readonly Workspace workspace
    cdef int _place(self, spans) except -1
    cdef int _set_table(self, span *p, int i, blocks) except -1
    cdef int _set_slots(self, span *p, int i, slots) except -1
    cdef int _check_slots(self) except -1
    cdef int _fill(self, spans) except -1
