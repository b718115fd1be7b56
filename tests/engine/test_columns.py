"""Prompts as pipelines hold them: scalars, arrays and columns of pyarrow, NumPy, pandas and polars."""

import array
import asyncio

import numpy as np
import pytest

import oxillama as ox
from oxillama.engine.async_engine import AsyncEngine
from tests.fakes import make_engine
from tests.models.bert import BERT, HEADS, QUERY, changed, with_head

TEXTS = ["abc", "a bad bee", "é"]


class Column:
    """What pandas' and polars' columns have in common: labels, which may begin anywhere, instead of places."""

    def __init__(self, values, method):
        self._values = values
        setattr(self, method, lambda: list(values))

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return iter(self._values)

    def __getitem__(self, label):
        raise KeyError(label)


class Table(Column):
    columns = ("text",)


class LazyTable:
    """As polars has it: asking for its columns may take long."""

    @property
    def columns(self):
        raise AssertionError("it was asked")


class NAType:
    """As pandas has it: it is equal to nothing, and has no truth value."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None


@pytest.fixture(scope="module")
def engine():
    return make_engine(context_size=64)


def pa_array(values, **kind):
    pa = pytest.importorskip("pyarrow")
    return pa.array(values, **kind)


COLUMNS = {
    "numpy": lambda values: np.array(values),
    "numpy objects": lambda values: np.array([*values, None], object)[:-1],
    "pandas": lambda values: Column(values, "tolist"),
    "polars": lambda values: Column(values, "to_list"),
    "pyarrow": pa_array,
    "pyarrow chunks": lambda values: pytest.importorskip("pyarrow").chunked_array([values[:1], values[1:]]),
    "pyarrow dictionary": lambda values: pa_array(values).dictionary_encode(),
    "pyarrow scalars": lambda values: [pytest.importorskip("pyarrow").scalar(v) for v in values],
    "numpy scalars": lambda values: [np.str_(v) for v in values],
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_texts(engine, column):
    options = {"max_tokens": 3, "seed": 1}
    expected = [c.token_ids for c in engine.generate(TEXTS, **options)]
    given = column(TEXTS)
    assert [c.token_ids for c in engine.generate(given, **options)] == expected
    assert [c.token_ids for c in engine.batch(given, **options)] == expected
    assert [engine.generate(one, **options).token_ids for one in given] == expected
    assert np.array_equal(engine.embed(given), engine.embed(TEXTS))

    async def ask():
        for_coroutines = AsyncEngine(engine)
        assert [c.token_ids for c in await for_coroutines.generate(given, **options)] == expected
        assert [c.token_ids async for c in for_coroutines.batch(given, **options)] == expected
        assert np.array_equal(await for_coroutines.embed(given), engine.embed(TEXTS))

    asyncio.run(ask())


def test_single_scalars(engine):
    pa = pytest.importorskip("pyarrow")
    options = {"max_tokens": 3, "seed": 1}
    expected = engine.generate("bad bad", **options).token_ids
    for scalar in (pa.scalar("bad bad"), pa.scalar("bad bad", pa.large_string()), np.str_("bad bad")):
        assert engine.generate(scalar, **options).token_ids == expected
        assert [t for chunk in engine.stream(scalar, **options) for t in chunk.token_ids] == expected
        assert engine.embed(scalar).shape == engine.embed("bad bad").shape
        assert engine.beam_search(scalar, max_new_tokens=3) == engine.beam_search("bad bad", max_new_tokens=3)


def test_columns_of_token_ids(engine):
    pa = pytest.importorskip("pyarrow")
    ids, options = [3, 4, 5], {"max_tokens": 3, "seed": 1}
    expected = engine.generate(ids, **options).token_ids
    for given in (
        pa.array(ids),
        pa.scalar(ids),
        np.array(ids, np.int32),
        array.array("i", ids),
        Column(ids, "to_list"),
    ):
        assert engine.generate(given, **options).token_ids == expected
    lists = [ids, [6]]
    expected = [c.token_ids for c in engine.generate(lists, **options)]
    for given in (pa.array(lists), [pa.array(one) for one in lists], [np.array(one) for one in lists]):
        assert [c.token_ids for c in engine.generate(given, **options)] == expected


@pytest.mark.parametrize("null", [None, float("nan"), NAType()], ids=["None", "nan", "NA"])
@pytest.mark.parametrize("place", [0, 1])
def test_nulls_are_named(engine, null, place):
    values = ["a", "b"]
    values[place] = null
    for given in (Column(values, "tolist"), np.array(values, object), values):
        for call in (engine.generate, engine.embed):
            with pytest.raises(ox.ConfigError, match=rf"(prompt|input)\[{place}\] is null \("):
                call(given)
        failures = list(engine.batch(iter(given), errors="yield", max_tokens=1))
        assert isinstance(failures[place].error, ox.OxiLlamaError)
        assert f"prompts[{place}]" in str(failures[place].error)


def test_nulls_of_pyarrow_are_named(engine):
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(ox.ConfigError, match=r"prompt\[1\] is null \(None\): leave it out"):
        engine.generate(pa.array(["a", None]))
    with pytest.raises(ox.ConfigError, match=r"prompt is null \(None\)"):
        engine.generate(pa.scalar(None, pa.string()))
    (_, failure) = engine.batch(pa.array(["a", None]), errors="yield", max_tokens=1)
    assert str(failure.error).startswith("prompts[1] is null (None)")


def test_tables_are_refused(engine):
    pa = pytest.importorskip("pyarrow")
    for table in (Table(TEXTS, "tolist"), LazyTable(), pa.table({"text": TEXTS}), pa.record_batch({"text": TEXTS})):
        with pytest.raises(ox.ConfigError, match=r"prompt is a table \(\w+\): give one of its columns"):
            engine.generate(table)
        with pytest.raises(ox.ConfigError, match=r"prompts is a table \(\w+\): give one of its columns"):
            engine.batch(table)


def test_nulls_in_a_batch_are_named(engine):
    for null in (None, float("nan")):
        (failure,) = engine.batch([null], errors="yield")
        assert str(failure.error) == f"prompts[0] is null ({null}): leave it out, or give text or token ids"


def test_batch_refuses_an_array_of_one_value(engine):
    with pytest.raises(ox.ConfigError, match=r"prompts must be an iterable of prompts, not one value \(ndarray\)"):
        engine.batch(np.array("abc"))


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_documents_in_columns(tmp_path, column):
    with ox.load(changed(with_head(tmp_path, head=HEADS["output"]), BERT), num_threads=1) as engine:
        expected = engine.rerank(QUERY, TEXTS)
        assert engine.rerank(np.str_(QUERY), column(TEXTS)) == expected
        assert asyncio.run(AsyncEngine(engine).rerank(QUERY, column(TEXTS))) == expected
        with pytest.raises(ox.ConfigError, match=r"documents\[1\] is null"):
            engine.rerank(QUERY, Column(["a", None], "tolist"))
