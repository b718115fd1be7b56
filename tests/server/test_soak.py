"""A minute of 64 clients that ask for everything at once, of which some leave: `-m long`."""

import subprocess
import sys

import pytest


@pytest.mark.long
def test_nothing_of_many_clients_stays_behind():
    command = [sys.executable, "-m", "tests.server.soak", "--seconds", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none runs" in done.stdout
