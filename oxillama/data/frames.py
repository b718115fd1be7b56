"""Frames: tables of the kinds that pipelines hand around, read by column and given back with more of them.

A library is imported only where a table of its own was given, which it therefore has made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from oxillama.data.columns import ColumnType, Items, Scalar, Vector, arrow_type, is_null, polars_type
from oxillama.data.converted import RowsFrame, arrow_schema, arrow_table, has_arrow, is_rows, series_table
from oxillama.errors import ConfigError

__all__ = ["Frame", "check_columns", "check_texts", "frame_of", "is_lazy", "is_table", "rows_of", "with_types"]

KINDS = (
    "a pyarrow Table or RecordBatch, a pandas or polars DataFrame or Series, a dict of lists or NumPy arrays, a list "
    "of dicts, or an object with Arrow's __arrow_c_stream__"
)
Added = Mapping[str, tuple[ColumnType, list[Any]]]


PLAIN = "iufcbmM"  # kinds of NumPy's types that are numbers or times


class Frame(Protocol):
    """A table of some kind."""

    @property
    def names(self) -> Sequence[Any]:
        """Names of its columns, in order."""

    @property
    def n_rows(self) -> int: ...

    def column(self, name: str) -> list[Any]:
        """The cells of a column as Python values; nulls are None."""

    def plain_type(self, name: str) -> str:
        """The name of a column's type if no cell of it can be text or a list, and some are there; else ""."""

    def extended(self, added: Added) -> Any:
        """A table of the same kind with all columns and these; what was given stays as it is."""


class ArrowFrame:
    """A `pyarrow.Table` or `pyarrow.RecordBatch`."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.names: list[str] = table.schema.names
        self.n_rows: int = table.num_rows

    def column(self, name: str) -> list[Any]:
        return self._table.column(name).to_pylist()  # type: ignore[no-any-return]

    def plain_type(self, name: str) -> str:
        import pyarrow.types as pt

        column = self._table.column(name)
        tests = (
            pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_boolean, pt.is_temporal, pt.is_binary,
            pt.is_large_binary, pt.is_fixed_size_binary, pt.is_struct,
        )  # fmt: skip
        plain = any(test(column.type) for test in tests)
        return str(column.type) if plain and column.null_count < len(column) else ""

    def extended(self, added: Added) -> Any:
        import pyarrow as pa

        table = self._table
        fields, columns = list(table.schema), list(table.columns)
        for name, (kind, cells) in added.items():
            fields.append(pa.field(name, arrow_type(kind)))
            columns.append(pa.array([plain(cell, kind) for cell in cells], fields[-1].type))
        schema = pa.schema(fields, metadata=table.schema.metadata)
        return type(table).from_arrays(columns, schema=schema)


class PandasFrame:
    """A `pandas.DataFrame`; its index is kept."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.names: list[Any] = list(table.columns)
        self.n_rows: int = len(table)

    def column(self, name: str) -> list[Any]:
        series = self._table[name]
        cells = series.astype(object).tolist()
        return [None if null else cell for cell, null in zip(cells, series.isna().tolist(), strict=True)]

    def plain_type(self, name: str) -> str:
        series = self._table[name]
        return str(series.dtype) if series.dtype.kind in PLAIN and series.notna().any() else ""

    def extended(self, added: Added) -> Any:
        import pandas as pd

        table = self._table.copy(deep=False)
        for name, (kind, cells) in added.items():
            dtype = _PANDAS.get(kind.name, object) if isinstance(kind, Scalar) else object
            # Of texts, pandas chooses the type that it has for them.
            text = isinstance(kind, Scalar) and kind.name == "string" and any(cell is not None for cell in cells)
            table[name] = pd.Series(cells, index=table.index, dtype=None if text else dtype)
        return table


# Nullable types: pandas would make floats of integers beside a null.
_PANDAS = {"int32": "Int32", "int64": "Int64", "float64": "Float64", "float32": "Float32", "bool": "boolean"}


