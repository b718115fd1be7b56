"""Reads from the page cache: bytes of a file are read at once if the system has them in memory, or not at all.

A thread that multiplies by the bytes can so read them itself, into its core's cache, and never waits for a disk. Linux
4.14 and later have such reads (preadv2(2), RWF_NOWAIT), for files of most file systems; elsewhere no bytes are found.
The system call is made without the C library, old versions of which don't have it.
"""

from libc.stdint cimport int64_t


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__linux__) && defined(__LP64__)
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #if !defined(SYS_preadv2) && defined(__x86_64__)
    #define SYS_preadv2 327
    #elif !defined(SYS_preadv2) && defined(__aarch64__)
    #define SYS_preadv2 286
    #endif
    #endif

    /* To the second-level cache; nothing happens where there is no memory. Lines are used later than the first level
     * keeps them, and requests for it hold its few miss buffers: one row of Q6_K took 2.5 times as long on Zen 4. */
    static inline void ox_prefetch(const void *at, size_t n)
    {
        for (size_t i = 0; i < n; i += 64)
            __builtin_prefetch((const char *)at + i, 0, 2);
    }

    /* Whether all n bytes were there: then they are in `to` now. Less than that may be, otherwise. */
    static inline int ox_read_if_cached(int fd, void *to, size_t n, int64_t offset)
    {
    #ifdef SYS_preadv2
        struct iovec part = {to, n};
        return syscall(SYS_preadv2, fd, &part, 1L, (long)offset, 0L, 8 /* RWF_NOWAIT */) == (long)n;
    #else
        (void)fd, (void)to, (void)n, (void)offset;
        return 0;
    #endif
    }
    """
    bint read_if_cached "ox_read_if_cached"(int fd, void *to, size_t n, int64_t offset) noexcept nogil
    void prefetch_bytes "ox_prefetch"(const void *at, size_t n) noexcept nogil
