"""A server whose event loop is watched: python -m tests.server.gaps serve --port 0

It runs the command line. At its end it tells the longest times for which one callback kept the loop since the last
SIGUSR1, by the clock and by the CPU time of its thread: on a loaded machine the clock counts others' turns, and of what
holds the interpreter's lock in other threads the CPU time knows nothing.
"""

import asyncio
import json
import signal
import sys
import time

from oxillama.cli import main

NONE = {"clock": (0.0, ""), "cpu": (0.0, "")}
LONGEST = dict(NONE)


def shown(handle):
    """A callback by its name, and that of its task's coroutine: what it was called with may be megabytes."""
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
    return " ".join(
        getattr(one, "__qualname__", type(one).__name__) for one in (callback, coroutine) if one is not None
    )


def watch():
    """Times every callback of event loops, which are asyncio's own: those of uvloop can't be watched."""
    sys.modules["uvloop"] = None
    run = asyncio.Handle._run

    def timed(handle):
        clock, cpu = time.perf_counter(), time.thread_time()
        run(handle)
        for kind, seconds in (("clock", time.perf_counter() - clock), ("cpu", time.thread_time() - cpu)):
            if seconds > LONGEST[kind][0]:
                LONGEST[kind] = (seconds, shown(handle))

    asyncio.Handle._run = timed
    signal.signal(signal.SIGUSR1, lambda *_: LONGEST.update(NONE))


if __name__ == "__main__":
    watch()
    status = main(sys.argv[1:])
    print("longest " + json.dumps(LONGEST), file=sys.stderr)
    sys.exit(status)
