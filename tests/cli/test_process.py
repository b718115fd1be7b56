"""The command line as a process: signals, closed and broken streams."""

import json
import os
import signal
import subprocess
import sys

import pytest

from oxillama.core.loading import shipped_model
from oxillama.tokenizer import Tokenizer

ONE_THREAD = ["-t", "1"]


def start(*args, **options):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "oxillama", *args]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_ctrl_c_ends_cleanly():
    with start("run", "Once upon a time", "--ignore-eos", *ONE_THREAD, "--override", "llama.context_length=1000000",
               "-c", "1000000") as process:  # fmt: skip
        assert process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err
    assert b"generated" in err


def test_a_reader_that_leaves_is_no_error():
    with start("run", "Once upon a time", "-n", "300", "--ignore-eos", *ONE_THREAD) as process:
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(60) == 141
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


def run_in_shell(redirection, *args, stdin=b""):
    """(exit status, standard output, standard error) of a command with a redirection of the shell."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script = f'exec "$0" -m oxillama "$@" {redirection}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, *args], input=stdin, env=env, capture_output=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("args", [["run", "hi", "-n", "3", *ONE_THREAD], ["tokenize", "hi"], ["info"]])
def test_closed_output_is_one_line(args):
    status, _, err = run_in_shell(">&-", *args)
    assert status == 2
    assert err == b"oxillama: error: standard output is closed\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_one_line():
    status, _, err = run_in_shell(">/dev/full", "tokenize", "hi")
    assert status == 2
    assert len(err.splitlines()) == 1
    assert b"No space left" in err


def test_closed_standard_error_sends_nothing_elsewhere():
    status, out, _ = run_in_shell("2>&-", "run", "The cat", "-n", "3", *ONE_THREAD)
    assert status == 0
    assert b"tokens/s" not in out
    assert run_in_shell("2>&-", "run", "x", "-m", "no.gguf")[:2] == (2, b"")


@pytest.mark.parametrize("args", [["run"], ["run", "-"], ["chat"], ["tokenize"], ["embed"]])
def test_closed_input_is_one_line(args):
    status, _, err = run_in_shell("<&-", *args)
    assert status == 2
    assert len(err.splitlines()) == 1
    assert b"standard input is closed" in err


@pytest.mark.parametrize("command", ["run", "tokenize", "embed"])
def test_input_that_is_no_text(command):
    status, out, err = run_in_shell("", command, "-", stdin=b"caf\xe9 au lait")
    assert (status, out) == (2, b"")
    assert err == b"oxillama: error: standard input is not UTF-8 at byte 3: text is needed\n"


def test_input_is_utf_8_whatever_the_locale(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    ids = json.loads(run_in_shell("", "tokenize", stdin="caf\xe9".encode())[1])
    assert ids == Tokenizer.from_gguf(shipped_model()).encode("caf\xe9")
