"""Types of the columns that mappers add, and references to columns of their input."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ConfigError

__all__ = [
    "FLOAT",
    "INT",
    "JSON",
    "TEXT",
    "Cells",
    "Column",
    "ColumnType",
    "Items",
    "Scalar",
    "Struct",
    "Vector",
    "arrow_type",
    "check_name",
    "col",
    "fits",
    "fitted",
    "is_empty",
    "is_null",
    "polars_type",
]

Cells = dict[str, Any]  # what a mapper adds to one row, by column


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. name: that of the Arrow type: string, bool, int32, int64, int8, uint8, float32 or float64."""

    name: str
    as_json: bool = False  # any JSON value, as text


@dataclass(frozen=True, slots=True)
class Items:
    """A list of any length."""

    item: ColumnType


@dataclass(frozen=True, slots=True)
class Vector:
    """`size` numbers, an array of one dimension."""

    item: Scalar
    size: int


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields, in order."""

    fields: tuple[tuple[str, ColumnType], ...]


ColumnType = Scalar | Items | Vector | Struct
TEXT, INT, FLOAT, JSON = Scalar("string"), Scalar("int64"), Scalar("float64"), Scalar("string", as_json=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A reference to a column of the input: an option whose value each row has for itself."""

    name: str


def col(name: str) -> Column:
    """The column of this name, as an option of `Generate`: `seed=col("seed")`. A null there leaves the option out.

    Raises ConfigError unless the name is text.
    """
    return Column(check_name("col(name)", name))


def check_name(what: str, name: Any) -> str:
    """The name of a column. Raises ConfigError unless it is text."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{what} must be the name of a column, not {name!r:.60}")
    return name


def is_null(value: Any) -> bool:
    """Whether a cell is null: None, pandas' NA and NaT, NumPy's NaT, or NaN where these have nothing else for it."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, float):
        return math.isnan(value)
    # NumPy isn't imported for it.
    return type(value).__name__ in ("datetime64", "timedelta64") and bool(value != value)  # noqa: PLR0124


def is_empty(value: Any) -> bool:
    """Whether a cell is null, empty text, or an empty list."""
    return is_null(value) or (hasattr(value, "__len__") and len(value) == 0)


def fitted(value: Any, kind: ColumnType) -> Any:
    """A JSON value as a cell of a column; absent and null fields are None. Vectors stay arrays.

    Raises OverflowError for an integer beyond 64 bits.
    """
    if isinstance(kind, Scalar) and kind.as_json:
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(kind, Vector):
        return value
    if isinstance(kind, Struct):
        return {name: fitted(value[name], part) if name in value else None for name, part in kind.fields}
    if isinstance(kind, Items):
        return [fitted(item, kind.item) for item in value]
    if kind == INT:
        return _int64(value)
    return float(value) if kind.name.startswith("float") else value


def _int64(value: Any) -> int:
    """An integer of JSON, for which 1.0 is one too. Raises OverflowError beyond 64 bits."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{number} is beyond 64 bits")
    return number


def fits(value: Any, kind: ColumnType) -> bool:
    """Whether a value that was read from JSON is a cell of a column; None always is."""
    if value is None:
        return True
    if isinstance(kind, Struct):
        parts = dict(kind.fields)
        return (
            isinstance(value, dict)
            and value.keys() == parts.keys()
            and all(fits(v, parts[k]) for k, v in value.items())
        )
    if isinstance(kind, Items | Vector):
        return isinstance(value, list) and all(fits(item, kind.item) for item in value)
    if kind.name == "string":
        return isinstance(value, str)
    if kind.name == "bool" or isinstance(value, bool):
        return kind.name == "bool" and isinstance(value, bool)
    if kind.name.startswith("float"):
        return isinstance(value, int | float)
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def arrow_type(kind: ColumnType) -> Any:
    """The `pyarrow.DataType` of a column."""
    import pyarrow as pa

    if isinstance(kind, Scalar):
        return getattr(pa, "bool_" if kind.name == "bool" else kind.name)()
    if isinstance(kind, Items):
        return pa.list_(arrow_type(kind.item))
    if isinstance(kind, Vector):
        return pa.list_(arrow_type(kind.item), kind.size)
    return pa.struct([pa.field(name, arrow_type(part)) for name, part in kind.fields])


_POLARS = {
    "string": "String", "bool": "Boolean", "int8": "Int8", "int32": "Int32", "int64": "Int64", "uint8": "UInt8",
    "float32": "Float32", "float64": "Float64",
}  # fmt: skip


def polars_type(kind: ColumnType) -> Any:
    """The polars data type of a column."""
    import polars as pl

    if isinstance(kind, Scalar):
        return getattr(pl, _POLARS[kind.name])()
    if isinstance(kind, Items):
        return pl.List(polars_type(kind.item))
    if isinstance(kind, Vector):
        return pl.Array(polars_type(kind.item), kind.size)
    return pl.Struct({name: polars_type(part) for name, part in kind.fields})
