"""The public names, what importing them costs, and that the stubs of compiled modules tell the truth."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import oxillama

PACKAGE = Path(oxillama.__file__).parent
PROGRAMS = ("__main__", "oxillama.examples.", "oxillama.integrations.")  # which import what may not be installed
GENERATED = "oxillama._util._memoryviews"  # by Cython, which gives it no docstring
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(PACKAGE)], "oxillama.")
    if not any(part in module.name for part in PROGRAMS)
)
COMPILED = [m for m in MODULES if (PACKAGE.parent / m.replace(".", "/")).with_suffix(".pyx").exists()]

PUBLIC = {
    # what one starts with
    "load", "from_hub", "Engine", "AsyncEngine", "EngineConfig", "OffloadPolicy", "RopeConfig", "SamplerConfig",
    "show_config",
    # what comes back, and how to stop it
    "BatchFailure", "BeamHypothesis", "BeamSearchConfig", "CancelToken", "Chunk", "Completion", "MetricsSnapshot",
    "Timings", "TokenLogprob", "Usage",
    # parts that stand alone
    "ChatTemplate", "Grammar", "GrammarState", "JsonSchemaCompiler", "KvCachePool", "Lora", "PrefixKvCache",
    "Sampler", "SamplerChain", "Scheduler", "Sequence", "SequencePool", "SequenceState", "Session", "TokenStream",
    "Tokenizer", "Vocabulary", "apply_grammar_mask", "gguf",
    "DraftSelection", "ContinuationScore", "Perplexity", "RankedDocument", "select_draft", "shipped_draft",
    "merge_lora", "synthesise_draft",
    # guessing ahead
    "Distribution", "Draft", "DraftModel", "DraftTask", "GrammarDraft", "PromptLookup", "Proposal", "SpecStats",
    "SpeculativeDecoder", "SpeculativeEngine",
    # chat
    "ChatDelta", "ChatFormat", "ChatMessage", "ChatParser", "ReasoningFormat", "ToolCallDelta",
    "BrokenToolCall", "ToolCall", "ToolDispatcher", "ToolFormat", "ToolFunctions", "ToolResult",
    "ToolUse",
    # errors
    "ChatTemplateError", "ConfigError", "ContextOverflowError", "EngineClosedError", "GGUFError", "GenerateError",
    "GrammarError", "KvCacheFullError", "LoadError", "LoraError", "MessageError", "MissingKeyError",
    "MissingTensorError", "ModelFileError", "ModelNotFoundError", "OxiLlamaError", "QuantError", "QueueFullError",
    "SnapshotError", "SnapshotDamagedError", "SnapshotFileError", "SnapshotFormatError", "SnapshotMismatchError",
    "TemplateVariableError", "TokenizerError", "snapshot",
    "ToolArgumentsError", "ToolCallError", "ToolError", "ToolFailedError", "ToolFormatError", "UnknownToolError",
    "UnsupportedModelError", "DeadlineError", "ThreadStartError", "PackedFileError", "PickleError",
}  # fmt: skip


def python(code):
    """What a fresh interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_public_names():
    assert set(oxillama.__all__) == PUBLIC
    assert len(set(oxillama.__all__)) == len(oxillama.__all__)


