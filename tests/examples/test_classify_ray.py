"""Classification with Ray Data: every row has the label that it has alone, or a reason."""

import subprocess
import sys

import pytest

pytest.importorskip("ray.data")
pytest.importorskip("oxillama.data")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # of ray, and of what it imports
    pytest.mark.skipif(sys.platform == "win32", reason="no fork here"),
]


def test_labels_are_those_of_the_engine(ray, engine):
    from oxillama.examples.classify_ray import LABELS, SAMPLE, classify

    texts = [*SAMPLE, "word " * 3000, None]
    rows = ray.data.from_items([{"id": i, "text": text} for i, text in enumerate(texts)])
    found = sorted(classify(rows, "text").take_all(), key=lambda row: row["id"])
    assert [row["text"] for row in found] == texts
    question = "Is this review good, bad or mixed? Answer with one word.\n\n"
    alone = [
        engine.chat([{"role": "user", "content": question + text}], choices=LABELS, temperature=0.0).text
        for text in SAMPLE
    ]
    assert [row["label"] for row in found] == [*alone, None, None]
    assert [row["label_error"] is None for row in found] == [True, True, True, False, True]
    assert "ContextOverflowError" in found[3]["label_error"]


def test_it_reads_and_writes_files(ray, tmp_path, capsys):
    from oxillama.examples import classify_ray

    ray.data.from_items([{"review": text} for text in classify_ray.SAMPLE]).write_parquet(str(tmp_path / "in"))
    classify_ray.main([str(tmp_path / "in"), str(tmp_path / "out")])
    rows = ray.data.read_parquet(str(tmp_path / "out")).take_all()
    assert sorted(row["review"] for row in rows) == sorted(classify_ray.SAMPLE)
    assert {row["label"] for row in rows} <= set(classify_ray.LABELS)
    capsys.readouterr()
    classify_ray.main([])
    lines = [line for line in capsys.readouterr().out.splitlines() if "(raylet)" not in line]  # Ray's own warnings
    assert len(lines) == 3


@pytest.mark.parametrize("content", [None, b"id,review\n1,good\n"])
def test_a_file_that_is_no_table_is_one_error(ray, tmp_path, content):
    import oxillama as ox
    from oxillama.examples import classify_ray

    if content:
        (tmp_path / "in.parquet").write_bytes(content)
    with pytest.raises(ox.ConfigError, match=r"in\.parquet can't be read as Parquet"):
        classify_ray.main([str(tmp_path / "in.parquet"), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_its_command_ends_with_one_line():
    command = [sys.executable, "-m", "oxillama.examples.classify_ray", "/no/such.parquet", "/no/such.folder"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: /no/such.parquet can't be read as Parquet")
    assert "classify_ray.py" not in done.stderr  # no traceback of it
