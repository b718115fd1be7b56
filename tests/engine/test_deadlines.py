"""Deadlines: a reason of their own to finish, and from when they count. The clock moves a second a step."""

import asyncio
import itertools
import pickle
import time
from types import SimpleNamespace

import pytest

import oxillama as ox
from oxillama.core.beam_search import BeamSearchConfig
from oxillama.core.options import read_options
from oxillama.engine.async_engine import AsyncEngine
from tests.fakes import assert_idle, core_of, make_engine, requests_of, runner_of
from tests.snapshot.models import load

TEXT = {"ignore_eos": True, "seed": 1}


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def ticking(clock, seconds=1.0, **options):
    """An engine each of whose forwards takes a second."""

    def hook(runner, spans, poll):
        clock.now += seconds

    return make_engine(hook=hook, **options)


def test_a_deadline_is_no_cancellation(clock):
    engine = ticking(clock)
    whole = engine.generate([3], max_tokens=40, **TEXT).token_ids
    cut = engine.generate([3], max_tokens=40, deadline=3.5, **TEXT)
    assert (cut.finish_reason, cut.token_ids) == ("deadline", whole[:3])
    chunks = list(engine.stream([3], max_tokens=40, deadline=3.5, **TEXT))
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["deadline"]
    token = ox.CancelToken()
    token.cancel()
    assert engine.generate([3], deadline=3.5, cancel_token=token).finish_reason == "cancelled"
    counts = engine.metrics_snapshot().finished
    assert (counts["deadline"], counts["cancelled"]) == (2, 1)
    assert 'finished_reason="deadline"} 2' in engine.metrics_snapshot().prometheus()
    assert_idle(engine)


def test_coroutines_and_conversations_have_it_too(clock):
    engine = ticking(clock)

    async def both():
        given = AsyncEngine(engine)
        chunks = [c async for c in given.stream([3], max_tokens=40, deadline=2.5, **TEXT)]
        return (await given.generate([3], max_tokens=40, deadline=2.5, **TEXT)).finish_reason, chunks[-1].finish_reason

    assert asyncio.run(both()) == ("deadline", "deadline")
    given = {"max_tokens": 40, "deadline": 2.5, **TEXT}
    options = read_options("stream", given, engine.context.factory.default_chain)
    with engine.conversation() as talk:
        assert list(talk.stream([3], options))[-1].finish_reason == "deadline"
    assert_idle(engine)


def test_beams_that_are_cut_say_so(clock):
    engine = ticking(clock)
    config = BeamSearchConfig(3, 40, early_stopping=False)
    found = engine.beam_search([3, 4], config, ignore_eos=True, deadline=4.5)
    assert {h.finish_reason for h in found} == {"deadline"}
    assert {len(h.token_ids) for h in found} == {4}
    assert_idle(engine)


@pytest.mark.parametrize("call", ["generate", "beam_search"])
def test_from_the_first_step_if_wanted(clock, call):
    """A request that waits for another one: only one of them fits."""
    engine = ticking(clock, n_blocks=4)
    found = {}
    for since in ("submit", "start"):
        stream = engine.stream([3] * 49, max_tokens=15, **TEXT)
        next(stream)
        if call == "generate":
            waiting = engine.stream([4] * 10, max_tokens=50, deadline=5.5, deadline_from=since, **TEXT)
            requests = requests_of(waiting)
        else:
            config = BeamSearchConfig(1, 50, early_stopping=False)
            waiting = engine.beam_rounds([4] * 10, config, ignore_eos=True, deadline=5.5, deadline_from=since)
            requests = waiting._search.beams
            waiting._begun = True
        ticket = core_of(engine).submit(requests)
        for _ in stream:
            pass
        core_of(engine).drive(lambda: not requests[0].outbox.n_open)  # noqa: B023
        found[since] = len(requests[0].sequence.tokens) - 10
        waiting.close()
        del ticket
    assert found["submit"] == 0
    assert found["start"] >= 5
    assert_idle(engine)


def test_completions_of_one_prompt_have_the_deadline_of_their_first_step(clock):
    engine = ticking(clock)
    found = engine.generate([3] * 20, n=3, max_tokens=40, deadline=4.5, deadline_from="start", **TEXT)
    assert [(c.finish_reason, len(c.token_ids)) for c in found] == [("deadline", 4)] * 3


PROMPTS = [[2 + i % 10] * 20 for i in range(12)]


def rows(engine, deadline_from=None, **options):
    since = {} if deadline_from is None else {"deadline_from": deadline_from}
    return list(engine.batch(PROMPTS, errors="yield", max_tokens=4, deadline=6.5, **since, **TEXT, **options))


