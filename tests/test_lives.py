"""Forks of a process with threads and locks of the package's own."""

import subprocess
import sys
import threading

from oxillama._util.fork import DRAFTS, READS, STEPS, ForkRegistry
from oxillama.lora import LoraRegistry
from tests.processes import fork, in_child


class Recorder:
    def __init__(self, name, told):
        self.name, self.told = name, told

    def stop(self, *, wait):
        pass

    def before_fork(self):
        self.told.append(f"before {self.name}")

    def after_fork_in_parent(self):
        self.told.append(f"parent {self.name}")

    def after_fork_in_child(self):
        self.told.append(f"child {self.name}")


@fork
def test_the_order_is_that_of_who_waits_for_whom():
    told, kept = [], []
    for name, turn in (("reads", READS), ("drafts", DRAFTS), ("steps", STEPS)):
        kind = ForkRegistry(turn)
        kept.append(Recorder(name, told))
        kind.add(kept[-1])
    before = ["before drafts", "before steps", "before reads"]
    assert in_child(lambda: told == [*before, "child drafts", "child steps", "child reads"]) == 0
    assert told == [*before, "parent reads", "parent steps", "parent drafts"]


@fork
def test_a_fork_that_imports_the_rest_of_the_package_says_nothing():
    code = "import os, oxillama; oxillama.shipped_draft(); pid = os.fork(); pid and os.waitpid(pid, 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@fork
def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    registry = LoraRegistry(None, dict)
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with registry._lock:
            held.set()
            assert go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    assert in_child(lambda: registry.forget() is None) == 0
    go_on.set()
    thread.join()
    registry.forget()
