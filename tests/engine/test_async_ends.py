"""Coroutines that leave early, or close the engine: nothing stays behind, and nobody else notices."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest

from oxillama.core.results import CancelToken
from oxillama.core.step_loop import StepLoop
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import EngineClosedError
from tests.engine.coroutines import alone, assert_no_thread, own_threads, run, tokens_of
from tests.fakes import assert_idle, core_of, make_engine, runner_of
from tests.processes import fork, in_child

# ---- leaving early


def test_cancelling_a_task_frees_its_blocks():
    async def use(engine):
        other = engine.stream([5], max_tokens=20, seed=1)
        first = await anext(other)
        for call in (
            lambda: engine.generate([3] * 20, ignore_eos=True),
            lambda: engine.generate([[3], [4]], ignore_eos=True, on_token=lambda *a: None),
            lambda: tokens_of(engine.stream([3], ignore_eos=True)),
            lambda: engine.chat([{"role": "user", "content": "a"}], chat_template="a", ignore_eos=True),
        ):
            task = asyncio.create_task(call())
            while not core_of(engine.engine).loop.background_requests - set(other._call.requests):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return first.token_ids + await tokens_of(other)

    assert run(use, context_size=2048) == alone([5], 20)


def test_a_step_that_nobody_needs_any_more_is_given_up():
    inside, given_up = threading.Event(), []

    def hook(runner, spans, poll):
        inside.set()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                poll()
            except BaseException as error:
                given_up.append(type(error).__name__)
                raise
            time.sleep(0.001)

    async def use(engine):
        task = asyncio.create_task(engine.generate([3] * 50))
        while not inside.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_on = make_engine(hook=hook)
    asyncio.run(asyncio.wait_for(use(AsyncEngine(run_on)), 60))
    assert_no_thread()
    assert given_up == ["StepAbandoned"]
    assert_idle(run_on)


@pytest.mark.parametrize("how", ["break", "aclose", "with", "cancel token", "timeout"])
def test_leaving_a_stream_early(how):
    async def use(engine):
        token = CancelToken()
        stream = engine.stream([3], ignore_eos=True, cancel_token=token)
        if how == "timeout":
            runner_of(engine.engine).hook = lambda runner, spans, poll: time.sleep(0.05)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(stream), 0.001)
            assert await tokens_of(stream) == []
            return
        await anext(stream)
        if how == "break":
            del stream
        elif how == "aclose":
            await stream.aclose()
            await stream.aclose()
            assert await tokens_of(stream) == []
        elif how == "with":
            async with stream:
                pass
        else:
            token.cancel()
            assert [c.finish_reason async for c in stream][-1] == "cancelled"
        await engine.generate([4], max_tokens=1)  # a step later
        assert_idle(engine.engine)

    run(use, context_size=1 << 16, n_blocks=5000)


def test_a_cancel_token_ends_what_still_waits():
    async def use(engine):
        token = CancelToken()
        async with engine.stream([3], ignore_eos=True) as running:
            await anext(running)
            task = asyncio.create_task(engine.generate([4] * 60, max_tokens=1, cancel_token=token))
            await asyncio.sleep(0)
            token.cancel()
            r = await task
            assert (r.finish_reason, r.token_ids) == ("cancelled", [])

    run(use, n_blocks=4, hook=lambda runner, spans, poll: time.sleep(0.005))


def test_a_stream_that_was_never_read_costs_nothing():
    async def use(engine):
        engine.stream([3])
        await engine.stream([3]).aclose()
        assert own_threads() == []

    run(use)


def test_a_closed_event_loop_hears_nothing_more():
    engine = make_engine(context_size=1 << 16, hook=lambda runner, spans, poll: time.sleep(0.001))
    stream = AsyncEngine(engine).stream([3], ignore_eos=True)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(stream))
    waiting = loop.create_task(anext(stream))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert_no_thread()  # ended by the first call into the closed loop
    assert_idle(engine)
    waiting._log_destroy_pending = False
    waiting.get_coro().close()


# ---- the end


def test_requests_that_follow_one_another_share_a_thread(monkeypatch):
    monkeypatch.setattr("oxillama.core.step_loop.LINGER", 60.0)

    async def use():
        wrapped, seen = AsyncEngine(make_engine()), set()
        for i in range(5):
            await wrapped.generate([3 + i], max_tokens=2, seed=1)
            seen.update(own_threads())
        assert len(seen) == 1
        await wrapped.close()  # which doesn't wait for more
        assert own_threads() == []

    asyncio.run(use())


class ThreadingWithoutLocks:
    """The module, in which the engine's own thread finds no memory for a lock."""

    def __getattr__(self, name):
        return getattr(threading, name)

    def Lock(self):
        if threading.current_thread().name == "oxillama":
            raise MemoryError
        return threading.Lock()


