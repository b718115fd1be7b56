"""Sessions and searches of coroutines, and the calls that take another thread: results, cancelling, what is left."""

import asyncio
import threading

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.async_requests import AsyncBeamRounds, AsyncSession
from oxillama.errors import ConfigError, ContextOverflowError, GenerateError, SnapshotFormatError
from tests.engine.coroutines import alone, run
from tests.fakes import logits_of, make_engine, session_of

# ---- sessions


def test_a_session_gives_what_sessions_give():
    async def use(engine):
        async with engine.session(cache_prompt=False) as session:
            assert (await session.prefill([3, 4])).tolist() == logits_of([3, 4]).tolist()
            assert (await session.forward_one(5)).tolist() == logits_of([3, 4, 5]).tolist()
            rows = await session.forward_logits([6, 7], 2)
            assert rows.tolist() == np.array([logits_of([3, 4, 6]), logits_of([3, 4, 6, 7])]).tolist()
            assert (session.tokens, session.position, session.closed) == ([3, 4, 6, 7], 4, False)
            other = await session.fork()
            await session.truncate(1)
            assert (await other.forward_decode(9, 3)).tolist() == logits_of([3, 4, 6, 9]).tolist()
            assert (await session.forward_prefill([8], 1)).tolist() == logits_of([3, 8]).tolist()
            assert session.logits.tolist() == logits_of([3, 8]).tolist()
            with pytest.raises(ConfigError, match="tokens is empty"):
                await session.prefill([])
            with pytest.raises(ContextOverflowError):
                await session.prefill([3] * 64)
            assert session.tokens == [3, 8]
            await session.reset()
            assert session.position == 0
        assert session.closed
        with pytest.raises(GenerateError, match="closed"):
            await session.prefill([3])
        await other.close()
        return repr(session)

    assert run(use) == "<AsyncSession of <Session closed>>"


def test_the_engine_has_one_of_its_own():
    async def use(engine):
        prompt = [3, 4, 5]
        await engine.prefill(prompt)
        text = []
        for _ in range(8):
            token = await engine.sample(temperature=1.0, seed=1)
            if engine.is_eos(token):
                break
            text.append(token)
            await engine.forward_one(token)
        fork = await engine.fork()
        assert isinstance(fork, AsyncSession)
        assert fork.tokens == prompt + text
        await fork.close()
        await engine.truncate(1)
        assert (engine.position, engine.logits) == (1, None)
        assert (await engine.forward_prefill([9], 1)).tolist() == logits_of([3, 9]).tolist()
        assert (await engine.forward_decode(8, 1)).tolist() == logits_of([3, 8]).tolist()
        await engine.reset()
        return text

    engine = make_engine()
    engine.prefill([3, 4, 5])
    expected = []
    while len(expected) < 8 and not engine.is_eos(token := engine.sample(temperature=1.0, seed=1)):
        expected.append(token)
        engine.forward_one(token)
    assert run(use) == expected


