"""Tables of other forms than frames: Arrow's protocol, series, lists of rows; and schemas that don't fit."""

import numpy as np
import pytest

import oxillama as ox
import oxillama.data as oxd
from tests.pipelines.tables import cells, names

ANIMALS = ["cat", None, "bear", "", "fox"]
SAME = {"max_tokens": 6, "seed": 1, "engine": {"num_threads": 1}}


@pytest.fixture(scope="module")
def story():
    return oxd.Generate(template="Once a {animal}", output="story", **SAME)


@pytest.fixture(scope="module")
def expected(story):
    return story({"animal": ANIMALS})["story"]


def duckdb_relation(columns):
    duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
    table = pa.table(columns)
    return duckdb.connect().from_arrow(table)


def reader(columns):
    pa = pytest.importorskip("pyarrow")
    return pa.table(columns).to_reader(max_chunksize=2)


def daft_frame(columns):
    daft = pytest.importorskip("daft")
    found = daft.from_pydict(columns)
    if not hasattr(found, "__arrow_c_stream__"):
        pytest.skip("this version of Daft lacks Arrow's protocol")
    return found


def ibis_table(columns):
    ibis, pa = pytest.importorskip("ibis", reason="ibis-framework is missing"), pytest.importorskip("pyarrow")
    return ibis.memtable(pa.table(columns))


class Exported:
    """An object of a library that nothing is known of but the protocol, which gives its rows once."""

    def __init__(self, columns):
        self.table = pytest.importorskip("pyarrow").table(columns)

    def __arrow_c_stream__(self, requested_schema=None):
        table, self.table = self.table, None
        return table.__arrow_c_stream__(requested_schema)


STREAMS = [duckdb_relation, reader, daft_frame, ibis_table, Exported]


@pytest.mark.parametrize("make", STREAMS)
def test_streams_of_arrow_come_back_as_tables(make, story, expected):
    found = story(make({"n": list(range(5)), "animal": ANIMALS}))
    pa = pytest.importorskip("pyarrow")
    assert isinstance(found, pa.Table)
    assert found.to_pydict() == {"n": list(range(5)), "animal": ANIMALS, "story": expected}


@pytest.mark.parametrize("make", STREAMS)
def test_streams_are_mapped_by_their_batches(make, story, expected):
    found = list(story.map(make({"animal": ANIMALS})))
    assert {type(batch).__name__ for batch in found} == {"RecordBatch"}
    assert [text for batch in found for text in batch["story"].to_pylist()] == expected


@pytest.mark.parametrize("make", STREAMS)
def test_schemas_of_streams(make, story):
    pa = pytest.importorskip("pyarrow")
    assert story.schema(make({"animal": ["cat"]})).names == ["animal", "story"]
    assert story.schema(make({"animal": ["cat"]})).field("story").type == pa.string()
    with pytest.raises(ox.ConfigError, match="has no column 'animal'; it has 'name'"):
        story.schema(make({"name": ["cat"]}))
    with pytest.raises(ox.ConfigError, match="has no column 'animal'; it has 'name'"):
        story.map(make({"name": ["cat"]}))  # before a batch is taken


def test_one_batch_of_the_protocol(story, expected):
    pa = pytest.importorskip("pyarrow")

    class Array:
        def __arrow_c_array__(self, requested_schema=None):
            return pa.record_batch({"animal": ANIMALS}).__arrow_c_array__(requested_schema)

    assert story(Array())["story"].to_pylist() == expected


def test_arrays_without_columns_are_refused(story):
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(ox.ConfigError, match="must have columns, which StringArray has not"):
        story(pa.array(["cat"]))


def test_series_are_tables_of_one_column(story, expected):
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    frame = pd.DataFrame({"animal": ANIMALS}, index=list("abcde"))
    found = story(frame["animal"])
    assert found.equals(story(frame))
    assert list(found.index) == list("abcde")
    assert story(pl.Series("animal", ANIMALS)).to_dict(as_series=False) == {"animal": ANIMALS, "story": expected}
    for nameless in (pd.Series(ANIMALS), pl.Series(ANIMALS), pa.chunked_array([ANIMALS])):
        found = story(nameless)
        assert (names(found), cells(found, "story")) == (["animal", "story"], expected)
    with pytest.raises(ox.ConfigError, match="has no column 'animal'; it has 'name'"):
        story(pl.Series("name", ANIMALS))
    with pytest.raises(ox.ConfigError, match="for a mapper of one column"):
        oxd.Generate(template="{a} {b}", **SAME)(pd.Series(["cat"]))


