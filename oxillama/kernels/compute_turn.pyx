"""Compute turn: cores that the engines of a process share, step by step, first come, first served.

Steps of two engines at once would each start as many threads as there are cores: the threads of one stand at a barrier
for those that the other's keep from their core. So a step takes as many cores as it has threads before it begins, and
waits until they are free.

Compiled, so that neither a signal nor another thread comes in the middle of a change: there is no lock that a thread
could be interrupted with.
"""

import os
import threading
from time import perf_counter

from cpython.pythread cimport PyThread_get_thread_ident

from oxillama.kernels._cores import default_threads

__all__ = ["COMPUTE_TURN", "ComputeShare", "ComputeTurn"]

# Longest sleep of a thread until it looks again whether it still waits: another one may have been interrupted between
# the moment in which it was woken and that in which it would have taken its cores.
cdef double SLEEP_SECONDS = 0.05
# After so long without a look a share begins to wait anew: what it waited for was cancelled.
cdef double LEFT_SECONDS = 1.0

cdef object _new_lock = threading.Lock


cdef class _Waiter:
    """A thread that sleeps until cores are free."""

    cdef object lock
    cdef ComputeShare share
    cdef long long ticket
    cdef bint woken


cdef class ComputeTurn:
    """Cores that shares take and give back.

    n_cores: all there are, also while they are taken; 0 until it is asked for. n_taken: by steps under way. n_waiting:
    threads that sleep. patience: seconds after which a share waits no longer. A step that takes more gets company then,
    which is slow, but ends: its thread may wait, in a function of the user's, for the engine that waits for its cores.
    """

    cdef public int n_cores
    cdef public double patience
    cdef readonly int n_taken
    cdef list _waiters         # the one that came first is the first
    cdef list _holders
    cdef long long _last_ticket

    def __init__(self, int n_cores=0):
        self.n_cores, self.patience = n_cores, 5.0
        self._waiters, self._holders = [], []

    @property
    def n_waiting(self):
        return len(self._waiters)

    def share(self, int n_threads):
        """The share of an engine whose steps compute with so many threads."""
        cdef ComputeShare made = ComputeShare.__new__(ComputeShare)
        made._turn, made.n_threads = self, n_threads
        return made

    def reset(self):
        """Frees all cores of a forked child, whose other threads are gone: none is taken, and no thread waits."""
        cdef ComputeShare holder
        for holder in self._holders:
            holder._holds = False
        self._holders, self._waiters = [], []
        self.n_taken = 0

    cdef bint has_room(self, ComputeShare share) except -1:
        """Whether a share's cores are free, and none that came before it waits."""
        cdef _Waiter first
        if self._waiters:
            first = self._waiters[0]
            if first.share is not share and (not share._ticket or first.ticket < share._ticket):
                return False
        if not self.n_taken:
            return True
        if not self.n_cores:
            self.n_cores = default_threads(env={}).n
        return self.n_taken + share.n_threads <= self.n_cores

    cdef int wake(self) except -1:
        """Wakes those that came first, as many as there is room for."""
        cdef _Waiter waiter
        cdef int n = self.n_taken
        cdef long long ticket = 0
        for waiter in self._waiters:
            if waiter.ticket != ticket:  # threads of one engine, of which one takes the step
                if n and n + waiter.share.n_threads > self.n_cores:
                    break
                n += waiter.share.n_threads
                ticket = waiter.ticket
            if not waiter.woken:
                waiter.woken = True
                waiter.lock.release()


cdef class ComputeShare:
    """The cores that the steps of one engine compute with; `ComputeTurn.share` makes one."""

    cdef ComputeTurn _turn
    cdef public int n_threads
    cdef int _n                # cores that it holds
    cdef bint _holds
    cdef unsigned long _thread  # that took them
    cdef long long _ticket     # of its wait; 0: it doesn't wait
    cdef double _since, _seen  # when it began to wait, and tried last

    def take(self):
        """Takes the cores of a step: True. False if it has to `wait` for them, after those that wait already.

        A step inside another one of the same thread takes none: that one waits for it. Neither does one with no
        threads.
        """
        cdef ComputeTurn turn = self._turn
        cdef int n = self.n_threads
        if not turn.has_room(self):
            if self.is_nested():
                n = 0
            elif self.keeps_waiting():
                return False
        self._n, self._ticket = n, 0
        self._holds, self._thread = True, PyThread_get_thread_ident()
        turn._holders.append(self)
        turn.n_taken += n
        return True

    cdef bint keeps_waiting(self) except -1:
        cdef double now = perf_counter()
        if not self._ticket or now - self._seen > LEFT_SECONDS:
            self._turn._last_ticket += 1
            self._ticket, self._since = self._turn._last_ticket, now
        self._seen = now
        return now - self._since < self._turn.patience

    cdef bint is_nested(self) except -1:
        cdef ComputeShare holder
        cdef unsigned long thread = PyThread_get_thread_ident()
        for holder in self._turn._holders:
            if holder._thread == thread:
                return True
        return False

    def wait(self):
        """Sleeps until the cores may be free, or for a moment. Ctrl-C ends it at once: no thread waits for this one."""
        cdef ComputeTurn turn = self._turn
        cdef _Waiter waiter = _Waiter.__new__(_Waiter), other
        cdef Py_ssize_t at = 0
        waiter.lock, waiter.share, waiter.ticket = _new_lock(), self, self._ticket
        waiter.lock.acquire()
        if turn.has_room(self):
            return
        for other in turn._waiters:
            at += other.ticket <= waiter.ticket
        turn._waiters.insert(at, waiter)
        try:
            waiter.lock.acquire(True, SLEEP_SECONDS)
        finally:
            if waiter in turn._waiters:  # unless it was forked meanwhile
                turn._waiters.remove(waiter)
            turn.wake()

    def give_back(self):
        """Gives the cores back, if it has any."""
        cdef ComputeTurn turn = self._turn
        if self._holds:
            self._holds = False
            turn.n_taken -= self._n
            turn._holders.remove(self)
            if turn._waiters:
                turn.wake()


COMPUTE_TURN = ComputeTurn()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=COMPUTE_TURN.reset)
