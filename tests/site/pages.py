"""Pages of the site: every README of the project, tables and reference that are generated, and their navigation."""

import re
import shutil
from pathlib import Path
from typing import Any

from oxillama.server.__main__ import tables
from tests.site.charts import pictures
from tests.site.curves import curves
from tests.site.perf import PAGE as PERF_PAGE
from tests.site.reference import PAGES, reference_pages

__all__ = ["ROOT", "manual", "navigation", "stage"]

ROOT = Path(__file__).parents[2]
TABLES = "oxillama/server/TABLES.md"
# Sections of the navigation, and what they begin with. A page that none of them names is a guide, so that the README of
# a new package has its place by itself.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("README.md",),
    "Guides": (
        "oxillama/engine/README.md", "oxillama/chat/README.md", "oxillama/grammar/README.md",
        "oxillama/sampling/README.md", "oxillama/models/README.md", "oxillama/speculative/README.md",
        "oxillama/lora/README.md", "oxillama/snapshot/README.md", "oxillama/offload/README.md",
        "oxillama/tokenizer/README.md",
    ),
    "Examples": ("oxillama/examples/README.md",),
    "Data": ("oxillama/data/README.md", "oxillama/ray/README.md"),
    "Server": ("oxillama/server/README.md", "oxillama/server/CLIENTS.md", TABLES, "oxillama/server/deploy/README.md"),
    "Migrating": ("oxillama/compat/README.md", "oxillama/server/MIGRATING.md"),
    "Promises": ("oxillama/EXACTNESS.md", "oxillama/SECURITY.md", "asv_benchmarks/README.md"),
    "Architecture": (
        "oxillama/README.md", "oxillama/core/README.md", "oxillama/server/MAINTAINING.md",
        "oxillama/grammar/MAINTAINING.md", "csrc/README.md", "CONTRIBUTING.md", "CHANGELOG.md",
    ),
}  # fmt: skip
GUIDES = "Guides"


def manual() -> dict[str, str]:
    """Markdown of the project by its path: what readers of a checkout have, and the site too."""
    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "csrc/README.md")]
    files += [*sorted((ROOT / "oxillama").rglob("*.md")), ROOT / "asv_benchmarks/README.md"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


def title(text: str) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError("a page needs a heading of the first level")
    return found[1].replace("`", "")


def navigation(pages: dict[str, str], perf: bool = False) -> list[Any]:
    """The navigation of these pages, as MkDocs takes it. Each page stands in it once."""
    named = {name for names in SECTIONS.values() for name in names}
    others = [name for name in pages if name not in named and not name.startswith("reference/")]
    found: list[Any] = []
    for section, names in SECTIONS.items():
        here = [name for name in names if name in pages]
        if section == "Examples":
            here += [name for name in others if name.startswith("oxillama/examples/")]
        if section == GUIDES:
            here += [name for name in others if not name.startswith("oxillama/examples/")]
        entries: list[Any] = [{"Overview" if name == "README.md" else title(pages[name]): name} for name in here]
        if section == "Promises" and perf:
            entries.append({"Speed by commit": PERF_PAGE})
        found += [{section: entries}] if entries else []
    reference = [{"Overview": "reference/index.md"}, *({page.title: f"reference/{page.name}.md"} for page in PAGES)]
    return [*found, {"Reference": reference}]


def for_site(text: str) -> str:
    """Markdown of GitHub's kind, as Python-Markdown reads it: a list may follow its paragraph at once there."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _spaced(part) for part in parts)


def _spaced(prose: str) -> str:
    lines: list[str] = []
    item = re.compile(r"\s*(?:[-*]|\d+\.) ")
    for line in prose.split("\n"):
        before = lines[-1] if lines else ""
        if item.match(line) and before.strip() and not item.match(before) and not before.startswith(" "):
            lines.append("")
        nested = re.match(r"( {2,3})[-*] ", line)
        lines.append("  " + line if nested else line)
    return "\n".join(lines)


def pages_of_site() -> dict[str, str]:
    """All pages by path."""
    pages = {name: for_site(text) for name, text in manual().items()}
    charts = pictures()
    speed = "asv_benchmarks/README.md"
    pages["README.md"] = _before(pages["README.md"], "\n## From Python", charts)
    pages[speed] = _before(pages[speed], "\n## Of parts of oxillama", f"{charts}\n{curves()}")
    served, _, _ = pages["oxillama/server/README.md"].partition("\n## Tables")
    link = "\n## Tables\n\nEndpoints, fields and settings have [a page of their own](TABLES.md).\n"
    pages["oxillama/server/README.md"] = served + link
    head = "# Server reference\n\nEndpoints, fields and settings, from the tables that the server reads.\n\n"
    pages[TABLES] = head + re.sub(r"^### ", "## ", tables(), flags=re.MULTILINE) + "\n"
    return {**pages, **example_pages(), **reference_pages()}


def _before(text: str, mark: str, addition: str) -> str:
    head, found, tail = text.partition(mark)
    if not found:
        raise ValueError(f"a page lacks {mark.strip()!r}, before which the pictures stand")
    return f"{head}\n{addition}\n{found}{tail}"


def example_pages() -> dict[str, str]:
    """A page for each example, which is the file itself below the title that its docstring begins with."""
    found = {}
    for path in sorted((ROOT / "oxillama/examples").glob("[a-z]*.py")):
        source = path.read_text()
        first = re.match(r'"""(.+?)[.:\n]', source)
        if first is None:
            raise ValueError(f"{path.name} lacks a docstring")
        text = f"---\nhide: [toc]\n---\n\n# {first[1]}\n\n```python\n{source}```\n"  # lines of 120 characters need room
        found[f"oxillama/examples/{path.stem}.md"] = text
    return found


def stage(folder: Path) -> dict[str, str]:
    """Writes all pages below `folder`, with the files of the project that they link to; gives the pages."""
    pages = pages_of_site()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in pages:
        _copy_targets(name, pages, folder)
    shutil.copytree(Path(__file__).with_name("theme"), folder / "theme")
    return pages


def _copy_targets(name: str, pages: dict[str, str], folder: Path) -> None:
    """Files that a page links to, and that are no pages, stand beside them."""
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", pages[name]):
        source = ((ROOT / name).parent / target).resolve()
        relative = str(source.relative_to(ROOT))
        if relative not in pages and source.is_file():
            copy = folder / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
