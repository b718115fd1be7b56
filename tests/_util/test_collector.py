"""The pause of the garbage collector: of all threads together, and nothing of it stays."""

import gc
import os
import threading
from contextlib import contextmanager

import pytest

from oxillama._util.collector import paused_collector


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)
    gc.enable()


@contextmanager
def pause_elsewhere():
    """A pause of another thread, as long as the block."""
    inside, leave = threading.Event(), threading.Event()

    def work():
        with paused_collector():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_the_last_of_all_threads_ends_the_pause(thresholds):
    with pause_elsewhere():
        with paused_collector(), paused_collector():
            pass
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == thresholds


def test_an_error_ends_the_pause(thresholds):
    with pytest.raises(KeyError), paused_collector():
        raise KeyError
    assert gc.get_threshold() == thresholds


def test_what_the_program_sets_meanwhile_stays():
    with paused_collector():
        gc.set_threshold(123, 4, 5)
        gc.disable()
    assert gc.get_threshold() == (123, 4, 5)
    assert not gc.isenabled()


def test_cycles_are_left_until_the_end():
    class Cycle:
        def __del__(self):
            freed.append(True)

    freed = []
    with paused_collector():
        one = Cycle()
        one.self = one
        del one
        kept = [[] for _ in range(100_000)]
        assert not freed
    gc.collect()
    assert freed
    assert len(kept) == 100_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_has_no_pause_of_a_thread_that_it_has_not(thresholds):
    with pause_elsewhere():
        child = os.fork()
        if not child:
            os._exit(gc.get_threshold() != thresholds)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
