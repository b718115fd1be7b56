"""Mapper: a picklable function from batches of columns to the same batches with more columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from oxillama._util.checks import check_choice
from oxillama._util.lazy import lazy
from oxillama.data.columns import TEXT, Cells, ColumnType, check_name
from oxillama.data.converted import arrow_batches
from oxillama.data.engines import EngineSource
from oxillama.data.frames import Frame, check_columns, check_texts, frame_of, is_lazy, is_table, rows_of, with_types
from oxillama.data.frameworks import of_ray, pandas_udf
from oxillama.data.progress import Progress, Rows, check_progress
from oxillama.errors import ConfigError, EngineClosedError

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["Done", "Mapper", "OnError"]

OnError = Literal["raise", "null", "column"]
Done = tuple[Cells, int]  # what a row gets, and tokens that were generated for it


class Mapper(ABC):
    """A function of batches of columns that an engine computes more columns of.

    A batch is a pyarrow Table or RecordBatch, a pandas or polars DataFrame, a dict of lists or NumPy arrays, or a list
    of dicts, its rows; the same kind comes back, with all its columns, its rows in their order, and the columns of
    `added()`. A Series is a table of one column. Of objects with Arrow's `__arrow_c_stream__` (DuckDB's relations,
    RecordBatchReader, ibis, Daft) a pyarrow Table comes back. A row's result doesn't depend on its batch: any batching
    over any number of processes gives the same bits.

    Its pickle holds settings: each process opens the engine when it is first called there, once for all mappers of one
    model and settings. Any number of threads may call it. A forked child goes on with its parent's engine.

    output: the name of the column that it adds. on_error: what becomes of a row that fails: "raise" its error, "null"
    in its place, or "column": null, and the error in the column `<output>_error`.
    """

    def __init__(
        self, model: Any, output: str, *, on_error: OnError, progress: Progress, engine: Mapping[str, Any] | None
    ) -> None:
        self.source = EngineSource(model, engine)
        self.output = check_name("output", output)
        self.on_error = check_choice("on_error", "raise" if on_error is None else on_error, ("raise", "null", "column"))
        self._progress = check_progress(progress)
        self._prepared: Engine | None = None  # for which options were found good

    @property
    def engine(self) -> Engine:
        """Engine of this process, which is opened if it isn't. Raises what `oxillama.load` raises."""
        return self.source.engine

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """Columns that it reads."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of `inputs` whose cells are texts or lists, whatever the row."""
        return ()

    @abstractmethod
    def results(self) -> dict[str, ColumnType]:
        """Columns that it adds, without that of errors. Opens the engine where types depend on the model."""

    @abstractmethod
    def cells(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Done]:
        """Computes for each row, in order, the cells of all columns of `added()`. Rows are taken as they are needed.

        rows: with the cells of `inputs`, as Python values. Raises errors of rows if `on_error` says so, and what ends
        the whole (LoadError, EngineClosedError, GrammarError, ...) in any case.
        """

    def added(self) -> dict[str, ColumnType]:
        """Columns that it adds, with their types."""
        return self.results() | ({self.error_name: TEXT} if self.on_error == "column" else {})

    @property
    def error_name(self) -> str:
        """The column of errors that `on_error="column"` adds."""
        return f"{self.output}_error"

    def __call__(self, batch: Any) -> Any:
        """The batch with more columns; of a polars LazyFrame, a LazyFrame.

        Raises ConfigError for a batch of no kind that is known, for a column that it lacks or that would be replaced;
        and what `cells` raises.
        """
        if is_lazy(batch):
            return batch.map_batches(self, schema=self.schema(batch))
        frame = self._checked(batch)  # before a model is opened
        (found,) = self._mapped([frame], frame.n_rows)
        return found

    def map(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Each batch with more columns, in order.

        Rows of the next batch are computed beside the last ones of a batch, so that the engine always has enough to
        do. Batches are taken as they are needed. Raises what a call raises, and what the iterable does.

        batches: an iterable; or one object with Arrow's `__arrow_c_stream__`, whose RecordBatches they are.
        """
        if is_table(batches):
            raise ConfigError("map() takes an iterable of batches: call the mapper itself for one")
        if hasattr(batches, "__arrow_c_stream__"):
            reader = arrow_batches(batches)
            check_columns(reader.schema.names, self.inputs)
            return self._mapped(reader, None)
        return self._mapped(batches, None)

    def _mapped(self, batches: Iterable[Any], total: int | None) -> Iterator[Any]:
        added = self.added()
        frames: deque[Frame] = deque()

        def rows() -> Iterator[Mapping[str, Any]]:
            for batch in batches:
                frame = self._opened(batch, added)
                found = rows_of(frame, self.inputs)
                frames.append(frame)
                yield from found

        cells: list[Cells] = []
        shown = Rows(self._progress, total)
        try:
            with closing(_generator(self.cells(rows()))) as results:
                for made, n_tokens in results:
                    while frames[0].n_rows == len(cells):  # of which there are none
                        yield _finished(frames.popleft(), added, cells)
                    cells.append(made)
                    shown.add(n_tokens)
                    if len(cells) == frames[0].n_rows:
                        yield _finished(frames.popleft(), added, cells)
            while frames:
                yield _finished(frames.popleft(), added, cells)
        finally:
            shown.close()

    def _opened(self, batch: Any, added: Mapping[str, ColumnType]) -> Frame:
        frame = self._checked(batch)
        for name in added:
            if name in frame.names:
                raise ConfigError(f"the batch has a column {name!r} already: give another output=, or drop the column")
        return frame

    def _checked(self, batch: Any) -> Frame:
        """The frame of a batch that has the columns which are read, of types that they may have."""
        frame = frame_of(batch, self.inputs)
        if frame.n_rows or frame.names:
            check_columns(frame.names, self.inputs)
            check_texts(frame, self.texts)
        return frame

    def schema(self, schema: Any) -> Any:
        """The schema of what a call gives for a batch of this schema; for `lf.map_batches(mapper, schema=...)`.

        schema: a polars Schema, LazyFrame or DataFrame (polars' comes back), a pyarrow Schema, Table or RecordBatch, or
        an object of Arrow's protocol. Raises ConfigError for others, and for one without a column that is read.
        """
        return with_types(schema, self.added(), self.inputs)

    def ray(
        self, *, concurrency: int | tuple[int, int] = 1, num_cpus: float = 1, batch_size: int = 256, **options: Any
    ) -> dict[str, Any]:
        """Keywords of Ray Data's `map_batches`: `ds.map_batches(**mapper.ray(concurrency=4, num_cpus=8))`.

        concurrency: actors, each with an engine of its own; (least, most) lets Ray choose. num_cpus: CPUs that Ray
        keeps for each, and thereby its threads, unless the engine has a `num_threads`. batch_size: rows that are
        computed together. options: further ones of `map_batches`, which count before these.

        Raises ConfigError for numbers out of their range.
        """
        return of_ray(self, concurrency, num_cpus, batch_size, options)

    def pandas_udf(self, return_type: Any = None) -> Any:
        """A function of Spark's columns, those of `inputs` in their order: `df.select(mapper.pandas_udf()("text"))`.

        Its value is that of the column that is added, or a struct of all if there are several. return_type: a type of
        Spark instead of the one that fits. Each Python worker opens the engine once, and goes through its partition
        with batches of `spark.sql.execution.arrow.maxRecordsPerBatch` rows; its threads are `spark.task.cpus`.
        """
        return pandas_udf(self, return_type)

    def register(self, connection: Any, name: str, types: Mapping[str, str] | None = None) -> None:
        """Makes it a function of a DuckDB connection: `select answer(text) from t`.

        Its arguments are `inputs`, in order, of type VARCHAR unless `types` says otherwise: {"seed": "BIGINT"}. It
        gives the output, or a struct of `added()` if these are more. Rows are computed by DuckDB's vectors of 2,048.
        Raises ConfigError for a type of a column that it doesn't read; DuckDB's errors.
        """
        from oxillama.data.duck import register

        for column in types or ():
            if column not in self.inputs:
                raise ConfigError(f"types must be of {', '.join(self.inputs)}, not of {column!r:.60}")
        parameters = {column: (types or {}).get(column, "VARCHAR") for column in self.inputs}
        register(connection, name, self, parameters, self.added())

    def close(self) -> None:
        """Closes the engine that was opened for it, which others of the same settings share; a call opens it again."""
        self.source.close()

    def empty(self) -> Done:
        """Cells of a row without a prompt."""
        return dict.fromkeys(self._names), 0

    @lazy
    def _names(self) -> tuple[str, ...]:
        """Names of the columns that it adds."""
        return tuple(self.added())

    def failed(self, row: int, error: Exception, cells: Cells | None = None) -> Done:
        """Cells of a row that failed; raises the error if that is wanted, or if it is the end of all."""
        if self.on_error == "raise" or isinstance(error, EngineClosedError):
            error.add_note(f"in row {row} of those that were given to {type(self).__name__}(output={self.output!r})")
            raise error
        found = self.empty()[0] if cells is None else cells
        if self.on_error == "column":
            text = f"{type(error).__name__}: {error}".replace(f"prompts[{row}]", "prompt")  # whatever the batching
            found[self.error_name] = text.encode("utf-8", "backslashreplace").decode()
        return found, 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": None}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.source}: {', '.join(self.inputs)} -> {self.output}>"


def _generator(results: Iterator[Done]) -> Any:
    """Iterators that `cells` gives are generators, which end when they are closed."""
    return results


def _finished(frame: Frame, added: Mapping[str, ColumnType], cells: list[Cells]) -> Any:
    """The table of a frame with the columns of these cells, which are taken away."""
    columns = {name: (kind, [row[name] for row in cells]) for name, kind in added.items()}
    cells.clear()
    return frame.extended(columns)
