"""What the engine counts is what its requests really were; its clock is one that a step moves by one second."""

import asyncio
import dataclasses
import itertools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from oxillama.core.metrics_recorder import MetricsRecorder
from oxillama.core.request import Request, ResultQueue
from oxillama.core.results import CancelToken
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import EngineClosedError, GenerateError, KvCacheFullError
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence
from tests.fakes import EOS, N_VOCAB, core_of, logits_of, make_engine, runner_of
from tests.processes import fork, in_child, in_threads
from tests.prometheus import parse


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the engine sees; it begins late, since 0.0 means never."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def timed_engine(clock, **options):
    """Each forward takes a second; `seen` gets a snapshot from within each."""
    seen = []

    def hook(runner, spans, poll):
        clock.now += 1.0
        seen.append(engine.metrics_snapshot())

    engine = make_engine(hook=hook, **options)
    return engine, seen


def check_whole(s):
    """What holds of any snapshot, if no request's first draw is the end of its text."""
    assert s.time_to_first_token.count + s.inter_token_latency.count == s.generation_tokens
    assert s.request_latency.count == sum(s.finished.values())
    assert s.prefill_tokens >= s.prompt_tokens - s.prefix_hits
    assert s.iteration_tokens.sum >= s.prefill_tokens
    assert min(s.running, s.waiting, s.kv_blocks_used, s.slots_used) >= 0


def test_a_new_engine_has_counted_nothing():
    s = make_engine(n_slots=4).metrics_snapshot()
    samples = [v for _, _, found in parse(s.prometheus()).values() for v in found.values()]
    assert sorted(set(samples)) == [0.0, float(s.slots), float(s.kv_blocks)]


def test_tokens_and_reasons_of_many_requests():
    engine = make_engine(context_size=128, n_blocks=64, prefill_chunk_size=8)
    prompts = [[3 + i] * (4 * i + 1) for i in range(8)]
    results = [
        *engine.generate(prompts, max_tokens=20, seed=1),
        *engine.generate(["the ab", "ab!"], max_tokens=60, seed=2, stop=["a", "b"]),
    ]
    s = engine.metrics_snapshot()
    assert s.prompt_tokens == sum(r.prompt_tokens for r in results)
    assert s.prefill_tokens + s.prefix_hits == s.prompt_tokens
    assert s.generation_tokens == sum(len(r.token_ids) for r in results)
    reasons = [r.finish_reason for r in results]
    assert s.finished == {
        **{r: reasons.count(r) for r in ("stop", "length")},
        "cancelled": 0,
        "deadline": 0,
        "error": 0,
    }
    assert min(s.finished["stop"], s.finished["length"]) > 0
    assert s.time_to_first_token.count == s.queue_time.count == len(results)
    assert s.inter_token_latency.count == sum(max(0, len(r.token_ids) - 1) for r in results)
    assert s.time_to_first_token.sum == pytest.approx(sum(r.timings.time_to_first_token for r in results))
    assert (s.running, s.waiting) == (0, 0)
    steps = runner_of(engine).steps
    assert (s.iteration_tokens.count, s.iteration_tokens.sum) == (len(steps), sum(map(sum, steps)))
    check_whole(s)


def test_seconds_of_a_request(clock):
    engine, seen = timed_engine(clock, prefill_chunk_size=4)
    engine.generate([3] * 10, max_tokens=5, ignore_eos=True, seed=1)
    s = engine.metrics_snapshot()
    assert (s.prefill_seconds, s.decode_seconds) == (3.0, 4.0)
    assert (s.time_to_first_token.count, s.time_to_first_token.sum) == (1, 3.0)
    assert (s.inter_token_latency.count, s.inter_token_latency.sum) == (4, 4.0)
    assert (s.queue_time.count, s.queue_time.sum) == (1, 0.0)
    assert (s.request_latency.count, s.request_latency.sum) == (1, 7.0)
    assert [x.prefill_tokens for x in seen] == [0, 4, 8, 10, 10, 10, 10]
    assert [x.prompt_tokens for x in seen] == [0, 0, 0, 10, 10, 10, 10]
    assert [x.generation_tokens for x in seen] == [0, 0, 0, 1, 2, 3, 4]
    assert {(x.running, x.waiting) for x in seen} == {(1, 0)}


