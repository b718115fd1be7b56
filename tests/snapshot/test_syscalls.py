"""Each system call of a save that matters, failed or killed: the old file stays, or the new one is whole."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snapshot.models import load, tokens_of

ROOT = Path(__file__).parents[2]
STRACE = shutil.which("strace")
SCRIPT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import oxillama as ox
engine = ox.Engine.restore(sys.argv[1] + "/session", num_threads=1)
engine.prefill([7] * 100)
try:
    engine.snapshot(sys.argv[1] + "/session", shared=sys.argv[2] == "shared")
    print("written")
except ox.SnapshotFileError as error:
    print(error)
print(engine.forward_one(5).shape[0])
"""


def can_trace():
    if STRACE is None:
        return False
    command = [STRACE, "-qq", "-f", "-e", "trace=fsync", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_trace(), reason="no process can be traced here")


def traced(folder, kind, injected):
    """What the script printed, with the fault; None if it was killed."""
    calls = injected.split(":")[0]
    command = [STRACE, "-qq", "-f", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={injected}"]
    command += [sys.executable, "-c", SCRIPT, str(folder), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode <= 0 or done.returncode >= 128 or not done.stderr, done.stderr
    return done.stdout.splitlines() if done.returncode == 0 else None


@pytest.fixture
def folder(tmp_path):
    with load("llama") as engine:
        engine.prefill(tokens_of(engine, 50))
        engine.snapshot(tmp_path / "session")
    return tmp_path


RENAMES = "rename,renameat,renameat2"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["alone", "shared"])
@pytest.mark.parametrize(
    ("injected", "message"),
    [
        ("fsync:error=EIO:when=1", "Input/output error"),
        (f"{RENAMES}:error=ENOSPC:when=1", "No space left on device"),
        ("fsync:signal=KILL:when=1", None),
        (f"{RENAMES}:signal=KILL:when=1", None),
        ("fsync:signal=KILL:when=2", None),
    ],
)
def test_a_failed_or_killed_system_call_leaves_a_whole_file(folder, kind, injected, message):
    before = (folder / "session").read_bytes()
    printed = traced(folder, kind, injected)
    with load("llama") as engine, engine.resume(folder / "session") as session:
        assert session.position in (50, 150)
        if message is not None:
            assert message in printed[0]
            assert printed[1] == str(engine.n_vocab)
            assert (folder / "session").read_bytes() == before
            assert [p for p in folder.rglob("*") if p.name.endswith(".tmp")] == []
        else:
            assert printed is None
            engine.snapshot(folder / "session", shared=True)  # and it goes on


@pytest.mark.long
def test_a_traced_save_without_faults_succeeds(folder):
    assert traced(folder, "alone", "fsync:delay_enter=1") == ["written", "384"]
