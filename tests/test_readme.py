"""Claims of the READMEs, as far as they can be checked: commands, lists, links, and the examples, which run."""

import builtins
import json
import re
import shlex
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import oxillama
from oxillama import errors
from oxillama.cli import main
from oxillama.cli.arguments import make_parser
from oxillama.config import field_names
from oxillama.core.loading import shipped_draft, shipped_model
from oxillama.core.options import ServingOptions
from oxillama.gguf.mixes import FILE_TYPES
from oxillama.kernels import _table
from oxillama.models.__main__ import table
from tests.lora.files import linear_shapes, random_factors, write_adapter, write_peft
from tests.models.bert import BERT, HEADS, changed, with_head
from tests.models.references import rewritten
from tests.models.tiny import tiny
from tests.models.tiny.t5 import vocabulary

ROOT = Path(__file__).parents[1]
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "csrc/README.md")),
        *(path for folder in ("oxillama", "asv_benchmarks", "tests") for path in (ROOT / folder).rglob("*.md")),
    ]
    if ".asv" not in path.parts  # checkouts of other commits
}
README = TEXTS["README.md"]
ENGINE = TEXTS["oxillama/engine/README.md"]
MODELS = TEXTS["oxillama/models/README.md"]
BENCHMARKS = TEXTS["asv_benchmarks/README.md"]


def section(title, text=README):
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]


def blocks(text, language):
    """(line, source) of the code blocks of a language."""
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in found]


def test_its_first_two_commands_are_one_line_each():
    """.ci/run takes them from there."""
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert "oxillama run" in commands[0]
    assert "pytest" in commands[1]


def test_architectures():
    assert table() in MODELS, "put what `python -m oxillama.models` prints into oxillama/models/README.md"


def test_tensor_formats():
    listed = re.search(r"Tensor formats:\s+([\w,\s]+)\.", section("Formats", MODELS))[1]
    assert {name.strip() for name in listed.replace(" and ", ",").split(",")} == set(_table.kernel_formats())


def test_formats_that_are_written():
    listed = re.search(
        r"Written by [^:]*:\s+([\w,\s]+),\s+and the mixes of file types:\s+([\w,\s]+)\.", section("Formats", MODELS)
    )
    formats, mixes = ({name.strip() for name in group.split(",")} for group in listed.groups())
    assert formats == set(_table.writable_formats())
    assert mixes == set(FILE_TYPES) - formats


def test_error_tree():
    named = set(re.findall(r"\w+Error\b", section("Errors", ENGINE))) - {
        "ValueError",
        "KeyError",
        "FileNotFoundError",
        "MemoryError",
    }
    assert named == set(errors.__all__)


def test_command_line():
    parser = make_parser()
    commands = next(a.choices for a in parser._actions if hasattr(a, "choices") and isinstance(a.choices, dict))
    rows = re.findall(r"^\| (`oxillama .*?`) \|", section("On the command line"), re.MULTILINE)
    usages = [usage for row in rows for usage in re.findall(r"`oxillama ([\w-]+)([^`]*)`", row)]
    assert {name for name, _ in usages} == set(commands)
    for name, usage in usages:
        for option in re.findall(r"(?<!\w)--?[\w-]+", usage):
            assert option in commands[name].format_help(), f"{name} {option}"


