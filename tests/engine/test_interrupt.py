"""Ctrl-C at any moment: the call ends, other requests and the blocks are as they should be."""

import gc
import signal
import sys

import pytest

from oxillama.interrupt import DeferredInterrupt
from tests.engine.fakes import assert_idle, drawn, make_engine, runner_of
from tests.engine.test_generate import plain_tokens

SEED = drawn(seed=1)


def raise_sigint(at):
    """A hook that sends Ctrl-C to this process during forward number `at`."""
    calls = []

    def hook(runner, spans, poll):
        calls.append(len(spans))
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)

    return hook


@pytest.mark.parametrize("at", [1, 2, 5])
def test_ctrl_c_ends_the_call_and_frees_its_blocks(at):
    engine = make_engine(hook=raise_sigint(at), prefill_chunk_size=4)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([3] * 10, ignore_eos=True)
    assert_idle(engine)
    assert engine.generate([5], max_tokens=8, seed=1).token_ids == plain_tokens([5], SEED, 8)[0]


def test_ctrl_c_inside_a_prompt_gives_the_step_up():
    engine = make_engine(hook=raise_sigint(1))
    with pytest.raises(KeyboardInterrupt):
        engine.generate([3] * 50)
    assert runner_of(engine).steps == []


@pytest.mark.parametrize("at", [1, 2, 5])
def test_ctrl_c_harms_no_other_request(at):
    engine = make_engine()
    other = engine.stream([5], max_tokens=20, seed=1)
    first = next(other)
    runner_of(engine).hook = raise_sigint(at)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([3] * 10, ignore_eos=True)
    rest = [first, *other]
    assert [t for c in rest for t in c.token_ids] == plain_tokens([5], SEED, 20)[0]
    assert_idle(engine)


def interrupted_at_line(n):
    """Ctrl-C before line n of those that the engine runs: whether it came, and what another request gives."""
    engine = make_engine(prefill_chunk_size=8)
    other = engine.stream([5], max_tokens=12, seed=1)
    chunks = [next(other)]
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if "oxillama/engine" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if event == "line" and lines == n:
            signal.raise_signal(signal.SIGINT)
        return trace

    previous, interrupted = sys.gettrace(), False
    try:
        sys.settrace(trace)
        engine.generate([3] * 12, max_tokens=3, seed=2, ignore_eos=True)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sys.settrace(previous)
    gc.collect()
    chunks += other
    assert_idle(engine)
    return interrupted, [t for c in chunks for t in c.token_ids]


def test_ctrl_c_at_any_line_of_the_engine():
    expected = plain_tokens([5], SEED, 12)[0]
    n, interrupted = 0, True
    while interrupted:
        n += 7  # steps have different numbers of lines, so that over all of them most lines get their turn
        interrupted, tokens = interrupted_at_line(n)
        assert tokens == expected
    assert n > 500


def test_deferred_interrupt_comes_when_left():
    done = []

    def work():
        with DeferredInterrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            done.append(interrupt.pending)
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_deferred_interrupt_calls_the_handler_of_the_program():
    got = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    try:
        engine = make_engine(hook=raise_sigint(2))
        r = engine.generate([5], max_tokens=8, seed=1)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert got == [signal.SIGINT]
    assert r.token_ids == plain_tokens([5], SEED, 8)[0]


def test_deferred_interrupt_nests_and_passes_errors_on():
    with pytest.raises(KeyError), DeferredInterrupt(), DeferredInterrupt():
        raise KeyError
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt(), DeferredInterrupt():
        signal.raise_signal(signal.SIGINT)