def test_a_step_that_reads_and_generates_is_divided_by_tokens(clock):
    engine, _ = timed_engine(clock, prefill_chunk_size=4)
    stream = engine.stream([4], max_tokens=4, ignore_eos=True, seed=1)
    next(stream)
    engine.generate([3] * 6, max_tokens=1, ignore_eos=True, seed=1)
    list(stream)
    steps = runner_of(engine).steps
    assert steps == [[1], [1], [1, 3], [1, 3]]
    s = engine.metrics_snapshot()
    assert (s.prefill_seconds, s.decode_seconds) == (1 + 2 * 0.75, 2 * 0.25 + 1)
    assert (s.inter_token_latency.count, s.inter_token_latency.sum) == (3, 3.0)


def test_who_waits_is_seen_waiting(clock):
    engine, seen = timed_engine(clock, prefill_chunk_size=1)  # one token a step is one request a step
    engine.generate([[3], [4, 5]], max_tokens=2, ignore_eos=True, seed=1)
    assert [(x.running, x.waiting) for x in seen] == [(1, 1), (1, 1), (1, 0), (1, 0), (1, 0)]
    s = engine.metrics_snapshot()
    assert (s.running, s.waiting) == (0, 0)
    assert (s.queue_time.count, s.queue_time.sum) == (2, 2.0)
    assert s.request_latency.sum == 2.0 + 5.0


def test_blocks_and_slots_are_those_of_the_pool(clock):
    engine, seen = timed_engine(clock, n_slots=4)
    engine.generate([3] * 20, max_tokens=2, ignore_eos=True)
    assert all((x.kv_blocks_used, x.kv_blocks, x.slots) == (2, 16, 4) for x in seen)
    assert all(x.slots_used >= 2 for x in seen)
    assert {x.kv_cache_usage for x in seen} == {2 / 16}
    pool = core_of(engine).pool
    s = engine.metrics_snapshot()
    assert s.kv_blocks_used == pool.n_blocks - pool.blocks.n_available
    assert s.slots_used == pool.n_slots - pool.slots.n_available


def test_a_model_without_blocks_uses_none():
    assert make_engine(n_blocks=0, n_slots=4).metrics_snapshot().kv_cache_usage == 0.0


def test_a_text_that_ends_at_once(clock):
    engine, _ = timed_engine(clock)
    prompt = next(p for p in itertools.product(range(2, N_VOCAB), repeat=2) if np.argmax(logits_of([*p])) == EOS)
    assert engine.generate(prompt, temperature=0.0).token_ids == []
    s = engine.metrics_snapshot()
    assert s.finished == {"stop": 1, "length": 0, "cancelled": 0, "deadline": 0, "error": 0}
    assert (s.prompt_tokens, s.generation_tokens) == (2, 0)
    assert (s.time_to_first_token.count, s.inter_token_latency.count) == (1, 0)


def test_numbers_of_texts_are_prompts_without_tokens():
    engine = make_engine(prefill_chunk_size=4)
    engine.embed([3] * 9)
    engine.embed([[4, 5], [6]], pooling="last")
    engine.forward_logits([7] * 6)
    s = engine.metrics_snapshot()
    assert (s.prompt_tokens, s.prefill_tokens, s.generation_tokens) == (18, 18, 0)
    assert (s.finished["stop"], s.time_to_first_token.count, s.decode_seconds) == (4, 0, 0.0)


