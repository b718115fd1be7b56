"""The page of speed by commit, drawn of what asv recorded: python -m tests.site.perf [FOLDER] keeps that for the site.

asv's own page loads its scripts from other hosts, which no page of the site may do; its numbers are plain JSON. What
`asv publish` wrote is kept as asv_benchmarks/history.json, from which a clone builds the page without measuring again.
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from tests.site.curves import curve

__all__ = ["HISTORY", "INDEX", "PAGE", "history_of", "speed_page"]

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "asv_benchmarks/.asv/html"
HISTORY = ROOT / "asv_benchmarks/history.json"
PAGE = "perf/index.md"
INDEX = "index.json"  # of what asv publishes
HEAD = """# Speed by commit

What [asv](https://asv.readthedocs.io) recorded on one machine ({machine}), as ratios to the first commit; how to record
more says [the page on speed](../asv_benchmarks/README.md#from-commit-to-commit). Where a benchmark has parameters, the
geometric mean over them.

"""


def history_of(folder: Path) -> dict[str, Any]:
    """What `asv publish` wrote to a folder: the machine, hashes by revision, and of each benchmark unit and points."""
    index: dict[str, Any] = json.loads((folder / INDEX).read_text())
    benchmarks = {}
    for name in sorted(index["benchmarks"]):
        if points := _points(folder / f"graphs/summary/{name}.json"):
            benchmarks[name] = {"unit": index["benchmarks"][name]["unit"], "points": points}
    if not benchmarks:
        raise ValueError(f"{folder} has no benchmark that was measured: asv run, then asv publish")
    seen = {str(revision) for benchmark in benchmarks.values() for revision, _ in benchmark["points"]}
    commits = {r: name[: index["hash_length"]] for r, name in index["revision_to_hash"].items() if r in seen}
    machines = [f"{m.get('num_cpu', '?')} x {m.get('cpu', 'unnamed')}" for m in index.get("machines", {}).values()]
    return {"machine": ", ".join(machines) or "unnamed", "commits": commits, "benchmarks": benchmarks}


def speed_page(history: dict[str, Any]) -> str:
    """The page, of what history_of() gave."""
    hashes = {int(revision): name for revision, name in history["commits"].items()}
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
    head = HEAD.format(machine=history["machine"])
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


if __name__ == "__main__":
    history = history_of(Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED)
    HISTORY.write_text(json.dumps(history, indent=1) + "\n")
    print(HISTORY)