def test_folders_of_the_map_exist():
    listed = section("Where things go", TEXTS["CONTRIBUTING.md"])
    folders = re.findall(r"^((?:oxillama/|csrc/|tests/|asv_benchmarks/)\S*)", listed, re.MULTILINE)
    assert [f for f in folders if not (ROOT / f).is_dir()] == []
    packages = {f"oxillama/{p.name}/" for p in (ROOT / "oxillama").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert {"csrc/", "tests/", "asv_benchmarks/", *packages} <= set(folders)


def test_environment_variables_are_read_somewhere():
    ours = set(re.findall(r"\bOXILLAMA_\w+", section("Environment", ENGINE) + section("Measuring", BENCHMARKS)))
    sources = [
        p
        for f in ("oxillama", "asv_benchmarks")
        for p in (ROOT / f).rglob("*.py*")
        if p.suffix in (".py", ".pyx") and ".asv" not in p.parts  # checkouts of other commits
    ]
    text = "\n".join(p.read_text() for p in sources)
    assert [name for name in sorted(ours) if name not in text] == []
    assert set(re.findall(r"\bOXILLAMA_\w+", text)) <= ours


@pytest.mark.parametrize(("page", "title", "settings"), [
    ("engine", "Loading", oxillama.EngineConfig),
    ("engine", "Order, deadlines and cancellation", ServingOptions),
    ("offload", None, oxillama.OffloadPolicy),
    ("sampling", None, oxillama.SamplerConfig),
])  # fmt: skip
def test_tables_of_options_are_complete(page, title, settings):
    text = TEXTS[f"oxillama/{page}/README.md"]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section(title, text) if title else text, re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(listed) == sorted(set(field_names(settings)) - {"model_path"})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("files")
    for name, source in {
        "model.gguf": shipped_model(),
        "large.gguf": shipped_model(),
        "small.gguf": shipped_draft(),
        "ranker.gguf": changed(with_head(tmp_path_factory.mktemp("ranker"), head=HEADS["output"]), BERT),
    }.items():
        shutil.copy(source, folder / name)
    rewritten(tiny("t5-flan", folder), folder, vocabulary()).rename(folder / "flan-t5.gguf")
    shapes = linear_shapes(shipped_model())
    some = {name: shapes[name] for name in ("blk.0.attn_q.weight", "blk.0.ffn_up.weight")}
    write_adapter(folder / "pirate.gguf", "llama", random_factors(some, 4))
    a, b = random_factors(some, 4, seed=1)["blk.0.ffn_up.weight"]
    name = "model.layers.0.mlp.up_proj"
    write_peft(folder / "polite-lora", {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b})
    return folder


@pytest.mark.parametrize("document", [name for name, text in TEXTS.items() if blocks(text, "python")])
def test_examples_run(document, files, tmp_path, monkeypatch, capsys):
    """The Python blocks of a page are one program."""
    for library in NEEDED.get(document, ()):
        pytest.importorskip(library)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OXILLAMA_CACHE", str(tmp_path / "cache"))
    variables = {}
    for line, source in blocks(TEXTS[document], "python"):
        if CLUSTER.search(source):
            continue
        exec(compile("\n" * line + source, document, "exec", dont_inherit=True), variables)
    RESULTS.get(document, lambda variables, printed: None)(variables, capsys.readouterr().out)


# What a block begins with that starts processes of Ray.
CLUSTER = re.compile(r"^(?:import|from) ray\b", re.MULTILINE)
ON_CLUSTERS = [name for name, text in TEXTS.items() if any(CLUSTER.search(code) for _, code in blocks(text, "python"))]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("document", ON_CLUSTERS)
def test_examples_on_clusters_run(document, files, tmp_path, monkeypatch, capsys, ray_serve):
    """On two nodes of this machine."""
    module, port = ray_serve
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    variables = {}
    for _, source in blocks(TEXTS[document], "python"):
        if CLUSTER.search(source):
            exec(compile(source, document, "exec", dont_inherit=True), variables)
    assert re.search(r"'label': ' (good|bad)'", capsys.readouterr().out)
    if "serve_app" in variables:
        assert first_model(port) == "tiny"
        module.delete("default")


def first_model(port, seconds=60):
    """Ray Serve's proxy knows an application some time after it runs."""
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=seconds) as answer:
                return json.load(answer)["data"][0]["id"]
        except urllib.error.HTTPError:
            assert time.monotonic() < until
            time.sleep(0.2)


def first_example(variables, printed):
    engine = variables["engine"]
    assert len(variables["pair"]) == 2
    assert variables["vectors"].shape == (2, engine.model_config.n_embd)
    assert variables["logits"].shape[1] == engine.n_vocab
    assert variables["answer"].text in printed


def tool_example(variables, printed):
    _, asked, result = variables["messages"]
    assert variables["answer"].finish_reason == "stop"
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["weather"]
    assert result["role"] == "tool"
    assert result["content"] == f"sunny in {asked['tool_calls'][0]['function']['arguments']['city']}"


# Of a page whose examples call other libraries; .ci/run installs all of them.
NEEDED = {
    "oxillama/data/README.md": ("pyarrow", "pandas", "polars", "duckdb"),
    "oxillama/integrations/README.md": ("lm_eval", "langchain_core", "llama_index.core", "llm"),
}
RESULTS = {"README.md": first_example, "oxillama/chat/README.md": tool_example}


@pytest.mark.parametrize("document", [name for name, text in TEXTS.items() if blocks(text, "sh")])
def test_commands_are_understood(document):
    """Those of the command line; what the others need isn't here."""
    for _, source in blocks(TEXTS[document], "sh"):
        for command in source.splitlines():
            if (words := shlex.split(command, comments=True))[:1] == ["oxillama"]:
                make_parser().parse_args(words[1:])


