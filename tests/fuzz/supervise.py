"""Starts the process that runs inputs, watches it, and keeps the input that killed it or that keeps it too long."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.loop import Current, say

__all__ = ["STUCK", "fuzz"]

STUCK = 30.0  # seconds of the CPU for one input, after which it is taken to hang: C code counts no work
ROOT = Path(__file__).parents[2]


def fuzz(
    target,
    folder,
    *,
    seconds=1e9,
    runs=1 << 60,
    seed=0,
    files=(),
    keep=True,
    distil=None,
    native=None,
    stuck=STUCK,
    most_deaths=20,
):
    """Fuzzes a target, and returns whether nothing was wrong with any input. What is wrong is in `folder`/faults."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    end, good = time.monotonic() + seconds, True
    for death in range(most_deaths):
        options = {
            "target": target, "folder": str(folder), "seconds": max(0.0, end - time.monotonic()), "runs": runs,
            "seed": seed + 1000 * death, "files": [*map(str, files)], "keep": keep,
            "distil": distil and str(distil), "native": native and str(native),
        }  # fmt: skip
        status = _watched(options, folder / "current", stuck)
        good &= status == 0
        if status in (0, 1):
            return good
        if status in (2, -signal.SIGINT):
            raise SystemExit(2)
        _keep_killer(folder, status)
        if files or runs < 1 << 60:
            return False
    return False


def _watched(options, current, stuck):
    """The exit status of the process; it is killed with SIGABRT, for its traceback, if an input takes too long."""
    # One order of sets and dictionaries: the same seed is the same run.
    environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz.worker", json.dumps(options)]
    current.unlink(missing_ok=True)
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    watch = _Watch(process.pid, current)
    try:
        while process.poll() is None:
            try:
                process.wait(min(1.0, stuck / 4))
            except subprocess.TimeoutExpired:
                if watch.spent() > stuck:
                    process.send_signal(signal.SIGABRT)
    finally:
        if process.poll() is None:
            process.kill()
    return process.wait()


class _Watch:
    """What a process has spent on its current input: seconds of the CPU, or a twentieth of those that went by, which
    is more for one that waits for ever. No load of the machine is taken for a hang."""

    def __init__(self, pid, current):
        self.stat, self.current, self.seen = Path(f"/proc/{pid}/stat"), current, None

    def spent(self):
        written = self.current.stat().st_mtime_ns if self.current.exists() else 0
        cpu, now = self._cpu(), time.monotonic()
        if self.seen is None or self.seen[0] != written:
            self.seen = written, cpu, now
        return max(cpu - self.seen[1], (now - self.seen[2]) / 20)

    def _cpu(self):
        try:
            fields = self.stat.read_text().rpartition(")")[2].split()
        except OSError:  # another system than Linux, or the process is gone
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _keep_killer(folder, status):
    data = Current.read(folder / "current")
    faults = folder / "faults"
    faults.mkdir(exist_ok=True)
    kind = "hang" if status == -signal.SIGABRT else f"died{status}"
    path = faults / f"{kind}-{hashlib.sha256(data).hexdigest()[:8]}"
    path.write_bytes(data)
    say(f"the process ended with {status}; what it was given last: {path}, {len(data)} bytes")
