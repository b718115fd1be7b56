"""Threads that can't be started are typed errors, of coroutines too."""

import asyncio
import threading

import pytest

import oxillama as ox
from oxillama._util.threads import in_thread, starting
from oxillama.speculative.async_draft import SpeculativeDecoder


@pytest.fixture
def no_threads(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_an_error_of_a_thread_is_typed_and_says_what_to_do():
    message = r"^the reader couldn't be started: .*raise the limit on processes"
    with pytest.raises(ox.ThreadStartError, match=message), starting("the reader"):
        raise RuntimeError("can't start new thread")
    assert issubclass(ox.ThreadStartError, (ox.GenerateError, ox.LoadError, RuntimeError))


def test_other_errors_stay_as_they_are():
    with pytest.raises(RuntimeError, match=r"^another$") as found, starting("the reader"):
        raise RuntimeError("another")
    assert type(found.value) is RuntimeError


def test_a_call_in_a_thread():
    assert asyncio.run(in_thread(divmod, 7, 2)) == (3, 1)


def test_coroutines_without_threads_raise_and_their_loop_can_be_closed(no_threads):
    """`asyncio.run` would fail at its end if the loop had a pool without a thread."""

    async def main():
        with pytest.raises(ox.ThreadStartError):
            await ox.AsyncEngine.load()
        with pytest.raises(ox.ThreadStartError):
            await in_thread(print)

    asyncio.run(main())


def test_a_stream_without_threads_is_a_typed_error(no_threads):
    async def main():
        engine = ox.AsyncEngine(ox.load(num_threads=1))
        with pytest.raises(ox.ThreadStartError, match="the engine's thread couldn't be started"):
            await engine.generate("Hello", max_tokens=2)

    asyncio.run(main())


def test_plain_calls_need_no_thread(no_threads):
    with ox.load(num_threads=1) as engine:
        assert len(engine.generate(["Hello", "Once"], max_tokens=2)) == 2
        assert len(list(engine.stream("Hello", max_tokens=2))) >= 1


def test_a_draft_that_can_not_run_ahead_drafts_all_the_same(monkeypatch):
    expected = ox.load(num_threads=1).generate("Once upon a time", max_tokens=12, temperature=0).token_ids
    with ox.load(num_threads=1) as engine, SpeculativeDecoder(ox.shipped_draft()) as draft:

        def start(self):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", start)
        found = engine.generate("Once upon a time", max_tokens=12, temperature=0, draft=draft, num_speculative=3)
    assert found.token_ids == expected