def test_a_session_counts_the_tokens_of_each_call():
    engine = make_engine()
    engine.prefill([3, 4, 5])
    engine.forward_one(6)
    engine.forward_prefill([7, 8], 1)
    s = engine.metrics_snapshot()
    assert (s.prompt_tokens, s.finished["stop"], s.generation_tokens) == (6, 3, 0)
    assert s.kv_blocks_used == 1
    engine.reset()
    assert engine.metrics_snapshot().kv_blocks_used == 0


# ---- what goes wrong


def test_a_closed_stream_and_a_cancelled_prompt():
    engine, token = make_engine(), CancelToken()
    stream = engine.stream([3], ignore_eos=True, seed=1)
    tokens = next(stream).token_ids
    stream.close()
    token.cancel()
    engine.generate([4], cancel_token=token)
    s = engine.metrics_snapshot()
    assert s.finished == {"stop": 0, "length": 0, "cancelled": 2, "deadline": 0, "error": 0}
    assert (s.prompt_tokens, s.generation_tokens) == (1, len(tokens))
    assert (s.queue_time.count, s.running, s.waiting) == (1, 0, 0)
    check_whole(s)


def test_an_abandoned_step_is_not_counted(clock):
    engine, _ = timed_engine(clock)
    token, inner = CancelToken(), runner_of(engine).hook

    def hook(runner, spans, poll):
        inner(runner, spans, poll)
        token.cancel()
        poll()

    runner_of(engine).hook = hook
    engine.generate([3] * 5, cancel_token=token)
    s = engine.metrics_snapshot()
    assert (s.prefill_tokens, s.prompt_tokens, s.prefill_seconds, s.iteration_tokens.count) == (0, 0, 0.0, 0)
    assert (s.finished["cancelled"], s.running, s.waiting) == (1, 0, 0)


def test_a_step_that_fails():
    def hook(runner, spans, poll):
        if len(runner.steps) == 2:
            raise GenerateError("broken")

    engine = make_engine(hook=hook)
    with pytest.raises(GenerateError, match="broken"):
        engine.generate([[3], [4]], max_tokens=9, ignore_eos=True)
    s = engine.metrics_snapshot()
    assert s.finished == {"stop": 0, "length": 0, "cancelled": 0, "deadline": 0, "error": 2}
    assert (s.prompt_tokens, s.generation_tokens, s.running, s.waiting) == (2, 4, 0, 0)
    check_whole(s)


def test_a_request_that_is_refused_in_the_queue_is_an_error():
    def refuse(sequence):
        raise GenerateError("no")

    engine, outbox = make_engine(), ResultQueue(1)
    with pytest.raises(GenerateError, match="no"):
        core_of(engine).run([Request(Sequence([3], 1), outbox, begin=refuse)], outbox)
    s = engine.metrics_snapshot()
    assert (s.finished["error"], s.request_latency.count, s.queue_time.count, s.waiting) == (1, 1, 0, 0)


def test_what_was_never_submitted_is_not_counted():
    engine = make_engine(n_blocks=1)
    before = engine.metrics_snapshot()
    with pytest.raises(KvCacheFullError):
        engine.generate([3] * 40)
    after = engine.metrics_snapshot()
    assert after.rejected == {"queue_full": 0, "too_large": 1}
    assert dataclasses.replace(after, rejected=before.rejected) == before


def test_close_with_work_under_way():
    engine = make_engine()
    stream = engine.stream([3], ignore_eos=True, seed=1)
    n = len(next(stream).token_ids)
    engine.close()
    with pytest.raises(EngineClosedError):
        list(stream)
    s = engine.metrics_snapshot()
    assert s.finished == {"stop": 0, "length": 0, "cancelled": 1, "deadline": 0, "error": 0}
    assert (s.generation_tokens, s.running, s.waiting, s.kv_blocks_used) == (n, 0, 0, 0)
    check_whole(s)


# ---- seen from other threads


def rising(s):
    """Every number of a snapshot that must never fall."""
    found = parse(s.prometheus())
    return {key: v for kind, _, samples in found.values() if kind != "gauge" for key, v in samples.items()}


