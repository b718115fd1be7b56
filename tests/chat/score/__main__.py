"""Prints the tables: ``python -m tests.chat.score FOLDER [--only NAME] [--table TABLE] [--faults N]``."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chat.score.grammars import grammars
from tests.chat.score.outputs import Row, outputs, streams
from tests.chat.score.recorded import Recorded, read_folder

TABLES: dict[str, Callable[[Recorded], Iterator[Row]]] = {
    "outputs": outputs,
    "streams": streams,
    "grammars": grammars,
}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default="", help="part of a template's name")
    options.add_argument("--table", choices=TABLES, action="append")
    options.add_argument("--faults", type=int, default=0, help="how many faults to print of each template and table")
    given = options.parse_args()
    for table in given.table or TABLES:
        _print_table(table, given.folder, given.only, given.faults)


def _print_table(table: str, folder: Path, only: str, n_faults: int) -> None:
    totals: Counter[tuple[str, str]] = Counter()
    print(f"== {table}: ours/theirs of all")
    for recorded in read_folder(folder, only):
        counts: Counter[tuple[str, str]] = Counter()
        faults = []
        for column, ours, theirs, fault in TABLES[table](recorded):
            counts[column, "all"] += 1
            counts[column, "ours"] += ours
            counts[column, "theirs"] += bool(theirs)
            counts[column, "known"] += theirs is not None
            if fault:
                faults.append(fault)
        totals += counts
        print(f"{recorded.label:50} {_shown(counts)}")
        for fault in faults[:n_faults]:
            print("   ", fault)
    print(f"{'all':50} {_shown(totals)}")


def _shown(counts: "Counter[tuple[str, str]]") -> str:
    columns = dict.fromkeys(column for column, _ in counts)
    return "  ".join(
        f"{c} {counts[c, 'ours']}/{counts[c, 'theirs'] if counts[c, 'known'] else '-'} of {counts[c, 'all']}"
        for c in columns
    )


if __name__ == "__main__":
    main()
