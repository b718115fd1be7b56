"""Leaving early: cancel tokens, closed streams, raising callbacks. Nothing stays behind, and nobody else notices."""

import gc
import threading

import pytest

from oxillama.core.results import CancelToken
from oxillama.errors import GenerateError
from tests.fakes import assert_idle, core_of, drawn, make_engine, runner_of
from tests.plain_loop import plain_tokens

SEED = drawn(seed=1)


def test_cancelling_from_the_callback_stops_at_that_token():
    engine, token, pieces = make_engine(), CancelToken(), []

    def on_token(piece):
        pieces.append(piece)
        if len(pieces) == 3:
            token.cancel()

    r = engine.generate("ab", max_tokens=40, seed=1, ignore_eos=True, on_token=on_token, cancel_token=token)
    assert r.finish_reason == "cancelled"
    assert len(pieces) == 3
    assert r.text == "".join(pieces)
    whole = plain_tokens(engine.tokenize("ab"), SEED, 40, ignore_eos=True)[0]
    assert r.token_ids == whole[: len(r.token_ids)]
    assert_idle(engine)


def test_held_back_text_is_not_lost():
    engine, token = make_engine(), CancelToken()
    free = engine.generate("ab", max_tokens=6, seed=1, ignore_eos=True)

    def cancel_late(runner, spans, poll):
        if sum(len(s) for s in runner.steps) > 5:
            token.cancel()

    runner_of(engine).steps.clear()
    runner_of(engine).hook = cancel_late
    r = engine.generate(
        "ab", max_tokens=40, seed=1, ignore_eos=True, cancel_token=token, stop=[free.text[1:] + "never"]
    )
    assert r.finish_reason == "cancelled"
    assert r.text == free.text[: len(r.text)]
    assert len(r.text) > 1


def test_cancelled_before_it_began():
    engine, token = make_engine(), CancelToken()
    token.cancel()
    token.cancel()
    r = engine.generate("ab", cancel_token=token)
    assert (r.text, r.token_ids, r.finish_reason, r.prompt_tokens) == ("", [], "cancelled", 2)
    assert runner_of(engine).steps == []
    assert repr(token) == "<CancelToken cancelled>"


def test_cancelling_inside_a_prompt_gives_the_step_up():
    token = CancelToken()

    def cancel_now(runner, spans, poll):
        token.cancel()

    engine = make_engine(hook=cancel_now)
    r = engine.generate([3] * 50, cancel_token=token)
    assert r.finish_reason == "cancelled"
    assert runner_of(engine).steps == []  # poll() raised before anything was computed
    assert_idle(engine)


def test_a_step_that_others_need_goes_on():
    engine, token = make_engine(), CancelToken()
    other = engine.stream([5], max_tokens=20, seed=1)
    first = next(other)
    calls = []

    def cancel_at_third(runner, spans, poll):
        calls.append(len(spans))
        if len(calls) == 3:
            token.cancel()

    runner_of(engine).hook = cancel_at_third
    r = engine.generate([3, 4], max_tokens=30, ignore_eos=True, seed=2, cancel_token=token)
    assert r.finish_reason == "cancelled"
    assert calls[:3] == [1, 2, 2]  # the first step measures the stream alone
    assert len(r.token_ids) == 2
    rest = [first, *other]
    assert [t for c in rest for t in c.token_ids] == plain_tokens([5], SEED, 20)[0]
    assert_idle(engine)


def test_a_cancelled_stream_that_nobody_reads_is_dropped_by_the_next_step():
    engine, token = make_engine(), CancelToken()
    stream = engine.stream([5], max_tokens=40, seed=1, ignore_eos=True, cancel_token=token)
    chunks = [next(stream)]
    token.cancel()
    runner_of(engine).steps.clear()
    engine.generate([3], max_tokens=5, ignore_eos=True)
    assert runner_of(engine).steps == [[1]] * 5
    chunks += stream
    assert chunks[-1].finish_reason == "cancelled"
    assert_idle(engine)


