"""The end of an engine: closed or dropped, with work under way."""

import gc
import threading
import weakref

import pytest

from oxillama.errors import EngineClosedError
from tests.fakes import assert_idle, make_engine, runner_of


def test_close_ends_what_is_under_way():
    engine = make_engine()
    stream = engine.stream("ab", ignore_eos=True)
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError, match="during the request"):
        list(stream)
    assert engine.closed
    assert_idle(engine)


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.generate("a"),
        lambda e: e.generate(["a", "b"]),
        lambda e: e.stream("a"),
        lambda e: e.chat([{"role": "user", "content": "a"}], stream=True, chat_template="a"),
        lambda e: e.conversation(),
        lambda e: e.__enter__(),
        lambda e: e.embed("a"),
        lambda e: e.forward_logits([3]),
        lambda e: e.prefill([3]),
        lambda e: e.forward_one(3),
        lambda e: e.reset(),
        lambda e: e.truncate(0),
    ],
)
def test_a_closed_engine_says_so(use):
    with make_engine() as engine:
        pass
    with pytest.raises(EngineClosedError, match="closed"):
        use(engine)


def test_a_dropped_engine_is_freed_at_once():
    gc.disable()
    try:
        engine = make_engine()
        stream = engine.stream("ab", ignore_eos=True)
        next(stream)
        engine.prefill([3])
        runner = weakref.ref(runner_of(engine))
        del engine
        next(stream)  # a stream keeps its engine
        stream.close()
        del stream
        assert runner() is None
    finally:
        gc.enable()


def test_close_from_another_thread():
    started, errors = threading.Event(), []

    def hook(runner, spans, poll):
        started.set()

    engine = make_engine(context_size=4096, hook=hook)

    def work():
        try:
            engine.generate([3], ignore_eos=True)
        except EngineClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    engine.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(errors) == 1
