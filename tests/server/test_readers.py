"""Fields of a request are read by name in `read_*` functions alone: what they return has types."""

import ast
from pathlib import Path

import pytest

import oxillama.server

ROOT = Path(oxillama.server.__file__).parent


def reads(function):
    """Reads of a field of `values` by its name, below a function, but for those within a `read_*`."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_").startswith("read"):
            continue
        if is_read(node):
            yield node.lineno
        yield from reads(node)


def is_read(node):
    if isinstance(node, ast.Subscript):
        return is_values(node.value) and isinstance(node.slice, ast.Constant)
    if isinstance(node, ast.Compare):
        return isinstance(node.left, ast.Constant) and any(map(is_values, node.comparators))
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
        node.func.attr == "get" and is_values(node.func.value)
    )  # fmt: skip


def is_values(node):
    return isinstance(node, ast.Name) and node.id == "values"


@pytest.mark.parametrize("source", ['values["a"]', 'values.get("a")', '"a" in values', '[values["a"] for _ in x]'])
def test_a_read_is_found(source):
    assert list(reads(ast.parse(f"def answer(values):\n    return {source}"))) == [2]
    assert list(reads(ast.parse(f"def read_answer(values):\n    return {source}"))) == []


def test_only_readers_read_fields_by_name():
    paths = sorted(ROOT.rglob("*.py"))
    assert len(paths) > 50
    found = [f"{path.relative_to(ROOT)}:{n}" for path in paths for n in reads(ast.parse(path.read_text()))]
    assert found == []
