"""One scene in a forked child, with a fault that comes from outside."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import oxillama as ox
from tests.faults.scenes import Scene
from tests.faults.trees import INTERRUPTED

SECONDS = 60  # after which a child hangs, on however busy a machine
PDEATHSIG, SET_PTRACER, ANY = 1, 0x59616D61, -1


@dataclass
class Child:
    """pid: of the process, which waits to be told to begin."""

    pid: int
    told: socket.socket

    def begin(self) -> dict[str, Any] | None:
        """Acts: what came of it; None of a process that died."""
        return self._ask(b"begin")

    def go_on(self) -> dict[str, Any] | None:
        """Acts again, and proves that all is as it was."""
        return self._ask(b"go on")

    def _ask(self, order: bytes) -> dict[str, Any] | None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.told.send(order)
        try:
            answer = self.told.recv(1 << 16)
        except TimeoutError:
            return {"error": "it hangs", "typed": False}
        except ConnectionResetError:
            return None
        return json.loads(answer) if answer else None


@contextlib.contextmanager
def acting(scene: Scene, folder: Path, before: Callable[[], object] = bool) -> Iterator[Child]:
    """A child that is ready. `before` runs in it, before it acts."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            mine.close()
            _serve(scene, folder, before, its)
            status = 0
        finally:
            os._exit(status)
    its.close()
    mine.settimeout(SECONDS)
    try:
        assert mine.recv(100) == b"ready"
        yield Child(pid, mine)
    finally:
        mine.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _serve(scene: Scene, folder: Path, before: Callable[[], object], told: socket.socket) -> None:
    library = ctypes.CDLL(None)
    library.prctl(PDEATHSIG, signal.SIGKILL)
    library.prctl(SET_PTRACER, ctypes.c_ulong(ANY))  # where only ancestors may trace, that is not strace
    before()
    gc.freeze()  # what the parent has is looked at no more
    n_files = len(os.listdir("/proc/self/fd"))
    told.send(b"ready")  # who traces it counts from here on
    told.recv(100)
    os.getppid()  # marks the beginning in a trace, and the end
    outcome = attempt(lambda: scene.act(folder))
    os.getppid()
    told.send(json.dumps(outcome).encode())
    told.recv(100)
    outcome = attempt(lambda: scene.act(folder))
    gc.collect()
    outcome["files"] = len(os.listdir("/proc/self/fd")) - n_files
    outcome["proof"] = proof_of(scene)
    told.send(json.dumps(outcome).encode())
    told.recv(100)


def proof_of(scene: Scene) -> str:
    try:
        return blake2b(repr(scene.proof()).encode()).hexdigest()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Rung(Exception):
    """Raised by a handler of a signal, as programs do it to limit time."""


def attempt(act: Callable[[], object]) -> dict[str, Any]:
    """error: what was raised, if anything was. typed: whether it is one of ours, or the handler's of a signal."""
    try:
        act()
    except ox.OxiLlamaError as error:
        return {"error": f"{type(error).__name__}: {error}", "typed": True}
    except (KeyboardInterrupt, Rung):
        return {"error": INTERRUPTED, "typed": True}
    except BaseException as error:
        places = [f"{place.filename}:{place.lineno}" for place in traceback.extract_tb(error.__traceback__)]
        return {"error": f"{error!r} at {', '.join(places[-5:])}", "typed": False}
    return {"error": None, "typed": True}
