"""Cores that engines of one process share: first come, first served, and no wait that can't be left."""

import asyncio
import itertools
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import oxillama as ox
from oxillama.drafts.draft import Proposal
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import EngineClosedError
from oxillama.kernels.compute_turn import COMPUTE_TURN, ComputeTurn
from tests.fakes import assert_idle, core_of, drawn, make_engine, runner_of
from tests.plain_loop import plain_tokens
from tests.processes import fork, in_child

SEED = drawn(seed=1)


@pytest.fixture
def one_core():
    """The engines of the test share one core, which every step takes."""
    before, COMPUTE_TURN.n_cores = COMPUTE_TURN.n_cores, 1
    try:
        yield COMPUTE_TURN
    finally:
        COMPUTE_TURN.n_cores = before
    assert (COMPUTE_TURN.n_taken, COMPUTE_TURN.n_waiting) == (0, 0)


def expected(prompt, n):
    return plain_tokens(prompt, SEED, n, ignore_eos=True)[0]


def tokens(engine, prompt, n, **options):
    return engine.generate(prompt, max_tokens=n, seed=1, ignore_eos=True, **options).token_ids


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.001)


@contextmanager
def elsewhere():
    """A function that calls another in a thread of its own; a step inside one of the same thread waits for nothing."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda call: thread.submit(call).result(60)


@contextmanager
def held(turn):
    """Another thread has a core."""
    share = turn.share(1)
    with elsewhere() as other:
        assert other(share.take)
        try:
            yield
        finally:
            share.give_back()


# ---- shares


def test_steps_that_fit_run_together():
    turn = ComputeTurn(3)
    shares = two, one, other = turn.share(2), turn.share(1), turn.share(1)
    with elsewhere() as first, elsewhere() as second, elsewhere() as third:
        assert first(two.take)
        assert second(one.take)
        assert not third(other.take)
        one.give_back()
        one.give_back()  # it has none any more
        assert turn.n_taken == 2
        assert third(other.take)
    for share in shares:
        share.give_back()
    assert turn.n_taken == 0


def test_a_share_of_more_than_there_are_takes_all():
    turn = ComputeTurn(2)
    many, one = turn.share(8), turn.share(1)
    with elsewhere() as first, elsewhere() as second:
        assert first(many.take)
        assert not second(one.take)
        many.give_back()
        assert second(one.take)
        assert not first(many.take)


def test_a_step_inside_another_takes_no_cores():
    turn = ComputeTurn(1)
    outer, inner = turn.share(1), turn.share(1)
    assert outer.take()
    assert inner.take()
    assert turn.n_taken == 1
    inner.give_back()
    assert turn.n_taken == 1
    outer.give_back()
    assert turn.n_taken == 0


def test_the_first_to_come_is_the_first_to_compute():
    turn, order, threads = ComputeTurn(1), [], []
    holder = turn.share(1)
    assert holder.take()

    def work(name):
        share = turn.share(1)
        while not share.take():
            share.wait()
        order.append(name)
        share.give_back()

    for name in range(6):
        threads.append(threading.Thread(target=work, args=(name,)))
        threads[-1].start()
        until(lambda n=name: turn.n_waiting == n + 1)
    holder.give_back()
    for thread in threads:
        thread.join()
    assert order == list(range(6))


def test_one_that_waits_is_not_overtaken_by_one_that_comes_later():
    """Also where there is room for that one."""
    turn = ComputeTurn(2)
    small, wide, late = turn.share(1), turn.share(2), turn.share(1)

    def work():
        while not wide.take():
            wide.wait()

    with elsewhere() as first, elsewhere() as third, ThreadPoolExecutor(1) as second:
        assert first(small.take)
        waiting = second.submit(work)
        until(lambda: turn.n_waiting)
        assert not third(late.take)
        small.give_back()
        waiting.result(60)
        assert not third(late.take)
        wide.give_back()
        assert third(late.take)


def test_a_wait_ends_when_patience_does():
    turn = ComputeTurn(1)
    turn.patience = 0.1
    share = turn.share(1)
    with held(turn):
        began = time.monotonic()
        while not share.take():
            share.wait()
        assert time.monotonic() - began >= 0.1
        assert turn.n_taken == 2
        share.give_back()


# ---- engines


def test_steps_of_engines_take_turns(one_core):
    """Each of three engines computes in its turn, and never two at once."""
    trace, running = [], []

    def hook_of(name):
        def hook(runner, spans, poll):
            running.append(name)
            assert len(running) == 1
            trace.append(name)
            time.sleep(0.0005)  # others may run meanwhile
            running.remove(name)

        return hook

    engines = [make_engine(hook=hook_of(name)) for name in range(3)]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda i: tokens(engines[i], [5 + i], 50), range(3)))
    assert found == [expected([5 + i], 50) for i in range(3)]
    shared = trace[: min(len(trace) - 1 - trace[::-1].index(name) for name in range(3)) + 1]
    shared = shared[max(shared.index(name) for name in range(3)) :]  # while all three compute
    assert max(len(list(group)) for _, group in itertools.groupby(shared)) <= 3
    assert len(shared) > 60
    for engine in engines:
        assert_idle(engine)


def test_threads_of_one_engine_count_as_one(one_core):
    """One of them takes the steps for all."""
    trace = []
    engines = [
        make_engine(hook=lambda runner, spans, poll, name=name: (trace.append(name), time.sleep(0.0005)))
        for name in "ab"
    ]
    calls = [(0, [5]), (0, [6]), (0, [7]), (1, [5])]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda call: tokens(engines[call[0]], call[1], 30), calls))
    assert found == [expected(prompt, 30) for _, prompt in calls]
    both = "".join(trace)
    both = both[max(both.index(name) for name in "ab") : min(both.rindex(name) for name in "ab") + 1]
    assert both.count("a") <= 2 * both.count("b") + 2


def test_a_step_that_draws_leaves_the_cores_to_others(one_core):
    """A processor may wait for another engine, in another thread too."""
    other, engine = make_engine(), make_engine()
    seen = []

    def processor(ids, logits):
        thread = threading.Thread(target=lambda: seen.append(tokens(other, [6], 3)))
        thread.start()
        thread.join(60)
        seen.append(tokens(other, [7], 2))

    assert tokens(engine, [5], 4, logits_processors=[processor]) == expected([5], 4)
    assert seen == [expected([6], 3), expected([7], 2)] * 4


def test_a_draft_may_ask_another_engine(one_core):
    """In the thread of the step, which has the cores."""
    other, engine = make_engine(), make_engine()

    class Asking:
        def bind(self, target):
            pass

        def propose(self, tasks):
            return [Proposal(tokens(other, task.tokens, 2)[: task.n]) for task in tasks]

        def forget(self, key):
            pass

    assert tokens(engine, [5], 9, draft=Asking(), adaptive=False) == expected([5], 9)


def test_coroutines_of_two_engines(one_core):
    """The thread of each takes the cores by turns, and the event loop waits for neither."""
    engines = [AsyncEngine(make_engine(hook=lambda *a: time.sleep(0.001))) for _ in range(2)]

    async def use():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        calls = [e.generate([5 + i], max_tokens=20, seed=1, ignore_eos=True) for i, e in enumerate(engines)]
        found = await asyncio.gather(*calls)
        ticking.cancel()
        return [r.token_ids for r in found], ticks

    found, ticks = asyncio.run(asyncio.wait_for(use(), 60))
    assert found == [expected([5 + i], 20) for i in range(2)]
    assert ticks > 40


# ---- waits that are left


def test_ctrl_c_ends_the_wait(one_core):
    engine, main = make_engine(), threading.main_thread().ident
    with held(one_core):
        timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            tokens(engine, [5], 4)
        assert time.monotonic() - began < one_core.patience
        assert one_core.n_waiting == 0
        timer.join()
        assert_idle(engine)
    assert tokens(engine, [5], 4) == expected([5], 4)


def interrupted_at_line(engine, n):
    """Whether Ctrl-C came, before line n of those of the core that the call runs."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if "oxillama/core/" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if event == "line" and lines in (n, n + 3):  # the second one in what the first one made run
            signal.raise_signal(signal.SIGINT)
        return trace

    previous = sys.gettrace()
    try:
        sys.settrace(trace)
        tokens(engine, [3] * 5, 3)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(previous)
    return False


