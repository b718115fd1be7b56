"""Table files: Parquet, CSV and JSON lines, read row by row and written with more columns."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from oxillama._util.lazy import lazy
from oxillama.data.columns import ColumnType
from oxillama.data.frames import ArrowFrame, check_columns
from oxillama.errors import ConfigError
from oxillama.gguf.output import atomic_file

__all__ = [
    "SUFFIXES",
    "SameFile",
    "TableFile",
    "check_output",
    "numbered_lines",
    "open_table",
    "read_object",
    "write_table",
]

SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")
ROWS = 4096  # of a batch of a Parquet file
LONGEST_CELL = 1 << 30  # characters of a cell of CSV; the reader's own limit is 128 Ki
DEEPEST = 200  # lists and objects within each other: more may be read and can't be written, as the stack has it
Row = dict[str, Any]
CellsOf = Callable[[int], Mapping[str, Any]]


class TableFile(Protocol):
    """A file of rows."""

    @property
    def names(self) -> Sequence[str]:
        """Its columns."""

    @property
    def n_rows(self) -> int:
        """How many rows it has."""

    def rows(self, names: Sequence[str] | None = None) -> Iterator[Row]:
        """Its rows, with these columns alone. Raises ConfigError for a row that can't be read, or lacks one."""

    def batches(self, n_rows: int) -> Iterator[Any]:
        """The first rows as pyarrow Tables of one schema."""


def suffix_of(path: str) -> str:
    """What the name of a file says about its format. Raises ConfigError for none that is known."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path} must end in one of {', '.join(SUFFIXES)}: the name says what format it has")
    return suffix


def open_table(path: str) -> TableFile:
    """A file of rows. Raises ConfigError for a name without a known format, and for what isn't of it; OSError."""
    suffix = suffix_of(path)
    return ParquetTable(path) if suffix == ".parquet" else CsvTable(path) if suffix == ".csv" else JsonTable(path)


def pyarrow() -> Any:
    """The library that reads Parquet. Raises ConfigError with the remedy if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        text = f"Parquet files need {error.name}: pip install '.[data]' from a checkout"
        raise ConfigError(text) from None
    return pyarrow


class SameFile:
    """A file that is read several times and must be the same each time, by its number, size and time of change."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._known: tuple[int, ...] | None = None

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, open. Raises OSError, and ConfigError if it changed since it was opened first."""
        with open(self.path, "rb") as file:
            self.check(os.fstat(file.fileno()))
            yield file
            self.check(os.fstat(file.fileno()))

    def check(self, found: os.stat_result) -> None:
        """Raises ConfigError if this isn't what the file was at first."""
        stamp = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        self._known = self._known or stamp
        if stamp != self._known:
            raise ConfigError(
                f"{self.path} changed while it was read: the same command goes on, and computes anew what changed"
            )


class ParquetTable:
    """A Parquet file."""

    def __init__(self, path: str) -> None:
        pa = pyarrow()
        self._same = SameFile(path)
        self._same.check(os.stat(path))
        try:
            self._file = pa.parquet.ParquetFile(path)
        except pa.ArrowException as error:
            raise ConfigError(f"{path} is no Parquet file: {error}") from None
        self.names: list[str] = self._file.schema_arrow.names
        self.n_rows: int = self._file.metadata.num_rows
        self.types = {field.name: str(field.type) for field in self._file.schema_arrow}

    def rows(self, names: Sequence[str] | None = None) -> Iterator[Row]:
        if names is not None:
            check_columns(self.names, names)
        for batch in self._file.iter_batches(ROWS, columns=names):
            yield from batch.to_pylist()

    def batches(self, n_rows: int) -> Iterator[Any]:
        pa, left, schema = pyarrow(), n_rows, self._file.schema_arrow
        self._same.check(os.stat(self._same.path))
        if not n_rows:
            yield schema.empty_table()
            return
        for batch in self._file.iter_batches(ROWS):
            yield pa.Table.from_batches([batch.slice(0, left)], schema)
            left -= batch.num_rows
            if left <= 0:
                break
        self._same.check(os.stat(self._same.path))


