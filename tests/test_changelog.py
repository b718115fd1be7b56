"""The changelog: a line for each change, by version; what describes the product stands in the pages."""

import re
from pathlib import Path

import oxillama

TEXT = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
MOST_LINES = 100
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def versions(text):
    """Lines of each version, by its heading."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return {name: body.strip().splitlines() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def test_versions_are_short_lists_of_changes():
    found = versions(TEXT)
    assert found
    for name, lines in found.items():
        assert len(lines) <= MOST_LINES, name
        kinds = [line.removeprefix("### ") for line in lines if line.startswith("#")]
        assert set(kinds) <= KINDS
        assert len(kinds) == len(set(kinds))


def test_the_version_of_the_package_comes_first():
    assert next(iter(versions(TEXT))).split()[0] == oxillama.__version__


def test_versions_are_divided():
    assert versions("# A\n\n## 2 (x)\n\n- one\n  more\n\n## 1\n- two\n") == {
        "2 (x)": ["- one", "  more"],
        "1": ["- two"],
    }