def test_a_cancelled_task_ends_its_call():
    """The step that is under way is given up; the session is as before, and goes on."""
    entered, left = threading.Event(), threading.Event()

    def slow(runner, spans, poll):
        if len(spans[0].tokens) == 30 and not left.is_set():
            entered.set()
            while not left.wait(0.001):
                poll()

    async def use(engine):
        async with engine.session() as session:
            await session.prefill([3, 4])
            task = asyncio.create_task(session.prefill([5] * 30))
            await asyncio.to_thread(entered.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            left.set()
            assert session.tokens == [3, 4]
            assert (await session.forward_one(6)).tolist() == logits_of([3, 4, 6]).tolist()

    run(use, hook=slow)


def test_a_task_that_is_cancelled_at_once():
    async def use(engine):
        async with engine.session() as session:
            for _ in range(20):
                task = asyncio.create_task(session.prefill([5] * 30))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert session.tokens in ([], [5] * 30)
                await session.reset()

    run(use)


def test_another_task_meanwhile_is_refused():
    go = threading.Event()

    async def use(engine):
        async with engine.session() as session:
            task = asyncio.create_task(session.prefill([5] * 30))
            while not entered.is_set():
                await asyncio.sleep(0.001)
            with pytest.raises(GenerateError, match="in use by another thread"):
                await session.forward_one(3)
            go.set()
            await task

    entered = threading.Event()

    def slow(runner, spans, poll):
        entered.set()
        go.wait(60)

    run(use, hook=slow)


def test_sessions_cancelled_by_threads():
    engine = make_engine()
    session = session_of(engine)
    session.cancel()  # nothing is under way
    assert session.prefill([3]).tolist() == logits_of([3]).tolist()
    session.cancel()
    assert session.position == 1


def test_snapshots_of_sessions(tmp_path):
    async def main():
        async with await ox.AsyncEngine.load(context_size=64) as engine, engine.session() as session:
            ids = await engine.tokenize("Once upon a time")
            row = await session.prefill(ids)
            await session.snapshot(tmp_path / "session")
            assert (tmp_path / "session").read_bytes() == await session.snapshot_bytes()
            assert (await engine.snapshot_info(tmp_path / "session")).kind == "session"
            with engine.engine.resume(tmp_path / "session") as again:
                assert (again.logits == row).all()
            with pytest.raises(SnapshotFormatError, match=r"resume it with Engine\.resume"):
                await engine.resume(tmp_path / "session")

    asyncio.run(main())


# ---- searches


def test_rounds_are_those_of_the_engine():
    async def use(engine):
        found = [beams async for beams in engine.beam_rounds([3, 4], beam_width=3, max_new_tokens=6)]
        rounds = engine.beam_rounds([3, 4], beam_width=3, max_new_tokens=6)
        assert isinstance(rounds, AsyncBeamRounds)
        first = await anext(rounds)
        results = await rounds.results()
        with pytest.raises(StopAsyncIteration):
            await anext(rounds)
        return found, first, results, await engine.beam_search([3, 4], beam_width=3, max_new_tokens=6)

    found, first, results, whole = run(use)
    plain = make_engine()
    assert [[(b.token_ids, b.score) for b in beams] for beams in found] == [
        [(b.token_ids, b.score) for b in beams] for beams in plain.beam_rounds([3, 4], beam_width=3, max_new_tokens=6)
    ]
    assert [b.token_ids for b in first] == [b.token_ids for b in found[0]]
    assert [b.token_ids for b in results] == [b.token_ids for b in whole]


def test_rounds_that_are_left():
    async def use(engine):
        async with engine.beam_rounds([3, 4], beam_width=3, max_new_tokens=40) as rounds:
            await anext(rounds)
        assert [beams async for beams in rounds] == []
        rounds = engine.beam_rounds([3, 4], beam_width=2, max_new_tokens=40)
        task = asyncio.create_task(rounds.results())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rounds.aclose()
        await rounds.aclose()

    run(use)


def test_rounds_are_saved(tmp_path):
    async def main():
        async with await ox.AsyncEngine.load(context_size=64) as engine:
            rounds = engine.beam_rounds("Once", beam_width=2, max_new_tokens=6)
            await anext(rounds)
            await rounds.snapshot(tmp_path / "beams")
            data = await rounds.snapshot_bytes()
            expected = [b.token_ids for b in await rounds.results()]
            for place in (tmp_path / "beams", data):
                assert [b.token_ids for b in engine.engine.resume(place).results()] == expected

    asyncio.run(main())


# ---- what another thread does


def test_texts_and_tokens():
    async def main():
        async with await ox.AsyncEngine.load(context_size=64) as engine:
            plain = engine.engine
            for text in ("Once upon a time", "a red ball " * 400):
                ids = await engine.tokenize(text)
                assert ids == plain.tokenize(text)
                assert await engine.detokenize(iter(ids)) == plain.detokenize(ids)
            assert await engine.tokenize("<|end|>", False, True) == plain.tokenize("<|end|>", False, True)
            messages = [{"role": "user", "content": "Hi"}]
            assert await engine.chat_tokens(messages) == plain.chat_tokens(messages)
            with pytest.raises(ox.UnsupportedModelError, match="fill-in-the-middle"):
                await engine.infill_tokens("a", "b")
            assert (engine.num_threads, engine.labels) == (plain.num_threads, plain.labels)
            assert engine.sampling_defaults == plain.sampling_defaults
            assert await engine.memory_bytes() == plain.memory_bytes()
            assert await engine.offload_counts() == plain.offload_counts()
            await engine.generate("Once upon a time", max_tokens=4)
            assert await engine.prefix_cache_bytes() > 0
            await engine.shrink_to_fit()
            assert await engine.prefix_cache_bytes() == 0
            assert (await engine.metrics_snapshot()).generation_tokens == 4
            assert await engine.as_draft() is plain.as_draft()

    asyncio.run(main())


def test_adapters(adapters):
    path = next(iter(adapters)) if isinstance(adapters, dict) else adapters[0]

    async def main():
        async with await ox.AsyncEngine.load(context_size=64) as engine:
            lora = await engine.load_lora("one", path)
            assert engine.loras == {"one": lora}
            await engine.push_lora("one", 2.0)
            assert engine.pushed_loras == [(lora, 2.0)]
            assert await engine.pop_lora() is lora
            await engine.apply_lora(path)
            await engine.clear_loras()
            assert engine.pushed_loras == []
            await engine.unload_lora("one")
            with pytest.raises(ConfigError, match="one"):
                await engine.unload_lora("one")

    asyncio.run(main())


def test_results_are_those_alone():
    async def use(engine):
        async with engine.session() as session:
            await session.prefill([3] * 5)
            return (await engine.generate([3] * 5, max_tokens=9, seed=1)).token_ids

    assert run(use) == alone([3] * 5, 9)
