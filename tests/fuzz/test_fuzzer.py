"""The fuzzer itself: it finds faults behind checks that chance doesn't pass, and outlives the worst of them."""

import pytest

from tests.fuzz.loop import Current
from tests.fuzz.supervise import fuzz
from tests.fuzz.targets.gguf_parts import Parts
from tests.gguf import build


def planted(folder, capfd, **options):
    """(whether all was well, names of what was found, what was said)."""
    good = fuzz("tests.fuzz.planted", folder, keep=False, stuck=2.0, **options)
    return (
        good,
        {path.name.split("-")[0]: path for path in folder.glob("faults/*") if not path.suffix},
        capfd.readouterr().err,
    )


def test_planted_faults_are_found_and_shrunk(tmp_path, capfd):
    """A wrong exception, an endless loop and too much memory, each behind a magic, a version, a length and a kind."""
    good, found, said = planted(tmp_path, capfd, runs=20_000, seed=2)
    assert not good, said
    assert {"indexerror", "workexceeded", "memory"} <= set(found), said
    assert len(found["indexerror"].read_bytes()) == 20
    assert "planted_parser.py" in found["indexerror"].with_suffix(".txt").read_text()


def test_the_same_seed_is_the_same_run(tmp_path, capfd):
    said = [planted(tmp_path / name, capfd, runs=300, seed=5)[2].partition(" s, ")[2] for name in "ab"]
    assert said[0] == said[1] != ""


HEAD = b"PLANTED1" + (40961).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("kind", "body", "name"),
    [(1000, bytes(3), "workexceeded"), (1 << 30, b"die", "died-11"), (7, b"a", None), (7, b"", "indexerror")],
)
def test_what_an_input_does(tmp_path, capfd, kind, body, name):
    path = tmp_path / "input"
    path.write_bytes(HEAD + kind.to_bytes(4, "little") + len(body).to_bytes(4, "little") + body)
    good, found, said = planted(tmp_path / "out", capfd, files=[path])
    assert good == (name is None), said
    assert [path.name.rpartition("-")[0] for path in found.values()] == ([name] if name else [])
    assert all(p.read_bytes() == path.read_bytes() for p in found.values())


def test_what_was_run_last_is_known(tmp_path):
    current = Current(tmp_path / "current")
    for data in (b"long input", b"", b"x"):
        current.put(data)
        assert Current.read(tmp_path / "current") == data


def test_parts_of_a_file_are_the_file():
    raw = build.small()
    assert Parts.of(raw).write().rstrip(b"\0") == raw.rstrip(b"\0")
