"""Threads that can't be started: a typed error instead of a bare RuntimeError."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from oxillama._util.lazy import LateModule
from oxillama.errors import ThreadStartError

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = LateModule("asyncio")

__all__ = ["in_thread", "starting"]

P = ParamSpec("P")
T = TypeVar("T")

NO_THREAD = "can't start new thread"  # what Python says where the system has too many

# Event loops whose default pool has a thread. One that has a pool without any can't be closed by `asyncio.run`.
_with_threads: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


@contextlib.contextmanager
def starting(what: str) -> Iterator[None]:
    """Raises ThreadStartError for a thread that can't be started inside; `what` it is for."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, ThreadStartError) or NO_THREAD not in str(error):
            raise
        raise ThreadStartError(
            f"{what} couldn't be started: {error}; raise the limit on processes (ulimit -u, a container's pids limit) "
            "or on memory"
        ) from error


async def in_thread(call: Callable[P, T], /, *args: P.args, **given: P.kwargs) -> T:
    """`asyncio.to_thread`. Raises ThreadStartError where no thread can be started."""
    with starting("a thread for the call"):
        _look_for_thread(asyncio.get_running_loop())
        return await asyncio.to_thread(call, *args, **given)


def _look_for_thread(loop: asyncio.AbstractEventLoop) -> None:
    """Starts a thread that ends at once, the first time. Raises RuntimeError."""
    if loop not in _with_threads:
        thread = threading.Thread(target=_nothing, name="oxillama-trial")
        thread.start()
        thread.join()
        _with_threads.add(loop)


def _nothing() -> None:
    pass
