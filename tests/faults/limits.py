"""Files that may not grow, disks that are full, folders that can't be written to: real short writes and errors."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.faults.children import acting
from tests.faults.injected import Stage, judged, placed
from tests.faults.scenes import Scene

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def sizes(stage: Stage, n: int) -> list[int]:
    """Bytes at which a file, or a disk, may be full: from none to all that is written."""
    most = max(len(data) for data in stage.new.values() if data is not None)
    return sorted({*(most * i // n for i in range(n)), 1, 4095, 4096, 4097, most - 1})


def once(scene: Scene, fault: Callable[[], Callable[[], object]]) -> Scene:
    """A scene that acts under a fault the first time. `fault` begins it, and gives what ends it."""
    first = [True]

    def act(place: Path) -> None:
        end = fault() if first else bool
        first.clear()
        try:
            scene.act(place)
        finally:
            end()

    return replace(scene, act=act)


def file_limit(stage: Stage, folder: Path, n_bytes: int, *, deadly: bool) -> list[str]:
    """RLIMIT_FSIZE. deadly: SIGXFSZ kills the process, as it does where Python was told to leave signals alone."""

    def limit() -> Callable[[], object]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if deadly:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    with placed(folder / "old") as place, acting(once(stage.scene, limit), place) as child:
        return judged(stage, place, child, child.begin(), may_die=deadly)


def read_only(stage: Stage, folder: Path) -> list[str]:
    """A folder that a user who isn't root may not write to."""
    with tempfile.TemporaryDirectory() as top:
        place = Path(top) / "place"
        shutil.copytree(folder / "old", place)
        for path in (Path(top), place, *place.rglob("*")):
            path.chmod(0o777)
        before = bool if os.getuid() else (lambda: os.setuid(NOBODY))
        with acting(stage.scene, place, before) as child:
            folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
            for path in folders:
                path.chmod(0o555)
            outcome = child.begin()
            for path in folders:
                path.chmod(0o777)
            found = judged(stage, place, child, outcome, may_die=False)
            return found if outcome is None or outcome["error"] else [*found, "it could be written to"]


@contextmanager
def small_disk(n_bytes: int) -> Iterator[Path | None]:
    """A file system of its own; None where none can be mounted."""
    folder = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes},mode=755", "tmpfs", str(folder)]
    mounted = not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode
    try:
        yield None if mounted else folder
    finally:
        if not mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def full_disk(stage: Stage, folder: Path, n_bytes: int) -> list[str] | None:
    """A disk with so many bytes for all; None where none can be mounted."""
    with small_disk(max(4096, n_bytes)) as disk:
        if disk is None:
            return None
        try:
            shutil.copytree(folder / "old", disk, dirs_exist_ok=True)
        except (OSError, shutil.Error):
            return []  # not even room for what was there
        with acting(stage.scene, disk) as child:
            outcome = child.begin()
            subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
            return judged(stage, disk, child, outcome, may_die=False)


def can_mount() -> bool:
    with small_disk(1 << 20) as disk:
        return disk is not None


# ---- short writes, short reads and interrupted calls, all the time


def shim(folder: Path) -> Path | None:
    """A library that cuts each read and write in half, and has every third one interrupted; None without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "gcc").split()[-1]) or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "short.so"
    source = Path(__file__).with_name("short.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library


def files_of(names: list[str], library: Path | None) -> str:
    """What the scenes leave, as told by another process with that library."""
    return run_python("tests.faults.tell", *names, preload=library).stdout


def run_module(name: str, *arguments: str) -> list[str]:
    """What a module printed of losses in a process of its own, and how that ended, if not well."""
    try:
        done = run_python(name, *arguments)
    except subprocess.CalledProcessError as error:
        return [*error.stdout.splitlines(), f"it ended with {error.returncode}: {error.stderr[-1000:]}"]
    except subprocess.TimeoutExpired:
        return ["it hangs"]
    return done.stdout.splitlines()


def run_python(name: str, *arguments: str, preload: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if preload is not None:
        # Python takes half of what it compiles for the whole of it.
        env |= {"LD_PRELOAD": str(preload), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", name, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=ROOT, timeout=600)
