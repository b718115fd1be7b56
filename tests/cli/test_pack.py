"""`oxillama pack` and `oxillama cache`: what goes to which stream, and the exit status."""

from pathlib import Path

import pytest

from oxillama.cli import main
from oxillama.core.loading import shipped_model

LLAMA = Path(__file__).parents[1] / "data" / "models" / "llama.gguf"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("OXILLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OXILLAMA_CACHE_SIZE", raising=False)

    def call(*args):
        try:
            status = main(list(map(str, args)))
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_a_file_is_written_and_used(run, tmp_path):
    out = tmp_path / "out.oxpack"
    assert run("pack", shipped_model(), out, "-t", 2) == (0, f"{out}\n", "")
    assert run("pack", shipped_model(), out, "--verify")[:2] == (0, f"{out}\n")
    texts = {run("run", "Once", "-n", 8, "--seed", 1, *more)[1] for more in ((), ("--packed", out), ("--packed",))}
    assert len(texts) == 1
    out.write_bytes(out.read_bytes()[:-1])
    status, _, err = run("pack", shipped_model(), out, "--verify")
    assert (status, err.count("\n")) == (2, 1)
    assert "the file was cut" in err


def test_the_cache_is_listed_and_cleared(run, tmp_path):
    assert run("cache", "list")[1] == f"0.0 MiB of 65,536.0 MiB in {tmp_path / 'cache' / 'packed'}\n"
    _, path, _ = run("pack", LLAMA)
    assert Path(path.strip()).parent == tmp_path / "cache" / "packed"
    status, listed, _ = run("cache", "list")
    assert status == 0
    assert listed.splitlines()[0].startswith(Path(path).stem[:12])
    assert listed.splitlines()[0].endswith(str(LLAMA))
    assert run("cache", "clear")[0] == 0
    assert run("cache", "list")[1].startswith("0.0 MiB of")


def test_a_model_is_not_written_over(run, tmp_path):
    model, link = tmp_path / "model.gguf", tmp_path / "link"
    model.write_bytes(LLAMA.read_bytes())
    link.symlink_to(model)
    for source, out in ((model, model), (model, link), (link, model)):
        status, _, err = run("pack", source, out)
        assert (status, err) == (2, f"oxillama: error: {out} is the source itself: write to another file\n")
    assert model.read_bytes() == LLAMA.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["link", "model.gguf"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("pack", "/no/such.gguf"), "there is no such file"),
        (("pack", LLAMA, "/no/folder/x"), "there is no folder /no/folder"),
        (("pack", LLAMA, ""), "OUT is empty"),
        (("pack", LLAMA, "-t", "0"), "--threads must be from 1 to 1024, not 0"),
        (("pack", LLAMA, "--verify"), "there is no such file"),
        (("run", "x", "--packed", "/no/such"), "there is no such file"),
        (("run", "x", "--packed", "--no-repack"), "--packed must be left out with --no-repack"),
        (("cache", "list", "x"), "unrecognized arguments: x"),
    ],
)
def test_errors_are_one_line(run, args, message):
    status, out, err = run(*args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_limit_that_is_none_is_an_error(run, monkeypatch):
    monkeypatch.setenv("OXILLAMA_CACHE_SIZE", "lots")
    assert "OXILLAMA_CACHE_SIZE must be bytes" in run("cache", "list")[2]