def test_rows_as_dicts(story, expected):
    rows = [{"animal": name, "n": i} if name is not None else {"n": i} for i, name in enumerate(ANIMALS)]
    before = [dict(row) for row in rows]
    assert story(rows) == [row | {"story": text} for row, text in zip(before, expected, strict=True)]
    assert story(tuple(rows)) == story(rows)
    assert rows == before
    assert story([]) == []
    assert list(story.map([rows[:2], [], rows[2:]])) == [story(rows)[:2], [], story(rows)[2:]]
    with pytest.raises(ox.ConfigError, match="has no column 'animal'; it has 'n'"):
        story([{"n": 1}])
    with pytest.raises(ox.ConfigError, match=r"batch\[1\] is str"):
        story([{"animal": "cat"}, "dog"])
    with pytest.raises(ox.ConfigError, match="a batch must be"):
        story(["cat", "dog"])


def test_rows_of_vectors(engine):
    found = oxd.Embed(engine, input="text", on_error="column")([{"text": "a ball"}, {"text": None}])
    assert np.array_equal(found[0]["vector"], engine.embed("a ball"))
    assert found[1] == {"text": None, "vector": None, "vector_error": None}


def test_one_table_is_no_iterable_of_batches(story):
    pa = pytest.importorskip("pyarrow")
    for table in ({"animal": ["cat"]}, pa.table({"animal": ["cat"]})):
        with pytest.raises(ox.ConfigError, match="call the mapper itself"):
            story.map(table)


# ---- types that don't fit


def typed(kind, column):
    if kind == "arrays":
        return {"p": np.array(column)}
    library = {"arrow": "pyarrow", "duckdb": "duckdb"}.get(kind, kind)
    module = pytest.importorskip(library)
    if kind == "duckdb":
        return duckdb_relation({"p": column})
    return module.table({"p": column}) if kind == "arrow" else module.DataFrame({"p": column})


MAPPERS = {
    "prompt": lambda: oxd.Generate("no/such.gguf", prompt="p", on_error="null", max_tokens=1),
    "messages": lambda: oxd.Generate("no/such.gguf", messages="p", on_error="column", max_tokens=1),
    "input": lambda: oxd.Embed("no/such.gguf", input="p", on_error="null"),
    "documents": lambda: oxd.Rerank("no/such.gguf", query="p", documents="p", on_error="null"),
}


@pytest.mark.parametrize("kind", ["arrow", "duckdb", "pandas", "polars", "arrays"])
@pytest.mark.parametrize("mapper", MAPPERS)
@pytest.mark.parametrize("numbers", [[1, 2], [1.5, 2.5], [True, False]], ids=["int", "float", "bool"])
def test_numbers_in_place_of_texts_are_found_before_a_model_is_opened(kind, mapper, numbers):
    """Whatever becomes of rows that fail: each of them would."""
    with pytest.raises(ox.ConfigError, match="column 'p' must be of texts or lists, not of"):
        MAPPERS[mapper]()(typed(kind, numbers))
    with pytest.raises(ox.ConfigError, match="has no column 'p'"):
        MAPPERS[mapper]()({"q": ["a"]})


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "arrays"])
def test_columns_of_nothing_have_any_type(kind, engine):
    nothing = [float("nan")] * 2 if kind in ("pandas", "arrays") else [None, None]
    found = oxd.Generate(engine, prompt="p", max_tokens=1)(typed(kind, nothing))
    assert cells(found, "answer") == [None, None]


def test_lists_of_token_ids_are_prompts(engine):
    ids = engine.tokenize("Once")
    expected = engine.generate(ids, max_tokens=3, temperature=0).text
    mapper = oxd.Generate(engine, prompt="p", max_tokens=3, temperature=0)
    assert mapper({"p": np.array([ids, ids])})["answer"].tolist() == [expected] * 2
    pa = pytest.importorskip("pyarrow")
    assert mapper(pa.table({"p": [ids]}))["answer"].to_pylist() == [expected]


def test_numbers_are_cells_of_templates_and_options(engine):
    mapper = oxd.Generate(engine, template="{n} and {n}", seed=oxd.col("s"), max_tokens=2)
    expected = engine.generate("1 and 1", max_tokens=2, seed=3).text
    assert list(mapper({"n": np.array([1]), "s": np.array([3])})["answer"]) == [expected]


def test_a_lazy_frame_of_other_columns_is_refused_at_once(story):
    pl = pytest.importorskip("polars")
    with pytest.raises(ox.ConfigError, match="has no column 'animal'"):
        story(pl.LazyFrame({"name": ["cat"]}))
