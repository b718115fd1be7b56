"""Coroutines on one engine, on the fake model: results as alone, nothing left behind, a loop that keeps going."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import oxillama as ox
from oxillama.config import SamplerConfig
from oxillama.engine import CancelToken
from oxillama.engine.async_engine import INLINE_CHARACTERS, AsyncEngine
from oxillama.errors import ConfigError, EngineClosedError, GenerateError, KvCacheFullError, TokenizerError
from tests.engine.fakes import assert_idle, make_engine, runner_of
from tests.engine.test_generate import plain_tokens
from tests.engine.test_threads import fork, in_child, in_threads

SEED = SamplerConfig(seed=1)


def alone(ids, n, **options):
    return plain_tokens(ids, SEED, n, **options)[0]


def own_threads():
    return [t for t in threading.enumerate() if t.name == "oxillama"]


def assert_no_thread():
    """The engine's thread has nothing to do, and ends."""
    deadline = time.monotonic() + 20
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


# ---- results


def test_tasks_get_what_they_get_alone_and_share_steps():
    async def use(engine):
        found = await asyncio.gather(
            *(engine.generate([3 + i] * (5 * i + 1), max_tokens=30, seed=1) for i in range(6)),
            *(tokens_of(engine.stream([9, 3 + i], max_tokens=30, seed=1)) for i in range(3)),
        )
        assert max(len(s) for s in runner_of(engine.engine).steps) > 4
        return [getattr(f, "token_ids", f) for f in found]

    prompts = [[3 + i] * (5 * i + 1) for i in range(6)] + [[9, 3 + i] for i in range(3)]
    assert run(use, context_size=128, prefill_chunk_size=8, n_blocks=40) == [alone(p, 30) for p in prompts]


def test_every_call_gives_what_the_engine_gives():
    messages = [{"role": "user", "content": "ab"}]
    options = {"chat_template": "abc", "max_tokens": 9, "seed": 1}

    async def use(engine):
        plain = engine.engine
        listed = await engine.generate(["a", [3, 4]], max_tokens=9, seed=1)
        assert [r.token_ids for r in listed] == [
            r.token_ids for r in plain.generate(["a", [3, 4]], max_tokens=9, seed=1)
        ]
        answer = await engine.chat(messages, **options)
        assert answer.text == plain.chat(messages, **options).text
        streamed = await engine.chat(messages, stream=True, **options)
        assert await tokens_of(streamed) == answer.token_ids
        for text in ("abc", ["abc", [3, 4]]):
            for pooling in ("mean", "none"):
                got = await engine.embed(text, pooling=pooling)
                for a, b in zip(got, plain.embed(text, pooling=pooling), strict=True):
                    assert np.array_equal(a, b)
        assert np.array_equal(await engine.forward_logits([3, 4, 5]), plain.forward_logits([3, 4, 5]))

    run(use)


def test_long_texts_are_read_in_another_thread():
    text = "abc " * INLINE_CHARACTERS

    async def use(engine):
        here, tokenizer = threading.get_ident(), engine.engine.tokenizer
        seen, encode = [], tokenizer.encode
        tokenizer.encode = lambda text, *rest: (seen.append(threading.get_ident()), encode("abc", *rest))[1]
        await engine.generate(text, max_tokens=3)
        await engine.embed([text])
        await engine.generate("abc", max_tokens=3)
        assert here not in seen[:2]
        assert seen[2] == here

    run(use)


def test_threads_and_tasks_together():
    engine = make_engine(context_size=128)
    expected = alone([4], 40, ignore_eos=True)

    def in_thread():
        return engine.generate([4], max_tokens=40, seed=1, ignore_eos=True).token_ids

    def in_loop():
        async def use():
            asking = (AsyncEngine(engine).generate([4], max_tokens=40, seed=1, ignore_eos=True) for _ in range(3))
            return [r.token_ids for r in await asyncio.gather(*asking)]

        return asyncio.run(use())

    for _ in range(5):
        got = in_threads(in_thread, in_loop, in_thread, in_loop)  # two event loops on one engine
        assert got == [expected, [expected] * 3] * 2
    assert_idle(engine)
    assert_no_thread()