class PolarsFrame:
    """A `polars.DataFrame`."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.names: list[str] = table.columns
        self.n_rows: int = table.height

    def column(self, name: str) -> list[Any]:
        return self._table[name].to_list()  # type: ignore[no-any-return]

    def plain_type(self, name: str) -> str:
        import polars as pl

        series = self._table[name]
        kind = series.dtype
        plain = kind.is_numeric() or kind.is_temporal() or kind in (pl.Boolean, pl.Binary, pl.Struct)
        return str(kind) if plain and series.null_count() < len(series) else ""

    def extended(self, added: Added) -> Any:
        import polars as pl

        series = [
            pl.Series(name, [listed(cell) for cell in cells], dtype=polars_type(kind), strict=True)
            for name, (kind, cells) in added.items()
        ]
        return self._table.with_columns(series)


class DictFrame:
    """A dict of columns: lists, tuples or NumPy arrays. New columns are arrays if all the others are."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table
        self.names = list(table)
        lengths = {name: _length(name, column) for name, column in table.items()}
        self.n_rows = next(iter(lengths.values()), 0)
        for name, length in lengths.items():
            if length != self.n_rows:
                raise ConfigError(
                    f"the columns of a dict must be of one length: {name!r} has {length} rows and "
                    f"{self.names[0]!r} {self.n_rows}"
                )

    def column(self, name: str) -> list[Any]:
        column = self._table[name]
        cells = _listed_times(column) if isinstance(column, np.ndarray) else column
        return [None if is_null(cell) else cell for cell in cells]

    def plain_type(self, name: str) -> str:
        column = self._table[name]
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in PLAIN:
            return ""
        return str(column.dtype) if any(not is_null(cell) for cell in column) else ""

    def extended(self, added: Added) -> Any:
        arrays = bool(self._table) and all(isinstance(column, np.ndarray) for column in self._table.values())
        made = {name: _array(cells, kind) if arrays else cells for name, (kind, cells) in added.items()}
        return dict(self._table) | made


def _length(name: str, column: Any) -> int:
    if isinstance(column, str | bytes | Mapping) or not hasattr(column, "__len__") or not hasattr(column, "__iter__"):
        raise ConfigError(
            f"column {name!r} of a dict must be a list or a NumPy array, not {type(column).__name__}: a row alone is "
            "a table of one row"
        )
    if getattr(column, "ndim", 1) == 0:
        raise ConfigError(f"column {name!r} of a dict must be a NumPy array of at least one dimension")
    return len(column)


def _listed_times(column: np.ndarray[Any, Any]) -> list[Any]:
    """The cells of an array. Times finer than microseconds, of which NumPy makes integers, lose what datetime lacks."""
    if column.dtype.kind in "mM" and np.datetime_data(column.dtype)[0] in ("ns", "ps", "fs", "as"):
        column = column.astype(f"{column.dtype.kind}8[us]")
    return column.tolist()  # type: ignore[no-any-return]


def _array(cells: list[Any], kind: ColumnType) -> Any:
    """A NumPy column: of numbers if there is no null, else of objects."""
    whole = all(cell is not None for cell in cells)
    if isinstance(kind, Vector) and whole:
        return np.stack(cells) if cells else np.empty((0, kind.size), kind.item.name)
    if isinstance(kind, Scalar) and kind.name != "string" and whole:
        return np.array(cells, kind.name)
    made = np.empty(len(cells), object)
    for i, cell in enumerate(cells):  # one by one: NumPy would make a table of lists of one length
        made[i] = cell
    return made


def listed(cell: Any) -> Any:
    """A cell without NumPy arrays in it."""
    return cell.tolist() if isinstance(cell, np.ndarray) else cell


def plain(cell: Any, kind: ColumnType) -> Any:
    """A cell as pyarrow takes it, which reads arrays of one dimension."""
    return listed(cell) if isinstance(kind, Items) else cell


def _kind(table: Any) -> str:
    """The library that a table is of and its class: "polars.LazyFrame". "" for others."""
    for library, names in _CLASSES.items():
        module = sys.modules.get(library)
        for name in names:
            made = getattr(module, name, None)
            if isinstance(made, type) and isinstance(table, made):
                return f"{library}.{name}"
    return ""


