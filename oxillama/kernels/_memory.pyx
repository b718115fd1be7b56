"""C allocations of the kernels, in one place, so that tests can deny them and check that memory is freed.

No other module calls the allocator itself (a test sees to that). What is allocated here is small beside what numpy
allocates: buffers of grammars, of samplers and of the search for repetitions, and the places of a batch. Callers hold
the GIL, which the counters need.
"""

from libc.stdlib cimport calloc, free, realloc

cdef Py_ssize_t _made = 0
cdef Py_ssize_t _live = 0
cdef Py_ssize_t _refused = 0            # that of the numbers of `_made` which gets nothing


cdef inline bint _may() noexcept:
    global _made
    _made += 1
    return _made != _refused


cdef void *resized(void *memory, size_t n_bytes) noexcept:
    """realloc for n_bytes > 0: NULL without memory, and the old block stays."""
    global _live
    cdef void *moved = realloc(memory, n_bytes) if _may() else NULL
    if moved != NULL and memory == NULL:
        _live += 1
    return moved


cdef void *zeroed(size_t n_bytes) noexcept:
    """New memory of zeros, or NULL."""
    global _live
    cdef void *memory = calloc(n_bytes, 1) if _may() else NULL
    if memory != NULL:
        _live += 1
    return memory


cdef void freed(void *memory) noexcept:
    """free."""
    global _live
    if memory != NULL:
        _live -= 1
        free(memory)


def counts():
    """(allocations that were asked for, those that are held now)"""
    return _made, _live


def refuse(Py_ssize_t n):
    """Lets the n-th allocation from now on fail, once. 0: none."""
    global _refused
    _refused = _made + n if n > 0 else 0
