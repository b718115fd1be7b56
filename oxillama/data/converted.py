"""Batches of other forms as tables: Arrow streams of any library, series, and rows as a list of dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.data.columns import ColumnType, is_null
from oxillama.errors import ConfigError

__all__ = ["RowsFrame", "arrow_batches", "arrow_schema", "arrow_table", "has_arrow", "is_rows", "series_table"]


class RowsFrame:
    """A list of rows, each a dict of cells; a row that lacks a column has null there. New rows come back."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise ConfigError(f"a list of rows must have a dict for each: batch[{i}] is {type(row).__name__}")
        self._rows = rows
        self.names: list[Any] = list(dict.fromkeys(name for row in rows for name in row))
        self.n_rows = len(rows)

    def column(self, name: str) -> list[Any]:
        return [None if is_null(cell := row.get(name)) else cell for row in self._rows]

    def plain_type(self, name: str) -> str:
        return ""  # each cell has its own

    def extended(self, added: Mapping[str, tuple[ColumnType, list[Any]]]) -> list[dict[str, Any]]:
        """The rows with these columns; what was given stays as it is."""
        columns = {name: cells for name, (_, cells) in added.items()}
        return [{**row, **{name: columns[name][i] for name in columns}} for i, row in enumerate(self._rows)]


def is_rows(batch: Any) -> bool:
    """Whether a batch is a list of rows, or of nothing."""
    return isinstance(batch, list | tuple) and (not batch or isinstance(batch[0], Mapping))


def has_arrow(batch: Any) -> bool:
    """Whether an object gives its columns through Arrow's PyCapsule protocol, as tables and streams of rows do."""
    return hasattr(batch, "__arrow_c_stream__") or hasattr(batch, "__arrow_c_array__")


def arrow_table(batch: Any) -> Any:
    """The `pyarrow.Table` of an object with Arrow's protocol; a stream is read to its end, once.

    Raises ConfigError without pyarrow, and for arrays that have no columns.
    """
    pa = _pyarrow()
    try:
        return pa.table(batch)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        raise _not_columns(batch, error) from error


def arrow_batches(stream: Any) -> Any:
    """The `pyarrow.RecordBatchReader` of an object with Arrow's protocol, which gives a batch at a time."""
    pa = _pyarrow()
    try:
        return pa.RecordBatchReader.from_stream(stream)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        raise _not_columns(stream, error) from error


def arrow_schema(table: Any) -> Any:
    """The `pyarrow.Schema` of an object with Arrow's protocol, of which no row is read."""
    if hasattr(table, "__arrow_c_schema__"):
        return _pyarrow().schema(table)
    return arrow_batches(table).schema


def _not_columns(batch: Any, error: Exception) -> ConfigError:
    return ConfigError(f"a batch of Arrow's protocol must have columns, which {type(batch).__name__} has not: {error}")


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        text = f"a batch of Arrow's protocol needs {error.name}: pip install '.[data]' from a checkout"
        raise ConfigError(text) from None
    return pyarrow


def series_table(kind: str, series: Any, default: str | None) -> Any:
    """The table of its library that has a series as its only column, under its own name, or else `default`."""
    name = getattr(series, "name", None) or default
    if name is None:
        raise ConfigError("a series without a name must be for a mapper of one column")
    if kind == "pyarrow.ChunkedArray":
        import pyarrow as pa

        return pa.table({name: series})
    return series.to_frame(name)