_CLASSES = {
    "pyarrow": ("Table", "RecordBatch", "Schema", "ChunkedArray"),
    "pandas": ("DataFrame", "Series"),
    "polars": ("DataFrame", "LazyFrame", "Schema", "Series"),
}
_SERIES = ("pyarrow.ChunkedArray", "pandas.Series", "polars.Series")
_FRAMES: dict[str, Any] = {
    "pyarrow.Table": ArrowFrame,
    "pyarrow.RecordBatch": ArrowFrame,
    "pandas.DataFrame": PandasFrame,
    "polars.DataFrame": PolarsFrame,
}


FRAMES = (ArrowFrame, PandasFrame, PolarsFrame, DictFrame, RowsFrame)


def is_lazy(table: Any) -> bool:
    """Whether it is a `polars.LazyFrame`."""
    return _kind(table) == "polars.LazyFrame"


def is_table(given: Any) -> bool:
    """Whether it is a table itself, of which `frame_of` makes a frame, and no iterable of tables."""
    return isinstance(given, Mapping) or _kind(given) != ""


def frame_of(table: Any, inputs: Sequence[str] = ()) -> Frame:
    """A table as a frame; a frame is one already. A series without a name is the only one of `inputs`.

    Raises ConfigError for anything else.
    """
    if isinstance(table, FRAMES):
        return table
    kind = _kind(table)
    if kind in _SERIES:
        return frame_of(series_table(kind, table, inputs[0] if len(inputs) == 1 else None))
    known = _FRAMES.get(kind) or (DictFrame if isinstance(table, Mapping) else RowsFrame if is_rows(table) else None)
    if known is None and has_arrow(table):
        return ArrowFrame(arrow_table(table))
    if known is None:
        raise ConfigError(f"a batch must be {KINDS}, not {type(table).__module__}.{type(table).__qualname__}")
    frame: Frame = known(table)
    return frame


def rows_of(frame: Frame, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a frame, each with the cells of these columns. Raises ConfigError for a column that isn't there."""
    if isinstance(frame, RowsFrame) and not frame.n_rows:  # which has no columns
        return iter(())
    check_columns(frame.names, names)
    columns = [frame.column(name) for name in names]
    if not columns:  # of a template without any
        return ({} for _ in range(frame.n_rows))
    return (dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True))


def check_columns(known: Sequence[Any], names: Sequence[str]) -> None:
    """Raises ConfigError, which lists those that are there, for a column that isn't, or is twice."""
    for name in names:
        if (n := list(known).count(name)) != 1:
            there = ", ".join(map(repr, known)) or "none"
            raise ConfigError(f"the batch has {n or 'no'} column{'s' * (n > 1)} {name!r}; it has {there}")


def check_texts(frame: Frame, names: Sequence[str]) -> None:
    """Raises ConfigError for a column of these whose type is neither text nor a list."""
    for name in names:
        if kind := frame.plain_type(name):
            raise ConfigError(f"column {name!r} must be of texts or lists, not of {kind}")


def with_types(schema: Any, added: Mapping[str, ColumnType], inputs: Sequence[str] = ()) -> Any:
    """A schema of polars or pyarrow with more columns, of the same library.

    schema: a schema, or a table or lazy frame that has one. Raises ConfigError for another object, and unless it has
    the columns of `inputs`.
    """
    kind = _kind(schema)
    if not kind and (has_arrow(schema) or hasattr(schema, "__arrow_c_schema__")):
        kind, schema = "pyarrow.Schema", arrow_schema(schema)
    if kind.startswith("pyarrow."):
        import pyarrow as pa

        own = schema if kind == "pyarrow.Schema" else schema.schema
        check_columns(own.names, inputs)
        return pa.schema([*own, *(pa.field(n, arrow_type(t)) for n, t in added.items())], metadata=own.metadata)
    if kind.startswith("polars."):
        import polars as pl

        own = schema if kind == "polars.Schema" else schema.collect_schema()
        check_columns(list(own), inputs)
        return pl.Schema({**own, **{name: polars_type(part) for name, part in added.items()}})
    raise ConfigError(
        "schema() takes a polars LazyFrame, DataFrame or Schema, a pyarrow Table, RecordBatch or Schema, or an object "
        f"of Arrow's protocol, not {type(schema).__name__}"
    )
