"""Help of commands: what it needs."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, io, json, sys
from oxillama.cli import main
out = io.StringIO()
with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
    main([sys.argv[1], "--help"])
print(json.dumps(["--help" in out.getvalue(), sorted(sys.modules)]))
"""
ENGINE = ("numpy", "oxillama.core.options", "oxillama.sampling", "oxillama.chat", "oxillama.kernels", "oxillama.engine")


@pytest.mark.parametrize("command", ["run", "chat", "batch", "diffuse", "serve", "embed", "bench", "quantize"])
def test_help_needs_no_engine(command):
    done = subprocess.run([sys.executable, "-c", PROGRAM, command], capture_output=True, text=True, check=True)
    helped, modules = json.loads(done.stdout)
    assert helped
    assert set(ENGINE) & set(modules) == set()
