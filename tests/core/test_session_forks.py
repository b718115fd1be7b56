"""Sessions beside the engine's own: shared beginnings, forks that part, and their end. On the fake model."""

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.core.options import CacheKey
from oxillama.errors import ConfigError, EngineClosedError, GenerateError
from tests.core.counted import computed
from tests.fakes import N_VOCAB, assert_idle, core_of, drawn, logits_of, make_engine, runner_of
from tests.plain_loop import plain_tokens

TOKENS = st.lists(st.integers(3, 5), min_size=1, max_size=20)


# ---- the prefix cache


def test_a_session_begins_with_what_others_computed():
    engine = make_engine()
    engine.generate([3] * 40, max_tokens=1)
    computed(engine)
    assert engine.prefill([3] * 40).tolist() == logits_of([3] * 40).tolist()
    assert computed(engine) == 1
    assert engine.metrics_snapshot().prefix_hits == 39
    assert_idle(engine)


def test_others_begin_with_what_a_session_computed():
    engine = make_engine()
    for _ in range(40):
        engine.forward_one(3)
    computed(engine)
    r = engine.generate([3] * 40, max_tokens=1, seed=1)
    assert r.token_ids == plain_tokens([3] * 40, drawn(seed=1), 1)[0]
    assert computed(engine) == 8
    assert_idle(engine)


def test_tokens_fed_one_by_one_are_no_lookups():
    engine = make_engine()
    engine.prefill([3] * 5)
    for _ in range(30):
        engine.forward_one(3)
    assert engine.metrics_snapshot().prefix_queries == 5


@pytest.mark.parametrize("how", [{"cache_prompt": False}, {"cache_salt": "a"}])
def test_a_session_may_keep_to_itself(how):
    engine = make_engine()
    engine.generate([3] * 40, max_tokens=1)
    computed(engine)
    with engine.session(**how) as session:
        assert session.prefill([3] * 40).tolist() == logits_of([3] * 40).tolist()
        assert computed(engine) == 40
    assert_idle(engine)


def test_what_is_cached_says_how_it_is_stored():
    for kv_type in ("f16", "q8_0", "q4_0"):
        engine = make_engine(kv_type=kv_type)
        engine.generate([3] * 20, max_tokens=1, cache_salt="s")
        engine.prefill([3] * 20)
        assert set(core_of(engine).scheduler.prefix._roots) == {CacheKey((), kv_type, "s"), CacheKey((), kv_type, None)}


# ---- forks


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 5), TOKENS),
            st.tuples(st.just("at"), st.integers(0, 5), TOKENS, st.floats(0, 1)),
            st.tuples(st.just("truncate"), st.integers(0, 5), st.floats(0, 1)),
            st.tuples(st.just("fork"), st.integers(0, 5)),
            st.tuples(st.just("close"), st.integers(0, 5)),
            st.tuples(st.just("generate"), st.integers(0, 5), TOKENS),
        ),
        max_size=20,
    ),
    st.sampled_from([8, 11, 40]),
    st.booleans(),
)
def test_every_session_sees_exactly_its_tokens(calls, n_blocks, prefix):
    engine = make_engine(context_size=128, n_blocks=n_blocks, prefix_cache=prefix, prefill_chunk_size=7)
    sessions = [(engine.session(), [])]
    for call, i, *args in calls:
        session, tokens = sessions[i % len(sessions)]
        if call == "fork":
            twin = session.fork()
            sessions.append((twin, list(tokens)))
            assert (twin.tokens, twin.position) == (tokens, len(tokens))
        elif call == "close" and len(sessions) > 1:
            sessions.remove((session, tokens))
            session.close()
        elif call == "truncate":
            n = round(args[0] * len(tokens))
            session.truncate(n)
            del tokens[n:]
        elif call == "generate":
            engine.generate(args[0], max_tokens=3)
        elif call in ("append", "at"):
            n = round(args[1] * len(tokens)) if call == "at" else len(tokens)
            if n + len(args[0]) <= 128:
                tokens[n:] = args[0]
                assert session.forward_prefill(args[0], n).tolist() == logits_of(tokens).tolist()
        assert session.closed or session.tokens == tokens
    for session, _ in sessions:
        session.close()
    assert_idle(engine)


