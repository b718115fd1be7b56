"""Files mapped for reading, which may be cut off, or be on a disk that fails, at any time.

Whoever then touches a page that is gone gets SIGBUS, which would end the process. A handler puts zeros in the place of
that page and of those behind it, and notes so in the mapping: whoever reads goes on, and has to look at `missing` when
he is done. Any other SIGBUS is passed on to whoever handled it before.

The handler runs in the middle of anything, in any thread: it takes no locks, allocates nothing, and calls mmap(2),
which is a plain system call everywhere. Everything else here runs with the GIL.
"""

import os

from cpython.buffer cimport PyBuffer_FillInfo
from libc cimport errno
from libc.signal cimport SIG_DFL, SIG_IGN, SIGBUS, raise_, sighandler_t
from libc.stdint cimport uintptr_t
from posix.mman cimport (
    MADV_DONTNEED, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, madvise, mmap,
    munmap,
)
from posix.signal cimport SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_SIGINFO, siginfo_t
from posix.types cimport sigset_t
from posix.unistd cimport _SC_PAGESIZE, sysconf

cdef extern from *:
    """
    #include <signal.h>
    /* Not of Linux: a wrong alignment, and memory that was found to be broken while nobody reads it. */
    #ifdef __linux__
    #define OX_PAGE_IS_GONE(code) ((code) == BUS_ADRERR || (code) == BUS_MCEERR_AR)
    #else
    #define OX_PAGE_IS_GONE(code) ((code) > 0)
    #endif
    #define OX_LOAD(at) __atomic_load_n(at, __ATOMIC_SEQ_CST)
    #define OX_STORE(at, value) __atomic_store_n(at, value, __ATOMIC_SEQ_CST)
    """
    ctypedef struct action_t "struct sigaction":
        sighandler_t sa_handler
        void (*sa_sigaction)(int, siginfo_t *, void *) noexcept nogil
        sigset_t sa_mask
        int sa_flags
    int sigaction(int number, const action_t *new, action_t *old) noexcept nogil
    bint page_is_gone "OX_PAGE_IS_GONE"(int code) noexcept nogil
    uintptr_t load "OX_LOAD"(const uintptr_t *at) noexcept nogil
    void store "OX_STORE"(uintptr_t *at, uintptr_t value) noexcept nogil

ctypedef void (*handler_t)(int, siginfo_t *, void *) noexcept nogil

cdef enum:
    N_REGIONS = 128             # of a chunk
    N_LEVELS = 4

cdef struct Region:             # free where the end is 0
    uintptr_t start, end, missing

cdef struct Chunk:
    uintptr_t next
    Region[N_REGIONS] regions

cdef Chunk first_chunk          # none is ever given back, since the handler may be looking at it
cdef uintptr_t PAGE = <uintptr_t>sysconf(_SC_PAGESIZE)

# Whom each of our handlers found in its place. Who comes after us may pass on what is not his to the one that he found,
# and so to us. When we take the place again, it is with the next of our handlers, which passes on to him: with one
# alone, we would pass on to him and he to us, for ever.
cdef action_t[N_LEVELS] before
cdef int n_levels = 0


# ---- in the handler

cdef bint replace(uintptr_t address) noexcept nogil:
    """Puts zeros from the address's page on to the end of its region, if it is in one. Whether they are there."""
    cdef Chunk *chunk = &first_chunk
    cdef Region *region
    cdef uintptr_t start, end, page = address & ~(PAGE - 1)
    cdef int i
    while chunk != NULL:
        for i in range(N_REGIONS):
            region = &chunk.regions[i]
            end = load(&region.end)
            start = load(&region.start)
            if start <= address < end and load(&region.end) == end:  # else another one is being made
                store(&region.missing, 1)  # before anybody can see zeros
                return mmap(<void *>page, end - page, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) \
                    != MAP_FAILED
        chunk = <Chunk *>load(&chunk.next)
    return False


cdef void pass_on(int level, int number, siginfo_t *info, void *context) noexcept nogil:
    """What would have happened without us."""
    cdef action_t action = before[level]
    if not action.sa_flags & SA_SIGINFO:
        if action.sa_handler == SIG_IGN and info.si_code <= 0:  # sent by somebody; the system's can't be ignored
            return
        if action.sa_handler == SIG_DFL or action.sa_handler == SIG_IGN:
            action.sa_handler = SIG_DFL
            sigaction(number, &action, NULL)
            raise_(number)  # comes when we return, if it is blocked until then
            return
    if action.sa_flags & SA_RESETHAND:
        before[level].sa_handler, before[level].sa_flags = SIG_DFL, 0
    if action.sa_flags & SA_SIGINFO:
        action.sa_sigaction(number, info, context)
    else:
        action.sa_handler(number)


