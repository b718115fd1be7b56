"""Keywords and fields belong to who calls: no function of the server, the core or the data package changes a dict of
them that it is given."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "oxillama"
FOLDERS = ("core", "data", "server")
NAMES = ("options", "fields", "values", "given", "own", "kwargs")
CHANGES = ("pop", "popitem", "setdefault", "update", "clear")
PLANTED = {
    "def f(options: dict[str, int]): options.pop('a')": ["f"],
    "def f(values: Values): values['a'] = 1": ["f"],
    "def f(fields: Mapping[str, Any]):\n    del fields['a']": ["f"],
    "def f(options: dict[str, int]):\n    options |= {'a': 1}": ["f"],
    "def f(options: dict[str, int]):\n    def g():\n        options.update(a=1)": ["f"],
    "def f(options: dict[str, int]): return {**options, 'a': 1}": [],
    "def f(**options: int): options.pop('a')": [],  # its own
}


def changed(source):
    """Names of functions that change a dict of these names among their parameters."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (given := {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)} & {*NAMES})
        and any(is_change(one, given) for one in ast.walk(node))
    ]


def is_change(node, names):
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute)):
            return name in names and attribute in CHANGES
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return name in names
        case ast.AugAssign(target=ast.Name(id=name), op=ast.BitOr()):
            return name in names
    return False


@pytest.mark.parametrize("source", PLANTED)
def test_changes_are_found(source):
    assert changed(source) == PLANTED[source]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_changes_its_callers_options(folder):
    found = {path: changed(path.read_text()) for path in sorted((PACKAGE / folder).rglob("*.py"))}
    assert len(found) > 10
    assert not {str(path.relative_to(PACKAGE)): names for path, names in found.items() if names}
