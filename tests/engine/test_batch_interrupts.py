"""Interrupts of a batch, and tasks that are cancelled while they wait for one: no prompt is lost, or it is said."""

import asyncio
import gc
import itertools
import linecache
import random
import re
import signal
import sys
import threading
import time

import pytest

from oxillama.core.async_requests import INLINE_CHARACTERS
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import EngineClosedError, GenerateError
from tests.core.batches import PROMPTS, alone
from tests.engine.coroutines import run
from tests.fakes import assert_idle, core_of, make_engine, runner_of

# Between these and the caller Python looks for no signals: that is done where a function begins and after calls.
NEVER = {
    "if error is None:", "return found  # type: ignore[no-any-return]", "raise error", "self._reading = False",
    "found = error = None",
}  # fmt: skip
STRIDE = 23
SOME = [*PROMPTS[:3], [99], [7]]  # one of them is wrong
EXPECTED = [None if p == [99] else alone(p, 5) for p in SOME]


def batch_of(engine, source, **options):
    return engine.batch(source, errors="yield", max_in_flight=3, max_tokens=5, seed=1, **options)


def tokens_of(row):
    return getattr(row, "token_ids", None)


def generated(prompts):
    yield from prompts


def read_on(batch, interrupted=lambda: None):
    """All rows; what raises KeyboardInterrupt is asked again."""
    rows = []
    while True:
        try:
            row = next(batch)
        except StopIteration:
            return rows
        except KeyboardInterrupt:
            interrupted()
        else:
            rows.append(row)


def check(rows, ordered):
    assert sorted(row.index for row in rows) == list(range(len(SOME)))
    assert not ordered or [row.index for row in rows] == list(range(len(SOME)))
    assert [tokens_of(row) for row in sorted(rows, key=lambda row: row.index)] == EXPECTED


@pytest.fixture
def no_collection():
    """What other tests left is not collected meanwhile: Python drops what is raised in the callbacks of that."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Lines:
    """Ctrl-C before the lines of the engine, or of some of its files, that have these numbers."""

    def __init__(self, numbers, files):
        self.n, self.numbers, self.next, self.files = 0, numbers, next(numbers), files

    def __call__(self, frame, event, arg):
        if not re.search(self.files, frame.f_code.co_filename):
            return None
        if event == "line" and not self.is_out_of_reach(frame):
            self.n += 1
            if self.n == self.next:
                self.next = next(self.numbers, None)
                signal.raise_signal(signal.SIGINT)
        return self

    def is_out_of_reach(self, frame):
        file, line = frame.f_code.co_filename, frame.f_lineno
        return file.endswith("core/batch.py") and linecache.getline(file, line).strip() in NEVER


def interrupted_at(numbers, source, ordered, files="oxillama/(core|engine)", **fields):
    """Rows of a batch that is interrupted before these lines, and how often it was."""
    engine = make_engine(prefill_chunk_size=8, **fields)
    batch = batch_of(engine, source, ordered=ordered)
    lines, previous, heard = Lines(numbers, files), sys.gettrace(), []

    def again():
        heard.append(lines.n)
        sys.settrace(lines)  # what a trace function raises ends the tracing

    try:
        sys.settrace(lines)
        rows = read_on(batch, again)
    finally:
        sys.settrace(previous)
    check(rows, ordered)
    assert_idle(engine)
    return heard


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(("ordered", "make", "fields"), [
    (True, list, {}), (False, generated, {}), (True, generated, {"max_queue_size": 2, "n_blocks": 2}),
])  # fmt: skip
def test_ctrl_c_at_any_line_of_a_batch_loses_no_prompt(ordered, make, fields):
    n, heard = 0, [0]
    while heard:
        n += STRIDE  # prompts take different numbers of lines, so that over all of them most lines get their turn
        heard = interrupted_at(iter([n]), make(SOME), ordered, r"core/batch\.py", **fields)
        assert len(heard) <= 1
    assert n > 20 * STRIDE


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_again_and_again(seed):
    draw = random.Random(seed)
    numbers = itertools.accumulate(draw.choice((1, 2, 5, 30, 400)) for _ in itertools.count())
    heard = interrupted_at(numbers, generated(SOME), ordered=bool(seed % 2))
    assert len(heard) > 10


def seconds_of_a_row(engine):
    """The least that was measured, of a row in a batch that nothing interrupts."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        n = len(list(batch_of(engine, iter(SOME))))
        times.append((time.perf_counter() - began) / n)
    return min(times)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("rows", [0.2, 0.7, 2.0])
