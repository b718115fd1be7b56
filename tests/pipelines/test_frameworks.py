"""Mappers in Ray Data, Spark and Daft: the bits are those of one process, whatever becomes of their workers."""

import os
import signal
import sys

import pytest

import oxillama as ox
import oxillama.data as oxd
from tests.ray.cluster import workers

WHO = ("cat", "fox", "hen", "owl", "cow")
ROWS = {"i": list(range(300)), "animal": [f"{WHO[i % 5]} number {i}" for i in range(300)]}
ROWS["animal"][7], ROWS["animal"][8] = None, ""
CONFIG = {"context_size": 128}
WHERE = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]}

long = pytest.mark.long
quiet = pytest.mark.filterwarnings("ignore")


def story(**options):
    """A mapper whose texts are drawn, each by its row's seed."""
    return oxd.Generate(
        template="Once there was a {animal}", output="story", seed=oxd.col("i"), temperature=1.0, engine=CONFIG,
        **{"max_tokens": 24, **options},
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected():
    """In one process and one batch."""
    return story()(ROWS)["story"]


# ---- Ray Data


@long
@quiet
def test_what_ray_is_told():
    pytest.importorskip("ray.data")
    mapper = story()
    told = mapper.ray(concurrency=(2, 4), num_cpus=2.5, batch_size=16, runtime_env={"env_vars": {"A": "1"}}, memory=1)
    call, pool = told.pop("fn")(*told.pop("fn_constructor_args")), told.pop("compute")
    assert call({"i": [], "animal": []}) == {"i": [], "animal": [], "story": []}
    assert (pool.min_size, pool.max_size) == (2, 4)
    assert told == {
        "batch_format": "pyarrow", "batch_size": 16, "num_cpus": 2.5, "memory": 1,
        "runtime_env": {"env_vars": {"A": "1", "OMP_NUM_THREADS": "2"}},
    }  # fmt: skip
    variables = mapper.ray(runtime_env={"env_vars": {"OMP_NUM_THREADS": "7"}})["runtime_env"]["env_vars"]
    assert variables == {"OMP_NUM_THREADS": "7"}


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ImportError, match=r"Ray Data needs ray.*pip install '\.\[ray\]'"):
        story().ray()


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"concurrency": (3, 2)}, {"num_cpus": 0}, {"batch_size": 0}])
def test_numbers_that_ray_cannot_have_are_named(wrong):
    with pytest.raises(ox.ConfigError, match=next(iter(wrong))):
        story().ray(**wrong)


@pytest.fixture(scope="module")
def dataset(ray):
    data = pytest.importorskip("ray.data")
    data.DataContext.get_current().enable_progress_bars = False
    return data.from_items([dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)])


def by_number(rows, name="story"):
    """The cells of a column in the order of the rows, none of which is there twice."""
    found = {row["i"]: row[name] for row in rows}
    assert len(found) == len(rows)
    return [found[i] for i in range(len(ROWS["i"]))]


@long
@quiet
def test_four_actors_give_the_bits_of_one_process(dataset, expected):
    mapped = dataset.repartition(8).map_batches(**story().ray(concurrency=4, num_cpus=0.5, batch_size=16))
    assert by_number(mapped.take_all()) == expected
    assert mapped.schema().names == ["i", "animal", "story"]


@long
@quiet
def test_an_actor_that_is_killed_loses_and_doubles_no_row(dataset, expected):
    mapped = dataset.repartition(30).map_batches(**story().ray(concurrency=2, num_cpus=0.5, batch_size=10))
    rows, killed = [], []
    for row in mapped.iter_rows():
        rows.append(row)
        if not killed:
            killed = workers("MapBatches(RayMapper)")
            os.kill(killed[0], signal.SIGKILL)
    assert len(killed) == 2
    assert by_number(rows) == expected


@long
@quiet
def test_a_processor_goes_from_dataset_to_dataset(dataset, expected):
    processor = oxd.ray_processor(
        story(on_error="column"),
        preprocess=lambda row: {**row, "before": row["i"] + 1},
        postprocess=lambda row: {"i": row["before"] - 1, "length": row["story"] and len(row["story"])},
        concurrency=1,
        batch_size=100,
    )
    lengths = [None if text is None else len(text) for text in expected]
    assert by_number(processor(dataset).take_all(), "length") == lengths


