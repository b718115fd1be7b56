"""asv_benchmarks/harness.py: processes that are asked by turns, and their ends."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.site.pages import ROOT

FOLDER = ROOT / "asv_benchmarks"
SCRIPTS = ("check", "compare", "depths", "embeddings", "growth", "others", "over_http", "reading", "schema_folder")


@pytest.fixture(scope="module")
def harness():
    spec = importlib.util.spec_from_file_location("harness", FOLDER / "harness.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def started(harness, monkeypatch):
    """Starts a program, which has the harness, and closes it."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    processes = []

    def start(code):
        processes.append(harness.Process([sys.executable, "-c", f"import harness, os, sys; {code}"]))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


def test_a_program_answers_line_by_line(started):
    process = started("harness.serve(lambda line: [line, len(line)], {'load_seconds': 2.5})")
    assert process.read() == {"load_seconds": 2.5}
    assert process.ask() == ["", 0]
    assert process.ask({"a": "é"}) == [json.dumps({"a": "é"}), 15]
    assert process.ask("text") == ["text", 4]
    process.close()
    assert process.process.returncode == 0


def test_what_a_library_prints_is_no_answer(started):
    process = started("print('[info] {}'); print('{}'); print(7); harness.serve(lambda line: print('12') or 1.5)")
    assert process.ask() == 1.5
    assert process.ask() == 1.5


@pytest.mark.parametrize("code", ["sys.exit(3)", "harness.serve(lambda line: os._exit(3))"])
def test_a_program_that_ends_is_told(harness, started, code):
    process = started(code)
    with pytest.raises(harness.EndedError, match="ended"):
        process.ask("1")
    with pytest.raises(harness.EndedError, match="ended"):
        process.ask("2")


@pytest.mark.parametrize(("swap", "wanted"), [(False, "ababab"), (True, "abbaab")])
def test_turns(harness, swap, wanted):
    asked = []
    measures = {name: lambda name=name: asked.append(name) or len(asked) for name in "ab"}
    found = harness.in_turns(measures, 3, swap=swap)
    assert "".join(asked) == wanted
    assert found == {name: [i + 1 for i, one in enumerate(wanted) if one == name] for name in "ab"}


def test_medians(harness):
    assert harness.medians([{"a": 1.0, "b": 9.0}, {"a": 5.0, "b": 7.0}, {"a": 2.0, "b": 8.0}]) == {"a": 2.0, "b": 8.0}
    assert harness.medians([]) == {}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_say_how_they_are_called(script):
    command = [sys.executable, str(FOLDER / f"{script}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
