"""Extraction from a CSV: every row comes back in order, with values that fit the schema or with a reason."""

import csv

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
