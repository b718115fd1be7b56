"""Coroutines on one engine, on the fake model: results as alone, nothing left behind, a loop that keeps going."""

import asyncio
import threading
import time

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.async_requests import INLINE_CHARACTERS
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import GenerateError, GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from tests.engine.coroutines import alone, assert_no_thread, run, tokens_of
from tests.fakes import assert_idle, factory_of, make_engine, outbox_of, runner_of
from tests.processes import in_threads

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

    run(use, context_size=4 * INLINE_CHARACTERS)  # room for the text, or it is refused before it is read


@pytest.mark.parametrize("given", [{"grammar": 'root ::= "ab"'}, {"regex": "ab"}, {"choices": ["ab"]}])
def test_what_texts_must_follow_is_compiled_in_another_thread(given):
    async def use(engine):
        maker, seen = factory_of(engine.engine), []
        compiled = maker.plain_sampler
        maker.plain_sampler = lambda *given: (seen.append(threading.get_ident()), compiled(*given))[1]
        (found,) = await engine.beam_search("abc", beam_width=1, **given)
        assert (found.text, found.finish_reason) == ("ab", "stop")
        assert seen
        assert threading.get_ident() not in seen

    run(use)


def test_schemas_are_compiled_neither_in_the_event_loop_nor_where_steps_are_taken(monkeypatch):
    seen, compiled = [], JsonSchemaCompiler.compile

    def noted(*given, **options):
        seen.append(threading.current_thread())
        return compiled(*given, **options)

    monkeypatch.setattr(JsonSchemaCompiler, "compile", staticmethod(noted))

    async def use(engine):
        other = asyncio.ensure_future(tokens_of(engine.stream([4], max_tokens=40, seed=1, ignore_eos=True)))
        # The fake vocabulary can't spell either; that shows after compiling.
        with pytest.raises(GrammarError, match="no token of the vocabulary"):
            await engine.generate("abc", json_schema={"type": "null"}, max_tokens=9)
        with pytest.raises(GrammarError, match="no token of the vocabulary"):
            await tokens_of(engine.stream("abc", json_schema={"type": "boolean"}, max_tokens=9))
        assert len(seen) == 2
        assert threading.current_thread() not in seen
        assert all(thread.name != "oxillama" for thread in seen)
        assert await other == alone([4], 40, ignore_eos=True)

    run(use, context_size=128)


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
        until, deadline = beats + 100, time.monotonic() + 60
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
        assert len(outbox_of(lazy._call).items) < 30  # the bound: the rest of its own completion
        return head.token_ids + await tokens_of(lazy)

    assert run(use, n_blocks=6) == alone([7], 30, ignore_eos=True)


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