def test_numbers_only_rise_and_are_never_half_a_step():
    engine = make_engine(context_size=256, n_blocks=64, prefill_chunk_size=8)
    done, seen = threading.Event(), []

    def watch():
        while not done.is_set() or len(seen) < 2:
            seen.append(engine.metrics_snapshot())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()

    def work(i):
        return lambda: [engine.generate([3 + i] * 9 * i, max_tokens=40, ignore_eos=True, seed=1) for _ in range(3)]

    results = [r for found in in_threads(*(work(i) for i in range(1, 7))) for r in found]
    done.set()
    watcher.join(60)
    assert not watcher.is_alive()
    assert len({s.generation_tokens for s in seen}) > 10
    last = rising(seen[0])
    for s in seen:
        check_whole(s)
        now = rising(s)
        assert all(now[key] >= value for key, value in last.items())
        last = now
    assert engine.metrics_snapshot().generation_tokens == sum(len(r.token_ids) for r in results) == 18 * 40


def test_a_snapshot_during_a_step_is_the_state_before_it():
    began, go = threading.Event(), threading.Event()

    def hook(runner, spans, poll):
        if runner.steps:
            began.set()
            assert go.wait(60)

    engine = make_engine(hook=hook)
    worker = threading.Thread(target=engine.generate, args=([3],), kwargs={"max_tokens": 2, "ignore_eos": True})
    worker.start()
    assert began.wait(60)
    s = engine.metrics_snapshot()  # doesn't wait for the step
    assert (s.prompt_tokens, s.generation_tokens, s.running) == (1, 1, 1)
    go.set()
    worker.join(60)
    s = engine.metrics_snapshot()
    assert (s.generation_tokens, s.running, s.finished["length"]) == (2, 0, 1)


def test_requests_of_coroutines_count_like_those_of_threads():
    engine = make_engine(context_size=2048, hook=lambda runner, spans, poll: time.sleep(0.001))

    async def work():
        async with AsyncEngine(engine) as ax:
            endless = ax.stream([3], ignore_eos=True)
            await anext(endless)
            task = asyncio.create_task(ax.generate([4, 5], max_tokens=2000, ignore_eos=True))
            done = await asyncio.gather(*(ax.generate([6, i], max_tokens=9, ignore_eos=True) for i in range(2, 6)))
            task.cancel()
            await endless.aclose()
            await asyncio.gather(task, return_exceptions=True)
            return done, task.cancelled()

    done, cancelled = asyncio.run(work())
    assert cancelled
    s = engine.metrics_snapshot()
    assert s.finished == {"stop": 0, "length": len(done), "cancelled": 2, "deadline": 0, "error": 0}
    assert s.prompt_tokens == 2 * len(done) + 1 + 2
    assert s.generation_tokens > sum(len(r.token_ids) for r in done) == 36
    assert (s.running, s.waiting, s.kv_blocks_used) == (0, 0, 0)
    check_whole(s)


# ---- what a scheduler tells it


class _Drawing(Request):
    """Draws the same token for ever."""

    def absorb(self, rows):
        self.clock.first_at = self.clock.first_at or time.perf_counter()
        self.sequence.tokens.append(3)


class _Steps:
    """A meter of one-second steps, without an engine."""

    def __init__(self, clock):
        self.clock = clock
        self.meter = MetricsRecorder(Scheduler(SequencePool(4), 16, 8))

    def request(self, n_prompt):
        request = _Drawing(Sequence([3] * n_prompt, 9), ResultQueue(1))
        request.clock.submitted_at = request.clock.started_at = self.clock.now
        self.meter.queued()
        self.meter.started(request)
        return request

    def step(self, *plan, drawing=()):
        began, self.clock.now = self.clock.now, self.clock.now + 1.0
        for request in drawing:
            request.absorb(np.empty(0))
        self.meter.count(plan, began)

    def snapshot(self):
        self.meter.publish()
        return self.meter.snapshot()


