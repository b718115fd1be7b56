"""Batches for coroutines, on the fake model."""

import asyncio
import gc
import itertools
import threading

import pytest

from oxillama.core.async_requests import INLINE_CHARACTERS
from oxillama.core.results import BatchFailure, CancelToken
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError, EngineClosedError, SnapshotError
from tests.core.batches import BAD, KINDS, PROMPTS, Source, alone
from tests.engine.coroutines import own_threads, run
from tests.fakes import assert_idle, make_engine, runner_of


async def slowly(prompts):
    for prompt in prompts:
        await asyncio.sleep(0.001)
        yield prompt


@pytest.mark.sweep(2)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("source", [list, iter, slowly])
def test_results_are_those_of_each_alone(source, ordered):
    async def use(engine):
        return [r async for r in engine.batch(source(PROMPTS), ordered=ordered, max_tokens=12, seed=1)]

    found = run(use)
    assert sorted(r.index for r in found) == list(range(50))
    assert not ordered or [r.index for r in found] == list(range(50))
    assert all(r.token_ids == alone(PROMPTS[r.index]) for r in found)


def test_a_queue_with_little_room():
    async def use(engine):
        return [r.token_ids async for r in engine.batch(slowly(PROMPTS), max_tokens=12, seed=1)]

    assert run(use, max_queue_size=3, n_blocks=2) == [alone(p) for p in PROMPTS]


def test_it_shares_steps_and_goes_on_meanwhile():
    async def use(engine):
        batch = engine.batch([[3 + i] for i in range(8)], ignore_eos=True, max_tokens=9)
        await anext(batch)
        while own_threads():  # the others are computed while nobody asks
            await asyncio.sleep(0.001)
        steps = len(runner_of(engine.engine).steps)
        assert len([r async for r in batch]) == 7
        assert len(runner_of(engine.engine).steps) == steps < 8 * 9 / 2

    run(use, n_blocks=40)


def test_memory_is_bounded():
    async def use(engine):
        source = Source(itertools.cycle(PROMPTS))  # endless
        async with engine.batch(source, max_in_flight=5, max_tokens=12, seed=1) as batch:
            for given in range(1, 60):
                r = await anext(batch)
                assert r.token_ids == alone(PROMPTS[r.index % 50])
                assert source.taken - (given - 1) <= 5
        assert source.threads == {threading.get_ident()}
        assert [r async for r in batch] == []

    run(use)


def test_the_event_loop_goes_on_while_prompts_are_taken():
    async def use(engine):
        beats = []

        async def beat():
            while True:
                beats.append(source.taken)
                await asyncio.sleep(0)

        source = Source(PROMPTS)
        heart = asyncio.create_task(beat())
        assert len([r async for r in engine.batch(source, max_tokens=2)]) == 50
        heart.cancel()
        assert max(b - a for a, b in itertools.pairwise(beats)) <= 1

    run(use)


def test_errors_in_their_places():
    async def use(engine):
        found = [r async for r in engine.batch(BAD, errors="yield", max_tokens=12, seed=1)]
        assert {i: type(r.error) for i, r in enumerate(found) if isinstance(r, BatchFailure)} == KINDS
        batch, good, errors = engine.batch(slowly(BAD), max_tokens=12, seed=1), [], 0
        while True:
            try:
                good.append((await anext(batch)).index)
            except StopAsyncIteration:
                break
            except ValueError:
                errors += 1
        assert (good, errors) == ([0, 3, 7], 5)
        with pytest.raises(ConfigError, match="not str"):
            engine.batch("abc")
        with pytest.raises(ConfigError, match=r"AsyncEngine.batch"):
            engine.engine.batch(slowly(BAD))

    run(use)


@pytest.mark.parametrize("kind", [iter, slowly])
def test_an_error_of_the_source_comes_after_the_results_before_it(kind):
    def prompts():
        yield from PROMPTS[:5]
        raise OSError("the disk is gone")

    async def use(engine):
        batch = engine.batch(kind(prompts()), max_tokens=12, seed=1)
        assert [(await anext(batch)).token_ids for _ in range(5)] == [alone(p) for p in PROMPTS[:5]]
        with pytest.raises(OSError, match="disk"):
            await anext(batch)
        assert [r async for r in batch] == []

    run(use)


@pytest.mark.parametrize("how", ["break", "aclose", "cancel", "waiting source"])
def test_leaving_early_frees_everything(how):
    async def never():
        yield [3]
        yield [4]
        await asyncio.sleep(1000)

    async def use(engine):
        source = never() if how == "waiting source" else itertools.repeat([3, 4])
        batch = engine.batch(source, max_tokens=12)
        await anext(batch)
        if how == "aclose":
            await batch.aclose()
            await batch.aclose()
        elif how in ("cancel", "waiting source"):

            async def read(batch):
                return [r async for r in batch]

            task = asyncio.create_task(read(batch))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        del batch
        gc.collect()
        while own_threads():
            await asyncio.sleep(0.001)
        assert_idle(engine.engine)

    run(use)


def test_cancelled_while_a_long_prompt_is_read_in_another_thread():
    inside, leave = threading.Event(), threading.Event()

    async def use(engine):
        tokenizer = engine.engine.tokenizer

        def encode(text, *rest):
            inside.set()
            assert leave.wait(60)
            return [3, 4]

        tokenizer.encode = encode
        task = asyncio.create_task(anext(engine.batch(["a" * (INLINE_CHARACTERS + 1)], ignore_eos=True)))
        while not inside.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        leave.set()

    run(use, context_size=1 << 14)


def test_a_cancel_token_ends_the_batch():
    async def use(engine):
        token, source = CancelToken(), Source(itertools.repeat([3, 4]))
        batch = engine.batch(source, max_in_flight=30, ignore_eos=True, max_tokens=12, cancel_token=token)
        await anext(batch)
        token.cancel()
        rest = [r.finish_reason async for r in batch]
        assert len(rest) == source.taken - 1
        assert set(rest) <= {"cancelled", "length"}

    run(use)


def test_close_ends_the_batch():
    async def use(engine):
        batch = engine.batch(itertools.repeat([3]), errors="yield", max_tokens=12)
        await anext(batch)
        await engine.close()
        with pytest.raises(EngineClosedError):
            [r async for r in batch]
        assert [r async for r in batch] == []

    asyncio.run(use(AsyncEngine(make_engine())))


def test_it_can_not_be_saved():
    async def use():
        async with AsyncEngine(make_engine()).batch(PROMPTS, max_tokens=3) as batch:
            with pytest.raises(SnapshotError, match="prompts that have none to a new batch"):
                await batch.snapshot("path")

    asyncio.run(use())