# ---- the event loop


def test_the_event_loop_goes_on_during_a_step():
    beats = 0

    def hook(runner, spans, poll):
        # The step ends only when the event loop has gone round a hundred times more.
        until, deadline = beats + 100, time.monotonic() + 20
        while beats < until:
            assert time.monotonic() < deadline, "the event loop is blocked"
            time.sleep(0.0001)

    async def use(engine):
        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        heart = asyncio.create_task(beat())
        r = await engine.generate([5], max_tokens=4, seed=1)
        numbers = await engine.embed([3, 4])
        heart.cancel()
        return r.token_ids, numbers.shape

    assert run(use, hook=hook) == (alone([5], 4), (8,))


def test_one_call_wakes_all_tasks_of_an_event_loop():
    async def use(engine):
        loop, calls = asyncio.get_running_loop(), []
        call_soon = loop.call_soon_threadsafe

        def counted(function, *rest, **options):
            calls.append(function)
            return call_soon(function, *rest, **options)

        loop.call_soon_threadsafe = counted
        streams = [tokens_of(engine.stream([3 + i], max_tokens=40, seed=1, ignore_eos=True)) for i in range(8)]
        await asyncio.gather(*streams)
        n_streamed = len(calls)
        await engine.generate([[3 + i] for i in range(8)], max_tokens=40, ignore_eos=True)
        return n_streamed, len(calls) - n_streamed, len(runner_of(engine.engine).steps)

    streamed, generated, steps = run(use, n_blocks=40)
    assert streamed <= steps < 8 * 40
    assert generated == 1


def test_a_reader_that_stops_keeps_nothing_from_others():
    async def use(engine):
        lazy = engine.stream([7], max_tokens=30, seed=1, ignore_eos=True)
        head = await anext(lazy)
        for i in range(3):  # more than the cache holds beside the one that is not read
            r = await engine.generate([3 + i], max_tokens=60, seed=1, ignore_eos=True)
            assert r.token_ids == alone([3 + i], 60, ignore_eos=True)
        assert_idle(engine.engine)  # all of it was computed, and its blocks are free
        assert len(lazy._call._outbox.items) < 30  # the bound: the rest of its own completion
        return head.token_ids + await tokens_of(lazy)

    assert run(use, n_blocks=6) == alone([7], 30, ignore_eos=True)


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
            while not engine.engine._core.loop.guests - set(other._call.requests):
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
        deadline = time.monotonic() + 20
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
    assert given_up == ["_StepAbandoned"]
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
            task = asyncio.create_task(engine.generate([4], cancel_token=token))
            await asyncio.sleep(0)
            token.cancel()
            r = await task
            assert (r.finish_reason, r.token_ids) == ("cancelled", [])

    run(use, context_size=1 << 16, n_blocks=1 << 12, prefill_chunk_size=1)


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


# ---- errors


def test_errors_reach_their_task_alone():
    async def use(engine):
        other = engine.stream([5], max_tokens=20, seed=1)
        first = await anext(other)
        found = await asyncio.gather(
            engine.generate([99]),
            engine.generate([]),
            engine.generate([3], temperature=-1),
            engine.generate([3], on_token=lambda piece: 1 / 0, ignore_eos=True),
            engine.generate([3] * 30, max_tokens=30),
            engine.embed([99]),
            return_exceptions=True,
        )
        kinds = [TokenizerError, ConfigError, ConfigError, ZeroDivisionError, KvCacheFullError, TokenizerError]
        assert [type(e) for e in found] == kinds
        with pytest.raises(TypeError, match="temprature"):
            engine.stream([3], temprature=1)
        with pytest.raises(ConfigError, match="one prompt"):
            engine.stream([[3], [4]])
        return first.token_ids + await tokens_of(other)

    assert run(use, context_size=64, n_blocks=2) == alone([5], 20)


def test_a_failing_step_fails_its_requests():
    async def use(engine):
        def hook(runner, spans, poll):
            raise ValueError("the model is broken")

        runner_of(engine.engine).hook = hook
        with pytest.raises(ValueError, match="broken"):
            await engine.generate([3])
        runner_of(engine.engine).hook = None
        return (await engine.generate([5], max_tokens=9, seed=1)).token_ids

    assert run(use) == alone([5], 9)


