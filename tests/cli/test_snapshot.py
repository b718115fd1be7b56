"""`oxillama snapshot info`."""

from pathlib import Path

import oxillama as ox
from oxillama.cli import main

DATA = Path(__file__).parents[1] / "data"


def test_a_session(tmp_path, capsys):
    with ox.load(DATA / "models" / "llama.gguf", num_threads=1) as engine:
        engine.prefill(list(range(3, 90)))
        engine.snapshot(tmp_path / "a", shared=True)
        engine.forward_one(5)
        engine.snapshot(tmp_path / "b")
        engine.forward_one(6)
        engine.snapshot(tmp_path / "c", base=tmp_path / "b")
    assert main(["snapshot", "info", str(tmp_path / "a")]) == 0
    lines = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert lines["format"] == "OXISNAP1 version 2, session"
    assert lines["model"] == str(DATA / "models" / "llama.gguf")
    assert lines["tokens"] == "87, 87 of them computed, in f16"
    assert lines["shared blocks"] == "1"
    assert "needs" not in lines
    assert main(["snapshot", "info", str(tmp_path / "c")]) == 0
    assert "needs             the file b beside it" in capsys.readouterr().out.splitlines()


def test_files_of_the_original(capsys):
    for name, kind in (
        ("engine.oxsnap1", "OXISNAP1 version 1, session"),
        ("speculative.oxispec1", "OXISPEC1 version 1"),
    ):
        assert main(["snapshot", "info", str(DATA / "oxisnap" / name)]) == 0
        assert kind in capsys.readouterr().out


def test_errors(tmp_path, capsys):
    (tmp_path / "text").write_text("no snapshot")
    for arguments, message in (
        ([str(tmp_path / "text")], "this is no snapshot"),
        ([str(tmp_path / "missing")], "can't be read"),
        ([""], "FILE is empty"),
    ):
        assert main(["snapshot", "info", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
