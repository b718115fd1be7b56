"""Who may import whom. Read from the sources alone: Python by its syntax tree, Cython line by line."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Parts of the package by layer; a part imports its own layer and those below. Leaves import leaves.
LAYERS = (
    ("errors", "_util", "sampler_config", "keywords", "text_settings", "config", "metrics", "layer_state"),
    ("kernels",),
    ("gguf", "kv_cache", "tokenizer", "chat", "grammar", "hub", "store"),
    ("models", "sampling", "lora", "offload"),
    ("scheduling", "drafts"),
    ("core",),
    ("speculative",),
    ("snapshot",),
    ("engine",),
    ("compat", "server"),
    ("data",),
    ("ray",),
    ("cli", "__main__", "examples", "integrations"),
)
# Parts on one layer that must not know each other, and more: part -> what it never imports.
NEVER = {
    "_util": ("sampler_config", "keywords", "text_settings", "config", "metrics", "layer_state"),
    "kernels": ("config", "metrics"),
    "models": ("sampling", "kv_cache"),
    "sampling": ("models", "kv_cache"),
    "grammar": ("gguf", "kv_cache"),
    "scheduling": ("drafts", "kv_cache"),
}
# The folder whose files decide with ids and counts: nothing that they import, directly or not, is one of the others.
PLAIN = "oxillama.scheduling."
HEAVY = ("numpy", "oxillama.kernels", "oxillama.models", "oxillama.gguf")

CYTHON = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.+)|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))")


def rank(part: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


def part_of(module: str) -> str:
    """Of oxillama.kernels.rows, "kernels"; of the package itself, ""."""
    return module.split(".")[1] if "." in module else ""


def python_imports(source: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every import, wherever it stands; name is "" for a plain import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            yield called_module(node.args[0]), ""


def called_module(given: ast.expr) -> str:
    """The module that `import_module` gets as a text, `package.*` for one that is put together; "" if untold."""
    if isinstance(given, ast.JoinedStr):
        given = given.values[0]
        return f"{str(given.value).rpartition('.')[0]}.*" if isinstance(given, ast.Constant) else ""
    return given.value if isinstance(given, ast.Constant) else ""


def cython_imports(source: str) -> Iterator[tuple[str, str]]:
    joined = re.sub(r"\(([^()]*)\)", lambda m: m.group(1).replace("\n", " "), source)
    for line in joined.splitlines():
        if found := CYTHON.match(line.partition("#")[0]):
            module, names, modules = found.groups()
            if module:
                yield from ((module, n.split()[0]) for n in names.split(",") if n.strip())
            else:
                yield from ((m.strip(), "") for m in modules.split(","))


def resolve(module: str, name: str, known: Mapping[str, object]) -> str:
    """The module that an import leads to: `from package import submodule` is the submodule."""
    longer = f"{module}.{name}"
    return longer if longer in known else module


def read_imports(files: Mapping[str, tuple[str, str]]) -> dict[str, set[str]]:
    """module -> modules that it imports, for files {module: (suffix, source)}."""
    found: dict[str, set[str]] = {}
    for module, (suffix, source) in files.items():
        read = cython_imports if suffix in (".pyx", ".pxd") else python_imports
        found[module] = {resolve(m, n, files) for m, n in read(source)}
    return found


def violations(imports: Mapping[str, set[str]]) -> list[str]:
    found = []
    for module, targets in imports.items():
        part = part_of(module)
        for target in sorted(targets):
            if target.startswith("."):
                found.append(f"{module}: relative import of {target}")
            elif target.split(".")[0] == "oxillama" and part:
                found += [f"{module} imports {target}: {why}" for why in broken_rules(part, target)]
    return found


def broken_rules(part: str, target: str) -> Iterator[str]:
    other = part_of(target)
    if other == "":
        if part not in ("cli", "__main__", "examples"):
            yield "the package's public names are for users, examples and the command line"
        return
    if rank(other) > rank(part):
        yield f"{other} is above {part}"
    if other in NEVER.get(part, ()):
        yield f"{part} never imports {other}"


def closure(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Everything that a module's imports lead to, without the packages' __init__."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        for target in imports.get(todo.pop(), set()) - seen:
            seen.add(target)
            todo.append(target)
    return seen


def package_files() -> dict[str, tuple[str, str]]:
    files = {}
    for path in sorted((ROOT / "oxillama").rglob("*.p*")):
        if path.suffix in (".py", ".pyx", ".pxd") and "shipped" not in path.relative_to(ROOT).parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            earlier = files.get(module, ("", ""))[1]
            files[module] = (path.suffix, f"{earlier}\n{path.read_text()}")
    return files


@pytest.fixture(scope="module")
def files():
    return package_files()


@pytest.fixture(scope="module")
def imports(files):
    return read_imports(files)


def test_every_part_has_a_layer(files):
    parts = {part_of(m) for m in files} - {""}
    assert parts <= {part for layer in LAYERS for part in layer}
    assert {"kernels", "gguf", "kv_cache", "tokenizer", "models", "sampling", "scheduling", "core", "engine"} <= parts


def test_imports_keep_to_the_layers(imports):
    assert violations(imports) == []


def test_scheduling_touches_no_arrays_and_no_model(imports):
    modules = [m for m in imports if m.startswith(PLAIN)]
    assert len(modules) >= 6
    reached = {m: [t for t in sorted(closure(m, imports)) if t.startswith(HEAVY)] for m in modules}
    assert {m: targets for m, targets in reached.items() if targets} == {}


def test_kernels_know_nothing_of_ours_but_errors(imports):
    for module, targets in imports.items():
        if part_of(module) == "kernels":
            ours = {part_of(t) for t in targets if t.startswith("oxillama")}
            assert ours <= {"kernels", "errors"}, module


def test_kernels_know_no_grammars(files):
    """Automata have loops in Cython, too, and stand in `grammar/automata`."""
    assert [m for m, (_, source) in files.items() if part_of(m) == "kernels" and "GrammarError" in source] == []
    assert "oxillama.grammar.automata.masks" in files


def cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which leads to all others of the group, by imports of every kind."""
    reached = {module: closure(module, imports) for module in imports}
    found = {frozenset(t for t in reached[m] if m in reached.get(t, ())) for m in imports if m in reached[m]}
    return sorted(sorted(group) for group in found)