def test_what_is_computed_again_after_preemption_is_no_new_token(clock):
    steps = _Steps(clock)
    r = steps.request(3)
    steps.step((r, 3), drawing=[r])
    steps.step((r, 1), drawing=[r])
    clock.now += 10.0
    steps.step((r, 3))
    steps.step((r, 2), drawing=[r])
    steps.step((r, 1), drawing=[r])
    s = steps.snapshot()
    assert (s.prompt_tokens, s.prefill_tokens, s.generation_tokens) == (3, 8, 4)
    assert (s.prefill_seconds, s.decode_seconds) == (3.0, 2.0)
    assert (s.time_to_first_token.count, s.inter_token_latency.count) == (1, 3)
    assert s.inter_token_latency.sum == 1.0 + 12.0 + 1.0
    assert s.iteration_tokens.sum == 10


def test_who_is_left_out_of_a_step_waits_longer(clock):
    steps = _Steps(clock)
    a, b = steps.request(1), steps.request(1)
    steps.step((a, 1), (b, 1), drawing=[a, b])
    steps.step((a, 1), (b, 1), drawing=[a, b])
    steps.step((b, 1), drawing=[b])
    steps.step((a, 1), (b, 1), drawing=[a, b])
    latency = steps.snapshot().inter_token_latency
    assert (latency.count, latency.sum) == (5, 6.0)
    assert latency.counts[latency.bounds.index(1.0)] == 4
    assert latency.counts[latency.bounds.index(2.5)] == 1


def test_preemptions_are_those_of_the_scheduler(clock):
    engine, seen = timed_engine(clock, n_blocks=4, context_size=64)
    results = engine.generate([[3], [4], [5]], max_tokens=40, ignore_eos=True, seed=1)
    s = engine.metrics_snapshot()
    assert s.preemptions == core_of(engine).scheduler.n_preempted > 0
    assert s.generation_tokens == sum(len(r.token_ids) for r in results) == 120
    assert (s.prompt_tokens, s.time_to_first_token.count, s.queue_time.count) == (3, 3, 3)
    assert s.inter_token_latency.count == 117
    assert s.prefill_tokens > s.prompt_tokens
    assert s.iteration_tokens.sum == sum(map(sum, runner_of(engine).steps))
    assert all(x.running + x.waiting + sum(x.finished.values()) == 3 for x in seen)
    assert any(x.waiting and x.preemptions for x in seen)
    check_whole(s)


def test_prefix_lookups_are_counted_in_tokens():
    engine = make_engine()
    for _ in range(2):
        engine.generate([3] * 40, max_tokens=1)
    engine.generate([3] * 40, max_tokens=1, cache_prompt=False)
    s = engine.metrics_snapshot()
    assert (s.prefix_queries, s.prefix_hits) == (80, 39)
    assert (s.prompt_tokens, s.prefill_tokens) == (120, 81)
    assert (s.kv_blocks_used, s.kv_blocks_cached, s.kv_cache_usage) == (0, 3, 0.0)


def test_a_deadline_that_passes_is_counted_as_such(clock):
    engine, _ = timed_engine(clock)
    engine.generate([3], max_tokens=40, ignore_eos=True, deadline=3.0)
    s = engine.metrics_snapshot()
    assert (s.finished["deadline"], s.running, s.waiting) == (1, 0, 0)
    assert s.generation_tokens == s.iteration_tokens.count


@fork
def test_a_forked_child_goes_on_counting():
    engine = make_engine()
    stream = engine.stream([3], ignore_eos=True, seed=1)
    next(stream)
    before = engine.metrics_snapshot()

    def child():
        same = engine.metrics_snapshot() == before
        stream.close()
        s = engine.metrics_snapshot()
        return same and (before.running, s.running, s.finished["cancelled"]) == (1, 0, 1)

    assert in_child(child) == 0
    assert engine.metrics_snapshot() == before
