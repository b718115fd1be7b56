"""Table files: Parquet, CSV and JSON lines, read row by row and written with more columns."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from oxillama.data.columns import ColumnType, arrow_type
from oxillama.data.frames import ArrowFrame
from oxillama.data.parquet_table import ParquetTable, pyarrow
from oxillama.data.text_tables import CsvTable, JsonTable
from oxillama.errors import ConfigError
from oxillama.gguf.output import atomic_file

__all__ = [
    "SUFFIXES",
    "TableFile",
    "check_output",
    "open_table",
    "write_table",
]

SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")
Row = dict[str, Any]
CellsOf = Callable[[int], Mapping[str, Any]]


class TableFile(Protocol):
    """A file of rows."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the columns."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    def rows(self, names: Sequence[str] | None = None) -> Iterator[Row]:
        """Rows of the file, with these columns alone. Raises ConfigError for a row that can't be read, or lacks one."""

    def batches(self, n_rows: int) -> Iterator[Any]:
        """The first rows as pyarrow Tables of one schema."""


def suffix_of(path: str) -> str:
    """Format that the name of a file says. Raises ConfigError for none that is known."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path} must end in one of {', '.join(SUFFIXES)}: the name says what format it has")
    return suffix


def open_table(path: str) -> TableFile:
    """A file of rows. Raises ConfigError for a name without a known format, and for what isn't of it; OSError."""
    suffix = suffix_of(path)
    return ParquetTable(path) if suffix == ".parquet" else CsvTable(path) if suffix == ".csv" else JsonTable(path)


def check_output(path: str, table: TableFile, n_rows: int, added: Mapping[str, ColumnType]) -> None:
    """Raises ConfigError if a file of this name can't hold the rows of a table and the columns that are added, before
    answers to them are computed."""
    if suffix_of(path) == ".parquet":
        _check_parquet(path, table, n_rows, added)
    elif isinstance(table, JsonTable) and suffix_of(path) == ".csv":
        for i, row in enumerate(islice(table.rows(), n_rows)):
            _check_text(i, row, path)
    elif isinstance(table, ParquetTable):
        for name, kind in table.types.items():
            if "binary" in kind or "duration" in kind:
                raise ConfigError(f"the column {name!r} of type {kind} can't be written to {path}: write .parquet")


def _check_parquet(path: str, table: TableFile, n_rows: int, added: Mapping[str, ColumnType]) -> None:
    pa = pyarrow()
    batches = table.batches(n_rows)
    schema = next(batches).schema
    for name, kind in added.items():
        schema = schema.append(pa.field(name, arrow_type(kind)))
    try:
        pa.parquet.ParquetWriter(io.BytesIO(), schema).close()
    except pa.ArrowException as error:
        raise ConfigError(f"the columns can't be written to {path}: {error}: write .jsonl") from None
    if isinstance(table, JsonTable):
        for _ in batches:  # columns of which each has one type
            pass


def _check_text(i: int, row: Row, path: str) -> None:
    try:
        "".join((*row, *map(str, map(_csv_cell, row.values())))).encode()
    except UnicodeEncodeError:
        text = f"row {i} has half of a surrogate pair, which {path} can't hold: write .jsonl"
        raise ConfigError(text) from None


def write_table(path: str, table: TableFile, n_rows: int, added: Mapping[str, ColumnType], cells_of: CellsOf) -> None:
    """Writes a file anew, whole or not at all, with the first rows of a table and more columns.

    cells_of: the added cells of a row. Raises ConfigError for values that the format can't hold; OSError.
    """
    suffix = suffix_of(path)
    with atomic_file(Path(path)) as file:
        if suffix == ".parquet":
            _write_parquet(file, table.batches(n_rows), added, cells_of)
            return
        rows = ({**row, **cells_of(i)} for i, row in enumerate(islice(table.rows(), n_rows)))
        if suffix == ".csv":
            _write_csv(file, [*table.names, *added], rows)
        else:
            for row in rows:
                file.write(_line(row) + b"\n")


def _write_parquet(file: BinaryIO, batches: Iterable[Any], added: Mapping[str, ColumnType], cells_of: CellsOf) -> None:
    pa, n_before, writer = pyarrow(), 0, None
    try:
        for batch in batches:
            cells = [cells_of(n_before + i) for i in range(batch.num_rows)]
            columns = {name: (kind, [row[name] for row in cells]) for name, kind in added.items()}
            made = ArrowFrame(batch).extended(columns)
            writer = writer or pa.parquet.ParquetWriter(file, made.schema)
            writer.write_table(made)
            n_before += batch.num_rows
    finally:
        if writer is not None:
            writer.close()


def _write_csv(file: BinaryIO, names: Sequence[str], rows: Iterable[Row]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in names])
    text.detach()  # which writes what is left, and leaves the file open


def _csv_cell(value: Any) -> Any:
    return as_json(value) if isinstance(value, list | dict | bool) else value


def as_json(value: Any, *, ascii: bool = False) -> str:
    """A value as JSON; dates and decimals as text, numbers that JSON lacks as null. Raises ConfigError for bytes and
    the like."""
    try:
        return json.dumps(value, ensure_ascii=ascii, allow_nan=False, default=_plain)
    except ConfigError:
        raise
    except ValueError:  # for NaN, which is rare
        return json.dumps(finite(value), ensure_ascii=ascii, default=_plain)


def _line(row: Row) -> bytes:
    """A row in UTF-8; in ASCII if a text has half of a surrogate pair."""
    try:
        return as_json(row).encode()
    except UnicodeEncodeError:
        return as_json(row, ascii=True).encode()


def finite(value: Any) -> Any:
    """A value without NaN and infinities, which are no JSON: null takes their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    for method in ("isoformat", "to_eng_string"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise ConfigError(f"a value of type {type(value).__name__} can't be written as JSON: write .parquet")
