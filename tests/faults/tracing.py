"""System calls of a process: which it makes, and making one of them fail."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STRACE = shutil.which("strace")
LINE = re.compile(r"^(\d+) +([a-z_0-9]+)\(")
# Of memory, locks between threads, clocks and what a process is: no part of what is done with files.
OTHERS = """
mmap munmap mremap brk madvise mprotect futex sched_yield sched_getaffinity clock_gettime clock_nanosleep nanosleep
gettid getpid getppid getpgid rt_sigaction rt_sigprocmask sigaltstack set_robust_list rseq prctl recvfrom sendto
restart_syscall exit exit_group clone clone3 arch_prctl prlimit64
"""


@dataclass(frozen=True)
class Call:
    """The n-th call of a name since tracing began, in whichever thread; n counts from 1."""

    name: str
    n: int


def can_trace() -> bool:
    if STRACE is None:
        return False
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with tracing(process.pid, ["-e", "trace=none"]) as tracer:
                return tracer is not None
        finally:
            process.kill()


@contextlib.contextmanager
def tracing(pid: int, options: list[str], output: Path | str = "/dev/null") -> Iterator[subprocess.Popen[str] | None]:
    """strace on a process that is running already, and its threads; None if it can't be."""
    assert STRACE is not None
    command = [STRACE, "-f", "-o", str(output), *options, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        try:
            yield tracer if "attached" in line else None
        finally:
            tracer.terminate()  # the process goes on without it
            try:
                tracer.communicate(timeout=1)
            except subprocess.TimeoutExpired:  # it waits for threads of a process that it has killed, sometimes
                tracer.kill()
                tracer.communicate()


def calls_of(trace: Path) -> list[Call]:
    """Calls between the two marks of a trace."""
    counts: dict[str, Counter[str]] = {}
    found: dict[Call, None] = {}
    marks = 0
    for line in trace.read_text(errors="replace").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        pid, name = match[1], match[2]
        marks += name == "getppid"
        # strace counts for each thread; what began before the marks counts, too.
        counter = counts.setdefault(pid, Counter())
        counter[name] += 1
        if marks == 1 and name not in OTHERS.split():
            found[Call(name, counter[name])] = None
    assert marks == 2, f"{trace}: {marks} marks"
    return list(found)
