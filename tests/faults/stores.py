"""Processes and threads that save into one folder of shared blocks and collect its garbage, some of them killed.

`python -m tests.faults.stores FOLDER NUMBER` is one of them: it saves, resumes and compares until it is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format.block_garbage import collect_garbage
from tests.faults.limits import ROOT
from tests.snapshot.models import load, tokens_of

N_WRITERS, N_THREADS = 2, 2


def write(folder: Path, number: int) -> None:
    """For ever: a session of this number, saved, resumed and compared; others share its beginning."""
    engine = load("llama")
    tokens = tokens_of(engine, 220, seed=number % 2)
    rng = random.Random(number)
    while True:
        n = rng.randrange(60, 220)
        engine.reset()
        row = engine.prefill(tokens[:n])
        name = folder / f"{number}.{rng.randrange(3)}"
        engine.snapshot(name, shared=True)
        with engine.resume(name) as session:
            assert session.position == n
            assert (session.logits == row).all()
        if rng.randrange(2):
            name.unlink()


def collect(folder: Path, stop: threading.Event, errors: list[BaseException]) -> None:
    while not stop.is_set():
        try:
            collect_garbage(folder)
        except BaseException as error:
            errors.append(error)
            return


def begin(folder: Path, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.stores", str(folder), str(number)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def storm(folder: Path, seconds: float, *, seed: int = 1) -> list[str]:
    """What was lost while writers came, went and were killed for so long."""
    (folder / "blocks").mkdir(exist_ok=True)
    rng, stop, errors = random.Random(seed), threading.Event(), list[BaseException]()
    collectors = [threading.Thread(target=collect, args=(folder, stop, errors)) for _ in range(N_THREADS)]
    writers = {i: begin(folder, i) for i in range(N_WRITERS)}
    for thread in collectors:
        thread.start()
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until and not found:
        time.sleep(rng.uniform(0.5, 2.5))
        victim = rng.randrange(N_WRITERS)
        found += ended(writers[victim])
        writers[victim] = begin(folder, victim)
    for writer in writers.values():
        found += ended(writer)
    stop.set()
    for thread in collectors:
        thread.join(60)
    found += [repr(error) for error in errors] + ["a collector hangs"] * any(t.is_alive() for t in collectors)
    return found + left(folder)


def ended(writer: subprocess.Popen[str]) -> list[str]:
    """Kills it; what it had to say, if it ended before."""
    writer.send_signal(signal.SIGKILL)
    said = writer.communicate()[1]
    return [said] if writer.returncode != -signal.SIGKILL else []


def left(folder: Path) -> list[str]:
    """What is wrong in the folder when all is quiet again."""
    collect_garbage(folder)
    found, wanted = [], 0
    with load("llama") as engine:
        for path in sorted(p for p in folder.iterdir() if p.is_file()):
            if path.name.startswith("."):
                found.append(f"{path.name} is left")
                continue
            wanted += snapshot_info(path).shared_blocks
            try:
                engine.resume(path).close()  # type: ignore[union-attr]
            except Exception as error:
                found.append(repr(error))
    blocks = [p for p in (folder / "blocks").rglob("*") if p.is_file() and p.name != "lock"]
    if len(blocks) > wanted:
        found.append(f"{len(blocks)} blocks are left, of which {wanted} are wanted at most")
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    write(Path(sys.argv[1]), int(sys.argv[2]))
