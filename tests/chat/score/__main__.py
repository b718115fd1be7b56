"""Prints the tables: ``python -m tests.chat.score FOLDER [--table TABLE] [--only NAME] [--faults N]``."""

import argparse
import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chat.score.answers import Recorded, read_folder
from tests.chat.score.grammars import grammars
from tests.chat.score.outputs import Row, outputs, streams

# Of prompts: modules of this package with a function `table(folder)`, which gives lines.
PROMPTS = ("prompts", "engine_prompts", "reuse", "variants")
# Of answers: functions of a template's recorded answers.
ANSWERS: dict[str, Callable[[Recorded], Iterator[Row]]] = {
    "outputs": outputs,
    "streams": streams,
    "grammars": grammars,
}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default="", help="part of a template's name, for tables of answers")
    options.add_argument("--table", choices=(*PROMPTS, *ANSWERS), action="append")
    options.add_argument("--faults", type=int, default=0, help="how many faults to print of each template's answers")
    given = options.parse_args()
    for table in given.table or (*PROMPTS, *ANSWERS):
        if table in ANSWERS:
            _print_table(table, given.folder, given.only, given.faults)
            continue
        for line in importlib.import_module(f"tests.chat.score.{table}").table(given.folder):
            print(line, flush=True)
        print()


def _print_table(table: str, folder: Path, only: str, n_faults: int) -> None:
    totals: Counter[tuple[str, str]] = Counter()
    print(f"== {table}: ours/theirs of all")
    for recorded in read_folder(folder, only):
        counts: Counter[tuple[str, str]] = Counter()
        faults = []
        for column, ours, theirs, fault in ANSWERS[table](recorded):
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
