"""Batches whose reader works, sleeps, calls back or goes: the rest is computed meanwhile, and nothing stays behind."""

import asyncio
import gc
import itertools
import threading
import time

import pytest

from oxillama.core.batch import AWAY_SECONDS
from oxillama.errors import EngineClosedError, GenerateError
from tests.core.batches import PROMPTS, alone
from tests.engine.coroutines import assert_no_thread, own_threads, run
from tests.fakes import assert_idle, core_of, make_engine, runner_of
from tests.processes import fork, in_child, in_threads


def work():
    time.sleep(2 * AWAY_SECONDS)


def slow_start(batch, n=2):
    """The first results, of a reader that works between them."""
    found = []
    for _ in range(n):
        found.append(next(batch))
        work()
    return found


@pytest.mark.parametrize("ordered", [True, False])
def test_the_rest_is_computed_while_the_reader_works(ordered):
    engine = make_engine(n_blocks=200)
    batch = engine.batch(PROMPTS, ordered=ordered, max_tokens=12, seed=1)
    found = slow_start(batch)
    assert_no_thread()  # it has finished all that was taken
    steps = len(runner_of(engine).steps)
    found += batch
    assert len(runner_of(engine).steps) == steps
    assert {r.index: r.token_ids for r in found} == {i: alone(p) for i, p in enumerate(PROMPTS)}
    assert_idle(engine)


def test_who_only_collects_needs_no_thread(monkeypatch):
    monkeypatch.setattr("oxillama.core.batch.AWAY_SECONDS", float("inf"))
    engine = make_engine()
    for r in engine.batch(PROMPTS, max_tokens=12, seed=1):
        assert r.token_ids == alone(PROMPTS[r.index])
        assert own_threads() == []


def test_a_reader_who_works_now_and_then():
    engine = make_engine(hook=lambda runner, spans, poll: time.sleep(0.0005))
    source = itertools.islice(itertools.cycle(PROMPTS), 200)
    for n, r in enumerate(engine.batch(source, max_in_flight=9, max_tokens=12, seed=1)):
        assert r.token_ids == alone(PROMPTS[n % 50])
        if n % 3:
            work()
    assert_no_thread()
    assert_idle(engine)


def test_a_batch_that_nobody_reads_blocks_nobody():
    engine = make_engine(n_blocks=12)
    batch = engine.batch(itertools.cycle(PROMPTS), max_in_flight=8, max_tokens=12, seed=1)
    head = slow_start(batch)
    assert engine.generate([3] * 9, max_tokens=20, seed=1).token_ids == alone([3] * 9, 20)
    assert_no_thread()
    assert len(batch._pipeline._in_flight) <= 8  # what nobody reads doesn't grow
    assert [r.token_ids for r in (*head, *itertools.islice(batch, 60))] == [alone(PROMPTS[i % 50]) for i in range(62)]
    batch.close()
    assert_no_thread()
    assert_idle(engine)


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_leaving_while_the_engines_thread_computes(leave):
    engine = make_engine(context_size=4096, n_blocks=600, hook=lambda runner, spans, poll: time.sleep(0.001))
    # The first two end at once, the others never in the time of a test.
    batch = engine.batch([[3]] * 6, ordered=False, max_tokens=4000, stop=["a", "b", "c"], ignore_eos=True, seed=1)
    slow_start(batch, 1)
    batch.close()
    endless = engine.batch(itertools.chain([[3] * 4095] * 2, itertools.repeat([4])), max_in_flight=4, ignore_eos=True)
    slow_start(endless)
    assert own_threads()
    if leave == "close":
        endless.close()
    del endless
    gc.collect()
    assert_no_thread()
    assert_idle(engine)


def test_the_engine_is_closed_while_its_thread_computes():
    engine = make_engine(context_size=4096, n_blocks=600, hook=lambda runner, spans, poll: time.sleep(0.001))
    batch = engine.batch(itertools.chain([[3] * 4095] * 2, itertools.repeat([4])), max_in_flight=4, ignore_eos=True)
    slow_start(batch)
    engine.close()
    with pytest.raises(EngineClosedError):
        list(batch)
    assert_no_thread()
    assert_idle(engine)


