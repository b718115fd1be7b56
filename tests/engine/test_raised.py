"""What is raised inside a step is its request's alone, whatever it is, and the turn is given back."""

import asyncio
import gc
import sys
import threading

import pytest

from oxillama._util.signals import check_stack, frames_left
from oxillama.core.results import CancelToken
from oxillama.drafts.draft import Proposal
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import GenerateError
from oxillama.sampling import SamplerChain
from tests.engine.coroutines import alone
from tests.fakes import assert_idle, core_of, make_engine, runner_of
from tests.faults.raised import in_thread, outcome_of, quietly

KINDS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, pytest.fail.Exception, MemoryError]
DRAWN = {"max_tokens": 12, "seed": 1, "ignore_eos": True}


def raising(error):
    def raise_it(*ignored):
        raise error

    return raise_it


class BadDraft:
    def __init__(self, error):
        self.propose = raising(error)

    def bind(self, target):
        pass

    def forget(self, key):
        pass


class BadForgetting(BadDraft):
    def __init__(self, error):
        self.propose = lambda tasks: [Proposal([]) for _ in tasks]
        self.forget = raising(error)


def places(error):
    """Options of a request in which something of the caller's own raises the error."""
    return {
        "processor": {"logits_processors": [raising(error)]},
        "stage": {"sampler": SamplerChain([raising(error)])},
        "draft": {"draft": BadDraft(error)},
        "criterion": {"stopping_criteria": raising(error)},
    }


@pytest.mark.parametrize("place", places(None))
@pytest.mark.parametrize("kind", KINDS)
def test_its_caller_gets_what_a_request_raises(kind, place):
    engine, error = make_engine(), kind("mine")
    other = engine.stream([5, 6], **DRAWN)
    first = next(other).token_ids
    options = {key: value for key, value in DRAWN.items() if key != "seed" or place != "stage"}
    with pytest.raises(kind) as caught:
        engine.generate([3, 4], **options, **places(error)[place])
    assert caught.value is error
    assert first + [t for c in other for t in c.token_ids] == alone([5, 6], 12, ignore_eos=True)
    assert_idle(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_thread_gets_it(kind):
    """The thread that takes the step is not the one whose request fails."""
    engine, error = make_engine(), kind("mine")
    both = threading.Event()
    taken_by = []

    def wait(ids, logits):
        if not both.is_set():  # in a step: the other request comes into the next one
            both.set()
            while len(core_of(engine).open) < 2:
                pass

    def fail(ids, logits):
        taken_by.append(threading.get_ident())
        raise error

    def failing():
        assert both.wait(60)
        return engine.generate([3], logits_processors=[fail], **DRAWN)

    found = []
    thread = threading.Thread(target=lambda: found.append(outcome_of(failing)), daemon=True)
    thread.start()
    mine = engine.generate([5, 6], logits_processors=[wait], **DRAWN).token_ids
    thread.join(60)
    assert found == [(None, error)]
    assert taken_by == [threading.get_ident()]
    assert mine == alone([5, 6], 12, ignore_eos=True)
    assert_idle(engine)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, MemoryError])
def test_no_other_task_gets_it(kind):
    error = kind("mine")
    engine = make_engine()

    async def failing():
        try:
            await AsyncEngine(engine).generate([3], logits_processors=[raising(error)], **DRAWN)
        except BaseException as caught:  # an event loop ends with what is no Exception
            return caught

    async def both():
        return await asyncio.wait_for(
            asyncio.gather(failing(), AsyncEngine(engine).generate([5, 6], **DRAWN)), timeout=60
        )

    caught, found = asyncio.run(both())
    assert caught is error
    assert found.token_ids == alone([5, 6], 12, ignore_eos=True)
    assert_idle(engine)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, MemoryError, ValueError])
