"""Ctrl-C at any moment: the call ends, other requests and the blocks are as they should be."""

import gc
import random
import signal
import sys
import threading

import pytest

from oxillama._util.signals import DeferredInterrupt, Finalizer
from tests.fakes import assert_idle, drawn, logits_of, make_engine, runner_of
from tests.plain_loop import plain_tokens

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
        if not any(f"oxillama/{part}/" in frame.f_code.co_filename for part in ("core", "engine", "scheduling")):
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


@pytest.mark.long
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


def test_one_who_waits_for_another_s_step_is_interrupted_at_once():
    """The step doesn't end before."""
    inside, go_on, told = threading.Event(), threading.Event(), []

    def hang(ids, logits):
        inside.set()
        assert go_on.wait(60)

    engine = make_engine()
    asked = {"max_tokens": 8, "seed": 1}
    other = threading.Thread(target=lambda: told.append(engine.generate([5], logits_processors=[hang], **asked)))
    other.start()
    assert inside.wait(60)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for ask in (lambda: engine.generate([3], max_tokens=8, ignore_eos=True), engine.shrink_to_fit):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                ask()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        assert not told
        go_on.set()
        other.join(60)
    assert told[0].token_ids == plain_tokens([5], SEED, 8)[0]
    assert_idle(engine)


def test_what_is_dropped_is_given_back_whenever_ctrl_c_comes(monkeypatch):
    """And Ctrl-C is not lost there, where nothing can be raised."""
    unraisable, called, rng = [], [], random.Random(0)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def drop():
        watched = Thing(lambda: called.append(list(map(abs, range(3)))))
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-6, 4e-5))
        del watched
        for _ in range(1 << 30):
            pass

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(1500):
            with pytest.raises(KeyboardInterrupt):
                drop()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(called) == 1500
    assert unraisable == []


class Thing:
    def __init__(self, function):
        self.end = Finalizer(function)


def test_finalizers():
    called = []
    first, second = Thing(lambda: called.append(1)), Thing(lambda: called.append(2))
    first.me = first
    assert first.end.alive
    second.end.detach()
    assert not second.end.alive
    del first, second
    assert called == []
    gc.collect()
    assert called == [1]


def test_an_object_in_a_cycle_may_use_what_its_finalizer_takes_away():
    """As the collector's order has it: finalisers in Python go first."""
    told = []

    class User(Thing):
        def __del__(self):
            told.append(self.end.alive)

    user = User(lambda: told.append("gone"))
    user.me = user
    del user
    gc.collect()
    assert told == [True, "gone"]


def test_handlers_are_back_when_several_raise():
    def ring(number, frame):
        raise ZeroDivisionError

    before = signal.signal(signal.SIGTERM, ring)
    try:
        with pytest.raises((KeyboardInterrupt, ZeroDivisionError)), DeferredInterrupt():
            list(map(signal.raise_signal, (signal.SIGTERM, signal.SIGINT)))
        assert signal.getsignal(signal.SIGTERM) is ring
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_session_is_as_before_or_after_an_interrupted_call():
    engine = make_engine()
    expected = {0: [], 1: [3, 4, 5]}
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    rng, n_interrupted = random.Random(0), 0
    try:
        with engine.session() as session:
            for _ in range(300):
                session.reset()
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-6, 1e-3))
                    session.prefill([3, 4, 5])
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    n_interrupted += 1
                assert session.tokens in expected.values()
                assert session.forward_prefill([7], 0).tobytes() == logits_of([7]).tobytes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert n_interrupted > 10
    assert_idle(engine)


@pytest.mark.parametrize("kind", [SystemExit, ValueError])
def test_an_error_of_a_finaliser_is_reported_and_ends_nothing(kind, monkeypatch):
    def fail():
        raise kind("lost")

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: reported.append((found.exc_type, str(found.exc_value))))
    owned = Finalizer(fail)
    del owned
    assert reported == [(kind, "lost")]
