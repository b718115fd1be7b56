"""A package without the extra: all other commands work, and this one says what it needs."""

import subprocess
import sys

import pytest

import oxillama.server as server

CODE = """
import sys
sys.modules[{missing!r}] = None
from oxillama.cli import main
assert main(["tokenize", "Once"]) == 0
sys.exit(main(["serve", "--port", "0"]))
"""


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_serving_says_what_it_needs(missing):
    command = [sys.executable, "-c", CODE.format(missing=missing)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert f"`oxillama serve` needs {missing}" in done.stderr
    assert "pip install '.[server]'" in done.stderr


def test_unknown_names():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = server.no_such_thing
