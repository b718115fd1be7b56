"""Threads, forks and ends of engines that have drafts: nothing hangs, nothing stays."""

import gc
import os
import threading
import time
import weakref

import pytest

import oxillama as ox
from tests.fakes import BOS, assert_idle, make_engine
from tests.processes import wait_for_child
from tests.speculative.drafting import Recorder, Text, idle, make_draft

SECONDS = 30  # that nothing here takes
PROMPT = [BOS, 4, 5, 6, 7]
OPTIONS = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.2}


def joined(threads):
    for t in threads:
        t.start()
    for t in threads:
        t.join(SECONDS)
    return not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("ahead", [False, True])
def test_threads_of_several_engines_share_a_draft(ahead):
    engines, model = [make_engine(), make_engine()], make_draft(noise=0.5, n_blocks=12)
    draft = ox.SpeculativeDecoder(model) if ahead else model
    expected = [engines[0].generate([BOS, 3 + i], seed=i, **OPTIONS).token_ids for i in range(8)]
    found = [None] * 8

    def run(i):
        options = OPTIONS | {"adaptive": i % 2 == 0, "num_speculative": 1 + i % 5}
        found[i] = engines[i % 2].generate([BOS, 3 + i], seed=i, draft=draft, **options).token_ids

    assert joined([threading.Thread(target=run, args=(i,), daemon=True) for i in range(8)])
    assert found == expected
    if ahead:
        draft.close()
    for engine in engines:
        assert_idle(engine)
    idle(model)


@pytest.mark.parametrize("ahead", [False, True])
def test_an_engine_that_is_closed_during_a_request_leaves_the_draft_free(ahead):
    engine, model = make_engine(), make_draft()
    draft = ox.SpeculativeDecoder(model) if ahead else model
    chunks = engine.stream(PROMPT, draft=draft, adaptive=False, **OPTIONS)
    next(chunks)
    engine.close()
    with pytest.raises(ox.EngineClosedError):
        list(chunks)
    if ahead:
        draft.close()
    idle(model)


def test_left_streams_and_cancelled_requests_leave_nothing():
    engine, draft = make_engine(), make_draft()
    chunks = engine.stream(PROMPT, draft=draft, **OPTIONS)
    next(chunks)
    chunks.close()
    idle(draft)
    token = ox.CancelToken()

    def cancel(piece):
        token.cancel()

    found = engine.generate(PROMPT, draft=draft, cancel_token=token, on_token=cancel, **OPTIONS)
    assert found.finish_reason == "cancelled"
    assert_idle(engine)
    idle(draft)


def test_an_engine_that_is_dropped_frees_its_draft():
    engine, draft = make_engine(), make_draft()
    engine.generate(PROMPT, draft=draft, **OPTIONS)
    known = weakref.ref(draft)
    del draft
    gc.collect()
    assert known() is None  # the engine remembers it, and keeps it not
    spec = ox.SpeculativeEngine(engine, make_draft())
    spec.generate(PROMPT, **OPTIONS)
    both = weakref.ref(spec), weakref.ref(spec.draft)
    del spec
    gc.collect()
    assert [ref() for ref in both] == [None, None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("ahead", [False, True])
def test_a_fork_during_a_request_leaves_both_processes_usable(ahead):
    """Both go on with the same one, each with a draft of its own; in the parent another thread is at work meanwhile."""
    engine, model = make_engine(), make_draft(noise=0.3)
    draft = ox.SpeculativeDecoder(model) if ahead else model
    options = OPTIONS | {"adaptive": False, "draft": draft}
    expected = engine.generate(PROMPT, seed=1, **OPTIONS).token_ids
    stop = threading.Event()

    def others():
        while not stop.is_set():
            engine.generate([BOS, 9], seed=2, **options)

    thread = threading.Thread(target=others, daemon=True)
    thread.start()
    chunks = engine.stream(PROMPT, seed=1, **options)
    ids = list(next(chunks).token_ids)
    for _ in range(3):
        child = os.fork()
        if not child:
            good = False
            try:
                mine = list(ids)
                for chunk in chunks:
                    mine += chunk.token_ids
                again = engine.generate(PROMPT, seed=1, **options).token_ids
                good = mine == expected == again
            finally:
                os._exit(0 if good else 1)
        assert wait_for_child(child) == 0
    for chunk in chunks:
        ids += chunk.token_ids
    assert ids == expected
    stop.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    if ahead:
        draft.close()
    idle(model)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_for_a_run_that_holds_a_lock():
    """As of a grammar, which another request of the child may follow."""
    lock, held = threading.Lock(), threading.Event()

    class Locking(Recorder):
        def forward(self, spans, poll=None):
            if threading.current_thread().name == "oxillama draft":
                with lock:
                    held.set()
                    time.sleep(0.2)
            return super().forward(spans, poll)

    with ox.SpeculativeDecoder(make_draft(runner=Locking)) as draft:
        draft.propose([Text(PROMPT, ox.SamplerConfig(seed=1, banned_tokens=[1])).task(2)])
        assert held.wait(SECONDS)
        child = os.fork()
        if not child:
            os._exit(0 if lock.acquire(timeout=60) else 1)
        assert wait_for_child(child) == 0
        draft.propose([Text(PROMPT, ox.SamplerConfig(seed=1, banned_tokens=[1])).task(2)])
        assert draft._run is not None  # it goes on guessing here


def test_a_draft_closed_during_a_run_starts_no_other(monkeypatch):
    decoder = ox.SpeculativeDecoder(make_draft())
    real = decoder.model.propose

    def closing(*args):
        found = real(*args)
        if threading.current_thread().name != "oxillama draft":
            decoder.close()
        return found

    monkeypatch.setattr(decoder.model, "propose", closing)
    with pytest.raises(ox.EngineClosedError, match="the draft is closed"):
        make_engine().generate([BOS, 4, 5], max_tokens=30, seed=1, ignore_eos=True, draft=decoder, adaptive=False)
    assert decoder._run is None
