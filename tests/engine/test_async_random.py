"""Random calls of tasks and threads on a small cache, many given up: the others get what they get alone."""

import asyncio
import functools
import gc
import random
import threading

import pytest

from oxillama.engine.async_engine import AsyncEngine
from tests.engine.coroutines import alone, assert_no_thread
from tests.fakes import assert_idle, make_engine


@functools.cache
def expected(prompt, n):
    return alone(list(prompt), n)


async def ask(engine, draw, prompt, n):
    """One call of a random kind; checks what it gives, unless it leaves early."""
    options = {"max_tokens": n, "seed": 1}
    match draw.randrange(4):
        case 0:
            assert (await engine.generate(list(prompt), **options)).token_ids == expected(prompt, n)
        case 1:
            got = []
            async for chunk in engine.stream(list(prompt), **options):
                got += chunk.token_ids
                if draw.random() < 0.1:
                    return "left"
            assert got == expected(prompt, n)
        case 2:
            try:
                await asyncio.wait_for(engine.generate(list(prompt), **options), 0.02 * draw.random())
            except TimeoutError:
                return "left"
        case _:
            prompts = [prompt, prompt[:1], prompt[:3]] * 3
            async for r in engine.batch(map(list, prompts), ordered=False, max_in_flight=4, **options):
                assert r.token_ids == expected(prompts[r.index], n)
                if draw.random() < 0.05:
                    return "left"
    return "read"


def ask_in_thread(engine, wrong):
    for i in range(10):
        prompt = (3, 4, 2 + i)
        if engine.generate(list(prompt), max_tokens=20, seed=1).token_ids != expected(prompt, 20):
            wrong.append(prompt)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(4))
def test_random_calls(seed):
    draw = random.Random(seed)
    engine = make_engine(
        context_size=128, n_blocks=draw.choice([8, 12, 30]), prefill_chunk_size=draw.choice([4, 16, 64])
    )
    wrong = []

    async def use():
        threads = [threading.Thread(target=ask_in_thread, args=(engine, wrong)) for _ in range(2)]
        for thread in threads:
            thread.start()
        calls = []
        for _ in range(40):
            prompt = tuple(draw.randrange(2, 17) for _ in range(draw.randrange(1, 60)))
            calls.append(ask(AsyncEngine(engine), draw, prompt, draw.randrange(1, 40)))
        ended = await asyncio.gather(*calls)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        return set(ended)

    assert asyncio.run(asyncio.wait_for(use(), 60)) == {"left", "read"}
    assert wrong == []
    gc.collect()
    assert_no_thread()
    assert_idle(engine)