def test_the_engine_is_closed_while_a_reader_waits():
    engine = make_engine(context_size=1 << 16, n_blocks=9000, hook=lambda runner, spans, poll: time.sleep(0.001))
    batch = engine.batch([[3], [4]], ignore_eos=True)

    def read():
        with pytest.raises(EngineClosedError):
            next(batch)

    def close():
        while not core_of(engine).scheduler.running:
            time.sleep(0.001)
        engine.close()

    in_threads(read, close)
    assert_idle(engine)


@fork
def test_a_child_goes_on_with_a_batch():
    engine = make_engine(hook=lambda runner, spans, poll: time.sleep(0.0005))
    batch = engine.batch(PROMPTS, max_in_flight=9, max_tokens=12, seed=1)
    n = len(slow_start(batch))

    def child():
        return [r.token_ids for r in batch] == [alone(p) for p in PROMPTS[n:]]

    assert in_child(child) == 0
    assert [r.token_ids for r in batch] == [alone(p) for p in PROMPTS[n:]]


# ---- callbacks that come back


def test_progress_may_use_the_engine():
    engine, found = make_engine(n_blocks=40), []

    def progress(n, total):
        found.append(engine.generate([6], max_tokens=5, seed=1).token_ids)
        engine.prefill([3])

    assert [r.token_ids for r in engine.batch(PROMPTS[:5], max_tokens=12, seed=1, progress=progress)] == [
        alone(p) for p in PROMPTS[:5]
    ]
    assert found == [alone([6], 5)] * 5


def test_progress_of_tasks_may_use_the_engine():
    async def use(engine):
        found = []

        def progress(n, total):
            found.append(engine.engine.generate([6], max_tokens=5, seed=1).token_ids)

        results = [r.token_ids async for r in engine.batch(PROMPTS[:5], max_tokens=12, seed=1, progress=progress)]
        return results, found

    assert run(use, n_blocks=40) == ([alone(p) for p in PROMPTS[:5]], [alone([6], 5)] * 5)


def test_a_callback_may_close_the_engine():
    engine = make_engine()
    with pytest.raises(EngineClosedError):
        engine.generate([3], ignore_eos=True, on_token=lambda piece: engine.close())
    assert engine.closed
    assert_idle(engine)


def test_what_runs_inside_a_step_may_not_wait_for_one():
    engine, errors = make_engine(), []

    def hook(runner, spans, poll):
        for call in (
            lambda: engine.generate([3], max_tokens=1),
            lambda: list(engine.batch([[3]], max_tokens=1)),
            lambda: engine.session().prefill([3]),
            engine.close,
        ):
            try:
                call()
            except GenerateError as error:
                errors.append("inside its own step" in str(error))

    runner_of(engine).hook = hook
    assert len(engine.generate([4], max_tokens=1, ignore_eos=True).token_ids) == 1
    assert errors == [True] * 4
    assert_idle(engine)


# ---- tasks


def test_a_batch_of_tasks_that_nobody_reads_blocks_nobody():
    async def use(engine):
        async with engine.batch(itertools.cycle(PROMPTS), max_in_flight=8, max_tokens=12, seed=1) as batch:
            await anext(batch)
            found = await asyncio.gather(*(engine.generate([3 + i] * 9, max_tokens=20, seed=1) for i in range(4)))
            while own_threads():
                await asyncio.sleep(0.001)
            assert len(batch._pipeline._in_flight) <= 8
        return [r.token_ids for r in found]

    assert run(use, n_blocks=30) == [alone([3 + i] * 9, 20) for i in range(4)]


def test_leaving_a_batch_of_tasks_frees_its_blocks_at_once():
    async def use(engine):
        pool = core_of(engine.engine).pool.blocks
        batch = engine.batch([[3] * 100] * 4, ignore_eos=True, cache_prompt=False)
        task = asyncio.create_task(anext(batch))
        while pool.n_free == pool.n:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.n_free < pool.n  # it could be asked again
        await batch.aclose()
        await engine.generate([4], max_tokens=1, cache_prompt=False)  # at most the step that was under way
        assert pool.n_free == pool.n

    run(use, context_size=1 << 14, n_blocks=3000)
    assert threading.active_count() >= 1
