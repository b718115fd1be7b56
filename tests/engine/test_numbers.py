"""Embeddings and logits on the fake model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama.gguf as gguf
from oxillama.core.embedding import read_pooling
from oxillama.errors import ConfigError, ContextOverflowError, TokenizerError, UnsupportedModelError
from tests.fakes import N_EMBD, N_VOCAB, assert_idle, hidden_of, logits_of, make_engine, runner_of

IDS = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=40)


def states(ids):
    return np.array([hidden_of(ids[: i + 1]) for i in range(len(ids))])


def pooled(ids, pooling):
    rows = states(ids)
    if pooling == "mean":
        total = np.zeros(N_EMBD)
        for row in rows:
            total += row
        return (total / len(rows)).astype(np.float32)
    return {"last": rows[-1], "cls": rows[0], "max": rows.max(axis=0), "none": rows}[pooling]


@given(IDS, st.sampled_from(["mean", "last", "cls", "max", "none"]), st.sampled_from([1, 7, 16, 512]))
def test_pooling_does_not_depend_on_chunks(ids, pooling, chunk):
    engine = make_engine(prefill_chunk_size=chunk)
    got = engine.embed(ids, pooling=pooling, normalize=False)
    assert got.dtype == np.float32
    assert got.tolist() == pooled(ids, pooling).tolist()
    assert_idle(engine)


@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_normalised_to_length_one(pooling):
    got = make_engine().embed([3, 4, 5], pooling=pooling)
    assert np.linalg.norm(got, axis=-1) == pytest.approx(1.0, abs=1e-6)
    plain = make_engine().embed([3, 4, 5], pooling=pooling, normalize=False)
    assert got * np.linalg.norm(plain, axis=-1, keepdims=True) == pytest.approx(plain, abs=1e-6)


def test_a_list_gives_a_row_each():
    engine = make_engine()
    inputs = ["ab", [3, 4, 5], "the bed"]
    got = engine.embed(inputs)
    assert got.shape == (3, N_EMBD)
    assert got.tolist() == [engine.embed(i).tolist() for i in inputs]
    assert len(runner_of(engine).steps[0]) == 3  # together in one step
    ragged = engine.embed(inputs, pooling="none")
    assert [r.shape for r in ragged] == [(2, N_EMBD), (3, N_EMBD), (len(engine.tokenize("the bed")), N_EMBD)]


def test_embedding_beside_generation():
    engine = make_engine(prefill_chunk_size=4)
    stream = engine.stream([3] * 9, max_tokens=9, seed=1, ignore_eos=True)
    first = next(stream)
    assert engine.embed([5] * 9, pooling="none", normalize=False).tolist() == states([5] * 9).tolist()
    tokens = [t for c in [first, *stream] for t in c.token_ids]
    assert tokens == engine.generate([3] * 9, max_tokens=9, seed=1, ignore_eos=True).token_ids


@given(IDS, st.sampled_from([1, 7, 512]))
def test_logits_of_every_position(ids, chunk):
    engine = make_engine(prefill_chunk_size=chunk)
    got = engine.forward_logits(ids)
    assert got.dtype == np.float32
    assert got.tolist() == [logits_of(ids[: i + 1]).tolist() for i in range(len(ids))]
    assert_idle(engine)


@pytest.mark.parametrize("pooling", ["sum", "", 1])
def test_unknown_pooling(pooling):
    with pytest.raises(ConfigError, match="pooling must be one of mean, last, cls, max, none, rank"):
        make_engine().embed("a", pooling=pooling)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "none"])
def test_without_a_pooling_it_is_what_the_file_says(pooling):
    engine = make_engine(pooling=pooling)
    assert engine.embed([3, 4, 5]).tolist() == make_engine().embed([3, 4, 5], pooling=pooling).tolist()
    assert engine.embed([3, 4, 5], pooling="max").tolist() == make_engine().embed([3, 4, 5], pooling="max").tolist()


def test_a_file_that_says_rank():
    engine = make_engine(pooling="rank")
    with pytest.raises(UnsupportedModelError, match="pooling_type is 4"):
        engine.embed("a")
    with pytest.raises(UnsupportedModelError, match='pooling "rank" needs a classifier'):
        make_engine().embed("a", pooling="rank")
    assert engine.embed("a", pooling="last").shape == (N_EMBD,)


def test_what_files_say(tmp_path):
    def file(metadata):
        gguf.write_gguf(tmp_path / "a.gguf", {"general.architecture": "bert", **metadata}, {})
        return gguf.open(tmp_path / "a.gguf").metadata

    said = [read_pooling(file({"bert.pooling_type": i})) for i in range(5)]
    assert said == ["none", "mean", "cls", "last", "rank"]
    assert read_pooling(file({})) == "mean"
    for bad in (-1, 5):
        with pytest.raises(UnsupportedModelError, match=rf"bert\.pooling_type is {bad}; known are 0 \(none\)"):
            read_pooling(file({"bert.pooling_type": bad}))


def test_bad_inputs():
    engine = make_engine(context_size=32)
    with pytest.raises(ConfigError, match="normalize"):
        engine.embed("a", normalize=1)
    with pytest.raises(ConfigError, match="empty"):
        engine.embed([])
    with pytest.raises(TokenizerError, match=r"input\[1\]\[0\] must be .*99"):
        engine.embed([[3], [99]])
    with pytest.raises(ContextOverflowError, match="input has 33 tokens"):
        engine.embed([3] * 33)
    with pytest.raises(ContextOverflowError, match="ids has 33 tokens"):
        engine.forward_logits([3] * 33)
    with pytest.raises(ConfigError, match="not text"):
        engine.forward_logits("abc")
    with pytest.raises(ConfigError, match="ids is empty"):
        engine.forward_logits([])
    assert engine.forward_logits([3] * 32).shape == (32, N_VOCAB)
    assert_idle(engine)