@pytest.mark.parametrize("use", ["plain", "coroutine", "batch"])
def test_no_other_request_gets_what_a_cancel_token_raises(kind, use):
    """A step asks the tokens of all requests; this one answers only the thread that waits for it."""
    engine, error = make_engine(), kind("mine")

    class Token(CancelToken):
        def __init__(self):
            super().__init__()
            self.asked = 0

        @property
        def cancelled(self):
            self.asked += 1
            if self.asked > 3:
                raise error
            return False

    async def generate():
        try:
            await AsyncEngine(engine).generate([3], cancel_token=Token(), **DRAWN)
        except BaseException as caught:  # an event loop ends with what is no Exception
            return caught

    uses = {
        "plain": lambda: outcome_of(lambda: engine.generate([3], cancel_token=Token(), **DRAWN))[1],
        "coroutine": lambda: asyncio.run(generate()),
        "batch": lambda: outcome_of(lambda: list(engine.batch([[3], [4]], cancel_token=Token(), **DRAWN)))[1],
    }
    other = engine.stream([5, 6], **DRAWN)
    first = next(other).token_ids
    assert uses[use]() is error
    assert first + [t for c in other for t in c.token_ids] == alone([5, 6], 12, ignore_eos=True)
    assert_idle(engine)


@pytest.mark.parametrize("errors", ["raise", "yield"])
def test_a_batch_raises_what_asks_for_more_than_the_end_of_a_request(errors):
    engine = make_engine()
    batch = engine.batch([[3], [4]], errors=errors, logits_processors=[raising(SystemExit("mine"))], **DRAWN)
    with pytest.raises(SystemExit, match="mine"):
        next(batch)
    batch.close()
    assert_idle(engine)


def test_a_draft_that_fails_to_forget_harms_nobody(caplog):
    engine = make_engine()
    found = engine.generate([5, 6], draft=BadForgetting(SystemExit("mine")), **DRAWN)
    assert found.token_ids == alone([5, 6], 12, ignore_eos=True)
    assert "failed to forget" in caplog.text


async def generate_many(many):
    return await many.generate([3], **DRAWN)


async def embed_many(many):
    return await many.embed([3])


async def stream_many(many):
    return [c async for c in many.stream([3], **DRAWN)]


async def batch_many(many):
    return [c async for c in many.batch([[3]], **DRAWN)]


async def beams_many(many):
    return await many.beam_search([3], max_new_tokens=3)


async def snapshot_many(many):
    return await many.snapshot_bytes()


async def close_many(many):
    await many.close()


@pytest.mark.parametrize(
    "use", [generate_many, embed_many, stream_many, batch_many, beams_many, snapshot_many, close_many]
)
@pytest.mark.parametrize("beside", [False, True])
def test_coroutines_inside_a_step_are_refused(use, beside):
    """As plain calls are; the step may be that of the engine's own thread."""
    engine = make_engine()
    refused = []

    def process(ids, logits):
        if not refused:
            with pytest.raises(GenerateError, match="inside its own step") as caught:
                asyncio.run(asyncio.wait_for(use(AsyncEngine(engine)), 60))
            refused.append(caught.value)

    async def ask():
        many = AsyncEngine(engine)
        return await asyncio.wait_for(many.generate([5, 6], logits_processors=[process], **DRAWN), 60)

    found = asyncio.run(ask()) if beside else engine.generate([5, 6], logits_processors=[process], **DRAWN)
    assert refused
    assert found.token_ids == alone([5, 6], 12, ignore_eos=True)
    assert not engine.closed
    assert_idle(engine)


def test_an_error_of_no_single_request_is_typed_for_all():
    engine = make_engine()
    other = engine.stream([5, 6], **DRAWN)
    next(other)
    with engine.session() as session:
        session.prefill([3] * 20)
        first = session.logits.tobytes()
        schedule, core_of(engine)._schedule = core_of(engine)._schedule, raising(MemoryError("mine"))
        with pytest.raises(GenerateError, match="MemoryError: mine") as caught:
            engine.generate([3], **DRAWN)
        assert isinstance(caught.value.__cause__, MemoryError)
        core_of(engine)._schedule = schedule
        with pytest.raises(GenerateError, match="MemoryError: mine"):
            next(other)
        assert engine.generate([5], **DRAWN).token_ids == alone([5], 12, ignore_eos=True)
        assert session.position == 20
        session.truncate(19)
        assert session.forward_one(3).tobytes() == first
    assert_idle(engine)


def test_a_step_that_fails_for_several_calls_is_typed_for_each():
    engine = make_engine()
    other = engine.stream([5, 6], **DRAWN)
    next(other)
    runner_of(engine).hook = raising(ValueError("mine"))
    with pytest.raises(GenerateError, match="ValueError: mine"):
        engine.generate([3], **DRAWN)
    with pytest.raises(GenerateError, match="ValueError: mine"):
        next(other)
    with pytest.raises(ValueError, match="mine"):  # alone in its step
        engine.generate([[3], [4]], **DRAWN)
    runner_of(engine).hook = None
    assert_idle(engine)