@pytest.mark.parametrize("document", [name for name, text in TEXTS.items() if blocks(text, "toml")])
def test_settings_are_understood(document, files, tmp_path, monkeypatch, capsys):
    """Those of the server; files that they name are here, of models for contexts of any size."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(files / "model.gguf", tmp_path)
    long = changed(tmp_path / "model.gguf", {"llama.context_length": 1 << 20})
    for line, source in blocks(TEXTS[document], "toml"):
        for name in re.findall(r'"([\w-]+\.gguf)"', source):
            shutil.copy(files / name if name == "pirate.gguf" else long, tmp_path / name)
        (tmp_path / f"{line}.toml").write_text(source)
        assert main(["serve", "--config", f"{line}.toml", "--check-config"]) == 0
        assert "gpt-4o-mini" in capsys.readouterr().out


def test_every_block_of_code_is_of_a_kind_that_is_tested():
    kinds = {kind for text in TEXTS.values() for kind in re.findall(r"^```(\w+)", text, re.MULTILINE)}
    assert kinds == {"python", "sh", "toml", "diff"}


@pytest.mark.parametrize("name", sorted({n for text in TEXTS.values() for n in re.findall(r"\box\.(\w+)", text)}))
def test_names_in_the_text_are_public(name):
    assert name in oxillama.__all__


def test_the_diff_that_adds_an_architecture_is_what_the_files_say():
    ((_, diff),) = blocks(TEXTS["CONTRIBUTING.md"], "diff")
    parts = re.findall(r"--- a/(\S+)\n((?:\+.*\n)+)", diff)
    assert [
        name for name, lines in parts if re.sub("^[+]", "", lines, flags=re.MULTILINE) not in (ROOT / name).read_text()
    ] == []
    assert len(parts) == 5
    assert diff.count("\n+") <= 10


def anchors(text):
    """Of a document's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", TEXTS)
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", TEXTS[document]):
        path = ((ROOT / document).parent / target).resolve() if target else ROOT / document
        assert path.exists(), f"{document} links to {target}"
        assert not anchor or anchor in anchors(path.read_text()), f"{document} links to {target}#{anchor}"


@pytest.mark.parametrize("document", [name for name in TEXTS if name != "CHANGELOG.md"])
def test_paths_in_the_text_exist(document):
    """Of files and folders of ours, where no part of them stands for something else."""
    named = re.findall(r"(?<![\w/.-])(?:oxillama|csrc|tests|asv_benchmarks)/[\w./]*\w", TEXTS[document])
    assert [n for n in named if not (ROOT / n).exists() and not re.search(r"[A-Z]{4}", n)] == []
    modules = [m.replace(".", "/") for m in re.findall(r"python -m ((?:tests|oxillama)[\w.]*\w)", TEXTS[document])]
    assert [m for m in modules if not any((ROOT / m).with_suffix(s).exists() for s in ("", ".py"))] == []


def test_a_link_to_a_heading_that_is_missing_is_found():
    assert anchors("# One\n## Two words: `x`, y\n```sh\n# no heading\n```\n") == {"one", "two-words-x-y"}


# Maps for those who change the code, and the folders that their paths begin in.
MAPS = {
    "oxillama/core/README.md": ("oxillama",),
    "oxillama/server/MAINTAINING.md": ("oxillama", "."),
    "oxillama/grammar/MAINTAINING.md": ("oxillama/grammar", "oxillama/grammar/json_schema", "."),
}
MOST_LINES_OF_A_MAP = 200


@pytest.mark.parametrize("page", MAPS)
def test_maps_are_short(page):
    assert len(TEXTS[page].splitlines()) <= MOST_LINES_OF_A_MAP


@pytest.mark.parametrize(
    ("page", "name"), [(page, n) for page in MAPS for n in sorted(set(re.findall(r"`([\w/]+\.pyx?)`", TEXTS[page])))]
)
def test_files_of_maps_exist(page, name):
    assert any((ROOT / folder / name).exists() for folder in MAPS[page])


SOURCES = [p.read_text() for p in (ROOT / "oxillama").rglob("*.py*") if p.suffix in (".py", ".pyx")]


def defined(kind, attribute=""):
    """Whether a class is there, and a name in its file or in that of a class that it is made of."""
    for text in SOURCES:
        if found := re.search(rf"^ *(?:cdef )?class {kind}\b(?:\(([^)]*)\))?", text, re.MULTILINE):
            if (
                re.search(rf"\b(?:def {attribute}\b|cp?def .*\b{attribute}\(|{attribute}\s*[:=])", text)
                or not attribute
            ):
                return True
            if any(defined(base, attribute) for base in re.findall(r"\b[A-Z]\w+", found[1] or "")):
                return True
    return False


def is_constant(name):
    """Whether a name is that of a constant of a module, or of a class under a second name."""
    return any(re.search(rf"^(?:cdef \w+ )?{name}\b.*=", text, re.MULTILINE) for text in SOURCES)


@pytest.mark.parametrize(
    "name", sorted({n for page in MAPS for n in re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", TEXTS[page])})
)
def test_names_of_maps_exist(name):
    kind, _, attribute = name.partition(".")
    assert hasattr(errors, kind) or hasattr(builtins, kind) or defined(kind, attribute) or is_constant(kind)


def test_names_that_are_missing_are_found():
    assert defined("EngineCore", "step")
    assert not defined("EngineCore", "no_such_step")
    assert not defined("NoSuchCore")
    assert is_constant("ROUTES")
    assert not is_constant("NO_SUCH_TABLE")


def test_every_manual_page_is_linked():
    pages = {name for name in TEXTS if name.startswith(("oxillama/", "asv_benchmarks/"))}
    linked = set(re.findall(r"\]\(([^)#:]+)", README + TEXTS["CONTRIBUTING.md"]))
    assert pages <= linked
