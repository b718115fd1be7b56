"""Table jobs: a file of rows to the same rows with answers, which can be stopped at any moment and gone on with."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from oxillama.data.columns import ColumnType, fits
from oxillama.data.files import TableFile, check_output, open_table, write_table
from oxillama.data.frames import check_columns
from oxillama.data.generate import Generate
from oxillama.data.journal import Journal, digest_of
from oxillama.data.progress import Progress, Rows
from oxillama.data.same_file import check_regular, kind_of
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.core.results import CancelToken

__all__ = ["Report", "check_paths", "journal_of", "map_file"]


@dataclass
class Report:
    """Counts of a job.

    n_rows: rows that were wanted. n_before: those that were finished already. n_done: those that were computed now.
    errors: how many failed, by the kind of their errors; examples: a row and the message of one for each kind.
    whole: whether the output has all of them.
    """

    n_rows: int = 0
    n_before: int = 0
    n_done: int = 0
    n_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    whole: bool = False

    def failed(self, row: object, kind: str, message: str) -> None:
        """Counts a row that failed."""
        self.errors[kind] += 1
        self.examples.setdefault(kind, f"{row}: {message}")


def journal_of(path: str) -> str:
    """The name of the journal of an output that isn't whole."""
    return f"{path}.partial"


def check_paths(source: str, output: str) -> None:
    """Raises ConfigError for an input that can't be read twice, and for an output that can't be written, or that is
    there and of no job that could go on."""
    with contextlib.suppress(OSError):  # told where it is opened
        check_regular(source, os.stat(source))
    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder):
        raise ConfigError(f"{output}: can't be written, there is no folder {folder}")
    for path in (output, journal_of(output)):
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(source, path):
            raise ConfigError(f"{path} is {source} itself: give another output")
    if not os.path.exists(output):
        return
    if not os.path.isfile(output):
        raise ConfigError(f"{output}: can't be written, this is {kind_of(os.stat(output))}: give the name of a file")
    if not os.path.lexists(journal_of(output)):
        raise ConfigError(f"{output} is there already: remove it, or give another output")


def map_file(
    mapper: Generate, source: str, output: str, *, limit: int | None = None, again: bool = False,
    progress: Progress = False, cancel: CancelToken | None = None,
) -> Report:  # fmt: skip
    """Reads a table from a file, and writes it to another with the columns of a mapper, whose `on_error` is "column".

    Finished rows stand in `OUTPUT.partial` until all are: a call with the same settings goes on with the others, and
    gives the bits that one call gives. A row whose input changed since is computed again. `output` takes its name when
    all rows are finished, or the first `limit`, and the partial file stays until all are, none of which failed. An
    output without one, which a finished job has left, is refused, since nothing says what it was made with.

    again: compute rows anew that failed. cancel: when it is cancelled, what is finished is kept, and the report says
    that the output isn't whole. Raises ConfigError for files and columns that can't be read or written, OSError, and
    what a call of the mapper raises for all rows.
    """
    check_paths(source, output)
    if not isinstance(mapper, Generate) or mapper.on_error != "column":
        raise ConfigError(f"map_file needs a Generate with on_error='column', not {mapper!r:.200}")
    table = open_table(source)
    n_rows = table.n_rows if limit is None else min(limit, table.n_rows)
    if table.names or table.n_rows:  # a file of JSON lines without any has no names
        check_columns(table.names, mapper.inputs)
    report = Report(n_rows)
    added = mapper.added()
    for name in added:
        if name in table.names:
            raise ConfigError(f"{source} has a column {name!r} already: give another --output-column")
    check_output(output, table, n_rows, added)
    job = {"kind": "table", **mapper.job()}
    with Journal(journal_of(output), job, check=lambda cells: _check_cells(cells, added)) as journal:
        _compute(mapper, table, journal, report, again, progress, cancel)
        if report.n_before + report.n_done < n_rows:
            return report
        write_table(output, table, n_rows, added, journal.value)
        _count_failures(mapper, journal, report)
        report.whole = True
        if n_rows == table.n_rows and not report.errors:
            journal.remove()
    return report


def _compute(
    mapper: Generate, table: TableFile, journal: Journal, report: Report, again: bool, progress: Progress,
    cancel: CancelToken | None,
) -> None:  # fmt: skip
    """Computes the rows that the journal lacks."""
    left: dict[int, tuple[int, str]] = {}  # rows that are computed, by their place among these

    def rows() -> Iterator[dict[str, Any]]:
        n_taken = 0
        taken = table.rows(mapper.inputs) if report.n_rows else iter(())
        for i, row in enumerate(islice(taken, report.n_rows)):
            digest = digest_of(row)
            if journal.has(i, digest, again=again):
                report.n_before += 1
                continue
            left[n_taken] = i, digest
            n_taken += 1
            yield row

    shown = Rows(progress, report.n_rows, min(journal.n_done, report.n_rows))
    try:
        for place, (cells, n_tokens) in mapper.outcomes(rows(), ordered=False, cancel=cancel):
            i, digest = left.pop(place)
            journal.add(i, digest, cells, failed=cells[mapper.error_name] is not None)
            report.n_done += 1
            report.n_tokens += n_tokens
            shown.add(n_tokens)
    finally:
        shown.close()


def _check_cells(cells: Any, added: Mapping[str, ColumnType]) -> None:
    """Raises ConfigError for what no row of a job gets."""
    if not isinstance(cells, dict) or cells.keys() != added.keys():
        raise ConfigError(f"a row has {', '.join(added)}, and nothing else")
    for name, kind in added.items():
        if not fits(cells[name], kind):
            raise ConfigError(f"{name} is of another type")


def _count_failures(mapper: Generate, journal: Journal, report: Report) -> None:
    if journal.n_failed:
        for i in range(report.n_rows):
            if error := journal.value(i)[mapper.error_name]:
                kind, _, message = error.partition(": ")
                report.failed(f"row {i}", kind, message)
