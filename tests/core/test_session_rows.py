"""`Session.forward_logits`: the logits of each token, whatever the session, its cache and others did before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxillama as ox
from oxillama.errors import ConfigError, ContextOverflowError, KvCacheFullError, TokenizerError
from tests.core.counted import computed
from tests.fakes import N_VOCAB, assert_idle, logits_of, make_engine, session_of

TOKENS = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=40)
KINDS = pytest.mark.parametrize(
    "blocks",
    [
        {},
        {"n_blocks": 12},
        {"n_slots": 6},
        {"n_blocks": 0, "n_slots": 4},
        {"n_blocks": 0, "windows": (17, 40)},
        {"n_blocks": 30, "windows": (17, 40), "n_slots": 6},
    ],
    ids=["plain", "scarce", "hybrid", "recurrent", "windows", "all"],
)


def rows_of(tokens, start):
    return np.array([logits_of(tokens[: i + 1]) for i in range(start, len(tokens))])


@KINDS
@settings(max_examples=60)
@given(
    calls=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["rows", "at", "prefill"]), TOKENS, st.floats(0, 1)),
            st.tuples(st.just("truncate"), st.just(()), st.floats(0, 1)),
            st.tuples(st.just("generate"), TOKENS, st.floats(0, 1)),
        ),
        max_size=10,
    ),
    chunk=st.sampled_from([1, 5, 64]),
)
def test_every_row_is_that_of_its_tokens(blocks, calls, chunk):
    engine = make_engine(context_size=160, prefill_chunk_size=chunk, **blocks)
    session, tokens = session_of(engine), []
    for call, new, share in calls:
        n = round(share * len(tokens)) if call != "rows" else len(tokens)
        if call == "truncate":
            session.truncate(n)
            tokens = tokens[:n]
        elif call == "generate":  # leaves beginnings in the prefix cache, and takes blocks from the session
            engine.generate(tokens[:n] + new, max_tokens=3)
        elif n + len(new) <= 160:
            tokens = tokens[:n] + new
            if call == "prefill":
                assert session.forward_prefill(new, n).tolist() == logits_of(tokens).tolist()
            else:
                assert session.forward_logits(new, n).tolist() == rows_of(tokens, n).tolist()
                assert session.logits.tolist() == logits_of(tokens).tolist()
        assert session.tokens == tokens
        assert_idle(engine)


def test_the_prefix_cache_is_not_asked_and_then_has_it():
    engine = make_engine(context_size=128)
    prompt = [3 + i % 7 for i in range(100)]
    engine.generate(prompt, max_tokens=1)
    computed(engine)
    assert session_of(engine).forward_logits(prompt, 0).tolist() == rows_of(prompt, 0).tolist()
    assert computed(engine) == 100
    with engine.session() as other:
        assert other.forward_logits([*prompt, 5], 0).shape == (101, N_VOCAB)
        assert other.forward_one(6).tolist() == logits_of([*prompt, 5, 6]).tolist()
        assert other.fork().forward_one(7).tolist() == logits_of([*prompt, 5, 6, 7]).tolist()


def test_sampling_goes_on():
    engine = make_engine(context_size=128)
    session = session_of(engine)
    session.forward_logits([3, 4, 5], 0)
    first = session.sample(temperature=1.0, seed=3)
    session.forward_logits([first], 3)
    second = session.sample(temperature=1.0, seed=3)
    completion = engine.generate([3, 4, 5], max_tokens=2, temperature=1.0, seed=3, ignore_eos=True)
    assert completion.token_ids == [first, second]


def test_wrong_arguments_change_nothing():
    engine = make_engine(context_size=32, n_blocks=2)
    session = session_of(engine)
    rows = session.forward_logits([3, 4], 0)
    for error, tokens, position in (
        (ConfigError, [], 2),
        (ConfigError, [3], 3),
        (TokenizerError, [N_VOCAB], 2),
        (ContextOverflowError, [3] * 31, 2),
    ):
        with pytest.raises(error):
            session.forward_logits(tokens, position)
    assert (session.tokens, session.logits.tolist()) == ([3, 4], rows[-1].tolist())


def test_what_cannot_fit():
    engine = make_engine(context_size=64, n_blocks=2)
    with pytest.raises(KvCacheFullError):
        session_of(engine).forward_logits([3] * 40, 0)
    assert session_of(engine).position == 0


def test_of_the_model():
    with ox.load(context_size=128, prefill_chunk_size=7) as engine:
        ids = engine.tokenize("Once upon a time there was a little fox that lived in a red barn.")
        expected = engine.forward_logits(ids)
        with engine.session() as session:
            found = [session.forward_logits(ids[a:b], a) for a, b in ((0, 1), (1, 9), (9, len(ids)))]
        assert (np.concatenate(found) == expected).all()


def test_rows_fill_an_array_that_is_given():
    engine = make_engine(context_size=160, prefill_chunk_size=16)
    tokens = [2 + i % 9 for i in range(90)]
    scores = np.zeros((100, N_VOCAB), np.float32)
    with engine.session() as session:
        session.forward_prefill(tokens[:10], 0)
        found = session.forward_logits(tokens[10:], 10, out=scores[10:90])
        assert found.base is scores
        assert found.tolist() == rows_of(tokens, 10).tolist()
        assert not scores[:10].any()
        assert not scores[90:].any()
        closed = scores[:80].copy()
        closed.flags.writeable = False
        for wrong in (scores, scores[:80].astype(np.float64), scores[:80].tolist(), closed):
            with pytest.raises(ConfigError, match=r"out must be a float32 array of the shape \(80, "):
                session.forward_logits(tokens[10:], 10, out=wrong)
        assert session.position == 90
