"""The line that says how far a large file is loaded."""

import io
import re
import signal
import sys

import pytest

import oxillama as ox
from oxillama._util.signals import DeferredInterrupt
from oxillama.cli import progress
from oxillama.cli.progress import LoadingLine
from oxillama.core.loading import load_parts, shipped_model

RUN = ["run", "hi", "-n", "1", "-t", "1"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """terminal() makes standard error one, which it gives; in the test itself, since pytest sets its own before."""

    def make():
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return make


def test_line_is_shown_where_loading_takes_long(run, terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    stream = terminal()
    assert run(*RUN)[0] == 0
    loading, _, rest = stream.getvalue().rpartition(progress.ERASE)
    shares = [int(share) for share in re.findall(r"loading the model: (\d+)%, \d\.\d of \d\.\d GiB", loading)]
    assert shares == sorted(shares)
    assert len(shares) > 1
    assert 90 <= shares[-1] <= 100  # norms are not rewritten
    assert re.fullmatch(r"\[.* generated.*\]\n", rest)


def test_nothing_is_shown_where_it_is_quick(run, terminal):
    stream = terminal()
    assert run(*RUN)[0] == 0
    assert "loading" not in stream.getvalue()


def test_nothing_is_shown_without_a_terminal(run, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert "loading" not in run(*RUN)[2]


def test_library_shows_nothing(terminal, monkeypatch, capfd):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    stream = terminal()
    ox.load(num_threads=1).close()
    assert (stream.getvalue(), *capfd.readouterr()) == ("", "", "")


def test_progress_counts_the_bytes_of_tensors():
    told = []
    load_parts(ox.EngineConfig(num_threads=1), lambda done, total: told.append((done, total)))
    with ox.gguf.open(shipped_model()) as file:
        total = sum(tensor.nbytes for tensor in file.tensors.values())
        assert len(told) == sum(len(tensor.shape) > 1 for tensor in file.tensors.values())
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert {all_of_them for _, all_of_them in told} == {total}
    assert told[-1][0] <= total


def test_ctrl_c_ends_the_loading(run, monkeypatch):
    done = []

    def load(config, progress):
        signal.raise_signal(signal.SIGINT)
        progress(1, 2)
        done.append(1)

    monkeypatch.setattr("oxillama.core.loading.load_parts", load)
    assert run(*RUN) == (130, "", "\n")
    assert done == []


def test_line_is_gone_when_loading_fails(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    stream = terminal()

    def load():
        with DeferredInterrupt() as interrupt, LoadingLine(interrupt) as line:
            line.update(1, 2)
            raise ox.LoadError("no memory")

    with pytest.raises(ox.LoadError):
        load()
    assert stream.getvalue().startswith(f"{progress.ERASE}loading the model: 50%")
    assert stream.getvalue().endswith(progress.ERASE)
