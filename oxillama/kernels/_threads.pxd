# How many threads a region may use: 1 in a process forked from one whose OpenMP threads had started.
cdef int usable_threads(int wanted) noexcept nogil
