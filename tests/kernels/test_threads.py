"""Threads and forks: a child never hangs, and computes the same bits."""

import logging
import os
import signal
import subprocess
import sys
import textwrap

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


# Imports everything, becomes a user without other processes where it may, and lets that user have no more threads.
LIMITED = """
    import logging, os, resource, sys, threading
    import oxillama as ox
    from oxillama.core import loading
    from oxillama.kernels import _team, _threads

    MODEL = open(loading.shipped_model(), "rb").read()
    logging.basicConfig(format="%(message)s")

    def limit(n):
        if os.getuid() == 0:
            os.setgid(54321); os.setuid(54321)
        resource.setrlimit(resource.RLIMIT_NPROC, (n, n))

    def text(threads):
        with ox.load(MODEL, num_threads=threads) as engine:
            return engine.generate("Once upon a time " * 40, max_tokens=3, temperature=0).text

    expected = text(1)
"""


def limited(code, **environment):
    """What a program prints that is out of threads at some time, and what it logs."""
    command = [sys.executable, "-c", textwrap.dedent(LIMITED) + textwrap.dedent(code)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.splitlines(), done.stderr


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the limit on threads is Linux's")


@LINUX
def test_without_threads_an_engine_computes_with_one_and_says_so_once():
    printed, logged = limited("limit(1); print(text(2) == expected, text(3) == expected, _threads.team_of(2))")
    assert printed == ["True True 1"]
    assert logged.count("can't be created here: computing with 1") == 1


@LINUX
@pytest.mark.parametrize("always", [False, True])
def test_threads_that_are_there_stay_when_no_others_can_be_created(always):
    """Teams of every size in turn: none starts a thread that wasn't tried before."""
    code = f"""
        _team.always_share({always})
        print(text(3) == expected, _threads.team_of(3))
        limit(1)
        print(text(3) == expected, text(4) == expected, _threads.team_of(3), _threads.team_of(4))
        print(text(2) == expected, text(3) == expected, _threads.team_of(2), _threads.team_of(3))
    """
    assert limited(code)[0] == ["True 3", "True True 3 3", "True True 2 2"]


@LINUX
def test_another_thread_has_a_team_of_its_own():
    """Which can't be had any more, though the first one's stays."""
    code = """
        print(_threads.team_of(3))
        found, go = [], threading.Event()
        thread = threading.Thread(target=lambda: (go.wait(), found.append((_threads.team_of(3), text(3) == expected))))
        thread.start()
        limit(1); go.set(); thread.join()
        print(*found, _threads.team_of(3))
    """
    assert limited(code)[0] == ["3", "(1, True) 3"]


@LINUX
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can be a user without processes")
def test_a_team_leaves_some_threads_to_others():
    """8 are wanted, of 9 that may be, of which Python has one or more."""
    code = """
        limit(9)
        n = _threads.team_of(8)
        print(1 < n < 8, _threads.team_of(8) == n, text(8) == expected)
        limit(1)
        print(text(8) == expected)
    """
    printed, logged = limited(code)
    assert printed == ["True True True", "True"]
    assert "8 threads can't be created here: computing with" in logged


@LINUX
def test_stacks_of_threads_are_as_large_as_the_librarys():
    """The memory for them is what fails here, when the library would ask for it."""
    assert limited("print(_threads.team_of(2))", OMP_STACKSIZE="900G")[0] == ["1"]


@pytest.mark.parametrize(
    ("env", "n_bytes"),
    [
        ({}, 0),
        ({"OMP_STACKSIZE": "512"}, 512 << 10),
        ({"OMP_STACKSIZE": " 2 m "}, 2 << 20),
        ({"OMP_STACKSIZE": "77B"}, 77),
        ({"OMP_STACKSIZE": "much", "GOMP_STACKSIZE": "1G"}, 1 << 30),
        ({"OMP_STACKSIZE": "1M", "GOMP_STACKSIZE": "1G"}, 1 << 20),
        ({"OMP_STACKSIZE": "9" * 15 + "G"}, 1 << 62),
    ],
)
def test_stack_size_of_the_environment(env, n_bytes):
    assert _threads.stack_size(env) == n_bytes


@LINUX
def test_a_limit_of_openmp_is_no_shortage():
    printed, logged = limited("print(_threads.team_of(8), text(8) == expected)", OMP_THREAD_LIMIT="3")
    assert (printed, "can't be created" in logged) == (["3 True"], False)


@LINUX
def test_a_load_that_adapts_openmps_teams_changes_none():
    code = "print(_threads.team_of(4)); limit(1); print(text(4) == expected, _threads.team_of(4))"
    assert limited(code, OMP_DYNAMIC="true")[0] == ["4", "True 4"]