def test_timers_whose_handler_raises(rows):
    """They ring after a time that follows from the machine's speed; longer after each, so that the batch goes on."""
    draw = random.Random(rows)

    here = sys._getframe()

    def ring(number, frame):
        if frame is not here:  # between rows, the test's own lines are not what is interrupted
            raise KeyboardInterrupt

    engine = make_engine(prefill_chunk_size=8)
    delay = rows * seconds_of_a_row(engine)
    previous, heard, turn = signal.signal(signal.SIGALRM, ring), 0, 0
    try:
        while turn < 12 or not heard:
            if turn >= 12:
                delay /= 2  # the machine has become quicker
            batch, found, longer = batch_of(engine, iter(SOME), ordered=bool(turn % 2)), [], 1.0
            while batch._pipeline is not None:
                try:
                    signal.setitimer(signal.ITIMER_REAL, max(draw.uniform(0.3, 1.7) * delay * longer, 1e-6))
                    found.extend(itertools.islice(batch, 1))  # in C, so that no signal comes in the test's own lines
                except KeyboardInterrupt:
                    heard += 1
                    longer *= 1.1
            signal.setitimer(signal.ITIMER_REAL, 0)
            check(found, ordered=bool(turn % 2))
            turn += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert_idle(engine)


class Reading:
    """Prompts read from somewhere, of which the third is interrupted."""

    def __init__(self):
        self.prompts = iter(SOME)

    def __iter__(self):
        return self

    def __next__(self):
        prompt = next(self.prompts)
        if prompt == SOME[2]:
            raise KeyboardInterrupt
        return prompt


def read_by_generator():
    yield from Reading()


def checked(prompt):
    if prompt == SOME[2]:
        raise KeyboardInterrupt
    return prompt


@pytest.mark.parametrize("make", [Reading, read_by_generator, lambda: map(checked, SOME)])
def test_an_interrupt_inside_the_iterable_ends_it_and_is_said(make):
    engine = make_engine()
    batch, heard, rows = batch_of(engine, make()), [], []
    with pytest.raises(
        GenerateError, match=r"interrupted \(KeyboardInterrupt\) after 2 prompts.*another batch"
    ) as info:
        read_into(rows, batch, heard)
    assert isinstance(info.value.__cause__, KeyboardInterrupt)
    assert [tokens_of(row) for row in rows] == EXPECTED[:2]
    assert len(heard) == 1
    assert list(batch) == []
    assert_idle(engine)


def read_into(rows, batch, heard):
    while True:
        try:
            rows.append(next(batch))
        except KeyboardInterrupt as error:
            heard.append(error)


def test_a_handler_that_raises_an_ordinary_error_while_a_generator_waits():
    """The generator is not ended by it, and gives the rest."""
    engine, calls = make_engine(), []

    def hook(runner, spans, poll):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGALRM)

    def ring(number, frame):
        raise TimeoutError("the caller's own")

    runner_of(engine).hook = hook
    previous = signal.signal(signal.SIGALRM, ring)
    try:
        batch = batch_of(engine, generated(SOME))
        with pytest.raises(TimeoutError, match="own"):
            list(batch)
        check(list(batch), ordered=False)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_what_progress_raises_loses_nothing():
    engine, told = make_engine(), []

    def progress(n, total):
        told.append(n)
        if n % 2:
            raise KeyboardInterrupt

    rows = read_on(batch_of(engine, SOME, progress=progress))
    check(rows, ordered=True)
    assert told == list(range(1, len(SOME) + 1))
    assert_idle(engine)


def test_another_thread_and_a_call_from_inside_are_refused():
    engine, refused = make_engine(), []

    def use():
        with pytest.raises(GenerateError, match="one thread at a time"):
            next(batch)
        refused.append(threading.get_ident())

    def hook(runner, spans, poll):
        if not refused:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
            use()

    runner_of(engine).hook = hook
    batch = batch_of(engine, iter(SOME), ordered=True)
    rows = read_on(batch)
    check(rows, ordered=True)
    assert len(set(refused)) == 2
    assert_idle(engine)


def test_closing_after_an_interrupt_frees_everything():
    engine, calls = make_engine(), []

    def hook(runner, spans, poll):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)

    runner_of(engine).hook = hook
    batch = batch_of(engine, itertools.repeat([3, 4]))
    with pytest.raises(KeyboardInterrupt):
        next(batch)
    assert core_of(engine).scheduler.live
    batch.close()
    assert list(batch) == []
    assert_idle(engine)


