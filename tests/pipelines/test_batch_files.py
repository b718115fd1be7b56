"""`oxillama batch`: files of requests and of rows, stopped at any moment, and gone on with to the same bits."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import oxillama as ox
import oxillama.data as oxd
from oxillama.cli import main
from oxillama.data import identity
from oxillama.data.journal import Journal
from oxillama.data.request_job import answer_file
from oxillama.data.table_job import map_file
from oxillama.server import ServerConfig, create_app
from tests.server.client import Client

ANIMALS = ["cat", "bear", "", "little fox, who sang", 'a "wise" owl', "hen"]
TEXT = "Once there was a {animal}"
SAME = {"max_tokens": 8, "seed": 3}
FLAGS = ["-n", "8", "--seed", "3", "-t", "1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"n": i, "animal": animal or None} for i, animal in enumerate(ANIMALS)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    quoted = ['"' + row["animal"].replace('"', '""') + '"' if row["animal"] else "" for row in rows]
    (tmp_path / "in.csv").write_text("n,animal\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(quoted)))
    return tmp_path


@pytest.fixture(scope="module")
def alone(engine):
    return [engine.generate(TEXT.format(animal=one), **SAME).text if one else None for one in ANIMALS]


def mapper(engine, **options):
    return oxd.Generate(engine, template=TEXT, **{"on_error": "column", **SAME, **options})


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def answers(path):
    return [row["answer"] for row in read(path)]


def request(name, url="/v1/completions", method="POST", **body):
    return {"custom_id": name, "method": method, "url": url, "body": body}


def write(path, lines):
    with open(path, "w") as file:
        file.write("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


# ---- rows of tables


@pytest.mark.parametrize("given", ["in.csv", "in.jsonl"])
def test_rows_of_text_files(folder, alone, given, capsys):
    assert main(["batch", given, "out.jsonl", "--template", TEXT, "--details", *FLAGS]) == 0
    found = read("out.jsonl")
    assert [row["answer"] for row in found] == alone
    assert [row["animal"] for row in found] == [one or None for one in ANIMALS]
    assert [row["answer_finish_reason"] for row in found] == ["length" if one else None for one in ANIMALS]
    assert sorted(os.listdir()) == ["in.csv", "in.jsonl", "out.jsonl"]
    assert "6 of 6 rows" in capsys.readouterr().err
    assert main(["batch", given, "out.csv", "--template", TEXT, "--output-column", "said", *FLAGS]) == 0
    import csv

    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["said"] or None for row in rows] == alone
    assert [row["animal"] for row in rows] == ANIMALS


def test_parquet_keeps_its_types_and_gets_structs(folder, engine):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"n": pa.array([1, 2], pa.int16()), "p": ["A person: ", None]})
    pq.write_table(table, "in.parquet")
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}}, "required": ["name"]}
    flags = ["--prompt-column", "p", "--json-schema", json.dumps(schema), "-n", "40", "--seed", "3", "-t", "1"]
    assert main(["batch", "in.parquet", "out.parquet", *flags]) == 0
    found = pq.read_table("out.parquet")
    expected = oxd.Generate(engine, prompt="p", json_schema=schema, max_tokens=40, seed=3, on_error="column")(table)
    assert found.schema == expected.schema
    assert found == expected
    assert main(["batch", "in.csv", "of_csv.parquet", "--template", TEXT, *FLAGS]) == 0
    assert pq.read_table("of_csv.parquet")["n"].to_pylist() == [str(i) for i in range(6)]
    assert main(["batch", "in.jsonl", "of_json.parquet", "--template", TEXT, *FLAGS]) == 0
    assert pq.read_table("of_json.parquet")["n"].to_pylist() == list(range(6))


def test_a_limited_job_goes_on_without_doing_anything_twice(folder, engine, alone):
    report = map_file(mapper(engine), "in.jsonl", "out.jsonl", limit=2)
    assert (report.n_rows, report.n_done, report.n_before, report.whole) == (2, 2, 0, True)
    assert answers("out.jsonl") == alone[:2]
    report = map_file(mapper(engine), "in.jsonl", "out.jsonl")
    assert (report.n_rows, report.n_done, report.n_before, report.whole) == (6, 4, 2, True)
    assert answers("out.jsonl") == alone
    assert not os.path.exists("out.jsonl.partial")
    with pytest.raises(ox.ConfigError, match=r"out.jsonl is there already: remove it"):
        map_file(mapper(engine, seed=4), "in.jsonl", "out.jsonl")
    assert answers("out.jsonl") == alone


def test_a_cancelled_job_keeps_what_is_finished_and_goes_on_to_the_same_bits(folder, engine, alone):
    token, told = ox.CancelToken(), []

    def tell(n, total):
        told.append((n, total))
        if n == 3:
            token.cancel()

    report = map_file(mapper(engine, max_in_flight=2), "in.jsonl", "out.jsonl", cancel=token, progress=tell)
    assert not report.whole
    assert 3 <= report.n_done < 6
    assert not os.path.exists("out.jsonl")
    before = report.n_done
    report = map_file(mapper(engine), "in.jsonl", "out.jsonl", progress=lambda *n: told.append(n))
    assert (report.n_before, report.n_done, report.whole) == (before, 6 - before, True)
    assert told == [(i, 6) for i in range(1, 7)]
    assert answers("out.jsonl") == alone


def test_a_row_that_changed_is_computed_again(folder, engine, alone):
    map_file(mapper(engine), "in.jsonl", "out.jsonl", limit=3)
    rows = read("in.jsonl")
    rows[0]["animal"], rows[1]["n"] = "hen", 77  # of which the prompt has only the first
    write("in.jsonl", rows)
    report = map_file(mapper(engine), "in.jsonl", "out.jsonl")
    assert (report.n_before, report.n_done) == (2, 4)
    assert answers("out.jsonl") == [alone[5], *alone[1:]]


def test_failed_rows_are_told_and_tried_again(folder, engine, capsys):
    write("in.jsonl", [{"p": "a"}, {"p": "cat " * 9000}, {"p": 7}])
    assert main(["batch", "in.jsonl", "out.jsonl", "--prompt-column", "p", *FLAGS]) == 1
    said = capsys.readouterr().err
    assert "1 failed with ContextOverflowError, such as row 1: " in said
    assert "1 failed with ConfigError, such as row 2: " in said
    found = read("out.jsonl")
    assert [row["answer"] is None for row in found] == [False, True, True]
    assert found[1]["answer_error"].startswith("ContextOverflowError: ")
    assert "out.jsonl.partial stays for --retry-failed" in said
    assert main(["batch", "in.jsonl", "out.jsonl", "--prompt-column", "p", *FLAGS]) == 1
    assert "0 of 3 rows" in capsys.readouterr().err
    write("in.jsonl", [{"p": "a"}, {"p": "cat " * 9000}, {"p": "b"}])
    assert main(["batch", "in.jsonl", "out.jsonl", "--prompt-column", "p", "--retry-failed", *FLAGS]) == 1
    assert "2 of 3 rows" in capsys.readouterr().err
    assert [row["answer"] is None for row in read("out.jsonl")] == [False, True, False]
    one = oxd.Generate(engine, prompt="p", on_error="column", **SAME)
    os.remove("out.jsonl")
    os.remove("out.jsonl.partial")
    assert map_file(one, "in.jsonl", "out.jsonl", limit=2).errors == {"ContextOverflowError": 1}
    assert map_file(one, "in.jsonl", "out.jsonl", limit=2).n_done == 0
    assert map_file(one, "in.jsonl", "out.jsonl", limit=2, again=True).n_done == 1


def test_what_a_killed_process_left_is_whole_lines(folder, engine, alone):
    map_file(mapper(engine), "in.jsonl", "out.jsonl", limit=4)
    with open("out.jsonl.partial", "ab") as file:
        file.write(b'{"key": 4, "digest": "0123", "fai')  # cut off
    report = map_file(mapper(engine), "in.jsonl", "out.jsonl")
    assert (report.n_before, report.n_done) == (4, 2)
    assert answers("out.jsonl") == alone


@pytest.mark.parametrize(("options", "name"), [({"seed": 4}, "seed"), ({"template": "A {animal}"}, "template")])
def test_a_job_with_other_settings_is_another(folder, engine, options, name):
    map_file(mapper(engine), "in.jsonl", "out.jsonl", limit=2)
    given = {"template": TEXT, "on_error": "column", **SAME, **options}
    with pytest.raises(ox.ConfigError, match=f"another {name}: give what that had"):
        map_file(oxd.Generate(engine, **given), "in.jsonl", "out.jsonl")
    quicker = oxd.Generate(engine, **{**given, **SAME, "template": TEXT}, draft="lookup")
    assert map_file(quicker, "in.jsonl", "out.jsonl").n_before == 2


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.csv", "a,b\n1\n", "line 2 has 1 cells, and there are 2"),
        ("a.csv", "a,a\n1,2\n", "2 columns 'a'"),
        ("a.csv", 'a\n"b', "line 2 can't be read"),
        ("a.csv", 'a,b\n"x\n\ny",1\n\n2\n', "line 6 has 1 cells"),
        ("a.csv", "b\n1\n", "has no column 'a'; it has 'b'"),
        ("a.jsonl", '{"a": "x"}\n[1]\n', "line 2 must be an object"),
        ("a.jsonl", '{"a": "x"}\n{"a"\n', "line 2 is no JSON"),
        ("a.csv", "b\n", "has no column 'a'; it has 'b'"),
        ("a.jsonl", '{"c": "x"}\n{"b": 1}\n', "has no column 'a'; it has 'c', 'b'"),
        ("a.jsonl", '{"a": "x", "b": ' + '[{"c":' * 100 + "[]" + "}]" * 100 + "}\n", "line 1 is nested more than 200"),
        ("a.jsonl", '{"a": ' + "[" * 200_000, "line 1 is no JSON"),
        ("a.jsonl", '{"a": "x", "answer": 1}\n', "has a column 'answer' already"),
        ("a.parquet", "PAR", "is no Parquet file"),
        ("a.txt", "a", "must end in one of .parquet, .csv"),
    ],
)
def test_files_that_cannot_be_read(folder, engine, name, text, match):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (folder / name).write_text(text)
    one = oxd.Generate(engine, prompt="a", on_error="column", max_tokens=1)
    with pytest.raises(ox.ConfigError, match=match):
        map_file(one, name, "out.jsonl")
    assert not os.path.exists("out.jsonl")


def test_outputs_that_are_there_already(folder, engine):
    write("out.jsonl", [{"a": 1}])
    with pytest.raises(ox.ConfigError, match="is there already: remove it"):
        map_file(mapper(engine), "in.jsonl", "out.jsonl")
    with pytest.raises(ox.ConfigError, match=r"in\.jsonl itself: give another output"):
        map_file(mapper(engine), "in.jsonl", os.path.abspath("in.jsonl"))
    with pytest.raises(ox.ConfigError, match=r"there is no folder .*/none"):
        map_file(mapper(engine), "in.jsonl", "none/out.jsonl")
    with pytest.raises(ox.ConfigError, match="must end in"):
        map_file(mapper(engine), "in.jsonl", "out.xlsx")
    with Journal("b.jsonl.partial", {}), pytest.raises(ox.ConfigError, match="in use"):
        map_file(mapper(engine), "in.jsonl", "b.jsonl")


@pytest.mark.parametrize("text", ["something else\n", "no end of line", '{"oxillama', "{}\n"])
def test_a_foreign_file_is_no_journal_and_stays(folder, engine, text):
    (folder / "out.csv.partial").write_text(text)
    with pytest.raises(ox.ConfigError, match=r"out.csv.partial is no record of a job"):
        map_file(mapper(engine), "in.jsonl", "out.csv")
    assert (folder / "out.csv.partial").read_text() == text


def test_a_journal_is_no_link(folder, engine):
    (folder / "precious").write_text("")
    os.symlink("precious", "out.csv.partial")
    with pytest.raises(ox.ConfigError, match=r"out.csv.partial is a symbolic link"):
        map_file(mapper(engine), "in.jsonl", "out.csv")
    assert (folder / "precious").read_text() == ""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_journal_of_another_user_is_not_gone_on_with(folder):
    """Its rows would be taken for answers."""
    Journal("a.partial", {"a": 1}).close()
    os.chown("a.partial", 65534, 65534)
    with pytest.raises(ox.ConfigError, match=r"a.partial belongs to another user \(uid 65534\): remove it"):
        Journal("a.partial", {"a": 1})


def test_a_journal_that_was_cut_off_in_its_header_begins_anew(folder):
    (folder / "a.partial").write_text('{"oxillama_batch": 1, "jo')
    with Journal("a.partial", {"a": 1}) as journal:
        journal.add(0, "x", "\ud83d", failed=False)
        journal.add(1, "y", "é", failed=True)
    with Journal("a.partial", {"a": 1}) as journal:
        assert [journal.value(0), journal.value(1)] == ["\ud83d", "é"]
        assert (journal.n_done, journal.n_failed) == (2, 1)
        os.remove("a.partial")
        journal.remove()


def test_a_job_is_of_one_arithmetic_and_version(folder, engine, monkeypatch):
    map_file(mapper(engine), "in.jsonl", "out.jsonl", limit=1)
    for holder, attribute in ((identity, "__version__"), (engine.context.snapshots, "arithmetic")):
        name = attribute.strip("_")
        with monkeypatch.context() as patch:
            patch.setattr(holder, attribute, "another")
            with pytest.raises(ox.ConfigError, match=f"another {name}: give what that had"):
                map_file(mapper(engine), "in.jsonl", "out.jsonl")


def test_a_mapper_of_another_kind_is_refused(folder, engine):
    for one in (oxd.Embed(engine, input="animal"), mapper(engine, on_error="null")):
        with pytest.raises(ox.ConfigError, match="map_file needs a Generate with on_error='column'"):
            map_file(one, "in.jsonl", "out.jsonl")
    assert not os.path.exists("out.jsonl.partial")


def test_what_the_output_cannot_hold_is_told_before_anything_is_computed(folder, engine):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"animal": ["a"], "b": [b"x"]}), "in.parquet")
    write("mixed.jsonl", [{"animal": "a", "x": 1}, {"animal": "b", "x": "y"}])
    for source, output in (("in.parquet", "out.jsonl"), ("in.parquet", "out.csv"), ("mixed.jsonl", "out.parquet")):
        with pytest.raises(ox.ConfigError, match=r"'b' of type binary can't be written|no one type each"):
            map_file(mapper(engine), source, output)
        assert not os.path.exists(f"{output}.partial")
    assert map_file(mapper(engine), "in.parquet", "out.parquet").whole
    assert pq.read_table("out.parquet")["b"].to_pylist() == [b"x"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
def test_a_table_without_rows_keeps_its_columns(folder, engine, kind, to):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (folder / "a.csv").write_text("animal,n\n")
    (folder / "a.jsonl").write_text("")
    pq.write_table(pa.table({"animal": pa.array([], pa.string()), "n": pa.array([], pa.int8())}), "a.parquet")
    assert map_file(mapper(engine), f"a.{kind}", f"out.{to}").whole
    names = [*(["animal", "n"] if kind != "jsonl" else []), "answer", "answer_error"]
    if to == "parquet":
        assert pq.read_table("out.parquet").column_names == names
        assert pq.read_table("out.parquet").num_rows == 0
    else:
        assert (folder / f"out.{to}").read_text() == ("" if to == "jsonl" else f"{','.join(names)}\n")


def test_a_name_that_a_line_lacks_is_null_there(folder, engine, alone):
    write("in.jsonl", [{"animal": "cat"}, {"n": 1}])
    assert map_file(mapper(engine), "in.jsonl", "out.jsonl").whole
    assert answers("out.jsonl") == [alone[0], None]


def test_cells_of_csv_are_of_any_length_and_blank_lines_are_none(folder, engine, alone):
    long = "x" * (1 << 18)
    (folder / "in.csv").write_text(f"\n\nanimal,more\ncat,{long}\n\nhen,\n\n")
    assert map_file(mapper(engine), "in.csv", "out.jsonl").n_rows == 2
    assert [row["more"] for row in read("out.jsonl")] == [long, None]
    assert answers("out.jsonl") == [alone[0], alone[5]]
    (folder / "bad.csv").write_bytes(b"animal\ncat\n" * 9 + b"\xff\n")
    with pytest.raises(ox.ConfigError, match="line 19 can't be read: it is no UTF-8"):
        map_file(mapper(engine), "bad.csv", "bad.jsonl")


def test_halves_of_surrogate_pairs_and_nan_are_written_as_json_can(folder, engine):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    write("in.jsonl", [{"animal": "cat", "x": "\ud83d"}, {"animal": "\ud83d", "x": "é"}])
    assert map_file(mapper(engine), "in.jsonl", "out.jsonl").whole
    assert [row["x"] for row in read("out.jsonl")] == ["\ud83d", "é"]
    for name in ("out.csv", "out.parquet"):
        with pytest.raises(ox.ConfigError, match=r"write .jsonl"):
            map_file(mapper(engine), "in.jsonl", name)
        assert not os.path.exists(f"{name}.partial")
    pq.write_table(pa.table({"animal": ["cat"], "x": [float("nan")], "y": [[float("inf"), 1.5]]}), "in.parquet")
    assert map_file(mapper(engine), "in.parquet", "nan.jsonl").whole
    assert (folder / "nan.jsonl").read_text().startswith('{"animal": "cat", "x": null, "y": [null, 1.5], ')


@pytest.mark.parametrize("kind", ["rows", "requests"])
def test_an_input_that_changes_meanwhile_ends_the_job(folder, engine, kind):
    def change(n, total):
        if n == 1:
            with open("in.jsonl", "a") as file:
                file.write("\n")

    write("in.jsonl", REQUESTS if kind == "requests" else [{"animal": "cat"}, {"animal": "hen"}])
    run, one = (map_file, mapper(engine)) if kind == "rows" else (answer_file, engine)
    with pytest.raises(ox.ConfigError, match=r"in.jsonl changed while it was read"):
        run(one, "in.jsonl", "out.jsonl", progress=change)
    assert not os.path.exists("out.jsonl")


# ---- requests


REQUESTS = [
    request("c", "/v1/chat/completions", messages=[{"role": "user", "content": "A cat?"}], max_tokens=8, seed=1),
    request("t", prompt="Once", max_tokens=8, seed=2, logprobs=1),
    request("e", "/v1/embeddings", input=["a cat", "b"], encoding_format="float"),
    request("n", prompt="Once", max_tokens=4, n=3, temperature=0),
]
BAD = [
    request("s", prompt="a", stream=True),
    request("u", prompt="a", max_tokns=3),
    request("m", prompt="a", model="x"),
]


def comparable(body):
    """All but the ids and the cached tokens, which depend on what was answered before."""
    kept = {name: value for name, value in body.items() if name not in ("id", "created")}
    if "usage" in kept:
        kept["usage"] = {name: n for name, n in kept["usage"].items() if name != "prompt_tokens_details"}
    return kept


def test_requests_are_answered_as_the_server_answers_them(folder, engine, capsys):
    write("in.jsonl", REQUESTS + BAD)
    assert main(["batch", "in.jsonl", "out.jsonl", "-t", "1"]) == 1
    lines = read("out.jsonl")
    assert [line["custom_id"] for line in lines] == [one["custom_id"] for one in REQUESTS + BAD]
    client = Client(create_app({"oxillama-default": engine}, ServerConfig()))
    for line, sent in zip(lines, REQUESTS + BAD, strict=True):
        assert line.keys() == {"id", "custom_id", "response", "error"}
        assert line["id"].startswith("batch_req_")
        assert line["error"] is None
        if sent["custom_id"] != "s":
            answer = client.post(sent["url"], sent["body"])
            assert line["response"]["status_code"] == answer.status
            assert comparable(line["response"]["body"]) == comparable(answer.json)
    assert [line["response"]["status_code"] for line in lines] == [200] * 4 + [400, 400, 404]
    assert [line["response"]["body"]["error"]["param"] for line in lines[4:]] == ["stream", "max_tokns", "model"]
    said = capsys.readouterr().err
    assert "1 failed with model_not_found, such as m: " in said


def test_a_model_may_have_more_names(folder, capsys):
    write("in.jsonl", [request("a", prompt="a", model="gpt-4o", max_tokens=1)])
    assert main(["batch", "in.jsonl", "out.jsonl", "-t", "1", "--served-model-name", "gpt-4o"]) == 0
    assert read("out.jsonl")[0]["response"]["body"]["model"] == "gpt-4o"


def test_a_format_of_calls_is_asked_for_and_given(folder):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "tool_choice": "required", "seed": 1,
            "parallel_tool_calls": False}  # fmt: skip
    write("in.jsonl", [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}])
    assert main(["batch", "in.jsonl", "out.jsonl", "-t", "1", "--tool-format", "none"]) == 1
    assert "give --tool-format, one of hermes, " in str(read("out.jsonl"))
    for name, flags in (("named", ["--tool-format", "hermes"]), ("plain", [])):
        assert main(["batch", "in.jsonl", f"{name}.jsonl", "-t", "1", *flags]) == 0
        (choice,) = read(f"{name}.jsonl")[0]["response"]["body"]["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"


def test_requests_go_on_where_they_stopped(folder, engine):
    write("in.jsonl", REQUESTS)
    report = answer_file(engine, "in.jsonl", "out.jsonl", limit=2)
    assert (report.n_rows, report.n_done, report.whole) == (2, 2, True)
    first = read("out.jsonl")
    # with other ones meanwhile, one of which fails
    write("in.jsonl", [*REQUESTS[1:], *BAD[1:2]])
    report = answer_file(engine, "in.jsonl", "out.jsonl")
    assert (report.n_before, report.n_done, report.whole) == (1, 3, True)
    assert read("out.jsonl")[0] == first[1]
    report = answer_file(engine, "in.jsonl", "out.jsonl")
    assert (report.n_done, report.errors.total()) == (0, 1)
    assert answer_file(engine, "in.jsonl", "out.jsonl", again=True).n_done == 1
    write("in.jsonl", ["", *REQUESTS[1:]])
    assert main(["batch", "in.jsonl", "out.jsonl", "-t", "1"]) == 0
    assert not os.path.exists("out.jsonl.partial")
    with pytest.raises(ox.ConfigError, match="is there already: remove it"):
        answer_file(engine, "in.jsonl", "out.jsonl")


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", "line 2 is no JSON"),
        ("[" * 200_000, "line 2 is no JSON"),
        ("[1]", "line 2 must be an object"),
        (request(""), None),
        ({"custom_id": "x"}, "line 2: method must be a text"),
        (request("x", method="GET"), "line 2: method and url must be POST"),
        (request("x", "/v1/files"), "line 2: method and url must be POST and one of /v1/chat/completions"),
        ({**request("x"), "body": "text"}, "line 2: body must be an object"),
        ({**request("x"), "more": 1}, "line 2: 'more' is not known"),
        (request("t"), "line 2: custom_id 't' is there twice"),
    ],
)
def test_lines_that_are_no_requests_are_found_before_anything_is_computed(folder, engine, line, match):
    write("in.jsonl", [REQUESTS[1], line])
    if match is None:
        assert answer_file(engine, "in.jsonl", "out.jsonl").errors
        return
    with pytest.raises(ox.ConfigError, match=match):
        answer_file(engine, "in.jsonl", "out.jsonl")
    assert sorted(os.listdir()) == ["in.csv", "in.jsonl"]


def test_bodies_of_any_depth_are_answered_or_refused(folder, engine):
    for depth in (*range(600, 1000, 7), 20_000):
        deep = "[" * depth + "]" * depth
        given = json.dumps(request("a", prompt="DEEP")).replace(json.dumps("DEEP"), deep)
        write("in.jsonl", [given])
        try:
            found = str(answer_file(engine, "in.jsonl", f"out{depth}.jsonl").examples)
        except ox.ConfigError as error:
            found = str(error)
        assert "a: " in found or "line 1" in found


def test_an_output_of_no_job_stays(folder, engine):
    write("in.jsonl", REQUESTS)
    write("out.jsonl", [{"a": 1}])
    with pytest.raises(ox.ConfigError, match="is there already: remove it"):
        answer_file(engine, "in.jsonl", "out.jsonl")
    assert read("out.jsonl") == [{"a": 1}]
    assert not os.path.exists("out.jsonl.partial")


def test_answers_that_cannot_be_kept_end_the_job(folder, engine, monkeypatch):
    write("in.jsonl", REQUESTS)

    def full(*ignored, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "add", full)
    with pytest.raises(OSError, match="No space left"):
        answer_file(engine, "in.jsonl", "out.jsonl")
    assert not os.path.exists("out.jsonl")
    assert asyncio.run(asyncio.sleep(0, "other loops run")) == "other loops run"


# ---- the command


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["in.csv", "out.csv"], "in.csv has no requests"),
        (["in.csv", "out.csv", "--prompt-column", "animal", "--served-model-name", "x"], "is for requests"),
        (["in.csv", "out.csv", "--prompt-column", "animal", "--tool-format", "hermes"], "is for requests"),
        (["in.csv", "out.csv", "--prompt-column", "animal", "--limit", "0"], "--limit must be at least 1"),
        (["req.jsonl", "out.jsonl", "--temperature", "0"], "--temperature is for rows of a table"),
        (["req.jsonl", "out.jsonl", "--details"], "--details is for rows of a table"),
        (["no.csv", "out.csv", "--prompt-column", "a"], "no.csv: No such file"),
        (["in.csv", "", "--prompt-column", "animal"], "OUT is empty"),
        (["in.csv", "none/o.csv", "--prompt-column", "animal", "-m", "no.gguf"], "none/o.csv: can't be written"),
        (["in.csv", "in.csv", "--prompt-column", "animal", "-m", "no.gguf"], "in.csv is in.csv itself"),
    ],
)
def test_wrong_commands(folder, capsys, flags, match):
    write("req.jsonl", REQUESTS)
    assert main(["batch", *flags, "-t", "1"]) == 2
    assert match in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a child")
@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["rows", "requests"])
def test_ctrl_c_loses_nothing_that_was_finished(folder, engine, kind, capsys):
    n = 100
    flags = ["-t", "1"]
    if kind == "rows":
        write("in.jsonl", [{"p": f"Number {i}:"} for i in range(n)])
        flags += ["--prompt-column", "p", "-n", "60", "--seed", "1", "--ignore-eos"]
    else:
        write("in.jsonl", [request(f"r{i}", prompt="A", max_tokens=60, ignore_eos=True, seed=i) for i in range(n)])
    command = [sys.executable, "-m", "oxillama", "batch", "in.jsonl", "out.jsonl", *flags]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while time.monotonic() < end and first.poll() is None:
        if os.path.exists("out.jsonl.partial") and os.path.getsize("out.jsonl.partial") > 2000:
            break
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == 130, said
    assert "the same command goes on with the rest" in said
    n_kept = len(read("out.jsonl.partial")) - 1
    assert 0 < n_kept < n
    assert not os.path.exists("out.jsonl")
    assert main(command[3:]) == 0
    assert f"{n - n_kept} of {n} rows" in capsys.readouterr().err
    found = read("out.jsonl")
    if kind == "rows":
        own = {"max_tokens": 60, "seed": 1, "ignore_eos": True}
        expected = engine.generate([f"Number {i}:" for i in range(n)], **own)
        assert [row["answer"] for row in found] == [one.text for one in expected]
    else:
        assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(n)]
