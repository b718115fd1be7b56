from libc.stdint cimport int64_t


cdef extern from *:
    """
    #include <sched.h>
    #include <stdint.h>

    static inline void ox_count_down(int64_t *left, int64_t n) { __atomic_fetch_sub(left, n, __ATOMIC_RELEASE); }

    /* The counting threads are some microseconds ahead: to sleep would take longer. With more threads than cores one
     * may be without a core, and gets this one. */
    static inline void ox_await_zero(const int64_t *left)
    {
        for (int spins = 0; __atomic_load_n(left, __ATOMIC_ACQUIRE) > 0; spins++)
            if (spins > 1000) sched_yield();
    }
    """
    void ox_count_down(int64_t *left, int64_t n) noexcept nogil
    void ox_await_zero(const int64_t *left) noexcept nogil


# How many threads a region may use, as far as is known: 1 in a process forked from one whose threads had started.
cdef int usable_threads(int wanted) noexcept nogil

# The same, right before a region of so many: its threads are there then. The region must have exactly as many, or one.
cdef int start_team(int wanted) noexcept nogil
