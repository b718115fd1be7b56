"""Prose of the package: module docstrings begin with a noun phrase, and sentences name their objects."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "oxillama"
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi")
# First words of clauses that stand in for the name of a thing.
CLAUSE = re.compile(r"(Who|What|Which|Whoever|From|How|Where)\b")
# First words of docstrings that leave their noun out, or need the function's name to be understood.
BARE = re.compile(
    r"(Of|Those|That of|The same|The one|In|As|What|Who|Whose|Which|How|Where|When|From|To|By|For|At|With|Its|It|This"
    r"|These|So|Such|There)\b"
)
PERSON = re.compile(r"\b(?:whoever|somebody|nobody|whom|at hand)\b|(?<!\S)who\b", re.IGNORECASE)
# Folders whose prose names persons nowhere.
FINISHED = (
    "_util", "cli", "core", "drafts", "engine", "examples", "gguf", "grammar", "integrations", "kernels", "kv_cache",
    "lora", "models", "chat", "data", "offload", "sampling", "scheduling", "server", "shipped", "snapshot",
    "speculative", "tokenizer",
)  # fmt: skip
QUOTED = re.compile(r'(?s)r?"""(.*?)"""')


def sources(folder: str = "**") -> list[Path]:
    """Source files of a folder; of the package's own with ".", of all with "**"."""
    pattern = "*" if folder == "." else "**/*" if folder == "**" else f"{folder}/**/*"
    return sorted(path for path in PACKAGE.glob(pattern) if path.suffix in SUFFIXES)


def module_docstring(source: str) -> str:
    """The text of the docstring, "" without one; comments may come before it."""
    found = re.match(r'(?:\s|#[^\n]*\n)*r?"""(.*?)"""', source, re.DOTALL)
    return found[1] if found else ""


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring and comment."""
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (text := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring; in Cython, of every text in triple quotes that begins a line."""
    source = path.read_text()
    if path.suffix in (".py", ".pyi"):
        for node in ast.walk(ast.parse(source)):
            documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if documented and (text := ast.get_docstring(node)):
                yield node.body[0].lineno, text
        return
    for found in QUOTED.finditer(source):
        if not source[source.rfind("\n", 0, found.start()) + 1 : found.start()].strip():
            yield source.count("\n", 0, found.start()) + 1, found[1].strip()


def bare_beginnings(path: Path) -> list[str]:
    """Places of docstrings in a file that begin without their noun, with the beginning."""
    return [f"{path.name}:{line}: {bare[0]}" for line, text in docstrings(path) if (bare := BARE.match(text))]


def cython_prose(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every text in triple quotes, which may be C with comments, and of every comment."""
    for found in QUOTED.finditer(source):
        yield source.count("\n", 0, found.start()) + 1, found[1]
    rest = QUOTED.sub(lambda found: "\n" * found[0].count("\n"), source)
    for number, line in enumerate(rest.split("\n"), 1):
        if found := re.search(r"(?:^|\s)#.*", re.sub(r'"[^"\n]*"', '""', line)):
            yield number, found[0]


def persons(path: Path) -> list[str]:
    """Places of prose in a file that speak of persons, with the word."""
    source = path.read_text()
    prose = python_prose(source) if path.suffix in (".py", ".pyi") else cython_prose(source)
    return [f"{path.name}:{line}: {word[0]}" for line, text in prose for word in PERSON.finditer(text)]


def test_module_docstrings_begin_with_a_noun_phrase():
    found = {str(path.relative_to(PACKAGE)): module_docstring(path.read_text()) for path in sources()}
    assert sum(map(bool, found.values())) > 250  # the pattern finds them
    assert [name for name, text in found.items() if CLAUSE.match(text)] == []


def test_docstrings_begin_with_a_verb_or_a_noun():
    paths = sources()
    assert sum(len(list(docstrings(path))) for path in paths) > 3000  # the pattern finds them
    assert [place for path in paths for place in bare_beginnings(path)] == []


@pytest.mark.parametrize("folder", [".", *FINISHED])
def test_prose_names_its_objects(folder):
    paths = sources(folder)
    assert paths
    assert [place for path in paths for place in persons(path)] == []


@pytest.mark.parametrize("suffix", [".py", ".pyx"])
def test_planted_persons_are_found(tmp_path, suffix):
    path = tmp_path / f"planted{suffix}"
    path.write_text(
        '"""Noun phrase.\n\nWhoever calls this waits."""\nx = "nobody"  # for who waits\n\n'
        'def f():\n    """Pages at hand,\n    which somebody reads."""\n'
    )
    words = sorted(place.rsplit(": ")[1] for place in persons(path))
    assert words == ["Whoever", "at hand", "somebody", "who"]


def test_planted_clauses_are_found():
    assert CLAUSE.match(module_docstring('# comment\n"""Which page is read."""\n'))
    assert not CLAUSE.match(module_docstring('"""Whole pages."""\n'))


@pytest.mark.parametrize("suffix", [".py", ".pyx"])
def test_planted_bare_beginnings_are_found(tmp_path, suffix):
    path = tmp_path / f"planted{suffix}"
    written = ("Those of a chunk.", "As asked.", "Whatever fits, in bytes.", "That of a row.\n\n    In general.\n    ")
    functions = "".join(f'def f{i}():\n    """{text}"""\n\n' for i, text in enumerate(written))
    path.write_text(f'"""Noun phrase."""\n\n{functions}class Page:\n    r"""\n    What it is.\n    """\n')
    assert sorted(place.rpartition(": ")[2] for place in bare_beginnings(path)) == ["As", "That of", "Those", "What"]
