"""Thread counts, and what a fork leaves of them.

GNU OpenMP keeps its threads between regions. A forked child inherits the bookkeeping but not the threads, and its next
region would wait for them for ever. So a child of a process that has run a region runs single-threaded: slower, never
stuck, and with the same results, since no result depends on the number of threads.
"""

import logging
import os

cdef extern from *:
    """
    #include <omp.h>
    #ifdef __clang__
    #define OX_LLVM_OPENMP 1
    #else
    #define OX_LLVM_OPENMP 0
    #endif
    """
    const bint OX_LLVM_OPENMP
    int omp_get_max_threads() nogil

cdef int _started = 0
cdef int _forked = 0


cdef int usable_threads(int wanted) noexcept nogil:
    global _started
    if wanted <= 1 or _forked:
        return 1
    _started = 1
    return wanted


def _after_fork_in_child():
    global _forked
    if _started and not _forked:
        _forked = 1
        logging.getLogger("oxillama").warning(
            "forked after inference: this process computes with one thread; start workers with 'spawn', or load after "
            "the fork"
        )


os.register_at_fork(after_in_child=_after_fork_in_child)


def single_threaded_after_fork():
    """Whether this process must compute with one thread, being forked from one whose threads had started."""
    return bool(_forked)


def start_openmp():
    """Have the OpenMP library read its environment now; LLVM's would do so at the first region. Starts no threads."""
    omp_get_max_threads()


def openmp_variable():
    """The variable of the environment in which this build's OpenMP library finds how long idle threads spin."""
    return "KMP_BLOCKTIME" if OX_LLVM_OPENMP else "GOMP_SPINCOUNT"
