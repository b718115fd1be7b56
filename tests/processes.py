"""Calls in threads at the same time, in forked children, and in another Python."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def in_threads(*calls, timeout=120):
    """Runs the calls together; their results, or the first error."""
    results, errors = [None] * len(calls), []
    barrier = threading.Barrier(len(calls))

    def work(i, call):
        try:
            barrier.wait(timeout)
            results[i] = call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(calls)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout)
        assert not t.is_alive(), "stuck"
    if errors:
        raise errors[0]
    return results


def wait_for_child(pid, seconds=120):
    """The child's exit status; kills it if it hangs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


def in_child(action):
    """Runs `action` in a forked child; its exit status, 0 if it returned something true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if action() else 3
        finally:
            os._exit(status)
    return wait_for_child(pid)


def fork(test):
    """Marks a test that forks."""
    # Newer Pythons warn that a process with threads is forked: that this works is what is tested.
    test = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")(test)


def in_process(code, *arguments):
    """The output of another Python, which computes with another number of threads."""
    prelude = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import oxillama as ox; import numpy as np\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
