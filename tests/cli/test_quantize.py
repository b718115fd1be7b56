"""`oxillama quantize`: what goes to which stream, and the exit status."""

from pathlib import Path

import pytest

import oxillama.gguf as gguf
from oxillama.cli import main

LLAMA = Path(__file__).parents[1] / "data" / "models" / "llama.gguf"


@pytest.fixture
def run(capsys):
    def call(*args):
        try:
            status = main(["quantize", *map(str, args)])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_writes_the_file_and_a_summary(run, tmp_path):
    out = tmp_path / "out.gguf"
    status, stdout, err = run(LLAMA, out, "q4_k_m", "-t", 2, "--tensor-type", r"attn_q\.weight=Q8_0", "--keep-output")
    assert (status, stdout) == (0, "")
    assert "blk.0.attn_k.weight becomes Q5_0: rows of 64 values; Q4_K needs a multiple of 256" in err
    assert err.splitlines()[-1].startswith("Q4_K_M: ")
    with gguf.open(out) as file:
        assert file.tensors["blk.0.attn_q.weight"].type == "Q8_0"
        assert file.tensors["output.weight"].type == "F32"


def test_dry_run_lists_tensors_and_writes_nothing(run, tmp_path):
    status, stdout, _ = run(LLAMA, tmp_path / "out.gguf", "Q8_0", "--dry-run", "--pure")
    assert status == 0
    assert "blk.0.attn_q.weight\t64 x 64\tF32\tQ8_0" in stdout.splitlines()
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_on_request(run, tmp_path):
    assert "quantising" not in run(LLAMA, tmp_path / "out.gguf", "Q8_0")[2]
    assert "quantising" in run(LLAMA, tmp_path / "out.gguf", "Q8_0", "--progress")[2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("Q4_Z",), "unknown file type 'Q4_Z'; there are F32"),
        (("Q8_0", "--tensor-type", "attn_q"), "--tensor-type must be PATTERN=TYPE, not 'attn_q'"),
        (("Q8_0", "--tensor-type", "q=Q8_0", "--tensor-type", "q=Q4_0"), "--tensor-type q was given twice"),
        (("Q8_0", "--tensor-type", "nothing=Q8_0"), "--tensor-type: 'nothing' is found in no name"),
        (("Q8_0", "--tensor-type", "attn_q=Q9"), "--tensor-type: 'attn_q': unknown tensor format 'Q9'"),
        (("Q8_0", "-t", "0"), "--threads must be from 1 to 1024"),
    ],
)
def test_errors_are_one_line_with_the_flag(run, tmp_path, args, message):
    status, out, err = run(LLAMA, tmp_path / "out.gguf", *args)
    assert (status, out) == (2, "")
    assert err.startswith(f"oxillama: error: {message}")
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_requantising_needs_the_flag(run, tmp_path):
    eight, four = tmp_path / "8.gguf", tmp_path / "4.gguf"
    assert run(LLAMA, eight, "Q8_0")[0] == 0
    status, _, err = run(eight, four, "Q4_0")
    assert status == 2
    assert "--allow-requantize" in err
    assert run(eight, four, "Q4_0", "--allow-requantize")[0] == 0


@pytest.mark.parametrize(("source", "destination", "name"), [("", "out.gguf", "IN"), (LLAMA, "", "OUT")])
def test_both_files_are_needed(run, source, destination, name):
    status, _, err = run(source, destination, "Q8_0")
    assert status == 2
    assert err.startswith(f"oxillama: error: {name} is empty: give ")