def test_a_thread_without_memory_for_waiting_serves_what_follows(monkeypatch):
    monkeypatch.setattr("oxillama.core.step_loop.threading", ThreadingWithoutLocks())

    async def use(wrapped):
        for i in range(3):
            assert (await wrapped.generate([3 + i], max_tokens=2, seed=1)).token_ids == alone([3 + i], 2)
            await asyncio.sleep(0.1)  # until the thread waits, and maybe ends

    run(use)


def test_an_error_outside_of_steps_ends_no_thread(monkeypatch):
    real, errors = StepLoop._goes_on, [MemoryError(), MemoryError()]

    def goes_on(self):
        if errors:
            raise errors.pop()
        return real(self)

    monkeypatch.setattr(StepLoop, "_goes_on", goes_on)

    async def use(wrapped):
        for i in range(3):
            assert (await wrapped.generate([3 + i], max_tokens=2, seed=1)).token_ids == alone([3 + i], 2)
        assert errors == []

    run(use)


def test_close_ends_what_is_under_way():
    async def use():
        engine = make_engine(context_size=1 << 16)
        wrapped = AsyncEngine(engine)
        stream = wrapped.stream([3], ignore_eos=True)
        await anext(stream)
        tasks = [asyncio.create_task(wrapped.generate([4 + i], ignore_eos=True)) for i in range(4)]
        tasks.append(asyncio.create_task(asyncio.to_thread(engine.generate, [3], ignore_eos=True)))
        while len(core_of(engine).scheduler.running) + len(core_of(engine).scheduler.waiting) < 6:
            await asyncio.sleep(0)
        await wrapped.close()
        assert wrapped.closed
        assert own_threads() == []
        await wrapped.close()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(e) for e in found] == [EngineClosedError] * 5
        with pytest.raises(EngineClosedError, match="during the request"):
            await tokens_of(stream)
        assert_idle(engine)
        assert "closed" in repr(wrapped)

    asyncio.run(asyncio.wait_for(use(), 60))


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.generate("a"),
        lambda e: e.generate(["a"]),
        lambda e: tokens_of(e.stream("a")),
        lambda e: e.chat([{"role": "user", "content": "a"}]),
        lambda e: e.embed("a"),
        lambda e: e.forward_logits([3]),
        lambda e: e.__aenter__(),
    ],
)
def test_a_closed_engine_says_so(use):
    async def main():
        async with AsyncEngine(make_engine()) as engine:
            pass
        with pytest.raises(EngineClosedError, match="closed"):
            await use(engine)

    asyncio.run(main())


def test_a_dropped_engine_is_freed():
    import weakref

    async def use():
        engine = AsyncEngine(make_engine())
        runner = weakref.ref(runner_of(engine.engine))
        await engine.generate([3], max_tokens=5)
        return runner

    runner = asyncio.run(use())
    assert_no_thread()
    assert runner() is None


@fork
def test_a_child_has_no_part_in_the_tasks_of_its_parent():
    engine = make_engine(context_size=4096, n_blocks=600, hook=lambda runner, spans, poll: time.sleep(0.001))

    def child():
        # what the parent's tasks asked for is gone; the engine works, for threads and for coroutines of its own
        assert_idle(engine)
        ok = engine.generate([6], max_tokens=9, seed=1).token_ids == alone([6], 9)

        async def again():
            return (await AsyncEngine(engine).generate([6], max_tokens=9, seed=1)).token_ids

        got = []
        thread = threading.Thread(target=lambda: got.append(asyncio.run(again())))
        thread.start()
        thread.join(60)
        return ok and got == [alone([6], 9)]

    async def use():
        task = asyncio.create_task(AsyncEngine(engine).generate([5], max_tokens=300, seed=1, ignore_eos=True))
        while not core_of(engine).scheduler.running:
            await asyncio.sleep(0)
        assert [in_child(child) for _ in range(3)] == [0] * 3
        return (await task).token_ids

    assert asyncio.run(use()) == alone([5], 300, ignore_eos=True)
    assert_no_thread()


@pytest.mark.parametrize("how", ["ctrl-c", "exit"])
def test_a_process_ends_with_work_under_way(how):
    """Ctrl-C in an event loop reaches the program; the engine's thread keeps no process alive, and harms no exit."""
    code = f"""
import asyncio, signal, time
from tests.fakes import make_engine
from oxillama.engine.async_engine import AsyncEngine

engine = make_engine(context_size=1 << 20, n_blocks=1 << 16, hook=lambda runner, spans, poll: time.sleep(0.001))
stream = AsyncEngine(engine).stream([3], ignore_eos=True)

async def main():
    async for chunk in stream:
        {"signal.raise_signal(signal.SIGINT)" if how == "ctrl-c" else "break"}

loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main()) if {how == "exit"} else asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
print("end")
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == (["interrupted", "end"] if how == "ctrl-c" else ["end"])
