"""Deferred signals, uninterruptible finalisers, and a check of the stack: protection of changes from being cut short.

Compiled, since Python checks for signals, and for room on its stack, at the start of each of its own functions.
"""

import _signal
import os
import sys
import threading

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.pythread cimport PyThread_get_thread_ident

from oxillama.errors import GenerateError

cdef extern from *:
    """
    static int ox_frames_left(void) {
        PyThreadState *state = PyThreadState_Get();
    #if PY_VERSION_HEX >= 0x030c0000
        return state->py_recursion_remaining;
    #else
        return state->recursion_remaining;
    #endif
    }
    """
    int ox_frames_left()
    int PyErr_SetInterruptEx(int number)

__all__ = ["DeferredInterrupt", "Finalizer", "check_running", "check_stack", "frames_left"]

# Signals whose handlers may raise: requests to end, and time limits. SIGINT is the first.
cdef int[4] NUMBERS
cdef Py_ssize_t N = 4
NUMBERS[:] = [getattr(_signal, name, 0) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP")]
cdef dict PLACES = {NUMBERS[i]: i for i in range(4)}

cdef unsigned long _main = threading.main_thread().ident
cdef object _signal_of = _signal.getsignal
cdef object _set_signal = _signal.signal


# Frames that a finaliser's function needs; the call is postponed where there are fewer; and the postponed ones.
cdef int LEAST_FRAMES = 100
cdef list _late = []
cdef object _is_finalizing = sys.is_finalizing


def _renew_main():
    global _main
    _main = PyThread_get_thread_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_main)


def frames_left():
    """Number of nested calls of Python functions left until a RecursionError."""
    return ox_frames_left()


def check_stack(int n):
    """Raises RecursionError unless n more calls may be nested here. Runs postponed finalisers first."""
    if ox_frames_left() < n:
        raise RecursionError(f"the engine needs {n} more frames on Python's stack, and {ox_frames_left()} are left")
    while _late and n >= LEAST_FRAMES:
        _call_late()


cdef class DeferredInterrupt:
    """While entered, Ctrl-C is only noted; leaving hands it to the handler that was there before.

    Python raises KeyboardInterrupt between any two bytecodes of the main thread. In the middle of a step that would
    leave a token drawn but not stored, or a block taken but not in any table, in requests of other threads too. Long
    work inside polls `pending` where it can be abandoned. In other threads than the main one this does nothing, since
    signals don't reach them.

    The same holds for SIGTERM, SIGALRM and SIGHUP if the program has its own handlers for them, which may raise too.
    They don't set `pending`: a frequent timer must not keep a step from completing.
    """

    cdef public bint pending
    cdef list _previous  # handlers by index of their signals; None for a handler that is not a Python function
    cdef dict _noted

    def __enter__(self):
        cdef int i
        if PyThread_get_thread_ident() != _main:
            return self
        self._previous = [None] * N
        try:
            for i in range(N):
                previous = _signal_of(NUMBERS[i]) if NUMBERS[i] else None
                if callable(previous):
                    _set_signal(NUMBERS[i], self._note)
                    self._previous[i] = previous
        except ValueError:  # the first thread of a subinterpreter gets no signals
            self._previous = None
        except BaseException:  # raised by a handler that was not replaced yet
            self._leave()
            raise
        return self

    def _note(self, number, frame):
        if self._noted is None:
            self._noted = {}
        self._noted[number] = frame
        if number == NUMBERS[0]:
            self.pending = True

    def __exit__(self, kind, exc, tb):
        if self._previous is not None:
            self._leave()

    cdef object _leave(self):
        raised = self._put_back()
        try:
            if self._noted is not None:
                self._hand_on()
        finally:
            if raised is not None:
                raise raised

    cdef object _put_back(self):
        """Restores all handlers. A restored handler may raise while the next is set, which is tried again then. Returns
        the last of such errors."""
        cdef int i
        cdef bint back
        raised = None
        for i in range(N):
            back = self._previous[i] is None
            while not back:
                try:
                    _set_signal(NUMBERS[i], self._previous[i])
                    back = True
                except ValueError:  # in another thread
                    back = True
                except BaseException as error:
                    raised = error
        return raised

    cdef object _send_again(self):
        """`_leave` where nothing can be raised: noted signals are sent again, for Python's next check."""
        raised = self._put_back()
        if isinstance(raised, KeyboardInterrupt):
            PyErr_SetInterruptEx(NUMBERS[0])
        if self._noted is not None:
            for number in self._noted:
                PyErr_SetInterruptEx(number)

    cdef object _hand_on(self):
        number, frame = self._noted.popitem()
        try:
            self._previous[PLACES[number]](number, frame)
        finally:
            if self._noted:
                self._hand_on()


def check_running():
    """Raises GenerateError once the interpreter is finalizing, and other threads don't run any more."""
    if _is_finalizing():
        raise GenerateError("the interpreter is ending: close engines, and what uses them, before that")


cdef class Finalizer:
    """Calls a function when the object that owns it is dropped, even if signals come then.

    `weakref.finalize` skips its function if Ctrl-C comes at its start, and errors in finalisers are lost: so is Ctrl-C
    itself. Here Ctrl-C waits until the function is done, and comes then. Near the end of the stack the function waits
    for the next `check_stack`; nothing is called when the interpreter ends. Objects that the function refers to must
    not refer to the owner.
    """

    cdef object _function

    def __init__(self, function):
        self._function = function

    @property
    def alive(self):
        """Whether the function was neither called nor detached."""
        return self._function is not None

    def detach(self):
        """Detaches the function, which will not be called."""
        self._function = None

    def __del__(self):
        function, self._function = self._function, None
        if function is None or _late is None:
            return
        if ox_frames_left() < LEAST_FRAMES:  # each call takes a frame, also of a function in C
            _late.append(function)
        elif not _is_finalizing():
            _call_unraisable(function)


cdef int _call_unraisable(function) except -1:
    """Calls a function whose errors go to `sys.unraisablehook`, also SystemExit: what Cython does with an error that it
    can't raise would end the process."""
    try:
        _call_deferred(function)
    except BaseException as error:
        PyErr_SetObject(type(error), error)
        PyErr_WriteUnraisable(function)
    return 0


cdef object _call_deferred(function):
    """Calls a function. Signals are sent again after it, and nothing is raised for them here."""
    cdef DeferredInterrupt entered = DeferredInterrupt()
    pressed, raised = False, None
    while entered._previous is None and PyThread_get_thread_ident() == _main:
        try:
            PyErr_CheckSignals()
            entered.__enter__()
            break
        except KeyboardInterrupt:
            pressed = True
        except BaseException as error:  # raised by another signal's handler: lost, since nothing can be raised
            raised = error
    try:
        function()
        if raised is not None:
            raise raised
    finally:
        if entered._previous is not None:
            entered._send_again()
        if pressed:
            PyErr_SetInterruptEx(NUMBERS[0])


cdef void _call_late() noexcept:
    """Runs postponed finalisers, whose errors are not raised in the code that happens to have room for them."""
    _call_unraisable(_late.pop())