@long
@quiet
def test_vectors_and_structs_are_columns_of_ray(dataset):
    few = dataset.limit(20)
    vectors = few.map_batches(**oxd.Embed(input="animal", engine=CONFIG).ray(batch_size=7)).take_all()
    expected = oxd.Embed(input="animal", engine=CONFIG)({"animal": ROWS["animal"][:20]})["vector"]
    for row in vectors:
        own = expected[row["i"]]
        assert (row["vector"] is None) == (own is None)
        assert own is None or list(row["vector"]) == own.tolist()
    made = story(json_schema=WHERE, max_tokens=60)
    assert by_number_of(few.map_batches(**made.ray()).take_all()) == made({n: c[:20] for n, c in ROWS.items()})["story"]


def by_number_of(rows):
    return [row["story"] for row in sorted(rows, key=lambda row: row["i"])]


# ---- Spark


@pytest.fixture(scope="module")
def spark():
    """A local session of two cores."""
    sql = pytest.importorskip("pyspark.sql")
    pytest.importorskip("pandas")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.delenv("OMP_NUM_THREADS", raising=False)
        settings = {
            "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2", "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        }  # fmt: skip
        builder = sql.SparkSession.builder.master("local[2]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def frame(spark):
    rows = list(zip(*ROWS.values(), strict=True))
    return spark.createDataFrame(rows, "i int, animal string").repartition(4)


@long
@quiet
def test_a_function_of_spark_gives_the_bits_of_one_process(frame, expected):
    made = story()
    assert made.inputs == ("animal", "i")
    for answer in (made.pandas_udf(), made.pandas_udf("string")):
        found = frame.withColumn("story", answer("animal", "i"))
        assert found.schema["story"].dataType.simpleString() == "string"
        assert by_number(found.collect()) == expected


@long
@quiet
def test_what_spark_gets_of_several_columns_and_of_structs(frame):
    few = {name: column[:20] for name, column in ROWS.items()}
    with_details = story(details=True)
    found = frame.where("i < 20").withColumn("all", with_details.pandas_udf()("animal", "i")).select("i", "all.*")
    rows = sorted(found.collect(), key=lambda row: row["i"])
    for name, column in with_details(few).items():
        if name != "animal":
            assert [row[name] for row in rows] == column, name
    schema = story(json_schema=WHERE, max_tokens=60)
    found = frame.where("i < 20").withColumn("story", schema.pandas_udf()("animal", "i"))
    assert found.schema["story"].dataType.simpleString() == "struct<n:bigint>"
    got = [row["story"] for row in sorted(found.collect(), key=lambda row: row["i"])]
    for own, cell in zip(schema(few)["story"], got, strict=True):
        assert (own or {"n": None}) == (cell.asDict() if cell is not None else {"n": None})
    vectors = oxd.Embed(input="animal", engine=CONFIG)
    found = frame.where("i < 20").withColumn("vector", vectors.pandas_udf()("animal"))
    got = [row["vector"] for row in sorted(found.collect(), key=lambda row: row["i"])]
    expected = vectors({"animal": few["animal"]})["vector"]
    assert got == [None if own is None else own.tolist() for own in expected]


@long
@quiet
def test_a_worker_of_spark_computes_with_the_cpus_of_its_task(spark):
    def n_threads(_):
        with ox.load() as engine:
            return engine.num_threads

    assert spark.sparkContext.parallelize([0], 1).map(n_threads).collect() == [1]


# ---- Daft


@long
@quiet
@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2, "use_process": True}], ids=["one", "two"])
def test_a_function_of_daft_gives_the_bits_of_one_process(expected, options):
    daft = pytest.importorskip("daft")
    frame = daft.from_pydict(ROWS).into_partitions(4)
    answer = oxd.daft(story(), **options)
    found = frame.with_column("story", answer(frame["animal"], frame["i"])).sort("i").to_pydict()
    assert found == ROWS | {"story": expected}


@long
@quiet
def test_what_daft_gets_of_several_columns_and_of_structs():
    daft = pytest.importorskip("daft")
    few = {name: column[:20] for name, column in ROWS.items()}
    frame = daft.from_pydict(few)
    with_details = story(details=True)
    cells = frame.select(oxd.daft(with_details)(frame["animal"], frame["i"]).alias("all")).to_pydict()["all"]
    own = with_details(few)
    assert cells == [{name: own[name][i] for name in with_details.added()} for i in range(20)]
    schema = story(json_schema=WHERE, max_tokens=60)
    assert (
        frame.select(oxd.daft(schema)(frame["animal"], frame["i"]).alias("s")).to_pydict()["s"] == schema(few)["story"]
    )
    with pytest.raises(ox.ConfigError, match=r"2 columns must be given \(animal, i\), not 1"):
        oxd.daft(schema)(frame["animal"])
