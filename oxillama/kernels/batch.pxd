from libc.stdint cimport int32_t, int64_t

from oxillama.kernels.rows cimport Workspace


cdef struct block_table:
    const int32_t *blocks
    int64_t n, highest              # its length, and the highest id in it
    int64_t first                   # the first block that is there; those before were given back


cdef struct span:
    int64_t row, n, start          # rows of the batch, their number, position of the first
    int64_t n_source                # of the sequence's tokens, the first that an encoder reads
    block_table tables[2]           # of layers that see the whole past, and of those with a window
    int32_t read, write             # recurrent slots; -1: none, and to read zeros


cdef class Span:
    cdef readonly object tokens, block_table, slots, windowed, loras
    cdef readonly int64_t start, n_source
    cdef readonly str want


cdef class Batch:
    cdef readonly int64_t n_rows
    cdef readonly int n_spans
    cdef readonly object tokens
    cdef span *span                 # in one piece of memory with what they point to
    cdef int32_t *position
    cdef readonly object poll, adapters, spans
    cdef object _outputs, _output_rows
    cdef readonly Workspace workspace
    cdef int _allocate(self, spans) except -1
    cdef int _place(self, spans) except -1
    cdef int _set_slots(self, span *p, int i, slots) except -1
    cdef int _check_slots(self) except -1
    cdef int _choose_outputs(self, spans) except -1


cdef inline object adapters_of(Batch batch):
    """The adapters of a pass; None if it has none, or if there is no batch."""
    return None if batch is None else batch.adapters
