"""The low-level session and the dialogue that keeps its KV, on the fake model."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import ConfigError, ContextOverflowError, GenerateError, KvCacheFullError, TokenizerError
from tests.fakes import EOS, N_VOCAB, assert_idle, logits_of, make_engine, runner_of
from tests.plain_loop import TOKENS


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("prefill"), TOKENS),
            st.tuples(st.just("at"), TOKENS, st.floats(0, 1)),
            st.tuples(st.just("one"), st.integers(0, N_VOCAB - 1)),
            st.tuples(st.just("truncate"), st.floats(0, 1)),
            st.tuples(st.just("reset")),
            st.tuples(st.just("generate"), TOKENS),
        ),
        max_size=12,
    ),
    st.sampled_from([1, 5, 64]),
)
def test_every_call_sees_exactly_the_tokens_so_far(calls, chunk):
    engine = make_engine(context_size=128, prefill_chunk_size=chunk)
    tokens = []
    for call, *args in calls:
        if call == "reset":
            engine.reset()
            tokens = []
        elif call == "truncate":
            n = round(args[0] * len(tokens))
            engine.truncate(n)
            tokens = tokens[:n]
        elif call == "generate":
            engine.generate(args[0], max_tokens=3)
        else:
            n = round(args[1] * len(tokens)) if call == "at" else len(tokens)
            new = [args[0]] if call == "one" else args[0]
            if n + len(new) > 128:
                continue
            tokens = tokens[:n] + new
            if call == "one":
                row = engine.forward_one(args[0])
            else:
                row = engine.forward_prefill(args[0], n) if call == "at" else engine.prefill(args[0])
            assert row.tolist() == logits_of(tokens).tolist()
        assert engine.position == len(tokens)
        assert_idle(engine)


def test_rows_are_copies():
    engine = make_engine()
    row = engine.prefill([3, 4])
    before = row.tolist()
    engine.forward_one(5)
    assert row.tolist() == before
    assert row.dtype == np.float32
    assert row.shape == (N_VOCAB,)


def test_decode_at_a_position():
    engine = make_engine()
    engine.prefill([3, 4, 5])
    assert engine.forward_decode(7, 1).tolist() == logits_of([3, 7]).tolist()
    assert engine.position == 2


def test_truncating_computes_nothing_again():
    engine = make_engine()
    engine.prefill([3] * 40)
    runner_of(engine).steps.clear()
    engine.truncate(33)
    engine.forward_one(4)
    assert runner_of(engine).steps == [[1]]


@pytest.mark.parametrize("pos", [-1, 4, True, 1.0, None])
def test_bad_position(pos):
    engine = make_engine()
    engine.prefill([3, 4, 5])
    with pytest.raises(ConfigError, match="pos must be"):
        engine.forward_decode(3, pos)
    assert engine.position == 3


@pytest.mark.parametrize("n", [-1, 4, "x"])
def test_bad_truncate(n):
    engine = make_engine()
    engine.prefill([3, 4, 5])
    with pytest.raises(ConfigError, match="n must be"):
        engine.truncate(n)


@pytest.mark.parametrize("token", [-1, N_VOCAB, 1.0, True, "a", None])
def test_bad_token(token):
    engine = make_engine()
    for use in (
        engine.forward_one,
        engine.is_eos,
        lambda t: engine.forward_decode(t, 0),
        lambda t: engine.prefill([t]),
    ):
        with pytest.raises(TokenizerError, match=rf"from 0 to {N_VOCAB - 1}"):
            use(token)
    assert engine.position == 0


def test_nothing_to_compute():
    with pytest.raises(ConfigError, match="tokens is empty"):
        make_engine().prefill([])


def test_the_context_ends():
    engine = make_engine(context_size=32)
    engine.prefill([3] * 32)
    with pytest.raises(ContextOverflowError, match=r"1 tokens at position 32 don't fit context_size 32"):
        engine.forward_one(3)
    with pytest.raises(ContextOverflowError):
        engine.forward_prefill([3] * 33, 0)
    assert engine.position == 32


def test_is_eos():
    engine = make_engine()
    assert engine.is_eos(EOS)
    assert not engine.is_eos(3)


def test_blocks_that_the_session_keeps_are_taken_rather_than_that_nothing_runs():
    engine = make_engine(context_size=64, n_blocks=4)
    engine.prefill([3] * 40)
    assert len(engine.generate([4] * 10, max_tokens=7, ignore_eos=True).token_ids) == 7
    runner_of(engine).steps.clear()
    assert engine.prefill([5]).tolist() == logits_of([3] * 40 + [5]).tolist()
    assert runner_of(engine).steps == [[1]]  # there was room for both
    assert len(engine.generate([4] * 30, max_tokens=19, ignore_eos=True).token_ids) == 19
    assert_idle(engine)
    runner_of(engine).steps.clear()
    assert engine.prefill([6]).tolist() == logits_of([3] * 40 + [5, 6]).tolist()
    assert runner_of(engine).steps == [[42]]  # its first block made room for the copy of one that begins like [4] * 30


def test_a_session_that_outgrows_the_cache_is_as_before():
    engine = make_engine(context_size=64, n_blocks=2)
    engine.prefill([3] * 20)
    with pytest.raises(KvCacheFullError):
        engine.prefill([4] * 20)
    assert engine.position == 20
    assert engine.prefill([5]).tolist() == logits_of([3] * 20 + [5]).tolist()


def test_a_session_waits_for_blocks_of_those_that_run():
    engine = make_engine(context_size=64, n_blocks=4)
    stream = engine.stream([3] * 30, max_tokens=30, ignore_eos=True)
    next(stream)
    assert engine.prefill([4, 5]).tolist() == logits_of([4, 5]).tolist()
    assert sum(len(c.token_ids) for c in stream) >= 1


def test_interrupted_inside_a_long_prefill_it_is_as_before():
    def fail_late(runner, spans, poll):
        if spans[0].start >= 20:
            raise KeyboardInterrupt

    engine = make_engine(prefill_chunk_size=8)
    engine.prefill([7] * 5)
    runner_of(engine).hook = fail_late
    with pytest.raises(KeyboardInterrupt):
        engine.prefill([3] * 40)
    runner_of(engine).hook = None
    assert engine.position == 5
    assert_idle(engine)
    assert engine.prefill([8]).tolist() == logits_of([7] * 5 + [8]).tolist()


def test_two_threads_in_one_session():
    inside, leave = threading.Event(), threading.Event()

    def hook(runner, spans, poll):
        inside.set()
        leave.wait(60)

    engine = make_engine(hook=hook)
    thread = threading.Thread(target=engine.prefill, args=([3, 4],))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(GenerateError, match="another thread"):
        engine.prefill([5])
    leave.set()
    thread.join(60)
    assert engine.position == 2
