"""Coroutines on an engine of the fake model, which is idle afterwards and has no thread."""

import asyncio
import gc
import threading
import time

from oxillama.engine.async_engine import AsyncEngine
from tests.fakes import assert_idle, drawn, make_engine
from tests.plain_loop import plain_tokens

SEED = drawn(seed=1)


def alone(ids, n, **options):
    return plain_tokens(ids, SEED, n, **options)[0]


def own_threads():
    return [t for t in threading.enumerate() if t.name == "oxillama"]


def assert_no_thread():
    """The engine's thread has nothing to do, and ends."""
    deadline = time.monotonic() + 60
    while own_threads():
        assert time.monotonic() < deadline, "the thread goes on"
        time.sleep(0.001)


def run(use, **options):
    """Runs `use(AsyncEngine)` on a fake engine that is idle afterwards, and has no thread; its result."""
    engine = make_engine(**options)
    result = asyncio.run(asyncio.wait_for(use(AsyncEngine(engine)), 60))
    gc.collect()
    assert_no_thread()
    assert_idle(engine)
    return result


async def tokens_of(stream):
    return [t async for chunk in stream for t in chunk.token_ids]