@pytest.mark.parametrize(
    ("module", "more"), [("gguf", ["info", "recoding", "reader", "writer"]), ("sampling", ["chain", "stages"])]
)
def test_names_that_are_imported_late_are_listed_and_found(module, more):
    """In a process of its own, which has imported none of them."""
    code = (
        f"import sys, oxillama.{module} as m; names = [*m.__all__, *{more}]; print(*sorted({{*names}} - {{*dir(m)}}))\n"
        f"assert all(hasattr(m, name) for name in names) and not hasattr(m, 'nothing')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stderr


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_exists_and_is_documented(name):
    thing = getattr(oxillama, name)
    assert inspect.getdoc(thing)
    assert name in dir(oxillama)


def test_dir_lists_public_names_alone():
    """Also after parts of the package were imported, whose names its module has too."""
    code = "import oxillama; oxillama.load; import oxillama.gguf.reader, oxillama.server; print(*dir(oxillama))"
    assert {name for name in python(code) if not name.startswith("__")} == PUBLIC


def test_star_import_gives_exactly_the_public_names():
    code = "before = set(dir()); from oxillama import *; print(*sorted(set(dir()) - before - {'before'}))"
    assert set(python(code)) == PUBLIC


def test_unknown_name():
    with pytest.raises(AttributeError, match="'oxillama' has no attribute 'no_such_thing'"):
        _ = oxillama.no_such_thing


def test_version_is_that_of_the_package():
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    assert oxillama.__version__ == settings["project"]["version"]


@pytest.mark.parametrize("name", MODULES)
def test_all_holds_existing_names_once(name):
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert len(set(names)) == len(names)
    for public in names:
        assert hasattr(module, public), public


def test_every_folder_of_modules_is_a_package():
    folders = {p.parent for suffix in ("py", "pyx") for p in PACKAGE.rglob(f"*.{suffix}")} - {PACKAGE / "shipped"}
    assert [f.name for f in folders if not (f / "__init__.py").exists()] == []


def test_every_package_has_a_docstring():
    packages = [m for m in MODULES if (PACKAGE.parent / m.replace(".", "/") / "__init__.py").exists()]
    assert [m for m in packages if not importlib.import_module(m).__doc__] == []
    assert [m for m in MODULES if m != GENERATED and not importlib.import_module(m).__doc__] == []


def test_importing_is_light():
    """Templates, tokenizers, downloads and progress bars are for those who use them."""
    loaded = python("import oxillama, sys; print(*{m.split('.')[0] for m in sys.modules})")
    assert {"oxillama", "sys"} <= set(loaded)
    assert set(loaded) & {"jinja2", "tokenizers", "huggingface_hub", "tqdm", "torch", "asyncio", "http"} == set()


def test_mappers_load_neither_engines_nor_libraries_of_tables():
    loaded = python("import oxillama.data, sys; print(*sys.modules)")
    assert "oxillama.data.generate" in loaded
    assert {m for m in loaded if m.startswith(("oxillama.core", "oxillama.engine", "oxillama.kernels.matmul"))} == set()
    tops = {m.split(".")[0] for m in loaded}
    assert tops & {"pyarrow", "pandas", "polars", "duckdb", "tokenizers", "tqdm", "asyncio", "starlette"} == set()


def test_a_first_token_is_light():
    """Adapters that PEFT wrote, coroutines, templates and notebooks are for those who use them."""
    loaded = python("import oxillama, sys; oxillama.load().generate('a', max_tokens=1); print(*sys.modules)")
    assert "oxillama.lora.adapter" in loaded
    assert set(loaded) & {"jinja2", "asyncio", "html", "zipfile", "huggingface_hub", "torch"} == set()
    assert set(loaded) & {"_hashlib", "_ssl", "hmac", "secrets"} == set()  # which OpenSSL comes with
    assert set(loaded) & {f"oxillama.lora.{name}" for name in ("merging", "peft_names", "namings", "peft")} == set()


def test_reading_a_file_is_light_too():
    loaded = python("import oxillama.gguf, sys; print(*{m.split('.')[0] for m in sys.modules})")
    assert set(loaded) & {"jinja2", "tokenizers", "huggingface_hub", "tqdm", "torch"} == set()


# ---- stubs of compiled modules


def test_there_are_compiled_modules():
    assert "oxillama.kernels.matmul" in COMPILED


def stub_of(module):
    path = (PACKAGE.parent / module.replace(".", "/")).with_suffix(".pyi")
    return ast.parse(path.read_text())


def defined(body):
    """name -> syntax node, of functions, classes and annotated names."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
    return found


def parameters(node):
    """Names of a stub function's parameters, in order, with the stars."""
    a = node.args
    stars = ["*" + a.vararg.arg] if a.vararg else []
    double = ["**" + a.kwarg.arg] if a.kwarg else []
    return [p.arg for p in (*a.posonlyargs, *a.args)] + stars + [p.arg for p in a.kwonlyargs] + double


def signature_of(function):
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [kinds.get(p.kind, "") + p.name for p in inspect.signature(function).parameters.values()]


def public(thing, module):
    """Public names of a module or class that are its own."""
    inherited = dir(object)
    for name, value in vars(thing).items():
        own = getattr(value, "__module__", module) in (module, None) and not inspect.ismodule(value)
        if not name.startswith("_") and own and name not in inherited:
            yield name


@pytest.mark.parametrize("name", COMPILED)
def test_stub_and_compiled_module_have_the_same_names(name):
    module, stub = importlib.import_module(name), defined(stub_of(name).body)
    callables = {n for n in public(module, name) if callable(getattr(module, n))}
    assert callables <= set(stub)
    for item, node in stub.items():
        assert hasattr(module, item), item
        if isinstance(node, ast.ClassDef):
            members = defined(node.body)
            cls = getattr(module, item)
            assert set(public(cls, name)) <= set(members), item
            assert [m for m in members if not hasattr(cls, m)] == [], item


@pytest.mark.parametrize("name", COMPILED)
def test_stub_functions_take_what_the_compiled_ones_take(name):
    module = importlib.import_module(name)
    for item, node in defined(stub_of(name).body).items():
        if isinstance(node, ast.FunctionDef):
            assert parameters(node) == signature_of(getattr(module, item)), item
        elif isinstance(node, ast.ClassDef):
            for method, inner in defined(node.body).items():
                if isinstance(inner, ast.FunctionDef) and not method.startswith("__") and not inner.decorator_list:
                    assert parameters(inner) == signature_of(getattr(getattr(module, item), method)), method