def test_forks_share_what_they_have():
    engine = make_engine(context_size=64, n_blocks=20)
    session = engine.session()
    session.prefill([3] * 40)
    free = core_of(engine).pool.blocks.n_free
    forks = [session.fork() for _ in range(5)]
    assert core_of(engine).pool.blocks.n_free == free
    computed(engine)
    for i, fork in enumerate(forks):
        assert fork.forward_one(4 + i).tolist() == logits_of([3] * 40 + [4 + i]).tolist()
    assert computed(engine) == 5
    assert core_of(engine).pool.blocks.n_free == free - 5  # each has a copy of the block in which it parted
    for s in (session, *forks):
        s.close()
    assert_idle(engine)


def test_the_engines_own_session_can_be_forked():
    engine = make_engine()
    engine.prefill([3, 4])
    with engine.fork() as fork:
        assert isinstance(fork, ox.Session)
        assert fork.forward_one(5).tolist() == logits_of([3, 4, 5]).tolist()
    assert engine.position == 2


def test_a_fork_goes_on_without_its_parent():
    engine = make_engine()
    with engine.session() as session:
        session.prefill([3] * 20)
        fork = session.fork()
    assert session.closed
    computed(engine)
    assert fork.forward_one(5).tolist() == logits_of([3] * 20 + [5]).tolist()
    assert computed(engine) == 1


@pytest.mark.parametrize("n_blocks", [0, None])
def test_a_fork_of_a_recurrent_state(n_blocks):
    engine = make_engine(n_slots=12, n_blocks=n_blocks)
    session = engine.session()
    session.prefill([3] * 20)
    with session.fork() as fork:
        for token in (4, 5):
            assert fork.forward_one(token).tolist() == logits_of(fork.tokens).tolist()
        assert session.forward_one(6).tolist() == logits_of([3] * 20 + [6]).tolist()
        assert fork.tokens == [3] * 20 + [4, 5]
    session.close()
    assert_idle(engine)


# ---- the end


def test_a_closed_session_says_so():
    engine = make_engine()
    session = engine.session()
    session.prefill([3] * 20)
    session.close()
    session.close()
    assert_idle(engine)
    assert repr(session) == "<Session closed>"
    for use in (
        lambda: session.prefill([3]),
        lambda: session.forward_one(3),
        lambda: session.truncate(0),
        session.reset,
        session.fork,
        session.__enter__,
    ):
        with pytest.raises(GenerateError, match="session is closed"):
            use()


def test_a_dropped_session_frees_its_blocks():
    engine = make_engine()
    session = engine.session(cache_prompt=False)
    session.prefill([3] * 20)
    assert core_of(engine).pool.blocks.n_free < core_of(engine).pool.n_blocks
    del session
    gc.collect()
    assert core_of(engine).pool.blocks.n_free == core_of(engine).pool.n_blocks


def test_a_session_ends_with_its_engine():
    engine = make_engine()
    with engine.session() as session:
        session.prefill([3])
        engine.close()
        with pytest.raises(EngineClosedError):
            session.prefill([3])
        with pytest.raises(EngineClosedError):
            engine.session()


def test_a_session_in_use_is_not_closed():
    inside, leave = threading.Event(), threading.Event()

    def hook(runner, spans, poll):
        inside.set()
        assert leave.wait(60)

    engine = make_engine(hook=hook)
    session = engine.session()
    thread = threading.Thread(target=session.prefill, args=([3, 4],))
    thread.start()
    assert inside.wait(60)
    for use in (session.close, session.fork):
        with pytest.raises(GenerateError, match="another thread"):
            use()
    leave.set()
    thread.join(60)
    assert session.position == 2
    session.close()
    assert_idle(engine)


def test_bad_arguments():
    engine = make_engine()
    for options in ({"cache_prompt": 1}, {"cache_salt": 3}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            engine.session(**options)
    with pytest.raises(ox.TokenizerError, match=rf"from 0 to {N_VOCAB - 1}"):
        engine.session().prefill([N_VOCAB])
    encoder = make_engine(causal=False)
    with pytest.raises(GenerateError, match="for embed"):
        encoder.session()


def test_sessions_of_the_shipped_model_are_exact():
    ids = list(range(20, 90))
    with ox.load(num_threads=1) as engine:
        rows = engine.forward_logits([*ids, 7, 8])
        with engine.session() as session:
            assert (session.prefill(ids) == rows[69]).all()
            fork = session.fork()
            assert (session.forward_one(7) == rows[70]).all()
            assert (fork.prefill([7, 8]) == rows[71]).all()
            assert (engine.prefill([*ids, 7]) == rows[70]).all()
            assert engine.metrics_snapshot().prefix_hits == 64
    assert runner_of(engine).num_threads == 0
