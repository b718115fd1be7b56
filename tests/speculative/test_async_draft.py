"""Asynchronous drafts: the same draft tokens, however the texts continue, and nothing left behind."""

import gc
import os
import threading
import time
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.drafts.draft import Draft
from oxillama.errors import ConfigError, EngineClosedError, GenerateError
from oxillama.speculative.async_draft import SpeculativeDecoder
from tests.fakes import BOS, EOS, N_VOCAB, FakeTokenizer, drawn, make_engine
from tests.processes import wait_for_child
from tests.speculative.drafting import (
    KINDS,
    PROMPT,
    WARM,
    Recorder,
    Text,
    draft_of,
    guessed,
    idle,
    make_draft,
    plain,
    runner_of,
    twice,
)

SECONDS = 30  # that nothing here takes


def settled(decoder):
    """Waits until the run ahead is done."""
    run = decoder._run
    assert run is None or run.done.wait(SECONDS)
    return decoder


def n_threads():
    return sum(t.name == "oxillama draft" for t in threading.enumerate())


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 1000),
)
def test_draft_tokens_are_those_of_the_model_alone(kind, noise, k, n_texts, wait, seed):
    alone, model = draft_of(kind, noise=noise), draft_of(kind, noise=noise)
    config = drawn(temperature=1.2, seed=seed)
    mine, its = ([Text([BOS, 3 + i, 4, 5], config) for i in range(n_texts)] for _ in range(2))
    with SpeculativeDecoder(model) as decoder:
        for _ in range(8):
            left = [i for i in range(n_texts) if not mine[i].ended]
            expected = alone.propose([mine[i].task(k) for i in left])
            before = [its[i].sampler.state() for i in left]
            assert decoder.propose([its[i].task(k) for i in left]) == expected
            assert [its[i].sampler.state() for i in left] == before
            for i, proposal in zip(left, expected, strict=True):
                mine[i].step(proposal.tokens)
                its[i].step(proposal.tokens)
            if wait:
                settled(decoder)
        for text in its:
            decoder.forget(text.key)
        settled(decoder)
    idle(model)


def test_texts_are_the_same_and_draft_tokens_are_ready_when_requested():
    model = make_draft()
    text = Text(PROMPT, WARM)
    with SpeculativeDecoder(model) as decoder:
        while len(text.output) < 30:
            (proposal,) = settled(decoder).propose([text.task(4)])
            text.step(proposal.tokens)
        n_first = 4
        assert decoder.n_ready == text.drafted - n_first
        assert text.accepted == text.drafted
        assert twice(model) == 0
    assert text.output[:30] == plain(PROMPT, WARM, 30)


def test_an_unneeded_run_stops():
    stuck = threading.Event()

    class Stuck(Recorder):
        stuck_from = 10**9

        def forward(self, spans, poll=None):
            if len(self.steps) >= self.stuck_from:
                stuck.set()
                while True:
                    poll()  # raises once it is cancelled
                    time.sleep(0.001)
            return super().forward(spans, poll)

    def begun():
        stuck.clear()
        model, text = make_draft(runner=Stuck), Text(PROMPT, WARM)
        decoder = SpeculativeDecoder(model)
        runner_of(model).stuck_from = 3
        decoder.propose([text.task(3)])
        assert stuck.wait(SECONDS)
        return model, text, decoder

    model, text, decoder = begun()
    decoder.forget(text.key)  # its request was cancelled
    settled(decoder)
    idle(model)
    decoder.close()

    model, text, decoder = begun()
    decoder.close()
    assert n_threads() == 0

    model, text, decoder = begun()
    text.tokens += [2, 2, 2]  # not the draft tokens
    runner_of(model).stuck_from = 10**9
    decoder.propose([text.task(1)])
    decoder.close()


def test_a_failing_run_ahead_has_no_effect():
    class Failing(Recorder):
        failing = False

        def forward(self, spans, poll=None):
            if self.failing and threading.current_thread().name == "oxillama draft":
                raise MemoryError("no")
            return super().forward(spans, poll)

    model, text = make_draft(runner=Failing), Text(PROMPT, WARM)
    with SpeculativeDecoder(model) as decoder:
        runner_of(model).failing = True
        assert guessed(settled(decoder), [text], 30, 4) == [plain(PROMPT, WARM, 30)]
        assert text.accepted == text.drafted - text.ended
        assert decoder.n_ready == 0
    idle(model)


def test_a_failing_proposal_raises():
    model = make_draft()
    runner_of(model).hook = lambda *_: 1 / 0
    with SpeculativeDecoder(model) as decoder, pytest.raises(ZeroDivisionError):
        decoder.propose([Text(PROMPT, WARM).task(2)])


def test_tasks_with_probs_are_not_drafted_ahead():
    with SpeculativeDecoder(make_draft()) as decoder:
        text = Text(PROMPT, WARM)
        (proposal,) = decoder.propose([text.task(3, with_probs=True)])
        assert len(proposal.probs) == len(proposal.tokens)
        assert decoder._run is None


