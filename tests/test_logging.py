"""The library prints nothing: what it has to say goes to the logger "oxillama"."""

import subprocess
import sys

WARN = "logging.getLogger('oxillama').warning('something')"


def printed(code):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout + run.stderr


def test_nothing_is_printed_unless_the_program_asks_for_it():
    assert printed(f"import logging, oxillama; {WARN}") == ""
    assert "something" in printed(f"import logging, oxillama; logging.basicConfig(); {WARN}")
