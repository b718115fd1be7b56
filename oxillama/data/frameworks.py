"""Mappers in Ray Data, Spark and Daft: each library has the workers, and a mapper is what they call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from oxillama._util.checks import check_float, check_int
from oxillama.data.columns import ColumnType, Struct, arrow_type
from oxillama.errors import ConfigError

__all__ = ["daft", "of_ray", "pandas_udf", "ray_processor"]


class _Mapper(Protocol):
    """Interface of a `Mapper` that is used here."""

    @property
    def inputs(self) -> tuple[str, ...]: ...

    def added(self) -> dict[str, ColumnType]: ...

    def map(self, batches: Any) -> Iterator[Any]: ...

    def __call__(self, batch: Any) -> Any: ...


class RayMapper:
    """An actor's callable for Ray Data, which makes one for each actor of the pool."""

    def __init__(self, mapper: _Mapper) -> None:
        self._mapper = mapper

    def __call__(self, batch: Any) -> Any:
        """A pyarrow Table with more columns."""
        return self._mapper(batch)


def of_ray(
    mapper: _Mapper, concurrency: int | tuple[int, int], num_cpus: float, batch_size: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Keywords of `ray.data.Dataset.map_batches`; `Mapper.ray` describes them."""
    least, most = concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency)
    check_int("concurrency", least, 1, 1 << 20)
    check_int("concurrency", most, least, 1 << 20)
    check_float("num_cpus", num_cpus, 0.01, 4096)
    check_int("batch_size", batch_size, 1, 1 << 31)
    try:
        from ray.data import ActorPoolStrategy
    except ImportError as error:
        raise ImportError(f"Ray Data needs {error.name}: pip install '.[ray]' from a checkout") from None
    environment = dict(options.get("runtime_env") or {})
    threads = {"OMP_NUM_THREADS": str(max(1, int(num_cpus)))}
    return {
        "fn": RayMapper,
        "fn_constructor_args": (mapper,),
        "batch_format": "pyarrow",
        "batch_size": batch_size,
        "compute": ActorPoolStrategy(min_size=least, max_size=most),
        "num_cpus": num_cpus,
        **options,
        "runtime_env": environment | {"env_vars": threads | dict(environment.get("env_vars") or {})},
    }


def ray_processor(
    mapper: Any,
    *,
    preprocess: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    postprocess: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    **options: Any,
) -> Callable[[Any], Any]:
    """A processor as `ray.data.llm.build_processor` gives them: called with a dataset, it gives one.

    preprocess, postprocess: functions of rows (dicts), before and after. options: those of `Mapper.ray`.
    """
    settings = mapper.ray(**options)

    def process(dataset: Any) -> Any:
        prepared = dataset if preprocess is None else dataset.map(preprocess)
        mapped = prepared.map_batches(**settings)
        return mapped if postprocess is None else mapped.map(postprocess)

    return process


def pandas_udf(mapper: _Mapper, return_type: Any) -> Any:
    """A function of Spark's columns; `Mapper.pandas_udf` describes it."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf as udf
    from pyspark.sql.pandas.types import from_arrow_type

    inputs, kind = mapper.inputs, _result_type(mapper)
    names = [name for name, _ in kind.fields] if isinstance(kind, Struct) else []

    def answers(batches: Any) -> Any:
        given = (columns if isinstance(columns, tuple) else (columns,) for columns in batches)  # of one column, itself
        tables = (pd.DataFrame(dict(zip(inputs, columns, strict=True))) for columns in given)
        for table in mapper.map(tables):
            added = table[list(mapper.added())]
            yield _as_frame(added, names) if names else added.iloc[:, 0]

    frames: Any = pd.DataFrame if names else pd.Series
    answers.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[frames]}
    return udf(from_arrow_type(arrow_type(kind)) if return_type is None else return_type)(answers)


def _as_frame(added: Any, names: list[str]) -> Any:
    """A column of structs, or several columns, as a DataFrame of their fields."""
    import pandas as pd

    if list(added.columns) == names:
        return added
    rows = [cell or {} for cell in added.iloc[:, 0]]
    return pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in names})


def daft(mapper: _Mapper, **options: Any) -> Callable[..., Any]:
    """A function of Daft's expressions: the columns that the mapper reads, in the order of `inputs`.

    `frame.with_column("answer", oxd.daft(answer)(frame["text"]))`. Its value is that of the column that the mapper
    adds, or a struct of those if it adds several. options: those of `daft.cls`, such as cpus, or max_concurrency, how
    many processes there are. Raises ConfigError for another number of columns.
    """
    import daft as library

    kind = _result_type(mapper)
    dtype = library.DataType.from_arrow_type(arrow_type(kind))
    inputs = mapper.inputs

    class Answers:
        def __init__(self) -> None:
            self.mapper = mapper

        def answer(self, *columns: Any) -> Any:
            import pyarrow as pa

            table = pa.table(dict(zip(inputs, (column.to_arrow() for column in columns), strict=True)))
            added = list(self.mapper(table).select(list(self.mapper.added())).to_struct_array().chunks)
            whole = pa.chunked_array(added).combine_chunks() if added else pa.array([], arrow_type(kind))
            return whole if len(self.mapper.added()) > 1 else whole.field(0)

    Answers.answer = library.method.batch(return_dtype=dtype)(Answers.answer)  # type: ignore[method-assign]
    made = library.cls(**options)(Answers)()

    def call(*columns: Any) -> Any:
        if len(columns) != len(inputs):
            raise ConfigError(f"{len(inputs)} columns must be given ({', '.join(inputs)}), not {len(columns)}")
        return made.answer(*columns)

    return call


def _result_type(mapper: _Mapper) -> ColumnType:
    """The type of the column that a mapper adds; of several, a struct of them."""
    added = mapper.added()
    return next(iter(added.values())) if len(added) == 1 else Struct(tuple(added.items()))
