# All memory that the kernels allocate in C; see _memory.pyx. With the GIL alone.
cdef void *resized(void *memory, size_t n_bytes) noexcept
cdef void *zeroed(size_t n_bytes) noexcept
cdef void freed(void *memory) noexcept
