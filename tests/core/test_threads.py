"""Many threads on one engine, and forks, on the fake model."""

import threading
import time

from tests.fakes import assert_idle, drawn, make_engine, runner_of, session_of
from tests.plain_loop import plain_tokens
from tests.processes import fork, in_child, in_threads

SEED = drawn(seed=1)


def test_threads_get_what_they_get_alone():
    engine = make_engine(context_size=128, prefill_chunk_size=8)

    def generate(i):
        return lambda: engine.generate([3 + i] * (5 * i + 1), max_tokens=30, seed=1).token_ids

    def stream(i):
        return lambda: [t for c in engine.stream([9, 3 + i], max_tokens=30, seed=1) for t in c.token_ids]

    def logits(i):
        return lambda: engine.forward_logits([4, 5 + i]).tolist()

    makers = [generate, stream, logits] * 3
    expected = [make(i)() for i, make in enumerate(makers)]
    for _ in range(3):
        assert in_threads(*(make(i) for i, make in enumerate(makers))) == expected
    assert_idle(engine)


def test_threads_share_steps():
    slow = make_engine(hook=lambda runner, spans, poll: time.sleep(0.002))
    in_threads(*[lambda: slow.generate([3], max_tokens=30, ignore_eos=True)] * 4)
    steps = runner_of(slow).steps
    assert sum(sum(s) for s in steps) == 4 * 30
    assert len(steps) < 80  # one after another, they would be 120
    assert max(len(s) for s in steps) > 1


def test_a_stream_does_not_wait_for_the_end_of_another_thread():
    engine = make_engine(context_size=512, hook=lambda runner, spans, poll: time.sleep(0.001))
    running = threading.Event()
    long = threading.Thread(
        target=lambda: engine.generate([3], max_tokens=400, ignore_eos=True, on_token=lambda piece: running.set()),
        daemon=True,
    )
    long.start()
    assert running.wait(60)
    times = [time.monotonic() for _ in engine.stream([4], max_tokens=20, ignore_eos=True, seed=1)]
    assert long.is_alive(), "the long one ended first: nothing was shown"
    assert len(set(times)) > 3
    long.join(60)
    assert not long.is_alive()


def test_a_thread_that_leaves_hands_the_work_on():
    engine = make_engine(hook=lambda runner, spans, poll: time.sleep(0.001))

    def short():
        for n, _ in enumerate(engine.stream([5], max_tokens=50, ignore_eos=True)):
            if n == 2:
                return "left"
        return "at its end"

    def long():
        return engine.generate([6], max_tokens=50, ignore_eos=True, seed=1).token_ids

    got = in_threads(short, long, short, long)
    assert got[0] == got[2] == "left"
    assert got[1] == got[3] == plain_tokens([6], SEED, 50, ignore_eos=True)[0]
    assert_idle(engine)


@fork
def test_a_child_goes_on_where_the_parent_was():
    engine = make_engine()
    stream = engine.stream([5], max_tokens=20, seed=1)
    first = next(stream).token_ids
    engine.prefill([3, 4])
    expected = plain_tokens([5], SEED, 20)[0]

    def child():
        rest = [t for c in stream for t in c.token_ids]
        alone = engine.generate([6], max_tokens=9, seed=1).token_ids
        return first + rest == expected and alone == plain_tokens([6], SEED, 9)[0] and engine.position == 2

    assert in_child(child) == 0
    assert first + [t for c in stream for t in c.token_ids] == expected


@fork
def test_a_fork_while_other_threads_generate():
    engine = make_engine(context_size=2048, hook=lambda runner, spans, poll: time.sleep(0.001))
    stop = threading.Event()

    def work():
        while not stop.is_set():
            engine.generate([4], max_tokens=20, seed=1)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for t in threads:
        t.start()
    time.sleep(0.05)

    def child():
        ok = engine.generate([6], max_tokens=9, seed=1).token_ids == plain_tokens([6], SEED, 9)[0]
        assert_idle(engine)  # the requests of threads that are not here are gone
        return ok

    try:
        assert [in_child(child) for _ in range(5)] == [0] * 5
    finally:
        stop.set()
        for t in threads:
            t.join(60)
    assert not any(t.is_alive() for t in threads)
    assert_idle(engine)


@fork
def test_a_child_can_use_the_session_that_another_thread_was_in():
    inside, leave = threading.Event(), threading.Event()
    engine = make_engine()

    def block(piece):
        inside.set()
        leave.wait(60)

    engine.prefill([3])
    thread = threading.Thread(target=lambda: engine.generate([4], max_tokens=9, on_token=block), daemon=True)
    session_of(engine)._in_use.acquire()  # as if the other thread were in a call
    thread.start()
    assert inside.wait(60)
    assert in_child(lambda: engine.prefill([5]) is not None) == 0
    leave.set()
    thread.join(60)
