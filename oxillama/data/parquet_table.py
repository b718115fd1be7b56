"""Parquet files, read row by row or by batches, in memory that doesn't grow with their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from oxillama.data.frames import check_columns
from oxillama.data.same_file import SameFile
from oxillama.errors import ConfigError

__all__ = ["ROWS", "ParquetTable", "pyarrow"]

ROWS = 1024  # of a batch
PAGE_BYTES = 1 << 16  # read at a time of a column; without a buffer the column of a whole row group is read at once


def pyarrow() -> Any:
    """The library that reads Parquet. Raises ConfigError with the remedy if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        text = f"Parquet files need {error.name}: pip install '.[data]' from a checkout"
        raise ConfigError(text) from None
    return pyarrow


class ParquetTable:
    """A Parquet file."""

    def __init__(self, path: str) -> None:
        pa = pyarrow()
        self.path = path
        self._same = SameFile(path)
        self._same.check_path()
        with self._named():
            self._file = pa.parquet.ParquetFile(path, buffer_size=PAGE_BYTES, pre_buffer=False)
            schema = self._file.schema_arrow
            self.names: list[str] = schema.names
            self.n_rows: int = self._file.metadata.num_rows
            self.types = {field.name: str(field.type) for field in schema}
        if self.n_rows < 0:
            raise ConfigError(f"{path} is no Parquet file, or damaged: it has {self.n_rows} rows")

    def rows(self, names: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        if names is not None:
            check_columns(self.names, names)
        for batch in self._batches(names):
            with self._named():
                rows = batch.to_pylist()
            yield from rows

    def batches(self, n_rows: int) -> Iterator[Any]:
        pa, left, schema = pyarrow(), n_rows, self._file.schema_arrow
        if not n_rows:
            yield schema.empty_table()
            return
        for batch in self._batches(None):
            yield pa.Table.from_batches([batch.slice(0, left)], schema)
            left -= batch.num_rows
            if left <= 0:
                break
        self._same.check_path()

    def _batches(self, names: Sequence[str] | None) -> Iterator[Any]:
        """All batches, checked. Raises ConfigError for fewer or more rows than the file says that it has."""
        self._same.check_path()
        n_read = 0
        with self._named():
            batches = self._file.iter_batches(ROWS, columns=names)
        while True:
            with self._named():
                batch = next(batches, None)
                if batch is not None:
                    batch.validate(full=True)
            if batch is None:
                break
            n_read += batch.num_rows
            yield batch
        if n_read != self.n_rows:
            text = f"{self.path} is damaged: it says that it has {self.n_rows} rows, and {n_read} could be read"
            raise ConfigError(text)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Makes whatever the library raises for bytes that it can't read a ConfigError with the file's name."""
        try:
            yield
        except ConfigError:
            raise
        except OSError as error:
            if error.errno is not None:  # of the system
                raise OSError(error.errno, error.strerror, self.path) from error
            raise self._damaged(error) from None
        except Exception as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> ConfigError:
        said = str(error) or type(error).__name__
        return ConfigError(f"{self.path} is no Parquet file, or damaged: {said:.300}")
