"""A dialogue that keeps its KV, on the fake model."""

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import ContextOverflowError, EngineClosedError, GenerateError
from tests.fakes import assert_idle, core_of, make_engine, options, runner_of
from tests.plain_loop import TOKENS


@given(st.lists(st.tuples(TOKENS, st.integers(1, 10), st.booleans()), min_size=1, max_size=5), st.sampled_from([3, 64]))
def test_a_dialogue_gives_what_whole_prompts_give(turns, chunk):
    engine = make_engine(context_size=256, prefill_chunk_size=chunk)
    talk = engine.conversation()
    history = []
    for new, n, change in turns:
        if change:  # an edited history, as when a template writes it differently
            history = history[: len(history) // 2]
        history += new
        chunks = list(talk.stream(history, options(max_tokens=n, seed=1)))
        got = [t for c in chunks for t in c.token_ids]
        assert got == engine.generate(history, max_tokens=n, seed=1).token_ids
        history += got
    talk.reset()
    assert_idle(engine)


def test_a_dialogue_computes_only_what_is_new():
    engine = make_engine()
    talk = engine.conversation()
    answer = [t for c in talk.stream([3] * 20, options(max_tokens=5, ignore_eos=True)) for t in c.token_ids]
    runner_of(engine).steps.clear()
    list(talk.stream([3] * 20 + answer + [4, 5], options(max_tokens=1)))
    # The last token of the answer was drawn but not computed.
    assert runner_of(engine).steps == [[3]]


def test_a_dialogue_goes_on_after_leaving_an_answer():
    engine = make_engine()
    talk = engine.conversation()
    stream = talk.stream([3] * 20, options(max_tokens=9, ignore_eos=True))
    said = next(stream).token_ids
    stream.close()
    expected = engine.generate([3] * 20 + said + [4], max_tokens=5, seed=3).token_ids
    got = [t for c in talk.stream([3] * 20 + said + [4], options(max_tokens=5, seed=3)) for t in c.token_ids]
    assert got == expected


def test_a_dialogue_that_fills_the_context():
    engine = make_engine(context_size=32)
    talk = engine.conversation()
    list(talk.stream([3] * 20, options(max_tokens=2)))
    with pytest.raises(ContextOverflowError):
        list(talk.stream([3] * 32, options()))
    assert talk.n_computed >= 20
    assert list(talk.stream([3] * 21, options(max_tokens=2)))


# ---- one answer at a time


def test_a_second_answer_while_the_first_is_under_way():
    engine = make_engine()
    talk = engine.conversation()
    expected = [t for c in engine.stream([3] * 20, max_tokens=9, seed=1, ignore_eos=True) for t in c.token_ids]
    same = options(max_tokens=9, seed=1, ignore_eos=True)
    first, late = talk.stream([3] * 20, same), talk.stream([3] * 20 + [4], same)
    got = next(first).token_ids
    for use in (lambda: talk.stream([3] * 20, same), lambda: next(late), talk.reset):
        with pytest.raises(GenerateError, match="is answering: finish or close its stream first"):
            use()
    assert got + [t for c in first for t in c.token_ids] == expected
    talk.reset()
    assert_idle(engine)


def test_closing_the_stream_lets_the_next_begin():
    engine = make_engine()
    talk = engine.conversation()
    first = talk.stream([3] * 20, options(ignore_eos=True))
    next(first)
    first.close()
    assert len(list(talk.stream([4], options(max_tokens=3, ignore_eos=True)))) >= 1
    talk.reset()
    assert_idle(engine)


def test_two_threads_in_one_dialogue():
    """Each answer is either refused or right, and nothing hangs."""
    engine = make_engine(context_size=256)
    talk = engine.conversation()
    prompts = [[3 + i] * (5 + i) for i in range(4)]
    expected = [engine.generate(p, max_tokens=8, seed=1, ignore_eos=True).token_ids for p in prompts]
    given, refused, wrong = [], [], []

    def work(i):
        for _ in range(30):
            try:
                chunks = list(talk.stream(prompts[i], options(max_tokens=8, seed=1, ignore_eos=True)))
            except GenerateError as error:
                refused.append(str(error))
            else:
                tokens = [t for c in chunks for t in c.token_ids]
                (given if tokens == expected[i] else wrong).append(tokens)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert given
    assert all("is answering" in message for message in refused)
    talk.reset()
    assert_idle(engine)


# ---- the end


def fill(engine, talk):
    list(talk.stream([3] * 40, options(max_tokens=2, ignore_eos=True)))
    assert core_of(engine).pool.blocks.n_free < core_of(engine).pool.n_blocks


def test_a_dropped_dialogue_gives_its_blocks_back():
    engine = make_engine(n_blocks=4)
    for _ in range(5):
        talk = engine.conversation()
        fill(engine, talk)
        del talk
        assert_idle(engine)


def test_dropped_with_an_answer_under_way():
    engine = make_engine()
    talk = engine.conversation()
    stream = talk.stream([3] * 20, options(ignore_eos=True))
    next(stream)
    del talk
    assert len(core_of(engine).scheduler.running) == 1
    next(stream)  # a stream keeps its dialogue
    del stream
    assert_idle(engine)


def test_dropped_in_a_cycle_with_an_answer_under_way():
    engine = make_engine()
    talk = engine.conversation()
    stream = talk.stream([3] * 20, options(ignore_eos=True))
    next(stream)
    cycle = [talk, stream]
    cycle.append(cycle)
    del talk, stream, cycle
    gc.collect()
    assert_idle(engine)


def test_close():
    engine = make_engine()
    with engine.conversation() as talk:
        fill(engine, talk)
    assert_idle(engine)
    talk.close()
    with pytest.raises(GenerateError, match="the conversation is closed"):
        talk.stream([3], options())


def test_close_ends_the_answer_that_is_under_way():
    engine = make_engine()
    with engine.conversation() as talk:
        stream = talk.stream([3] * 20, options(ignore_eos=True))
        next(stream)
    assert_idle(engine)
    assert [c.finish_reason for c in stream][-1] == "cancelled"


def test_in_a_closed_engine():
    engine = make_engine()
    talk = engine.conversation()
    fill(engine, talk)
    engine.close()
    for use in (lambda: talk.stream([3], options()), talk.reset):
        with pytest.raises(EngineClosedError):
            use()
    talk.close()
    assert_idle(engine)


def test_blocks_that_dialogues_keep_are_taken_rather_than_that_nothing_runs():
    engine = make_engine(context_size=64, n_blocks=4)
    talk, other = engine.conversation(), engine.conversation()
    fill(engine, talk)
    list(other.stream([5] * 10, options(max_tokens=2, ignore_eos=True)))
    assert engine.generate([4] * 60, max_tokens=2, ignore_eos=True).finish_reason == "length"
    assert (talk.n_computed, other.n_computed) == (0, 0)
    fill(engine, talk)
    talk.close()
    other.close()
    assert_idle(engine)
