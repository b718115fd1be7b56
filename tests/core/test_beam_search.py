"""Beam search against a plain twin without blocks and steps, and against all that is possible."""

import asyncio
import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxillama as ox
from oxillama.core.beam_search import BeamSearchConfig
from oxillama.core.results import CancelToken
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import (
    ConfigError,
    ContextOverflowError,
    EngineClosedError,
    GenerateError,
    GrammarError,
    KvCacheFullError,
)
from tests.fakes import EOS, N_VOCAB, PIECES, assert_idle, core_of, logits_of, make_engine, runner_of
from tests.plain_loop import PROMPTS, plain_log_sum_exp, text_of


def plain_continuations(tokens, allowed=None):
    """Log-probability of each token, None for those that are not allowed."""
    row = logits_of(tokens).tolist()
    total = plain_log_sum_exp(row)
    return {i: x - total for i, x in enumerate(row) if allowed is None or i in allowed}


def plain_beams(prompt, width, limit, penalty, early, ends=(EOS,)):
    """(score, tokens, reason) of each result: the algorithm in one loop over lists."""
    live, found = [(0.0, [])], []

    def keep(logprob, tokens, reason):
        found.append((logprob / max(1, len(tokens) + (reason == "stop")) ** penalty, tokens, reason))
        found.sort(key=lambda f: -f[0])
        del found[width:]

    def enough(best, n):
        reach = best / (limit if penalty > 0 else n) ** penalty
        return len(found) == width and (early or found[-1][0] >= reach)

    for n in range(1, limit + 1):
        candidates = [
            (logprob + x, tokens, token)
            for logprob, tokens in live
            for token, x in plain_continuations(prompt + tokens).items()
        ]
        candidates.sort(key=lambda c: -c[0])  # stable: the better beam, then the lower token
        live = []
        for rank, (logprob, tokens, token) in enumerate(candidates):
            if token in ends:
                if rank < width:
                    keep(logprob, tokens, "stop")
            elif len(live) < width:
                live.append((logprob, [*tokens, token]))
                if len(live) == width:
                    break
        if enough(live[0][0], n):
            return found
    for logprob, tokens in live:
        keep(logprob, tokens, "length")
    return found


def told(results):
    return [(r.score, r.token_ids, r.finish_reason) for r in results]


