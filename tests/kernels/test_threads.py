"""Threads and forks: a child never hangs, and computes the same bits."""

import logging
import os
import signal

import numpy as np
import pytest

from oxillama.kernels import _threads
from oxillama.kernels.matmul import linear
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace


def product(threads):
    """Large enough for a parallel region."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((512, 512)).astype(np.float32)
    x = Workspace(threads).from_array(rng.standard_normal((8, 512)))
    return linear(x, Matrix(w.view(np.uint8).reshape(-1), "F32", w.shape)).numpy().copy()


def in_child(action):
    """Exit status of a forked child that runs ``action``; -1 if it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = action()
        finally:
            os._exit(status)
    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(60)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_forked_after_a_region_computes_the_same_with_one_thread():
    expected = product(2)

    def child():
        single = _threads.single_threaded_after_fork()
        return 0 if single and (product(2) == expected).all() else 1

    assert in_child(child) == 0
    assert not _threads.single_threaded_after_fork()
    assert (product(3) == expected).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_the_child_says_so(capfd):
    product(2)
    logging.getLogger("oxillama").addHandler(handler := logging.StreamHandler())
    try:
        assert in_child(lambda: 0) == 0
    finally:
        logging.getLogger("oxillama").removeHandler(handler)
    assert "this process computes with one thread" in capfd.readouterr().err


def test_thread_count_changes_no_bit():
    one = product(1)
    for threads in (2, 3, 5):
        assert (product(threads) == one).all()
