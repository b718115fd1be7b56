"""DuckDB functions: mappers as vectorised functions of SQL, over Arrow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from oxillama.data.columns import ColumnType, Items, Scalar, Struct, Vector

__all__ = ["duck_type", "register"]

_NAMES = {
    "string": "VARCHAR", "bool": "BOOLEAN", "int8": "TINYINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "float32": "FLOAT", "float64": "DOUBLE",
}  # fmt: skip


def duck_type(kind: ColumnType) -> str:
    """The name of a column's type in DuckDB's SQL."""
    if isinstance(kind, Scalar):
        return _NAMES[kind.name]
    if isinstance(kind, Items):
        return f"{duck_type(kind.item)}[]"
    if isinstance(kind, Vector):
        return f"{duck_type(kind.item)}[{kind.size}]"
    fields = (f"{_quoted(name)} {duck_type(part)}" for name, part in kind.fields)
    return f"STRUCT({', '.join(fields)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def register(
    connection: Any, name: str, mapper: Callable[[Any], Any], parameters: Mapping[str, str],
    added: Mapping[str, ColumnType],
) -> None:  # fmt: skip
    """Makes a mapper a function of a connection. parameters: DuckDB's types of its inputs. added: of its outputs."""
    import pyarrow as pa

    if len(added) == 1:
        ((output, kind),) = added.items()
    else:
        output, kind = "", Struct(tuple(added.items()))

    def call(*columns: Any) -> Any:
        found = mapper(pa.table(dict(zip(parameters, columns, strict=True))))
        if output:
            return found[output].combine_chunks()
        fields = [found[field].combine_chunks() for field in added]
        return pa.StructArray.from_arrays(fields, names=list(added))

    # DuckDB reads the number of arguments off the function.
    places = [inspect.Parameter(f"_{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(parameters))]
    cast(Any, call).__signature__ = inspect.Signature(places)
    connection.create_function(
        name, call, list(map(connection.type, parameters.values())), connection.type(duck_type(kind)), type="arrow",
        null_handling="special", side_effects=True,
    )  # fmt: skip