def test_an_error_of_the_engine_itself_is_told():
    async def use(engine):
        core = engine.engine._core
        schedule, core._schedule = core._schedule, lambda: 1 / 0
        with pytest.raises(GenerateError, match="ZeroDivisionError") as caught:
            await engine.generate([3])
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        core._schedule = schedule
        return (await engine.generate([5], max_tokens=9, seed=1)).token_ids

    assert run(use) == alone([5], 9)


def test_two_tasks_cannot_read_one_stream():
    async def use(engine):
        async with engine.stream([3], ignore_eos=True) as stream:
            await anext(stream)
            stream._call._outbox.items.clear()
            first, second = asyncio.create_task(anext(stream)), asyncio.create_task(anext(stream))
            with pytest.raises(GenerateError, match="one task"):
                await second
            await asyncio.wait([first])
            first.exception()

    run(use, context_size=4096, hook=lambda runner, spans, poll: time.sleep(0.01))


def test_bad_engine():
    with pytest.raises(ConfigError, match="loaded Engine, not str"):
        AsyncEngine("model.gguf")


# ---- callbacks


def test_callbacks_may_use_the_engine_and_be_coroutines():
    async def use(engine):
        inner, pieces = [], []

        async def on_token(piece):
            pieces.append(piece)
            if len(pieces) == 1:
                inner.append((await engine.generate([3], max_tokens=5, seed=1)).token_ids)
                inner.append(engine.engine.generate([3], max_tokens=5, seed=1).token_ids)  # blocks, but never for ever

        r = await engine.generate([5], max_tokens=8, seed=1, on_token=on_token)
        assert "".join(pieces) == r.text
        return r.token_ids, *inner

    assert run(use) == (alone([5], 8), alone([3], 5), alone([3], 5))


def test_a_call_from_inside_a_step_is_refused():
    inner = []

    def hook(runner, spans, poll):
        if not inner:
            for call in (lambda: engine.generate([3]), lambda: engine.truncate(0), engine.close):
                with pytest.raises(GenerateError, match="inside its own step"):
                    call()
                inner.append(True)

    engine = make_engine(hook=hook)
    r = engine.generate([5], max_tokens=8, seed=1)
    assert len(inner) == 3
    assert r.token_ids == alone([5], 8)


# ---- the end


def test_close_ends_what_is_under_way():
    async def use():
        engine = make_engine(context_size=1 << 16)
        wrapped = AsyncEngine(engine)
        stream = wrapped.stream([3], ignore_eos=True)
        await anext(stream)
        tasks = [asyncio.create_task(wrapped.generate([4 + i], ignore_eos=True)) for i in range(4)]
        tasks.append(asyncio.create_task(asyncio.to_thread(engine.generate, [3], ignore_eos=True)))
        while len(engine._core.scheduler.running) + len(engine._core.scheduler.waiting) < 6:
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
        thread.join(20)
        return ok and got == [alone([6], 9)]

    async def use():
        task = asyncio.create_task(AsyncEngine(engine).generate([5], max_tokens=300, seed=1, ignore_eos=True))
        while not engine._core.scheduler.running:
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
from tests.engine.fakes import make_engine
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
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == (["interrupted", "end"] if how == "ctrl-c" else ["end"])


# ---- the shipped model


def test_the_shipped_model():
    prompts = ["Once upon a time", "The cat", "In the morning, the old man went to the"]
    options = {"max_tokens": 24, "seed": 7}

    async def use():
        async with await ox.AsyncEngine.load(num_threads=1) as engine:
            tasks = [engine.generate(p, **options) for p in prompts]
            tasks += [tokens_of(engine.stream(p, **options)) for p in prompts]
            return await asyncio.gather(*tasks), await engine.embed(prompts)

    with ox.load(num_threads=1) as engine:
        expected = [engine.generate(p, **options).token_ids for p in prompts]
        vectors = engine.embed(prompts)
    found, embedded = asyncio.run(use())
    assert [getattr(f, "token_ids", f) for f in found] == expected * 2
    assert np.array_equal(embedded, vectors)
    assert_no_thread()
