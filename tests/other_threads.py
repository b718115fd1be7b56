"""Other threads beside a test's own: made to change places, and the time for which they got no turn."""

import gc
import sys
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

__all__ = ["frozen", "longest_turn", "switching"]


@contextmanager
def switching():
    """Threads that change places wherever they may: after each few bytecodes, and in each collection of garbage."""

    def give_way(phase, info):
        time.sleep(0)

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(give_way)
    sys.setswitchinterval(1e-6)
    gc.set_threshold(40)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        gc.callbacks.remove(give_way)


@contextmanager
def frozen():
    """Collections of garbage leave out what other tests left behind; what conftest.py left out before stays so."""
    gc.collect()
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


def longest_turn(make):
    """The longest work of this thread between two turns of another one, as a part of all.

    On a loaded machine the other thread may have no CPU when it could have the interpreter's lock: ask several times.
    """
    clock, marks, stop = time.pthread_getcpuclockid(threading.get_ident()), [], threading.Event()

    def other():
        while not stop.is_set():
            marks.append(time.clock_gettime(clock))
            time.sleep(0)

    before, thread = sys.getswitchinterval(), threading.Thread(target=other)
    sys.setswitchinterval(1e-4)
    thread.start()
    began = time.thread_time()
    try:
        make()
    finally:
        work = time.thread_time() - began
        marks.append(time.clock_gettime(clock))
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
    return max(b - a for a, b in pairwise(marks)) / work