def test_no_import_leads_back_to_its_module(imports):
    """Neither at the top of a module nor within a function, nor for types alone."""
    assert cycles({m: targets - {m} for m, targets in imports.items()}) == []


def test_cycles_are_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"e"}, "e": {"f"}, "f": {"d"}, "g": {"a"}}
    assert cycles(imports) == [["b", "c"], ["d", "e", "f"]]


BAD = {
    "kernels imports upwards": ("kernels.a", ".pyx", "from oxillama.models.b cimport (\n    X,\n    Y,\n)"),
    "kernels read settings": ("kernels.a", ".py", "from oxillama.config import EngineConfig"),
    "cimport of a module": ("kernels.a", ".pxd", "cimport oxillama.gguf.b"),
    "models know a cache": ("models.a", ".py", "import oxillama.kv_cache.b"),
    "models know the engine": ("models.a", ".py", "def f():\n    from oxillama.engine import b"),
    "scheduling knows the core": ("scheduling.a", ".py", "if TYPE_CHECKING:\n    from oxillama.core.request import b"),
    "sampling knows models": ("sampling.a", ".py", "from oxillama import models"),
    "core knows snapshots": ("core.a", ".py", "def f():\n    from oxillama.snapshot.b import c"),
    "drafts know the engine": ("speculative.a", ".py", "if TYPE_CHECKING:\n    from oxillama.engine import Engine"),
    "type checking counts": ("gguf.a", ".py", "if TYPE_CHECKING:\n    from oxillama.models import b"),
    "called imports count": ("snapshot.a", ".py", "x = importlib.import_module('oxillama.engine.functions')"),
    "those of a part, too": ("snapshot.a", ".py", "x = import_module(f'oxillama.engine.{name}')"),
    "relative": ("gguf.a", ".py", "from . import b"),
    "public names inside": ("engine.a", ".py", "import oxillama\noxillama.load()"),
    "anything imports cli": ("engine.a", ".py", "from oxillama.cli import main"),
    "leaves import leaves": ("errors", ".py", "from oxillama.kernels import b"),
}


@pytest.mark.parametrize(("module", "suffix", "source"), BAD.values(), ids=BAD)
def test_the_rules_find_what_they_forbid(module, suffix, source):
    files = {f"oxillama.{module}": (suffix, source), "oxillama.models": (".py", "")}
    assert len(violations(read_imports(files))) >= 1


def names_of_test_files(source: str) -> list[str]:
    """Test files from which a file of tests imports, or that it imports."""
    found = (f"{module}.{name}" for module, name in python_imports(source) if module.startswith((".", "tests")))
    return [name for name in found if re.search(r"(^|\.)test_\w+\.", f"{name}.")]


def test_no_test_file_is_imported():
    """What several of them need has a module with a plain name, or is a fixture of a conftest.py."""
    files = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}
    assert {name: names for name, source in files.items() if (names := names_of_test_files(source))} == {}


@pytest.mark.parametrize("source", ["from tests.a.test_b import c", "from . import test_b", "from .test_b import c"])
def test_imports_of_test_files_are_found(source):
    assert names_of_test_files(f"def f():\n    {source}") != []
    assert names_of_test_files("from tests.core.batches import alone\nfrom . import naive") == []


PACKAGE = ROOT / "oxillama"
SCRIPTS = PACKAGE / "shipped"  # train the shipped model; no part of the package
MOST_LINES = 600
# The layers above the kernels and the models, which a reader holds in one head.
UPPER = ("scheduling", "drafts", "core", "speculative", "snapshot", "engine")
MOST_MODULES = 70


def test_no_python_file_is_longer_than_its_limit():
    files = [path for path in PACKAGE.rglob("*.py") if SCRIPTS not in path.parents]
    assert {str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > MOST_LINES} == {}


def test_the_upper_layers_stay_few_modules():
    found = [path for part in UPPER for path in (PACKAGE / part).rglob("*.py") if path.name != "__init__.py"]
    assert 50 < len(found) <= MOST_MODULES


def test_no_class_is_cut_into_mixins():
    """A class that others only add to has a name like SessionMethods or SnapshotMixin."""
    classes = re.compile(r"^class (\w*(?:Methods|Mixin))\b", re.MULTILINE)
    assert [name for path in PACKAGE.rglob("*.py") for name in classes.findall(path.read_text())] == []