def test_waiting_takes_nothing_from_the_prompts_of_a_batch(clock):
    """Two fit at a time, so that the last ones begin long after they were queued."""
    engine = ticking(clock, n_blocks=4)
    plain = list(engine.batch(PROMPTS, max_tokens=4, **TEXT))
    assert rows(engine) == plain
    assert rows(engine, "start") == plain
    late = rows(engine, "submit")
    assert next(c for c in late if isinstance(c, ox.Completion)) == plain[0]
    failed = [c for c in late if isinstance(c, ox.BatchFailure)]
    assert failed
    assert [f.index for f in failed] == [i for i, c in enumerate(late) if isinstance(c, ox.BatchFailure)]

    async def asynchronous():
        batch = AsyncEngine(engine).batch(PROMPTS, errors="yield", max_tokens=4, deadline=6.5, **TEXT)
        return [row async for row in batch]

    assert asyncio.run(asynchronous()) == plain
    assert_idle(engine)


def test_a_prompt_of_a_batch_without_a_token_fails(clock):
    """Prompts of 40 tokens, four a step, beside short ones."""
    engine = ticking(clock, prefill_chunk_size=4, prefix_cache=False)
    prompts = [[3], [4] * 40, [5]]
    found = list(engine.batch(prompts, errors="yield", max_tokens=20, deadline=5.5, max_in_flight=1, **TEXT))
    assert [type(row).__name__ for row in found] == ["Completion", "BatchFailure", "Completion"]
    assert {found[0].finish_reason, found[2].finish_reason} == {"deadline"}
    assert found[0].token_ids
    error = found[1].error
    assert isinstance(error, ox.DeadlineError)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, ox.GenerateError)
    assert str(error).startswith("prompts[1] had no token 5.5 s after its first step (deadline): give it more time")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    batch = engine.batch(prompts, max_tokens=20, deadline=5.5, n=2, **TEXT)
    assert len(next(batch)) == 2
    with pytest.raises(ox.DeadlineError):
        next(batch)
    assert [c.index for c in next(batch)] == [2, 2]
    assert_idle(engine)


@pytest.mark.parametrize("kind", ["text", "beams"])
def test_a_snapshot_keeps_from_when_a_deadline_counts(clock, kind, monkeypatch):
    counted = {"max_tokens" if kind == "text" else "max_new_tokens": 30, "deadline": 4.5, "deadline_from": "start"}
    with load("llama") as engine:
        forward = core_of(engine).runner.forward

        def ticks(*args):
            clock.now += 1
            return forward(*args)

        monkeypatch.setattr(core_of(engine).runner, "forward", ticks)

        def make():
            if kind == "text":
                return engine.stream([3] * 4, **counted, **TEXT)
            return engine.beam_rounds([3] * 4, beam_width=2, ignore_eos=True, **counted)

        def n_tokens(running):
            if kind == "text":
                return sum(len(c.token_ids) for c in running)
            return len(running.results()[0].token_ids)

        running = make()
        saved = running.snapshot_bytes()  # before its first step
        clock.now += 1000
        n_all = n_tokens(engine.resume(saved))
        assert n_all in (4, 5)  # by when a step looks at the clock
        list(itertools.islice(running, 2))
        saved = running.snapshot_bytes()
        clock.now += 1000
        n_left = n_tokens(engine.resume(saved))  # what was left goes on
        assert 2 <= n_left <= n_all
        late = engine.resume(saved)
        assert (list(late)[-1] if kind == "text" else late.results()[0]).finish_reason == "deadline"
        running.close()
        assert_idle(engine)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deadline": 1.0, "deadline_from": "now"}, "deadline_from must be one of submit, start, not 'now'"),
        ({"deadline_from": "start"}, "deadline_from says from when a deadline counts: give deadline too"),
    ],
)
@pytest.mark.parametrize("call", ["generate", "stream", "batch", "beam_search"])
def test_refusals(call, given, message):
    with pytest.raises(ox.ConfigError, match=message):
        getattr(make_engine(), call)([3], **given)


def test_a_deadline_inside_a_long_step_gives_the_step_up(clock):
    def late(runner, spans, poll):
        clock.now += 1
        poll()

    engine = make_engine(hook=late)
    found = engine.generate([3] * 9, deadline=0.5)
    assert (found.finish_reason, found.token_ids, runner_of(engine).steps) == ("deadline", [], [])
    assert_idle(engine)
