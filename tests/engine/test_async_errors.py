"""Errors of coroutines' requests reach who asked, and nobody else."""

import asyncio
import time

import pytest

from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError, GenerateError, KvCacheFullError, TokenizerError
from tests.engine.coroutines import alone, run, tokens_of
from tests.fakes import core_of, outbox_of, runner_of


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
        core = core_of(engine.engine)
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
            outbox_of(stream._call).items.clear()
            first, second = asyncio.create_task(anext(stream)), asyncio.create_task(anext(stream))
            with pytest.raises(GenerateError, match="one task"):
                await second
            await asyncio.wait([first])
            first.exception()

    run(use, context_size=4096, hook=lambda runner, spans, poll: time.sleep(0.01))


def test_bad_engine():
    with pytest.raises(ConfigError, match="loaded Engine, not str"):
        AsyncEngine("model.gguf")