def test_texts_in_an_engine_are_unchanged():
    prompts = [[BOS, 3 + i, 4] for i in range(6)]
    options = {"max_tokens": 25, "temperature": 1.1, "seed": 3}
    engine, plain_engine = make_engine(context_size=64, n_blocks=40), make_engine(context_size=64, n_blocks=40)
    expected = plain_engine.generate(prompts, **options)
    for noise in (0.0, 1.0):
        model = make_draft(noise=noise, n_blocks=40)
        with SpeculativeDecoder(model) as decoder:
            found = engine.generate(prompts, draft=decoder, adaptive=False, **options)
            assert [c.token_ids for c in found] == [c.token_ids for c in expected]
            assert noise or decoder.n_ready > 0
            other = make_engine()
            chunks = other.stream(prompts[0], draft=decoder, max_tokens=40, ignore_eos=True)
            next(chunks)
            other.close()
            with pytest.raises(EngineClosedError):
                list(chunks)
            settled(decoder)
        idle(model)


def test_engines_and_threads_share_one_async_draft():
    expected = [plain([BOS, 3 + i], drawn(seed=i), 30) for i in range(4)]
    model = make_draft(n_blocks=40)
    found, errors = [None] * 4, []

    def run(i):
        try:
            (found[i],) = guessed(decoder, [Text([BOS, 3 + i], drawn(seed=i))], 30, 3)
        except BaseException as error:
            errors.append(error)

    with SpeculativeDecoder(model) as decoder:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(SECONDS)
        settled(decoder)
    assert errors == []
    assert found == expected
    idle(model)


# ---- life


def test_close_ends_the_worker_thread():
    decoder = SpeculativeDecoder(make_draft())
    assert isinstance(decoder, Draft)
    assert n_threads() == 0
    decoder.propose([Text(PROMPT, WARM).task(2)])
    assert n_threads() == 1
    decoder.close()
    decoder.close()
    assert n_threads() == 0
    assert decoder.closed
    assert not decoder.model.closed  # it was made elsewhere
    with pytest.raises(EngineClosedError, match="the draft is closed"):
        decoder.propose([])
    with pytest.raises(EngineClosedError):
        decoder.bind(None)
    with pytest.raises(EngineClosedError), decoder:
        pass
    decoder.forget(5)


def test_a_dropped_draft_ends_its_thread_and_frees_the_model():
    decoder = SpeculativeDecoder(make_draft())
    decoder.propose([Text(PROMPT, WARM).task(2)])
    thread, model = decoder._thread, weakref.ref(settled(decoder).model)
    del decoder
    gc.collect()
    thread.join(SECONDS)
    assert not thread.is_alive()
    gc.collect()
    assert model() is None


def test_close_closes_a_model_made_by_the_draft():
    decoder = SpeculativeDecoder(None, num_threads=1, context_size=64)
    assert decoder.model.num_threads == 1
    decoder.close()
    assert decoder.model.closed
    with pytest.raises(TypeError, match="num_threads can't be given with a DraftModel"):
        SpeculativeDecoder(make_draft(), num_threads=1)


def test_another_vocabulary_is_refused():
    class Shorter(FakeTokenizer):
        n_vocab = 5

    target = type("Target", (), {"tokenizer": Shorter(), "n_vocab": N_VOCAB})
    with SpeculativeDecoder(make_draft()) as decoder, pytest.raises(ConfigError, match="token 5 is"):
        decoder.bind(target)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_and_texts_of_its_own():
    model, text = make_draft(), Text(PROMPT, WARM)
    expected = plain(PROMPT, WARM, 30)
    with SpeculativeDecoder(model) as decoder:
        for _ in range(5):  # forks at any point of what the thread does
            (proposal,) = decoder.propose([text.task(3)])
            text.step(proposal.tokens)
            child = os.fork()
            if not child:
                good = False
                try:
                    good = guessed(decoder, [text], 30, 3) == [expected]
                    decoder.close()
                finally:
                    os._exit(0 if good else 1)
            assert wait_for_child(child) == 0
        assert guessed(decoder, [text], 30, 3) == [expected]


def test_damaged_logits_raise_when_requested():
    class Broken(Recorder):
        def row(self, past):
            return super().row(past) * (float("nan") if len(past) > 9 else 1.0)

    config = drawn(temperature=1.3, seed=7, banned_tokens=[EOS])
    model, text = make_draft(runner=Broken), Text(PROMPT, config)
    with SpeculativeDecoder(model) as decoder:
        (proposal,) = decoder.propose([text.task(3)])
        settled(decoder)
        text.step(proposal.tokens)
        with pytest.raises(GenerateError, match="in the draft model"):
            decoder.propose([text.task(6)])
