"""Vectors by the names of sentence-transformers, against those of the engine."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, ContextOverflowError
from oxillama.integrations.sentence_transformers import PROMPTS, SentenceTransformer

TEXTS = ["a red ball", "the fox ran to the sea and slept there", "two"]


@pytest.fixture(scope="module")
def model(engine):
    return SentenceTransformer(engine)


def test_vectors_are_those_of_the_engine_in_order(model, engine):
    expected = engine.embed(TEXTS)
    assert np.array_equal(model.encode(TEXTS), expected)
    for size in (1, 2, 3, 100):
        assert np.array_equal(model.encode(TEXTS, batch_size=size), expected)
    assert np.array_equal(model.encode(TEXTS[1]), expected[1])
    rows = model.encode(tuple(TEXTS), convert_to_numpy=False)
    assert isinstance(rows, list)
    assert all(np.array_equal(row, one) for row, one in zip(rows, expected, strict=True))
    assert model.get_sentence_embedding_dimension() == expected.shape[1]
    assert model.encode([]).shape == (0, expected.shape[1])
    assert model.max_seq_length == engine.context_size


def test_options_of_vectors(model, engine):
    assert np.array_equal(model.encode(TEXTS, truncate_dim=16), engine.embed(TEXTS, dimensions=16))
    raw = model.encode(TEXTS, normalize_embeddings=False)
    assert np.array_equal(raw, engine.embed(TEXTS, normalize=False))
    assert np.array_equal(model.encode(TEXTS, precision="int8"), engine.embed(TEXTS, dtype="int8"))
    short = SentenceTransformer(engine, truncate_dim=8, pooling="last")
    assert np.array_equal(short.encode(TEXTS), engine.embed(TEXTS, pooling="last", dimensions=8))
    assert short.get_sentence_embedding_dimension() == 8
    assert short.encode([]).shape == (0, 8)


def test_prompts_by_name(engine):
    model = SentenceTransformer(engine, prompts="e5")
    assert np.array_equal(model.encode_query("ball"), engine.embed("query: ball"))
    assert np.array_equal(model.encode_document(["ball"]), engine.embed(["passage: ball"]))
    assert np.array_equal(model.encode("ball", prompt_name="query"), engine.embed("query: ball"))
    assert np.array_equal(model.encode("ball", prompt="say "), engine.embed("say ball"))
    assert np.array_equal(model.encode_query("ball", prompt=""), engine.embed("ball"))
    assert np.array_equal(model.encode("ball"), engine.embed("ball"))
    own = SentenceTransformer(engine, prompts={"passage": "p: ", "q": "q: "}, default_prompt_name="q")
    assert np.array_equal(own.encode("ball"), engine.embed("q: ball"))
    assert np.array_equal(own.encode_document("ball"), engine.embed("p: ball"))
    assert np.array_equal(own.encode_query("ball"), engine.embed("ball"))


def test_prompts_that_the_architecture_tells(engine, monkeypatch):
    model = SentenceTransformer(engine)
    assert model.prompts == {"query": "", "document": ""}
    for arch, family in {"nomic-bert": "nomic", "gemma-embedding": "embeddinggemma"}.items():
        monkeypatch.setattr(engine, "model_config", replace(engine.model_config, arch=arch))
        assert model.prompts == PROMPTS[family]
        assert SentenceTransformer(engine, prompts={}).prompts == {"query": "", "document": ""}
        monkeypatch.undo()


def test_long_texts_are_cut_unless_they_are_to_be_refused(model, engine):
    long = "the fox ran. " * 900
    assert np.array_equal(model.encode(long), engine.embed(long, truncate="end"))
    with pytest.raises(ContextOverflowError):
        SentenceTransformer(engine, truncate=False).encode(long)


def test_similarities(engine):
    a, b = np.array([[3, 4], [0, 0]], np.float32), np.array([[4, 3], [0, 1], [6, 8]], np.float32)
    expected = {
        "cosine": [[0.96, 0.8, 1], [0, 0, 0]],
        "dot": [[24, 4, 50], [0, 0, 0]],
        "euclidean": [[-np.sqrt(2), -np.sqrt(18), -5], [-5, -1, -10]],
        "manhattan": [[-2, -6, -7], [-7, -1, -14]],
    }
    for name, values in expected.items():
        found = SentenceTransformer(engine, similarity_fn_name=name).similarity(a, b)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, values, rtol=1e-6)
        one = SentenceTransformer(engine, similarity_fn_name=name).similarity(a[0], b.tolist())
        np.testing.assert_allclose(one, values[:1], rtol=1e-6)


def test_what_is_wrong_is_named(model, engine):
    with pytest.raises(ConfigError, match="prompt_name must be one of 'query', 'document'"):
        model.encode("a", prompt_name="passage")
    with pytest.raises(ConfigError, match=r"sentences\[1\] must be text, not int"):
        model.encode(["a", 3])
    for options in ({"batch_size": 0}, {"prompt": 3}, {"show_progress_bar": 3}, {"truncate_dim": 0}):
        with pytest.raises(ConfigError, match=next(iter(options)).replace("truncate_dim", "dimensions")):
            model.encode("a", **options)
    for options in (
        {"prompts": "no such family"}, {"prompts": {"a": 1}}, {"default_prompt_name": "no such"}, {"pooling": "none"},
        {"similarity_fn_name": "angle"},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=next(iter(options)).replace("default_", "")):
            SentenceTransformer(engine, **options)
    with pytest.raises(ConfigError, match="one or two dimensions"):
        model.similarity(np.zeros((1, 1, 1)), [1])
    with pytest.raises(TypeError):
        model.encode_query("a", no_such_option=1)


def test_the_bar_counts_texts(model, capsys):
    model.encode(TEXTS, show_progress_bar=True)
    assert "3/3" in capsys.readouterr().err
    model.encode(TEXTS)
    assert capsys.readouterr().err == ""


def test_a_path_is_opened_when_it_is_needed_and_a_pickle_holds_settings(engine):
    model = SentenceTransformer("no/such.gguf", prompts="e5")
    assert model.similarity([1, 0], [1, 0]).tolist() == [[1.0]]
    model = SentenceTransformer(str(shipped_model()), prompts="e5", engine={"num_threads": 1})
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.encode_query("ball"), engine.embed("query: ball"))
    again.close()
