"""Embed and Rerank: what `engine.embed` and `engine.rerank` give for each row alone."""

import numpy as np
import pytest

import oxillama as ox
import oxillama.data as oxd
from tests.models.bert import BERT, HEADS, changed, with_head
from tests.pipelines.tables import KINDS, cells, made

TEXTS = ["a red ball", None, "", "the cat sat on the mat and slept", "blue"]
ONE = {"num_threads": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_comes_back_with_vectors(engine, kind):
    table = made(kind, {"text": TEXTS})
    found = oxd.Embed(input="text", engine=ONE)(table)
    assert type(found) is type(table)
    assert cells(found, "vector") == [engine.embed(text).tolist() if text else None for text in TEXTS]
    if kind in ("arrow", "record batch"):
        assert str(found.schema.field("vector").type) == f"fixed_size_list<item: float>[{engine.model_config.n_embd}]"
    if kind == "polars":
        assert str(found.schema["vector"]) == f"Array(Float32, shape=({engine.model_config.n_embd},))"


def test_columns_of_arrays_get_an_array_of_vectors(engine):
    texts = ["a", "b c"]
    found = oxd.Embed(template="It is {text}", engine=ONE)({"text": np.array(texts)})["vector"]
    assert found.dtype == np.float32
    assert np.array_equal(found, engine.embed([f"It is {text}" for text in texts]))


@pytest.mark.parametrize(
    ("options", "dtype"), [({"dtype": "int8"}, "int8"), ({"dtype": "binary", "dimensions": 40}, "uint8")]
)
def test_other_types_of_vectors(engine, options, dtype):
    pa = pytest.importorskip("pyarrow")
    mapper = oxd.Embed(input="text", output="v", engine=ONE, **options)
    found = mapper(pa.table({"text": TEXTS}))
    own = engine.embed("blue", **options)
    assert found["v"].to_pylist()[-1] == own.tolist()
    assert str(found.schema.field("v").type) == f"fixed_size_list<item: {dtype}>[{len(own)}]"


def test_without_pooling_rows_have_lists_of_vectors(engine):
    pa = pytest.importorskip("pyarrow")
    found = oxd.Embed(input="text", pooling="none", engine=ONE)(pa.table({"text": TEXTS}))
    assert found["vector"].to_pylist()[3] == engine.embed(TEXTS[3], pooling="none").tolist()


def test_a_text_that_is_too_long_leaves_the_others(engine):
    rows = {"text": ["a", "cat " * 10_000, None, "b"]}
    with pytest.raises(ox.ContextOverflowError) as info:
        oxd.Embed(input="text", engine=ONE)(rows)
    assert any("row 1 " in note for note in info.value.__notes__)
    found = oxd.Embed(input="text", engine=ONE, on_error="column")(rows)
    assert [cell is None for cell in found["vector"]] == [False, True, True, False]
    assert np.array_equal(found["vector"][3], engine.embed("b"))
    assert found["vector_error"][1].startswith("ContextOverflowError: ")
    assert found["vector_error"][::2] == [None, None]


def test_more_rows_than_are_computed_together(monkeypatch, engine):
    monkeypatch.setattr("oxillama.data.embed.MOST_TOGETHER", 3)
    texts = [f"number {i}" for i in range(8)]
    found = oxd.Embed(input="text", engine=ONE)({"text": texts})["vector"]
    assert all(np.array_equal(vector, engine.embed(text)) for vector, text in zip(found, texts, strict=True))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, ox.ConfigError),
        ({"input": "a", "template": "{a}"}, ox.ConfigError),
        ({"input": "a", "poling": 1}, TypeError),
    ],
)
def test_bad_settings(options, error):
    with pytest.raises(error):
        oxd.Embed(**options)


@pytest.fixture
def ranker(tmp_path):
    return changed(with_head(tmp_path, head=HEADS["output"]), BERT)


QUERIES = ["a b", None, "c", "a"]
DOCUMENTS = [["a", "b c", "d"], ["a"], [], ["d a", "b"]]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "arrays"])
def test_documents_come_in_the_order_of_their_scores(ranker, kind):
    found = oxd.Rerank(ranker, engine=ONE)(made(kind, {"query": QUERIES, "documents": DOCUMENTS}))
    with ox.load(ranker, num_threads=1) as engine:
        own = [
            [{"index": one.index, "score": one.score} for one in engine.rerank(query, documents)]
            if query and documents
            else None
            for query, documents in zip(QUERIES, DOCUMENTS, strict=True)
        ]
    assert cells(found, "order") == own
    assert len(own[0]) == 3


def test_rankings_that_fail_leave_the_others(ranker):
    mapper = oxd.Rerank(ranker, query="q", documents="d", top_n=1, on_error="column", engine=ONE)
    found = mapper({"q": ["a", "a", "a"], "d": [["b"], ["a " * 10_000], ["b", 3]]})
    assert [order and len(order) for order in found["order"]] == [1, None, None]
    assert [error and error.partition(":")[0] for error in found["order_error"]] == [
        None, "ContextOverflowError", "ConfigError",
    ]  # fmt: skip
    with pytest.raises(ox.ConfigError, match="documents"):
        oxd.Rerank(ranker, query="q", documents="d", engine=ONE)({"q": ["a"], "d": [["b", 3]]})
    with pytest.raises(TypeError, match="top_n"):
        oxd.Rerank(ranker, top=3)


@pytest.mark.parametrize("column", [[1, 2], [5], ["a", 2], [None, 3, "a"], [["a"]], ["a", ["b", "c"]], [[[1], [2]]]])
def test_cells_that_are_no_single_text_are_errors_of_their_rows(engine, column):
    """A list of numbers would be the token ids of one text, and a list of texts several."""
    wrong = [cell is not None and not isinstance(cell, str) for cell in column]
    with pytest.raises(ox.ConfigError, match=r"a text must be a str or token ids, not (int|list)"):
        oxd.Embed(engine, input="p")({"p": column})
    found = oxd.Embed(engine, input="p", on_error="column")({"p": column})
    assert [error is not None for error in found["vector_error"]] == wrong
    assert [vector is not None for vector in found["vector"]] == [isinstance(cell, str) for cell in column]