def test_a_change_that_fails_raises_where_it_was_asked_for():
    engine = make_engine()
    other = engine.stream([5, 6], **DRAWN)
    next(other)
    with pytest.raises(ZeroDivisionError):
        core_of(engine).change(lambda: 1 / 0)
    with pytest.raises(GenerateError, match="ZeroDivisionError"):
        next(other)
    assert_idle(engine)


# ---- the end of the stack


def dive(n, call):
    """A call where n more frames are left."""
    return call() if frames_left() <= n else dive(n, call)


def test_check_stack():
    assert dive(50, lambda: 30 < frames_left() < 50)
    with pytest.raises(RecursionError, match="needs 100 more"):
        dive(50, lambda: check_stack(100))
    check_stack(100)


def calls_near_the_end(engine, session, stream):
    return {
        "generate": lambda: engine.generate([5, 6], **DRAWN).token_ids,
        "several": lambda: [c.token_ids for c in engine.generate([[3], [4]], **DRAWN)],
        "beams": lambda: [b.token_ids for b in engine.beam_search([5, 6], beam_width=2, max_new_tokens=3)],
        "session": lambda: session.forward_prefill([3, 4, 5], 0).tobytes(),
        "truncate": lambda: session.truncate(0),
        "embed": lambda: engine.embed([3, 4]).tobytes(),
        "metrics": lambda: engine.metrics_snapshot() and None,
        "stream": lambda: next(stream).token_ids and None,
        "dropped": lambda: next(engine.stream([7, 8], **DRAWN)).token_ids,
    }


def test_calls_at_every_depth_near_the_end_of_the_stack():
    engine = make_engine(context_size=4096)
    session = engine.session()
    endless = {"max_tokens": 4000, "seed": 1, "ignore_eos": True}
    stream = engine.stream([7, 7], **endless)
    calls = calls_near_the_end(engine, session, stream)
    expected = {name: call() for name, call in calls.items()}
    failed, done = 0, 0
    for n in range(1, 320):
        for name, call in calls.items():
            if name not in list(calls)[n % 4 :: 4]:
                continue
            found, error = outcome_of(lambda call=call, n=n: dive(n, call))
            if error is None:
                done += 1
                assert found == expected[name], (name, n)
            else:
                failed += 1
                assert isinstance(error, RecursionError), (name, n, error)
                if name == "stream":  # an error ends a generator
                    stream = engine.stream([7, 7], **endless)
                    calls = calls_near_the_end(engine, session, stream)
        assert core_of(engine).loop._owner is None
        if not n % 20:
            assert in_thread(calls["generate"]) == (expected["generate"], None)
    assert failed > 150
    assert done > 150
    stream.close()
    session.close()
    gc.collect()
    assert_idle(engine)


def test_what_is_dropped_at_the_end_of_the_stack_is_given_back():
    engine = make_engine()
    for n in range(1, 130, 3):
        kept = [engine.session(cache_prompt=False), engine.conversation(), engine.stream([5] * 20, **DRAWN)]
        kept[0].prefill([3] * 20)
        next(kept[2])
        with quietly():  # a generator that is dropped there can't be closed
            dive(n, kept.clear)
        assert engine.generate([5], **DRAWN).token_ids == alone([5], 12, ignore_eos=True)
        assert_idle(engine)


def test_a_processor_may_use_the_stack_up():
    engine = make_engine()

    def deeper(ids, logits):
        deeper(ids, logits)

    with pytest.raises(RecursionError):
        engine.generate([3], logits_processors=[deeper], **DRAWN)
    assert engine.generate([5], **DRAWN).token_ids == alone([5], 12, ignore_eos=True)
    assert_idle(engine)


def test_steps_need_less_of_the_stack_than_is_asked_for():
    """Half of it is left for what is added."""
    deepest = [0]

    def depth(frame, event, arg):
        if event == "call":
            deepest[0] = max(deepest[0], start - frames_left())

    engine = make_engine()
    start = frames_left()
    sys.setprofile(depth)
    try:
        engine.generate([3] * 20, grammar="root ::= [a-h ]*", stop=["ab"], draft="lookup", max_tokens=9, seed=1)
        engine.beam_search([3, 4], beam_width=3, max_new_tokens=4)
        engine.conversation().close()
    finally:
        sys.setprofile(None)
    assert 10 < deepest[0] < 60
