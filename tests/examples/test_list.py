"""The list of the examples, which names each of them."""

import subprocess
import sys
from pathlib import Path

import pytest

import oxillama.examples
from oxillama.examples.__main__ import main

FOLDER = Path(oxillama.examples.__file__).parent
NAMES = [path.stem for path in sorted(FOLDER.glob("[!_]*.py"))]


def test_every_example_is_listed_with_its_first_line(capsys):
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == [f"oxillama.examples.{name}" for name in NAMES]
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_one_short_file_with_a_test_and_a_row_in_the_manual(name):
    source = (FOLDER / f"{name}.py").read_text()
    assert len(source.splitlines()) <= 120
    assert "from oxillama." not in source.replace("from oxillama.data", "")  # the public names alone
    assert f"python -m oxillama.examples.{name} " in source or f"oxillama.examples.{name}:app" in source
    assert (Path(__file__).parent / f"test_{name}.py").exists()
    assert f"[{name}.py]({name}.py)" in (FOLDER / "README.md").read_text()


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ["extract_csv", "/no/such.csv"],
        ["agent", "-m", "/no/such.gguf"],
        ["long_prompts", "/no/such.txt"],
        ["lora_per_customer", "/no/such.folder", "acme=Write."],
        ["rag", "-m", "/no/such.gguf"],
    ],
)
def test_a_file_that_is_missing_is_one_line(arguments):
    name, *rest = arguments
    command = [sys.executable, "-m", f"oxillama.examples.{name}", *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "/no/such." in done.stderr