def test_one_token_cancels_a_whole_list():
    engine, token = make_engine(), CancelToken()
    seen = []

    def on_token(index, piece):
        seen.append(index)
        if len(seen) == 4:
            token.cancel()

    rs = engine.generate(["a", "b", "c"], ignore_eos=True, on_token=on_token, cancel_token=token, seed=1)
    assert [r.finish_reason for r in rs] == ["cancelled"] * 3
    assert_idle(engine)


def test_closing_a_stream_frees_its_blocks_at_once():
    engine = make_engine()
    stream = engine.stream("ab", ignore_eos=True)
    next(stream)
    assert core_of(engine).pool.blocks.n_free < core_of(engine).pool.n_blocks
    stream.close()
    assert_idle(engine)


def test_a_stream_is_for_one_thread_at_a_time():
    engine, reading, go_on = make_engine(), threading.Event(), threading.Event()
    stream = engine.stream([3] * 9, max_tokens=4, seed=1, ignore_eos=True)
    first = next(stream).token_ids

    def wait(runner, spans, poll):
        reading.set()
        assert go_on.wait(60)

    runner_of(engine).hook = wait
    rest = []
    thread = threading.Thread(target=lambda: rest.extend(stream))
    thread.start()
    assert reading.wait(60)
    for use in (lambda: next(stream), stream.close):
        with pytest.raises(GenerateError, match="another thread reads this stream already"):
            use()
    runner_of(engine).hook = None
    go_on.set()
    thread.join()
    alone = engine.generate([3] * 9, max_tokens=4, seed=1, ignore_eos=True)
    assert [*first, *(t for chunk in rest for t in chunk.token_ids)] == alone.token_ids
    assert_idle(engine)


def test_dropping_a_stream_frees_its_blocks():
    engine = make_engine()
    for _ in engine.stream("ab", ignore_eos=True):
        break
    gc.collect()
    assert_idle(engine)


def test_a_stream_that_was_never_started_costs_nothing():
    engine = make_engine()
    stream = engine.stream("ab")
    assert_idle(engine)
    stream.close()


def test_a_stream_that_nobody_reads_blocks_nobody():
    engine = make_engine(n_blocks=8)
    lazy = engine.stream([7], max_tokens=30, ignore_eos=True, seed=1)
    head = next(lazy)
    r = engine.generate([3], max_tokens=40, ignore_eos=True, seed=1)
    assert r.token_ids == plain_tokens([3], SEED, 40, ignore_eos=True)[0]
    steps = len(runner_of(engine).steps)
    rest = [head, *lazy]
    assert [t for c in rest for t in c.token_ids] == plain_tokens([7], SEED, 30, ignore_eos=True)[0]
    assert len(runner_of(engine).steps) == steps  # it had been computed meanwhile


def test_a_raising_callback_reaches_its_caller_alone():
    engine = make_engine()
    other = engine.stream([5], max_tokens=20, seed=1)
    first = next(other)
    with pytest.raises(ZeroDivisionError):
        engine.generate("ab", ignore_eos=True, on_token=lambda piece: 1 / 0)
    assert len(core_of(engine).scheduler.running) == 1
    rest = [first, *other]
    assert [t for c in rest for t in c.token_ids] == plain_tokens([5], SEED, 20)[0]
    assert_idle(engine)


def test_a_callback_may_use_the_engine():
    engine, inner = make_engine(), []

    def on_token(piece):
        if not inner:
            inner.append(engine.generate([3], max_tokens=5, seed=1).token_ids)
            inner.append(engine.embed([3, 4]).shape)
            engine.prefill([3, 4])

    r = engine.generate([5], max_tokens=8, seed=1, on_token=on_token)
    assert r.token_ids == plain_tokens([5], SEED, 8)[0]
    assert inner[0] == plain_tokens([3], SEED, 5)[0]
    assert engine.position == 2
