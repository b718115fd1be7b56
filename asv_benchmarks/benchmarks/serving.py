"""Many requests at once, against one after another."""

import asyncio
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import oxillama
from oxillama import Scheduler, Sequence, SequencePool

from .common import STORY, load_engine, model_path

N_REQUESTS, N_TOKENS = 8, 32
PROMPTS = [STORY[i:] for i in range(N_REQUESTS)]


class Together:
    """Eight requests of 32 tokens each, greedily; the parameter says how they are asked for."""

    params = ("one after another", "list", "batch", "tasks")
    param_names = ("asked",)

    def setup(self, asked: str) -> None:
        self.engine = load_engine()
        self.run(asked)

    def teardown(self, asked: str) -> None:
        self.engine.close()

    def time_eight(self, asked: str) -> None:
        self.run(asked)

    def run(self, asked: str) -> None:
        options = oxillama.SamplerConfig(temperature=0)
        if asked == "one after another":
            for prompt in PROMPTS:
                self.engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True, sampler=options)
        elif asked == "list":
            self.engine.generate(PROMPTS, max_tokens=N_TOKENS, ignore_eos=True, sampler=options)
        elif asked == "batch":
            for _ in self.engine.batch(PROMPTS, max_tokens=N_TOKENS, ignore_eos=True, sampler=options):
                pass
        else:
            asyncio.run(self.tasks(options))

    async def tasks(self, options: oxillama.SamplerConfig) -> None:
        engine = oxillama.AsyncEngine(self.engine)
        calls = (engine.generate(p, max_tokens=N_TOKENS, ignore_eos=True, sampler=options) for p in PROMPTS)
        await asyncio.gather(*calls)


class OutsideTheModel:
    """Share of a decode step that is not the model's: scheduler, sampling, text, chunks and counters, in percent.

    Outside is the time of `EngineCore.step` without that of `model.forward` and `model.logits`, each measured by one
    look at the clock before and after; the share is its median over the steps in which all requests decode, greedily
    and with one thread, against that and the model's median together. Beyond 8 requests the clock is the thread's CPU
    time, since such a step is long enough to be interrupted.

    "list": one call, whose texts come whole. "streams": each request has a chunk for each token.
    """

    params = ([1, 8, 64], ["list", "streams"])
    param_names = ("requests", "asked")
    unit = "%"
    timeout = 120

    def setup(self, n: int, asked: str) -> None:
        self.engine = oxillama.load(model_path(), num_threads=1)
        self.core = cast(Any, self.engine.context.core)
        self.clock = time.perf_counter if n <= 8 else time.thread_time
        self.model_seconds = 0.0
        self.steps: list[tuple[float, float]] = []  # seconds outside the model, and in it
        model, step = self.core.runner.model, self.core.step
        model.forward, model.logits = self.timed(model.forward), self.timed(model.logits)

        def timed_step() -> None:
            self.model_seconds = 0.0
            began = self.clock()
            step()
            self.steps.append((self.clock() - began - self.model_seconds, self.model_seconds))

        self.core.step = timed_step

    def timed(self, compute: Callable[[object, object], object]) -> Callable[[object, object], object]:
        def run(a: object, b: object) -> object:
            began = self.clock()
            found = compute(a, b)
            self.model_seconds += self.clock() - began
            return found

        return run

    def teardown(self, n: int, asked: str) -> None:
        self.engine.close()

    def track_outside(self, n: int, asked: str) -> float:
        return statistics.median(self.share(n, asked) for _ in range(5))

    def share(self, n: int, asked: str) -> float:
        self.steps.clear()
        prompts = [[5 + i, 6, 7] for i in range(n)]
        sampler, n_tokens = oxillama.SamplerConfig(temperature=0), 100 if n > 8 else 250
        if asked == "list":
            self.engine.generate(prompts, max_tokens=n_tokens, ignore_eos=True, sampler=sampler)
        else:
            streams = {
                self.engine.stream(prompt, max_tokens=n_tokens, ignore_eos=True, sampler=sampler) for prompt in prompts
            }
            while streams:
                streams -= {stream for stream in streams if next(stream, None) is None}
        outside, model = (statistics.median(seconds) for seconds in zip(*self.steps[5:-3], strict=True))
        return float(100 * outside / (outside + model))


class TwoEngines:
    """Two engines at once, each with all cores, against one of them: what they share, and how evenly.

    Of a fair turn the sum is about one engine's, and a token takes twice as long.
    """

    timeout = 120

    def setup_cache(self) -> dict[str, float]:
        engines = [load_engine(), load_engine()]
        for engine in engines:
            self.rate(engine)
        alone = sorted(self.rate(engines[0]) for _ in range(5))[2]
        with ThreadPoolExecutor(2) as threads:
            shared = [list(threads.map(self.rate, engines)) for _ in range(5)]
        for engine in engines:
            engine.close()
        middle = sorted(shared, key=sum)[2]
        return {"sum": sum(middle) / alone, "share": min(middle) / max(middle)}

    def rate(self, engine: oxillama.Engine) -> float:
        """Tokens per second."""
        began = time.perf_counter()
        found = engine.generate(STORY, max_tokens=400, ignore_eos=True, temperature=0)
        return len(found.token_ids) / (time.perf_counter() - began)

    def track_sum(self, found: dict[str, float]) -> float:
        return found["sum"]

    def track_share(self, found: dict[str, float]) -> float:
        return found["share"]


class Scheduling:
    """One step of the scheduler alone, everybody decoding: to choose who computes, and to count what was computed."""

    params = ([1, 64], [None, "shared"])
    param_names = ("running", "prefix cache")
    number = 20  # of the tokens there is room for: 20 for each repetition
    repeat = 20

    def setup(self, running: int, key: str | None) -> None:
        self.scheduler = Scheduler(SequencePool(running * 70), token_budget=512)
        for i in range(running):
            self.scheduler.add_request(Sequence([i] * 100, 1100, cache_key=key))
        while any(len(s.tokens) - s.n_computed > 1 for s in self.scheduler.live.values()):
            self.time_step(running, key)

    def time_step(self, running: int, key: str | None) -> None:
        for sequence, n in self.scheduler.step():
            self.scheduler.advance(sequence, n)
            if sequence.n_computed == len(sequence.tokens):
                sequence.tokens.append(1)
