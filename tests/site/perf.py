"""The page of speed by commit, drawn of what `asv publish` wrote.

asv's own page loads its scripts from other hosts, which no page of the site may do; its numbers are plain JSON.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

from tests.site.curves import curve

__all__ = ["INDEX", "PAGE", "speed_page"]

PAGE = "perf/index.md"
INDEX = "index.json"  # of what asv publishes
HEAD = """# Speed by commit

What [asv](https://asv.readthedocs.io) recorded on one machine, as ratios to the first commit; how to record more says
[the page on speed](../asv_benchmarks/README.md#from-commit-to-commit). Where a benchmark has parameters, the geometric
mean over them.

"""


def speed_page(folder: Path) -> str:
    """The page, of the folder that `asv publish` wrote."""
    index: dict[str, Any] = json.loads((folder / INDEX).read_text())
    hashes = {int(revision): name[: index["hash_length"]] for revision, name in index["revision_to_hash"].items()}
    figures, rows = [], []
    for name in sorted(index["benchmarks"]):
        points = _points(folder / f"graphs/summary/{name}.json")
        if points:
            unit = index["benchmarks"][name]["unit"]
            figures.append(_figure(name, unit, points, hashes))
            first, last = points[0], points[-1]
            rows.append(
                f"| `{name}` | {unit} | {first[1]:.4g} | {last[1]:.4g} | {last[1] / first[1]:.2f}× "
                f"| {hashes[first[0]]} to {hashes[last[0]]} |"
            )
    if not rows:
        raise ValueError(f"{folder} has no benchmark that was measured: asv run, then asv publish")
    table = "| benchmark | unit | first | last | ratio | commits |\n|---|---|---|---|---|---|\n" + "\n".join(rows)
    return f'{HEAD}<div class="pictures">{"".join(figures)}</div>\n\n{table}\n'


def _points(graph: Path) -> list[tuple[int, float]]:
    """Revision and value of each commit that has one."""
    found = json.loads(graph.read_text()) if graph.exists() else []
    return [(int(revision), float(value)) for revision, value in found if value is not None and value > 0]


def _figure(name: str, unit: str, points: list[tuple[int, float]], hashes: dict[int, str]) -> str:
    line = [[revision, value / points[0][1]] for revision, value in points]
    said = ", ".join(
        f"{hashes[revision]} {ratio:.2f} times" for (revision, _), (_, ratio) in zip(points, line, strict=True)
    )
    better = "less is better" if unit in ("seconds", "bytes") else "more is better"
    chart = curve({name: line}, "commits", f"{unit}: {better}", f"{name}, {better}: {said}", lambda x: hashes[int(x)])
    return f"<figure>{chart}<figcaption><strong>{escape(name)}</strong></figcaption></figure>"