class TextTable:
    """A file of text."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = SameFile(path)

    def rows(self, names: Sequence[str] | None = None) -> Iterator[Row]:
        if names is None:
            yield from self.read()
            return
        check_columns(self.names, names)
        for row in self.read():
            yield {name: row.get(name) for name in names}

    def read(self) -> Iterator[Row]:
        raise NotImplementedError

    @lazy
    def n_rows(self) -> int:
        return sum(1 for _ in self.read())

    @lazy
    def names(self) -> list[str]:
        found: dict[str, None] = {}
        for row in self.read():
            found |= dict.fromkeys(row)
        return list(found)


class CsvTable(TextTable):
    """A CSV file in UTF-8 whose first line has the names; all cells are text, and those without any are null.

    Blank lines count for nothing.
    """

    def read(self) -> Iterator[Row]:
        for number, names, cells in self._cells():
            if len(cells) != len(names):
                text = f"{self.path}: line {number} has {len(cells)} cells, and there are {len(names)} columns"
                raise ConfigError(text)
            yield {name: cell or None for name, cell in zip(names, cells, strict=True)}

    @lazy
    def names(self) -> list[str]:
        with self.file.opened() as file:
            return next((cells for _, cells in self._lines(file)), [])

    def _cells(self) -> Iterator[tuple[int, list[str], list[str]]]:
        """Each row: the line where it begins, the names, and its cells."""
        with self.file.opened() as file:
            lines = self._lines(file)
            _, names = next(lines, (0, []))
            check_columns(names, names)
            for number, cells in lines:
                yield number, names, cells

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        # The limit is the process's, and is only raised: another reader that wants a lower one has no use for cells.
        csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))
        text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
        reader, number = csv.reader(self._checked(text), strict=True), 1
        try:
            for cells in reader:
                if cells:
                    yield number, cells
                number = reader.line_num + 1
        except csv.Error as error:
            raise ConfigError(f"{self.path}: line {number} can't be read: {error}") from None
        finally:
            if not file.closed:
                text.detach()  # which would close it otherwise

    def _checked(self, text: Iterable[str]) -> Iterator[str]:
        """Lines that were UTF-8. Raises ConfigError, which names the line, for another."""
        for number, line in enumerate(text, 1):
            try:
                line.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"{self.path}: line {number} can't be read: it is no UTF-8 ({error})") from None
            yield line

    def batches(self, n_rows: int) -> Iterator[Any]:
        pa = pyarrow()
        schema = pa.schema([(name, pa.string()) for name in self.names])
        rows = islice(self.read(), n_rows)
        part = list(islice(rows, ROWS))
        yield pa.Table.from_pylist(part, schema)  # also of no rows
        while part := list(islice(rows, ROWS)):
            yield pa.Table.from_pylist(part, schema)


class JsonTable(TextTable):
    """A file with a JSON object in each line; a name that one lacks and another has is null there."""

    def read(self) -> Iterator[Row]:
        with self.file.opened() as file:
            for number, line in numbered_lines(file):
                if not line.strip():
                    continue
                row = read_object(f"{self.path}: line {number}", line)
                if line.count(b"[") + line.count(b"{") > DEEPEST and is_deep(row):
                    raise ConfigError(f"{self.path}: line {number} is nested more than {DEEPEST} deep")
                yield row

    def batches(self, n_rows: int) -> Iterator[Any]:
        pa = pyarrow()
        rows = [{name: row.get(name) for name in self.names} for row in islice(self.read(), n_rows)]
        try:
            yield pa.Table.from_pylist(rows)
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            raise ConfigError(f"{self.path}: its columns have no one type each ({error}): write .jsonl") from None


def numbered_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines of a file and their numbers, from 1; the byte order mark that a file may begin with is left out."""
    for number, line in enumerate(lines, 1):
        yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def read_object(place: str, line: bytes) -> Row:
    """The JSON object of a line. Raises ConfigError, which names the place, for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{place} must be an object, not {type(found).__name__}")
    return found


def is_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than DEEPEST deep."""
    level = [value]
    for _ in range(DEEPEST):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for several in parts for part in several if isinstance(part, list | dict)]
    return bool(level)


def check_output(path: str, table: TableFile, n_rows: int) -> None:
    """Raises ConfigError if a file of this name can't hold the rows of a table, before answers to them are computed."""
    if suffix_of(path) == ".parquet":
        pyarrow()
        if isinstance(table, JsonTable):
            for _ in table.batches(n_rows):  # columns of which each has one type
                pass
    elif isinstance(table, JsonTable) and suffix_of(path) == ".csv":
        for i, row in enumerate(islice(table.rows(), n_rows)):
            _check_text(i, row, path)
    elif isinstance(table, ParquetTable):
        for name, kind in table.types.items():
            if "binary" in kind or "duration" in kind:
                raise ConfigError(f"the column {name!r} of type {kind} can't be written to {path}: write .parquet")


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
