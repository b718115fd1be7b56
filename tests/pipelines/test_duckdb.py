"""Mappers as functions of DuckDB."""

import pytest

import oxillama as ox
import oxillama.data as oxd

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

SAME = {"max_tokens": 8, "temperature": 0.9}
ANIMALS = ["cat", None, "bear", ""]


@pytest.fixture
def connection():
    with duckdb.connect() as made:
        made.execute("create table t (n bigint, animal varchar)")
        made.executemany("insert into t values (?, ?)", list(enumerate(ANIMALS)))
        yield made


def test_a_function_of_one_column(engine, connection):
    oxd.Generate(engine, template="Once a {animal}", seed=1, **SAME).register(connection, "story")
    found = connection.execute("select n, story(animal) from t order by n").fetchall()
    own = [engine.generate(f"Once a {one}", seed=1, **SAME).text if one else None for one in ANIMALS]
    assert found == list(enumerate(own))


def test_arguments_have_types_and_several_columns_are_a_struct(engine, connection):
    mapper = oxd.Generate(engine, prompt="animal", seed=oxd.col("n"), details=True, on_error="column", **SAME)
    mapper.register(connection, "story", {"n": "BIGINT"})
    found = connection.execute("select story(animal, n - 2) from t order by n").fetchall()
    assert found[0][0]["answer"] is None
    assert found[0][0]["answer_error"].startswith("ConfigError: seed")
    assert found[1][0] == {"answer": None, "answer_finish_reason": None, "answer_tokens": None, "answer_error": None}
    own = engine.generate("bear", seed=0, **SAME)
    assert found[2][0] == {
        "answer": own.text, "answer_finish_reason": own.finish_reason, "answer_tokens": len(own.token_ids),
        "answer_error": None,
    }  # fmt: skip
    with pytest.raises(ox.ConfigError, match="types must be of animal, n, not of 'm'"):
        mapper.register(connection, "other", {"m": "BIGINT"})


def test_structs_and_vectors(engine, connection):
    schema = {"type": "object", "properties": {"a b": {"enum": ["x"]}, "c": {"enum": [1]}}, "required": ["a b", "c"]}
    oxd.Generate(engine, prompt="animal", json_schema=schema, seed=1).register(connection, "facts")
    oxd.Embed(engine, input="animal").register(connection, "vector")
    found = connection.execute("select facts(animal), vector(animal) from t order by n").fetchall()
    assert found[0] == ({"a b": "x", "c": 1}, tuple(engine.embed("cat").tolist()))
    assert found[1] == (None, None)
    near = "select array_cosine_similarity(vector(animal), vector('cat')) from t where n = 0"
    assert connection.execute(near).fetchone()[0] == pytest.approx(1)


def test_errors_of_rows_end_the_query(engine, connection):
    oxd.Generate(engine, prompt="animal", **SAME).register(connection, "story")
    with pytest.raises(duckdb.Error, match="ContextOverflowError"):
        connection.execute("select story(repeat('cat ', 9000))").fetchall()
