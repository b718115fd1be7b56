"""Mapped files for reading, which may be cut off, or be on a disk that fails, at any time.

An access to a page that is gone raises SIGBUS, which would end the process. A handler replaces that page and those
behind it by zeros, and marks the mapping: the reading thread continues, and has to check `missing` afterwards. Any
other SIGBUS is passed on to the handler that was installed before.

The handler runs in the middle of anything, in any thread: it takes no locks, allocates nothing, and calls mmap(2),
which is a plain system call everywhere. Everything else here runs with the GIL.
"""

import os

from cpython.buffer cimport PyBuffer_FillInfo
from libc cimport errno
from libc.signal cimport SIG_DFL, SIG_IGN, SIGBUS, raise_, sighandler_t
from libc.stdint cimport int64_t, uintptr_t
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
    /* Not of Linux: a wrong alignment, and memory found to be broken while no thread reads it. */
    #ifdef __linux__
    #define OX_PAGE_IS_GONE(code) ((code) == BUS_ADRERR || (code) == BUS_MCEERR_AR)
    #else
    #define OX_PAGE_IS_GONE(code) ((code) > 0)
    #endif
    #include <sys/mman.h>
    #include <sys/stat.h>
    #ifdef __APPLE__
    #define st_mtim st_mtimespec
    #endif
    #define OX_MODIFIED(info) ((int64_t)(info)->st_mtim.tv_sec * 1000000000 + (info)->st_mtim.tv_nsec)
    /* Advice that not every system has; none of it changes what is read. */
    #ifdef MADV_HUGEPAGE
    #define OX_PREFER_HUGE(start, n) madvise(start, n, MADV_HUGEPAGE)
    #else
    #define OX_PREFER_HUGE(start, n) 0
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
    ctypedef struct status_t "struct stat":
        int64_t st_size
    int fstat(int fd, status_t *info) noexcept nogil
    int64_t modified "OX_MODIFIED"(const status_t *info) noexcept nogil  # in nanoseconds
    bint page_is_gone "OX_PAGE_IS_GONE"(int code) noexcept nogil
    int prefer_huge "OX_PREFER_HUGE"(void *start, size_t n_bytes) noexcept nogil
    uintptr_t load "OX_LOAD"(const uintptr_t *at) noexcept nogil
    void store "OX_STORE"(uintptr_t *at, uintptr_t value) noexcept nogil

ctypedef void (*handler_t)(int, siginfo_t *, void *) noexcept nogil

cdef enum:
    N_REGIONS = 128             # regions of a chunk
    N_LEVELS = 4

cdef struct Region:             # free if the end is 0
    uintptr_t start, end, missing

cdef struct Chunk:
    uintptr_t next
    Region[N_REGIONS] regions

cdef Chunk first_chunk          # chunks are never freed, since the handler may be reading them
cdef uintptr_t PAGE = <uintptr_t>sysconf(_SC_PAGESIZE)

# The handler that each of our handlers replaced. A handler installed after ours may pass foreign signals on to the one
# that it replaced: ours. When we install ourselves again, it is with the next of our handlers, which passes on to that
# one: with a single handler, the two would pass a signal on to each other for ever.
cdef action_t[N_LEVELS] before
cdef int n_levels = 0


# ---- in the handler

cdef bint replace(uintptr_t address) noexcept nogil:
    """Replaces the pages from the address to the end of its region, if any, by zeros. Returns whether it did."""
    cdef Chunk *chunk = &first_chunk
    cdef Region *region
    cdef uintptr_t start, end, page = address & ~(PAGE - 1)
    cdef int i
    while chunk != NULL:
        for i in range(N_REGIONS):
            region = &chunk.regions[i]
            end = load(&region.end)
            start = load(&region.start)
            if start <= address < end and load(&region.end) == end:  # else another region is being entered
                store(&region.missing, 1)  # before a thread can read zeros
                return mmap(<void *>page, end - page, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) \
                    != MAP_FAILED
        chunk = <Chunk *>load(&chunk.next)
    return False


cdef void pass_on(int level, int number, siginfo_t *info, void *context) noexcept nogil:
    """Calls the replaced handler, or the default action."""
    cdef action_t action = before[level]
    if not action.sa_flags & SA_SIGINFO:
        if action.sa_handler == SIG_IGN and info.si_code <= 0:  # sent by a process; the system's own can't be ignored
            return
        if action.sa_handler == SIG_DFL or action.sa_handler == SIG_IGN:
            action.sa_handler = SIG_DFL
            sigaction(number, &action, NULL)
            raise_(number)  # delivered when this handler returns, if it is blocked until then
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


# ---- outside the handler

def watch():
    """Installs our handler of SIGBUS, also again after other code replaced it. Returns whether it is installed.

    It isn't any more after it was replaced several times.
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
            break  # the handler that this one replaced, again
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
    # With the flags of the replaced handler: the same signals blocked, and system calls interrupted or not.
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (ours.sa_flags & (SA_RESTART | SA_NODEFER) if handled else SA_RESTART)
    ours.sa_sigaction = handlers[level]
    return sigaction(SIGBUS, &ours, NULL) == 0


cdef Region *free_region() noexcept:
    """A free region; NULL without memory for another chunk."""
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
            store(&self.region.end, 0)  # before another mapping can get the addresses
            munmap(<void *>start, end - start)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.region.start, <Py_ssize_t>self.n_bytes, 1, flags)

    @property
    def missing(self):
        """Whether readers saw zeros in place of bytes that couldn't be read from the file."""
        return self.region.missing != 0

    def prefer_huge_pages(self):
        """Advises the system to read the file in pages of 2 MB, where the file system has them."""
        prefer_huge(<void *>self.region.start, self.region.end - self.region.start)

    def release(self, size_t first, size_t n_bytes):
        """Releases the whole pages of a part to the system; they are read from the file again on the next access."""
        cdef uintptr_t start = self.region.start + (first + PAGE - 1) // PAGE * PAGE
        cdef uintptr_t end = self.region.start + (first + n_bytes) // PAGE * PAGE
        if first + n_bytes <= self.n_bytes and start < end:
            madvise(<void *>start, end - start, MADV_DONTNEED)


cdef class FileState:
    """Size and time of modification of an open file, as they were when this was made; OSError if they can't be told.

    ``time`` is in nanoseconds. A subclass has ``mapping`` set where it maps the file, and `_report`, which `check`
    calls each time from the first difference on.
    """
    cdef readonly int fd
    cdef readonly int64_t size, time
    cdef public Mapping mapping
    cdef bint suspect

    def __init__(self, int fd):
        cdef status_t info
        if fstat(fd, &info):
            raise OSError(errno.errno, os.strerror(errno.errno))
        self.fd, self.size, self.time = fd, info.st_size, modified(&info)

    def check(self):
        """Raises ModelFileError if the file was changed since it was opened, and from then on."""
        cdef status_t info
        if not self.suspect and fstat(self.fd, &info) == 0 and info.st_size == self.size \
                and modified(&info) == self.time and not (self.mapping is not None and self.mapping.region.missing):
            return
        self.suspect = True
        self._report()

    def _report(self):
        """Raises ModelFileError with what has changed; nothing if `check` was mistaken."""
        raise NotImplementedError

    def watch(self):
        """Reinstalls the SIGBUS handler if other code has replaced it; to be called before long use of mapped bytes."""
        if self.mapping is not None:
            watch()
