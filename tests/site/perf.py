"""The page of speed by commit, drawn from what asv recorded. python -m tests.site.perf [FOLDER] keeps that record.

asv's own page loads its scripts from other hosts, which no page of the site may do; its numbers are plain JSON. What
`asv publish` wrote to the folder (asv_benchmarks/.asv/html) is kept as asv_benchmarks/history.json, from which a clone
builds the page without measuring again: all commits of commits.txt, from one machine, in place of what was kept before.
"""

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

from tests.site.curves import curve

__all__ = ["HISTORY", "PAGE", "history_of", "kept_history", "speed_page"]

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "asv_benchmarks/.asv/html"
HISTORY = ROOT / "asv_benchmarks/history.json"
COMMITS = ROOT / "asv_benchmarks/commits.txt"
PAGE = "perf/index.md"
INDEX = "index.json"  # of what asv publishes
HEAD = """# Speed by commit

What [asv](https://asv.readthedocs.io) recorded on one machine ({machine}), as ratios to the first commit; how to record
more says [the page on speed](../asv_benchmarks/README.md#from-commit-to-commit). Where a benchmark has parameters, the
geometric mean over them.

"""


def history_of(folder: Path) -> dict[str, Any]:
    """What `asv publish` wrote to a folder: the machine, hashes by revision, and of each benchmark unit and points.

    Raises ValueError, which names the folder, if there is none of that, or of more than one machine.
    """
    index = _json(folder / INDEX, ("benchmarks", "revision_to_hash", "hash_length", "machines"), "asv publish")
    benchmarks = {}
    for name in sorted(index["benchmarks"]):
        if points := _points(folder / f"graphs/summary/{name}.json"):
            benchmarks[name] = {"unit": index["benchmarks"][name]["unit"], "points": points}
    if not benchmarks:
        raise ValueError(f"{folder} has no benchmark that was measured: asv run, then asv publish")
    if len(index["machines"]) != 1:
        raise ValueError(f"{folder} has results of {len(index['machines'])} machines, not of one")
    seen = {str(revision) for benchmark in benchmarks.values() for revision, _ in benchmark["points"]}
    commits = {r: name for r, name in index["revision_to_hash"].items() if r in seen}
    machine = next(iter(index["machines"].values()))
    named = f"{machine.get('num_cpu') or 'unknown number of'} CPUs, {machine.get('cpu') or 'unnamed'}"
    return {"machine": named, "hash_length": index["hash_length"], "commits": commits, "benchmarks": benchmarks}


def kept_history(path: Path = HISTORY) -> dict[str, Any] | None:
    """What was kept, or None if nothing was. Raises ValueError for a file that this module didn't write."""
    wanted = ("machine", "hash_length", "commits", "benchmarks")
    return _json(path, wanted, "python -m tests.site.perf") if path.exists() else None


def _json(path: Path, wanted: tuple[str, ...], writer: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not what `{writer}` writes: {error}") from None
    missing = [key for key in wanted if not isinstance(found, dict) or key not in found]
    if missing:
        raise ValueError(f"{path} is not what `{writer}` writes: it has no {', '.join(missing)}")
    return dict(found)


def speed_page(history: dict[str, Any]) -> str:
    """The page, of what history_of() gave."""
    hashes = {int(revision): name[: history["hash_length"]] for revision, name in history["commits"].items()}
    figures, rows = [], []
    for name, benchmark in history["benchmarks"].items():
        unit, points = benchmark["unit"], benchmark["points"]
        figures.append(_figure(name, unit, points, hashes))
        first, last = points[0], points[-1]
        rows.append(
            f"| `{name}` | {unit} | {first[1]:.4g} | {last[1]:.4g} | {last[1] / first[1]:.2f}× "
            f"| {hashes[int(first[0])]} to {hashes[int(last[0])]} |"
        )
    table = "| benchmark | unit | first | last | ratio | commits |\n|---|---|---|---|---|---|\n" + "\n".join(rows)
    head = HEAD.format(machine=escape(history["machine"]))
    return f'{head}<div class="pictures">{"".join(figures)}</div>\n\n{table}\n'


def _points(graph: Path) -> list[list[float]]:
    """Revision and value of each commit that has one."""
    found = json.loads(graph.read_text()) if graph.exists() else []
    return [[int(revision), float(value)] for revision, value in found if value is not None and value > 0]


def _figure(name: str, unit: str, points: list[list[float]], hashes: dict[int, str]) -> str:
    line = [[revision, value / points[0][1]] for revision, value in points]
    said = ", ".join(f"{hashes[int(revision)]} {ratio:.2f} times" for revision, ratio in line)
    better = "less is better" if unit in ("seconds", "bytes") else "more is better"
    chart = curve({name: line}, "commits", f"{unit}: {better}", f"{name}, {better}: {said}", lambda x: hashes[int(x)])
    return f"<figure>{chart}<figcaption><strong>{escape(name)}</strong></figcaption></figure>"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.site.perf", description=f"keeps {HISTORY.name} for the site")
    parser.add_argument("folder", nargs="?", type=Path, default=PUBLISHED, help="what `asv publish` wrote")
    a = parser.parse_args(arguments)
    try:
        history = history_of(a.folder)
    except ValueError as error:
        parser.error(str(error))
    recorded = set(history["commits"].values())
    if missing := [commit for commit in COMMITS.read_text().split() if commit not in recorded]:
        parser.error(f"{a.folder} has nothing of {', '.join(missing)}, which {COMMITS.name} lists")
    HISTORY.write_text(_text(history))
    print(HISTORY)


def _text(history: dict[str, Any]) -> str:
    """JSON with a line for each benchmark and each commit, so that a new record can be read as a change."""

    def lines(of: dict[str, Any]) -> str:
        return "{\n  " + ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in of.items()) + "\n }"

    parts = {key: lines(value) if isinstance(value, dict) else json.dumps(value) for key, value in history.items()}
    return "{\n " + ",\n ".join(f"{json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}\n"


if __name__ == "__main__":
    main()