cdef void handle(int level, int number, siginfo_t *info, void *context) noexcept nogil:
    cdef int kept = errno.errno
    if not (page_is_gone(info.si_code) and replace(<uintptr_t>info.si_addr)):
        pass_on(level, number, info, context)
    errno.errno = kept


cdef void handle_0(int number, siginfo_t *info, void *context) noexcept nogil:
    handle(0, number, info, context)


cdef void handle_1(int number, siginfo_t *info, void *context) noexcept nogil:
    handle(1, number, info, context)


cdef void handle_2(int number, siginfo_t *info, void *context) noexcept nogil:
    handle(2, number, info, context)


cdef void handle_3(int number, siginfo_t *info, void *context) noexcept nogil:
    handle(3, number, info, context)


cdef handler_t[N_LEVELS] handlers
handlers[0], handlers[1], handlers[2], handlers[3] = handle_0, handle_1, handle_2, handle_3


# ---- beside it

def watch():
    """Sees to it that SIGBUS comes to us, also after somebody else took it. Whether it does.

    It doesn't any more after the place was taken from us several times.
    """
    global n_levels
    cdef action_t now
    cdef int level
    if sigaction(SIGBUS, NULL, &now):
        return False
    if now.sa_flags & SA_SIGINFO:
        for level in range(n_levels):
            if now.sa_sigaction == handlers[level]:
                return True
    for level in range(n_levels):
        if before[level].sa_handler == now.sa_handler and before[level].sa_flags == now.sa_flags:
            break  # he whom this one found, again
    else:
        if n_levels == N_LEVELS:
            return False
        level = n_levels
        before[level] = now
        n_levels += 1
    return take(level)


cdef bint take(int level) noexcept:
    cdef action_t ours = before[level]
    cdef bint handled = ours.sa_flags & SA_SIGINFO or (ours.sa_handler != SIG_DFL and ours.sa_handler != SIG_IGN)
    # As he would be called: with the same signals blocked, and system calls interrupted or not.
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (ours.sa_flags & (SA_RESTART | SA_NODEFER) if handled else SA_RESTART)
    ours.sa_sigaction = handlers[level]
    return sigaction(SIGBUS, &ours, NULL) == 0


cdef Region *free_region() noexcept:
    """NULL if there is no memory for more."""
    cdef Chunk *chunk = &first_chunk
    cdef void *more
    cdef int i
    while True:
        for i in range(N_REGIONS):
            if not chunk.regions[i].end:
                return &chunk.regions[i]
        if not chunk.next:
            more = mmap(NULL, sizeof(Chunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            if more == MAP_FAILED:
                return NULL
            store(&chunk.next, <uintptr_t>more)
        chunk = <Chunk *>chunk.next


cdef class Mapping:
    """The first ``n_bytes`` of an open file, to be read by the buffer protocol; the descriptor may be closed then.

    OSError if they can't be mapped.
    """
    cdef Region *region
    cdef readonly size_t n_bytes

    def __cinit__(self, int fd, size_t n_bytes):
        cdef Region *region = free_region()
        cdef void *start = MAP_FAILED
        if region != NULL:
            start = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0)
        if start == MAP_FAILED:
            raise OSError(errno.errno, os.strerror(errno.errno))
        self.region, self.n_bytes = region, n_bytes
        region.missing = 0
        store(&region.start, <uintptr_t>start)
        store(&region.end, <uintptr_t>start + (n_bytes + PAGE - 1) // PAGE * PAGE)
        watch()

    def __dealloc__(self):
        cdef uintptr_t start, end
        if self.region != NULL:
            start, end = self.region.start, self.region.end
            store(&self.region.end, 0)  # before anybody else can get the place
            munmap(<void *>start, end - start)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.region.start, <Py_ssize_t>self.n_bytes, 1, flags)

    @property
    def missing(self):
        """Whether bytes were zeros to those who read them, since they couldn't be had from the file."""
        return self.region.missing != 0

    def release(self, size_t first, size_t n_bytes):
        """Gives the whole pages of a part back to the system; they come again from the file when they are read."""
        cdef uintptr_t start = self.region.start + (first + PAGE - 1) // PAGE * PAGE
        cdef uintptr_t end = self.region.start + (first + n_bytes) // PAGE * PAGE
        if first + n_bytes <= self.n_bytes and start < end:
            madvise(<void *>start, end - start, MADV_DONTNEED)