def test_ctrl_c_at_any_line_leaves_the_cores_to_others(one_core):
    """Two times, while the other engine computes all the time."""
    engine, other = make_engine(), make_engine(hook=lambda *a: time.sleep(0.0002))
    stop, n, lines = threading.Event(), 0, 0

    def work():
        while not stop.is_set():
            assert tokens(other, [5], 12) == expected([5], 12)

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(work)
        try:
            while True:
                try:
                    interrupted = interrupted_at_line(engine, n)
                except KeyboardInterrupt:  # the second one, at the end of the call
                    interrupted = True
                if not interrupted:
                    break
                n, lines = n + 11, lines + 1
                until(lambda: core_of(engine).loop._owner is None)
                assert one_core.n_taken <= 1
        finally:
            stop.set()
        call.result(60)
    assert lines > 10
    assert tokens(engine, [5], 4) == expected([5], 4)
    assert_idle(engine)


def test_a_request_is_cancelled_while_its_engine_waits(one_core):
    engine, token = make_engine(), ox.CancelToken()
    with held(one_core):
        threading.Timer(0.1, token.cancel).start()
        r = engine.generate([5], max_tokens=4, cancel_token=token)
        assert (r.finish_reason, r.token_ids) == ("cancelled", [])
        assert_idle(engine)


def test_an_engine_is_closed_while_it_waits(one_core):
    engine = make_engine()
    with held(one_core), ThreadPoolExecutor(1) as thread:
        call = thread.submit(tokens, engine, [5], 4)
        until(lambda: one_core.n_waiting)
        engine.close()
        with pytest.raises(EngineClosedError):
            call.result(60)


def test_an_error_of_a_step_gives_the_cores_back(one_core):
    def fail(*args):
        raise ValueError("planted")

    engine = make_engine(hook=fail)
    with pytest.raises(ValueError, match="planted"):
        tokens(engine, [5], 4)
    runner_of(engine).hook = None
    assert one_core.n_taken == 0
    assert tokens(engine, [5], 4) == expected([5], 4)


@fork
def test_a_child_has_all_cores(one_core):
    """Whatever other threads of its parent had, or waited for."""
    engine, waiting = make_engine(), make_engine()
    with ThreadPoolExecutor(1) as thread, held(one_core):
        call = thread.submit(tokens, waiting, [6], 3)
        until(lambda: one_core.n_waiting)
        assert in_child(lambda: tokens(engine, [5], 4) == expected([5], 4)) == 0
        assert in_child(lambda: (one_core.n_taken, one_core.n_waiting) == (0, 0)) == 0
    assert call.result(60) == expected([6], 3)