def test_an_engine_that_is_closed_meanwhile_is_said():
    engine, calls = make_engine(), []

    def hook(runner, spans, poll):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)

    runner_of(engine).hook = hook
    batch = batch_of(engine, SOME)
    with pytest.raises(KeyboardInterrupt):
        next(batch)
    engine.close()
    with pytest.raises(EngineClosedError):
        next(batch)


# ---- tasks


async def slowly(prompts):
    for prompt in prompts:
        await asyncio.sleep(0.0005)
        yield prompt


async def read_with_limits(batch, draw):
    """Each row is waited for so shortly that it takes several times."""
    rows, n_late = [], 0
    while True:
        try:
            rows.append(await asyncio.wait_for(anext(batch), draw.uniform(1e-6, 2e-3)))
        except TimeoutError:
            n_late += 1
        except StopAsyncIteration:
            return rows, n_late


@pytest.mark.parametrize("make", [list, generated, slowly])
@pytest.mark.parametrize("ordered", [True, False])
def test_waiting_for_a_time_loses_no_prompt(make, ordered):
    async def use(engine):
        rows, n_late = await read_with_limits(batch_of(engine, make(SOME), ordered=ordered), random.Random(ordered))
        check(rows, ordered)
        return n_late

    assert run(use, hook=lambda runner, spans, poll: time.sleep(0.001))


def test_a_long_prompt_that_another_thread_reads_is_queued_once():
    async def use(engine):
        n_read, encode = [], engine.engine.tokenizer.encode

        def slow(text, *rest):
            n_read.append(len(text))
            time.sleep(0.02)
            return [3, 4] if len(text) > INLINE_CHARACTERS else encode(text, *rest)

        engine.engine.tokenizer.encode = slow
        texts = ["a" * (INLINE_CHARACTERS + 1), "b" * (INLINE_CHARACTERS + 2), "a"]
        rows, n_late = await read_with_limits(batch_of(engine, texts), random.Random(1))
        assert n_late
        assert [row.index for row in rows] == [0, 1, 2]
        assert n_read == [len(text) for text in texts]

    run(use, context_size=2 * INLINE_CHARACTERS)  # room for the texts, or they are refused before they are read


def test_closing_while_another_task_waits_for_a_long_prompt():
    async def use(engine):
        async def close():
            await asyncio.sleep(0.01)
            await batch.aclose()

        engine.engine.tokenizer.encode = lambda text, *rest: time.sleep(0.05) or [3, 4]
        batch = batch_of(engine, ["a" * (INLINE_CHARACTERS + 1)] * 3)
        closing = asyncio.create_task(close())
        assert [row async for row in batch] == []
        await closing

    run(use, context_size=2 * INLINE_CHARACTERS)


def test_a_cancelled_task_leaves_the_batch_to_another():
    async def use(engine):
        batch = batch_of(engine, slowly(SOME))

        async def read():
            return [row async for row in batch]

        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        check(await read(), ordered=True)

    run(use)


def test_a_source_that_is_cancelled_is_said():
    async def source():
        yield SOME[0]
        raise asyncio.CancelledError

    async def use(engine):
        batch = batch_of(engine, source())
        assert tokens_of(await anext(batch)) == EXPECTED[0]
        with pytest.raises(GenerateError, match=r"interrupted \(CancelledError\) after 1 prompts"):
            await anext(batch)
        assert [row async for row in batch] == []

    run(use)


def test_two_tasks_at_once_are_refused():
    async def use(engine):
        batch = batch_of(engine, slowly(SOME))
        first = asyncio.create_task(anext(batch))
        await asyncio.sleep(0)
        with pytest.raises(GenerateError, match="one task at a time"):
            await anext(batch)
        rows = [await first] + [row async for row in batch]
        check(rows, ordered=True)

    run(use)


def test_an_interrupted_event_loop_can_be_left():
    """Ctrl-C in `asyncio.run`: the task is cancelled, and what the batch had is freed when it is dropped."""
    engine, once = make_engine(), iter([signal.SIGINT])

    def hook(runner, spans, poll):  # a second one would be raised wherever the event loop is, even as it closes
        for number in once:
            signal.raise_signal(number)

    async def use():
        runner_of(engine).hook = hook
        return [row async for row in batch_of(AsyncEngine(engine), itertools.repeat([3, 4]))]

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(use())
    runner_of(engine).hook = None
    assert engine.generate([5], max_tokens=5, seed=1).token_ids == alone([5], 5)
    core_of(engine).loop.stop_worker()
    assert_idle(engine)
