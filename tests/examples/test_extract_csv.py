"""Extraction from a CSV: every row comes back in order, with values that fit the schema or with a reason."""

import csv

import pytest

import oxillama as ox
from oxillama.examples import extract_csv

COLUMNS = ["id", "text", "product", "sentiment", "stars", "error"]


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text"], *rows])


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_come_back_in_order_with_values_that_fit(tmp_path):
    texts = ["The lamp, with a comma", 'A "quoted" chair\nof two lines', "Ein schöner Ball"]
    write(tmp_path / "in.csv", [[i, text] for i, text in enumerate(texts)])
    extract_csv.main([str(tmp_path / "in.csv"), str(tmp_path / "out.csv")])
    found = read(tmp_path / "out.csv")
    assert [(row["id"], row["text"]) for row in found] == [(str(i), text) for i, text in enumerate(texts)]
    for row in found:
        assert list(row) == COLUMNS
        assert row["error"] == ""
        assert row["sentiment"] in ("good", "bad", "mixed")
        assert int(row["stars"]) in range(1, 6)
        assert len(row["product"]) <= 40
    extract_csv.main([str(tmp_path / "in.csv"), str(tmp_path / "again.csv")])
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()


def test_a_text_that_is_too_long_costs_no_other_row(engine):
    short, long, last = extract_csv.extract(engine, ["A lamp.", "A lamp. " * 2000, "A chair."])
    assert "context" in long["error"]
    assert short["sentiment"] in ("good", "bad", "mixed")
    assert "error" not in last


def test_without_a_file_there_are_sample_rows(capsys):
    extract_csv.main([])
    found = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["text"] for row in found] == extract_csv.SAMPLE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no column 'text': its header is []"),
        (b"id,review\n1,good\n", "has no column 'text': its header is ['id', 'review']; --column"),
        (b"text,error\na,b\n", "the column 'error' would be there twice"),
        (b"text,a,a\na,b,c\n", "the column 'a' would be there twice"),
        (b"id,text\n1,a\n2,b,c\n", "row 2 has more fields than the header"),
        (b"id,text\n1,\xff\n", "can't be read"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path, content, said):
    """Before a model is loaded, and before the output is touched."""
    (tmp_path / "in.csv").write_bytes(content)
    (tmp_path / "out.csv").write_text("of an earlier run")
    with pytest.raises(ox.ConfigError) as refused:
        extract_csv.main([str(tmp_path / "in.csv"), str(tmp_path / "out.csv"), "-m", "nowhere.gguf"])
    assert said in str(refused.value)
    assert (tmp_path / "out.csv").read_text() == "of an earlier run"


def test_a_header_alone_gives_a_header(tmp_path):
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfid,text\r\n")
    extract_csv.main([str(tmp_path / "in.csv"), str(tmp_path / "out.csv")])
    assert (tmp_path / "out.csv").read_text().strip() == ",".join(COLUMNS)


def test_a_row_that_ends_early_has_an_empty_text(tmp_path):
    (tmp_path / "in.csv").write_text("id,text\n1\n")
    extract_csv.main([str(tmp_path / "in.csv"), str(tmp_path / "out.csv")])
    (row,) = read(tmp_path / "out.csv")
    assert (row["id"], row["text"], row["error"]) == ("1", "", "")


def test_an_output_is_not_touched_where_no_model_can_be_loaded(tmp_path):
    write(tmp_path / "in.csv", [[1, "A lamp."]])
    (tmp_path / "out.csv").write_text("of an earlier run")
    with pytest.raises((ox.OxiLlamaError, OSError)):
        extract_csv.main([str(tmp_path / "in.csv"), str(tmp_path / "out.csv"), "-m", "nowhere.gguf"])
    assert (tmp_path / "out.csv").read_text() == "of an earlier run"


@pytest.mark.parametrize("named", ["in.csv", "link.csv"])
def test_an_input_is_never_the_output(tmp_path, named):
    write(tmp_path / "in.csv", [[1, "A lamp."]])
    (tmp_path / "link.csv").symlink_to(tmp_path / "in.csv")
    before = (tmp_path / "in.csv").read_bytes()
    with pytest.raises(ox.ConfigError, match="is the input"):
        extract_csv.main([str(tmp_path / "in.csv"), str(tmp_path / named)])
    assert (tmp_path / "in.csv").read_bytes() == before