@settings(max_examples=60)
@given(
    PROMPTS, st.integers(1, 6), st.integers(1, 12), st.sampled_from([1.0, 0.0, 0.6, -1.0, 2.0]), st.booleans(),
    st.sampled_from([1, 2, 5, 64]), st.sampled_from([0, 2, 5]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_it_is_the_plain_twin(prompt, width, limit, penalty, early, chunk, n_slots, prefix, ignore_eos):
    engine = make_engine(n_blocks=18, prefill_chunk_size=chunk, n_slots=n_slots, prefix_cache=prefix)
    config = BeamSearchConfig(width, limit, penalty, early)
    results = engine.beam_search(prompt, config, ignore_eos=ignore_eos)
    assert told(results) == plain_beams(prompt, width, limit, penalty, early, () if ignore_eos else (EOS,))
    for r in results:
        assert r.text == str(r) == text_of(r.token_ids)
        assert r.logprob == pytest.approx(r.score * max(1, len(r.token_ids) + (r.finish_reason == "stop")) ** penalty)
    assert_idle(engine)


@pytest.mark.parametrize("penalty", [1.0, 0.0, -0.5])
def test_it_finds_the_best_of_all_there_are(penalty):
    """As wide as the vocabulary, two tokens deep, no beginning is lost."""
    prompt = [3, 4, 5]
    first = plain_continuations(prompt)
    every = [(first[EOS], [], "stop")]
    for a, x in first.items():
        if a != EOS:
            for b, y in plain_continuations([*prompt, a]).items():
                every.append((x + y, [a], "stop") if b == EOS else (x + y, [a, b], "length"))
    scored = [(x / (len(t) + (reason == "stop")) ** penalty, t, reason) for x, t, reason in every]
    scored.sort(key=lambda f: -f[0])
    found = make_engine(n_blocks=40).beam_search(prompt, beam_width=N_VOCAB, max_new_tokens=2, length_penalty=penalty)
    assert told(found) == scored[:N_VOCAB]


def test_it_finds_the_best_of_all_that_a_grammar_allows():
    prompt, letters = [3, 4], {PIECES.index(p): p for p in (b"a", b"b", b"ab")}
    every = []
    for n in (2, 3):
        for tokens in itertools.product(letters, repeat=n):
            if sum(len(letters[t]) for t in tokens) == 3:
                logprob = 0.0
                for i, token in enumerate([*tokens, EOS]):
                    logprob += plain_continuations(prompt + list(tokens[:i]))[token]
                every.append((logprob / (n + 1), list(tokens), "stop"))
    every.sort(key=lambda f: -f[0])
    engine = make_engine(n_blocks=90)
    found = engine.beam_search(prompt, beam_width=N_VOCAB, early_stopping=False, grammar="root ::= [ab]{3}")
    assert told(found) == every
    assert_idle(engine)


def test_one_beam_is_greedy():
    engine = make_engine()
    for first in range(2, 12):
        greedy = engine.generate([first, 3], max_tokens=20, temperature=0.0, repetition_penalty=1.0, logprobs=0)
        (beam,) = engine.beam_search([first, 3], beam_width=1, max_new_tokens=20)
        assert (beam.token_ids, beam.finish_reason, beam.text) == (
            greedy.token_ids, greedy.finish_reason, greedy.text
        )  # fmt: skip
        if beam.finish_reason == "length":
            assert beam.logprob == pytest.approx(sum(t.logprob for t in greedy.logprobs))


def test_beams_are_rows_of_one_step_and_share_blocks():
    engine = make_engine(n_blocks=9, context_size=96)  # two of the prompt, one for each, and three in reserve
    engine.beam_search([3] * 40, beam_width=4, max_new_tokens=8, ignore_eos=True)
    assert runner_of(engine).steps == [[40]] + [[1] * 4] * 7


def test_finished_beams_take_no_part():
    """Whatever ended, the width is that of beams that go on."""
    reasons = set()
    for first in range(2, 12):
        engine = make_engine()
        results = engine.beam_search([first, 4], beam_width=3, max_new_tokens=30, length_penalty=0.0)
        assert {len(step) for step in runner_of(engine).steps[1:]} == {3}
        reasons |= {r.finish_reason for r in results}
    assert "stop" in reasons


def test_others_run_in_the_same_steps():
    engine = make_engine(n_blocks=20)
    core = core_of(engine)
    alone = told(make_engine().beam_search([3, 4], beam_width=3, max_new_tokens=9, ignore_eos=True))
    whole = make_engine().generate([5, 6], max_tokens=9, seed=1, ignore_eos=True).token_ids
    stream = engine.stream([5, 6], max_tokens=9, seed=1, ignore_eos=True)
    got = list(next(stream).token_ids)
    assert told(engine.beam_search([3, 4], beam_width=3, max_new_tokens=9, ignore_eos=True)) == alone
    assert [1, 1, 1, 1] in runner_of(engine).steps
    assert got + [t for c in stream for t in c.token_ids] == whole
    assert core.scheduler.live == {}
    assert_idle(engine)


def test_searches_that_crowd_each_other_out_all_end():
    expected = {}
    for first in range(3, 8):
        expected[first] = told(
            make_engine().beam_search([first] * 20, beam_width=3, max_new_tokens=20, ignore_eos=True)
        )

    async def use(engine):
        asynchronous = AsyncEngine(engine)
        calls = [asynchronous.beam_search([f] * 20, beam_width=3, max_new_tokens=20, ignore_eos=True) for f in expected]
        texts = asyncio.gather(*(asynchronous.generate([f] * 9, max_tokens=20, seed=f) for f in range(3, 8)))
        return await asyncio.gather(*calls), await texts

    for n_slots in (0, 2):
        engine = make_engine(n_blocks=8, n_slots=n_slots)
        found, texts = asyncio.run(asyncio.wait_for(use(engine), 100))
        assert [told(r) for r in found] == list(expected.values())
        for f, text in zip(range(3, 8), texts, strict=True):
            assert text.token_ids == make_engine().generate([f] * 9, max_tokens=20, seed=f).token_ids
        assert_idle(engine)


@pytest.mark.parametrize("n_tokens", [3, 12, 17])
def test_cancelling_gives_what_there_is(n_tokens):
    engine, token = make_engine(prefill_chunk_size=4), CancelToken()

    def hook(runner, spans, poll):
        if sum(map(sum, runner.steps)) >= n_tokens:
            token.cancel()

    runner_of(engine).hook = hook
    results = engine.beam_search([3, 4] * 5, beam_width=3, max_new_tokens=30, cancel_token=token)
    assert {r.finish_reason for r in results} <= {"cancelled", "stop"}
    assert bool(results) == (n_tokens > 10)
    assert [r.score for r in results] == sorted((r.score for r in results), reverse=True)
    assert_idle(engine)


def test_a_deadline_ends_the_search():
    engine = make_engine()
    runner_of(engine).hook = lambda runner, spans, poll: None
    assert engine.beam_search([3, 4], deadline=1e-6) == []
    assert_idle(engine)


@pytest.mark.parametrize("when", [0, 1, 3])
def test_a_failing_step_fails_the_search(when):
    def hook(runner, spans, poll):
        if len(runner.steps) == when:
            raise RuntimeError("broken")

    engine = make_engine(hook=hook)
    with pytest.raises(RuntimeError, match="broken"):
        engine.beam_search([3, 4], ignore_eos=True)
    runner_of(engine).hook = None
    assert_idle(engine)
    assert engine.beam_search([3, 4], max_new_tokens=2)


def test_damaged_logits_are_an_error():
    engine = make_engine()
    forward = runner_of(engine).forward

    def damaged(spans, poll=None):
        rows = forward(spans, poll)
        if len(spans) > 1:
            rows[1, 3] = float("nan")
        return rows

    runner_of(engine).forward = damaged
    with pytest.raises(GenerateError, match="NaN"):
        engine.beam_search([3, 4], ignore_eos=True)
    assert_idle(engine)


@pytest.mark.parametrize("when", [0, 3])
def test_closing_ends_the_search(when):
    def hook(runner, spans, poll):
        if len(runner.steps) == when:
            core_of(engine).shut(lambda: None)

    engine = make_engine(hook=hook)
    with pytest.raises(EngineClosedError):
        engine.beam_search([3, 4], ignore_eos=True)


def test_cancelled_tasks_leave_nothing_behind():
    started, go_on = threading.Event(), threading.Event()

    def hook(runner, spans, poll):
        started.set()
        go_on.wait(60)

    engine = make_engine(n_blocks=13, hook=hook)

    async def use():
        task = asyncio.create_task(AsyncEngine(engine).beam_search([3] * 20, max_new_tokens=30, ignore_eos=True))
        while not started.is_set():
            await asyncio.sleep(0.001)
        task.cancel()  # in the middle of a step
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await AsyncEngine(engine).beam_search([3, 4], max_new_tokens=3)

    assert asyncio.run(asyncio.wait_for(use(), 60))
    assert_idle(engine)


def test_a_grammar_that_no_token_can_follow():
    engine = make_engine()
    with pytest.raises(GrammarError, match="no token"):
        engine.beam_search([3, 4], grammar='root ::= "xyz"')
    assert_idle(engine)


def test_bad_input():
    engine = make_engine(n_blocks=6, context_size=64)
    for bad in (
        {"beam_width": 0}, {"beam_width": N_VOCAB + 1}, {"beam_width": 2.5}, {"max_new_tokens": 0},
        {"length_penalty": float("nan")}, {"length_penalty": 33}, {"early_stopping": 1}, {"config": {"beam_width": 2}},
        {"ignore_eos": 1}, {"cancel_token": 1}, {"priority": -1},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=next(iter(bad))):
            engine.beam_search([3, 4], **bad)
    with pytest.raises(TypeError, match="temperature"):
        engine.beam_search([3, 4], temperature=0.5)
    with pytest.raises(ConfigError, match="one prompt"):
        engine.beam_search(["ab", "b"])
    with pytest.raises(ContextOverflowError):
        engine.beam_search([3] * 64)
    with pytest.raises(KvCacheFullError, match="8 beams of 40 tokens after 20 need 25 KV blocks"):
        engine.beam_search([3] * 20, beam_width=8, max_new_tokens=40)
    with pytest.raises(GenerateError):
        make_engine(causal=False).beam_search([3, 4])
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.beam_search([3, 4])


def test_the_shipped_model():
    with ox.load(num_threads=1) as engine:
        found = engine.beam_search("Once upon a time", beam_width=3, max_new_tokens=6)
        assert [r.score for r in found] == sorted((r.score for r in found), reverse=True)
        ids = engine.tokenize("Once upon a time")
        for r in found:
            rows, logprob = engine.forward_logits(ids + r.token_ids), 0.0
            for i, token in enumerate(r.token_ids):
                row = rows[len(ids) - 1 + i]
                logprob += float(row[token]) - plain_log_sum_exp(row.tolist())
            if r.finish_reason == "length":
                assert (r.logprob, r.score) == (logprob, logprob / 6)
        assert_idle(engine)


def test_max_tokens_is_another_name_of_max_new_tokens():
    options = {"beam_width": 3, "ignore_eos": True}
    expected = [h.token_ids for h in make_engine().beam_search([3, 4], max_new_tokens=5, **options)]
    assert [len(tokens) for tokens in expected] == [5, 5, 5]
    engine = make_engine()
    assert [h.token_ids for h in engine.beam_search([3, 4], max_tokens=5, **options)] == expected
    assert [h.token_ids for h in engine.beam_rounds([3, 4], max_tokens=5, **options).results()] == expected
    config = BeamSearchConfig(max_new_tokens=9)
    assert [h.token_ids for h in engine.beam_search([3, 4], config, max_tokens=5, **options)] == expected
    found = asyncio.run(AsyncEngine(engine).beam_search([3, 4], max_tokens=5, max_new_tokens=None, **options))
    assert [h.token_ids for h in found] == expected


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "5"])
def test_max_tokens_is_checked_under_its_own_name(value):
    with pytest.raises(ConfigError, match=r"^max_tokens must be "):
        make_engine().beam_search([3, 4], max_tokens=value)


def test_one_length_under_two_names_is_refused():
    with pytest.raises(ConfigError, match="max_tokens and max_new_tokens are one option"):
        make_engine().beam_search([3, 4], max_tokens=5, max_new_tokens=5)
