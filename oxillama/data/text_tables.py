"""CSV and JSON lines, read row by row."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

from oxillama._util.lazy import lazy
from oxillama.chat.calls import read_json
from oxillama.data.frames import check_columns
from oxillama.data.parquet_table import ROWS, pyarrow
from oxillama.data.same_file import SameFile
from oxillama.errors import ConfigError

__all__ = ["CsvTable", "JsonTable", "numbered_lines", "read_object"]

LONGEST_CELL = 1 << 30  # characters of a cell of CSV; the reader's own limit is 128 Ki
DEEPEST = 200  # lists and objects within each other: more may be read and can't be written, as the stack has it
Row = dict[str, Any]


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
                row = read_object(f"{self.path}: line {number}", line, any_number=True)
                if line.count(b"[") + line.count(b"{") > DEEPEST and is_deep(row):
                    raise ConfigError(f"{self.path}: line {number} is nested more than {DEEPEST} deep")
                yield row

    def batches(self, n_rows: int) -> Iterator[Any]:
        schema = self._schema(n_rows)
        yield from (self._table(part, schema) for part in self._parts(n_rows))
        if not n_rows:
            yield self._table([], schema)

    def _parts(self, n_rows: int) -> Iterator[list[Row]]:
        """The first rows, some at a time, each with all names."""
        rows = ({name: row.get(name) for name in self.names} for row in islice(self.read(), n_rows))
        while part := list(islice(rows, ROWS)):
            yield part

    def _schema(self, n_rows: int) -> Any:
        """The types of the columns, of all rows together."""
        found = pyarrow().schema([])
        for part in self._parts(n_rows):
            schema = self._table(part).schema
            try:
                found = merged_schema(found, schema) if found.names else schema
            except TypeError as error:
                raise self._mixed(error) from None
        return found

    def _table(self, rows: list[Row], schema: Any = None) -> Any:
        pa = pyarrow()
        try:
            return pa.Table.from_pylist(rows, schema)
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
            raise self._mixed(error) from None

    def _mixed(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.path}: its columns have no one type each ({error}): write .jsonl")


def merged_schema(one: Any, other: Any) -> Any:
    """The schema of two tables together, whose columns have the same names. Raises TypeError if there is none."""
    pa = pyarrow()
    return pa.schema([pa.field(name, merged_type(kind, other.field(name).type)) for name, kind in _fields_of(one)])


def merged_type(one: Any, other: Any) -> Any:
    """The Arrow type that JSON values of either type have together, as if all had stood in one array.

    Raises TypeError if there is none.
    """
    pa = pyarrow()
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merged_type(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = dict(_fields_of(one))
        for name, kind in _fields_of(other):
            fields[name] = merged_type(fields[name], kind) if name in fields else kind
        return pa.struct(list(fields.items()))
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise TypeError(f"some values are of type {one}, and others of type {other}")


def _fields_of(schema: Any) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in schema]


def numbered_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines of a file and their numbers, from 1; the byte order mark that a file may begin with is left out."""
    for number, line in enumerate(lines, 1):
        yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def read_object(place: str, line: bytes, *, any_number: bool = False) -> Row:
    """The JSON object of a line. Raises ConfigError, which names the place, for anything else, for a key that comes
    twice, and for what the server refuses in a body.

    any_number: takes NaN, infinities and numbers that no float can hold.
    """
    try:
        text = line.decode("utf-8", "surrogatepass" if any_number else "strict")
        found = read_json(text, halves=True, any_number=any_number)
    except ValueError as error:
        raise ConfigError(f"{place} is no JSON: {error!s:.300}") from None
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
