"""Command lines run in this process."""

import io
import sys

import pytest

from oxillama.cli import main


@pytest.fixture
def run(capsys, monkeypatch):
    """run(arguments..., stdin=text or stream) -> (status, standard output, standard error)."""

    def call(*args, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        try:
            status = main([str(a) for a in args])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call
