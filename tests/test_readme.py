"""What README.md claims, as far as it can be checked: commands, lists, and the example, which runs."""

import json
import re
from pathlib import Path

import pytest

import oxillama
from oxillama import errors
from oxillama.cli.arguments import make_parser
from oxillama.gguf.mixes import FILE_TYPES
from oxillama.kernels import _table
from oxillama.models.__main__ import table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def section(title):
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)[1]


def test_its_first_two_commands_are_one_line_each():
    """.ci/run takes them from there."""
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert "oxillama run" in commands[0]
    assert "pytest" in commands[1]


def test_architectures():
    assert table() in README, "put what `python -m oxillama.models` prints into README.md"


def test_tensor_formats():
    listed = re.search(r"Tensor formats:\s+([\w,\s]+)\.", section("What runs"))[1]
    assert {name.strip() for name in listed.replace(" and ", ",").split(",")} == set(_table.kernel_formats())


def test_formats_that_are_written():
    listed = re.search(
        r"Written by [^:]*:\s+([\w,\s]+),\s+and the mixes of file types:\s+([\w,\s]+)\.", section("What runs")
    )
    formats, mixes = ({name.strip() for name in group.split(",")} for group in listed.groups())
    assert formats == set(_table.writable_formats())
    assert mixes == set(FILE_TYPES) - formats


def test_error_tree():
    named = set(re.findall(r"\w+Error\b", section("Errors"))) - {
        "ValueError",
        "KeyError",
        "FileNotFoundError",
        "MemoryError",
    }
    assert named == set(errors.__all__)


def test_command_line():
    parser = make_parser()
    commands = next(a.choices for a in parser._actions if hasattr(a, "choices") and isinstance(a.choices, dict))
    rows = re.findall(r"^\| `oxillama ([\w-]+)([^`]*)`", section("On the command line"), re.MULTILINE)
    assert {name for name, _ in rows} == set(commands)
    for name, usage in rows:
        for option in re.findall(r"(?<!\w)--?[\w-]+", usage):
            assert option in commands[name].format_help(), f"{name} {option}"


def test_folders_of_the_map_exist():
    folders = re.findall(r"^((?:oxillama/|csrc/|tests/)\S*)", section("Map of the code"), re.MULTILINE)
    assert {"csrc/", "oxillama/kernels/", "oxillama/engine/", "tests/"} <= set(folders)
    assert [f for f in folders if not (ROOT / f).is_dir()] == []
    packages = {f"oxillama/{p.name}/" for p in (ROOT / "oxillama").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert packages <= set(folders)


def test_environment_variables_are_read_somewhere():
    ours = set(re.findall(r"\bOXILLAMA_\w+", README))
    sources = [
        p for f in ("oxillama", "asv_benchmarks") for p in (ROOT / f).rglob("*.py*") if p.suffix in (".py", ".pyx")
    ]
    text = "\n".join(p.read_text() for p in sources)
    assert [name for name in sorted(ours) if name not in text] == []
    assert set(re.findall(r"\bOXILLAMA_\w+", text)) <= ours


def test_example_runs(capsys):
    example = re.search(r"```python\n(.*?)```", section("From Python"), re.DOTALL)[1]
    variables = {}
    exec(compile(example, "README.md", "exec"), variables)
    assert len(variables["pair"]) == 2
    assert variables["vectors"].shape == (2, variables["engine"].model_config.n_embd)
    assert variables["logits"].shape[1] == variables["engine"].n_vocab
    assert variables["answer"].text in capsys.readouterr().out


def test_constrained_output_and_tools():
    text = README[README.index("### Constrained output and tools") :].split("\n## ")[0]
    constrained, tools = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with oxillama.load(num_threads=1) as engine:
        results = []
        generate = engine.generate
        engine.generate = lambda *given, **options: results.append(generate(*given, **options)) or results[-1]
        variables = {"engine": engine, "ox": oxillama}
        exec(compile(constrained, "README.md", "exec"), variables)
        assert results[0].text in ("yes", "no")
        assert {r.finish_reason for r in results} <= {"stop", "length"}
        assert results[1].finish_reason == "length" or list(json.loads(results[1].text))[:1] == ["name"]
        del engine.generate
        exec(compile(tools, "README.md", "exec"), variables)
    _, asked, result = variables["messages"]
    assert variables["answer"].finish_reason == "stop"
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["weather"]
    assert result["role"] == "tool"
    assert result["content"] == f"sunny in {asked['tool_calls'][0]['function']['arguments']['city']}"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\box\.(\w+)", README))))
def test_names_in_the_text_are_public(name):
    assert name in oxillama.__all__


def test_the_diff_that_adds_an_architecture_is_what_the_files_say():
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    parts = re.findall(r"--- a/(\S+)\n((?:\+.*\n)+)", diff)
    assert [
        name for name, lines in parts if re.sub("^[+]", "", lines, flags=re.M) not in (ROOT / name).read_text()
    ] == []
    assert len(parts) == 4
    assert diff.count("\n+") <= 10


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "csrc/README.md"])
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text())
    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []
