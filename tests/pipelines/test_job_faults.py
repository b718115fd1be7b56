"""Files of jobs that are damaged, or are no files: an error that names the file, at once, and nothing is lost."""

import errno
import json
import os
import random
import resource
import socket
import stat
import threading
from pathlib import Path

import pytest

import oxillama as ox
import oxillama.data as oxd
from oxillama.cli import main
from oxillama.data.files import open_table
from oxillama.data.journal import Journal
from oxillama.data.request_job import answer_file
from oxillama.data.table_job import map_file
from oxillama.errors import ConfigError, OxiLlamaError
from oxillama.grammar.json_schema import JsonSchemaCompiler

ROWS = [{"p": "a", "n": [1, 2]}, {"p": None, "n": []}, {"p": "b", "n": None}]
WAIT = 30  # seconds after which something waits for ever


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return tmp_path


def mapper(engine, **options):
    return oxd.Generate(engine, prompt="p", on_error="column", max_tokens=2, seed=1, **options)


def request(name, **body):
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def write(path, lines):
    with open(path, "w") as file:
        file.writelines(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def within_time(act):
    """act() in a thread, so that one that waits for ever ends the test and not the run."""
    found = []

    def run():
        try:
            found.append(act())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert found, "it waits for ever"
    return found[0]


# ---- damaged tables


def whole(name):
    """Everything that a job reads of a table."""
    table = open_table(name)
    n_rows = table.n_rows
    rows = [*table.rows(list(table.names)[:1]), *table.rows()]
    assert sum(batch.num_rows for batch in table.batches(n_rows)) == n_rows
    return len(rows)


def said_of(name, data):
    """The message of the error that a damaged file ends in, "" if it can be read: where nothing is read of a byte, or
    it makes another value."""
    Path(name).write_bytes(data)
    try:
        whole(name)
    except OxiLlamaError as error:
        return str(error)
    return ""


def parquet_bytes(path, **options):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "p": ["a", "b€", None, "text" * 5] * 2,
            "n": list(range(8)),
            "l": [[1], [], None, [2, 3]] * 2,
            "s": [{"a": 1, "b": "x"}] * 8,
            "t": pa.array([0, 1, 2, 3] * 2, pa.timestamp("us")),
            "d": pa.array(["u", "v"] * 4).dictionary_encode(),
        }
    )
    pq.write_table(table, path, row_group_size=3, **options)
    return path.read_bytes()


def damaged(data, seed):
    """Bytes with one changed, taken or added, or cut off there; at any place."""
    draw = random.Random(seed)
    at = draw.randrange(len(data))
    changed = bytes([data[at] ^ draw.choice((1, 0x80, 0xFF))])
    return [
        data[:at] + changed + data[at + 1 :],
        data[:at] + data[at + 1 :],
        data[:at] + draw.randbytes(1) + data[at:],
        data[:at],
        data[:at] + bytes(min(8, len(data) - at)) + data[at + 8 :],
    ]


@pytest.mark.parametrize("options", [{}, {"compression": "none", "use_dictionary": False},
                                     {"compression": "zstd", "data_page_version": "2.0"}])  # fmt: skip
def test_a_parquet_file_that_is_damaged_anywhere_is_told_by_name(folder, options):
    data = parquet_bytes(folder / "a.parquet", **options)
    assert whole("a.parquet") == 16
    told = [one for seed in range(80) for mutant in damaged(data, seed) if (one := said_of("x.parquet", mutant))]
    assert len(told) > 100
    assert all("x.parquet" in one for one in told)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_text_file_that_is_damaged_anywhere_is_told_by_name(folder, name):
    pytest.importorskip("pyarrow")
    text = 'p,n\n"a ""q"" €",1\n,2\n"x\ny",3\n' if name == "a.csv" else '{"p": "a€\\u00e9", "n": [{"x": 1.5e3}]}\n' * 2
    (folder / name).write_text(text)
    n_rows = whole(name)
    assert n_rows > 0
    mutants = [mutant for seed in range(150) for mutant in damaged(text.encode(), seed)]
    told = [one for mutant in mutants if (one := said_of(f"x-{name}", mutant))]
    assert all(f"x-{name}" in one for one in told)
    assert told


def test_rows_that_a_parquet_file_only_promises_are_told(folder, engine, monkeypatch):
    parquet_bytes(folder / "a.parquet")
    from oxillama.data.parquet_table import ParquetTable

    table = ParquetTable("a.parquet")
    table.n_rows = 9
    with pytest.raises(ConfigError, match=r"a\.parquet is damaged: it says that it has 9 rows, and 8 could be read"):
        list(table.rows(["n"]))


def test_an_error_of_the_system_keeps_its_number_and_gets_the_name(folder, monkeypatch):
    parquet_bytes(folder / "a.parquet")
    from oxillama.data.parquet_table import ParquetTable

    table = ParquetTable("a.parquet")

    def failing(*ignored, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(table, "_file", type("F", (), {"iter_batches": failing})())
    with pytest.raises(OSError, match="Input/output error") as told:
        list(table.rows())
    assert (told.value.errno, told.value.filename) == (5, "a.parquet")


def test_a_row_that_has_no_room_is_an_error_with_the_name_and_the_others_stay(folder):
    """A file that has reached its limit; without the limit, it goes on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = Journal("own.partial", {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as told:
            journal.add(0, "d", "x" * 4096, failed=False)
        journal.close()
        assert (told.value.errno, told.value.filename) == (errno.EFBIG, "own.partial")
        assert os.path.getsize("own.partial") < 2048
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    partial = Journal("own.partial", {})
    partial.add(0, "d", "x" * 4096, failed=False)
    assert partial.value(0) == "x" * 4096
    partial.close()


def test_columns_that_parquet_cannot_hold_are_told_before_anything_is_computed(folder, engine):
    pytest.importorskip("pyarrow")
    write("in.jsonl", [{"p": "a", "x": {}}])
    with pytest.raises(ConfigError, match=r"can't be written to out\.parquet: .*no child field"):
        map_file(mapper(engine), "in.jsonl", "out.parquet")
    assert not os.path.exists("out.parquet.partial")


@pytest.mark.parametrize("first", [{"x": 1}, {"x": None}, {"x": []}, {"x": [{"a": 1}]}, {"y": 2}])
def test_types_of_columns_are_of_all_rows_together(folder, first, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr("oxillama.data.text_tables.ROWS", 1)
    second = {"x": 2.5} if isinstance(first.get("x"), int) else {"x": [{"b": [None]}, {"a": 2.5}]}
    rows = [first, second, {"x": None, "z": "t"}]
    write("a.jsonl", rows)
    made = pa.concat_tables(open_table("a.jsonl").batches(3))
    names = dict.fromkeys(name for row in rows for name in row)
    assert made == pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])


@pytest.mark.parametrize("pair", [(1, "a"), ([1], 2), ({"a": 1}, [1]), (True, 1), ("a", 2.5), (2**70, 1), ([1], ["a"])])
def test_types_that_do_not_go_together_are_told(folder, pair, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("oxillama.data.text_tables.ROWS", 1)
    write("a.jsonl", [{"x": one} for one in pair])
    with pytest.raises(ConfigError, match=r"a\.jsonl: its columns have no one type each"):
        list(open_table("a.jsonl").batches(2))


# ---- keys that come twice


@pytest.mark.parametrize("line", ['{"p": "a", "p": "b"}', '{"p": "a", "n": [{"x": 1, "x": 2}]}'])
def test_a_row_with_a_key_twice_is_told(folder, engine, line):
    write("in.jsonl", [ROWS[0], line])
    with pytest.raises(ConfigError, match=r"in\.jsonl: line 2 is no JSON: an object has the same key twice"):
        map_file(mapper(engine), "in.jsonl", "out.jsonl")


@pytest.mark.parametrize("body", [
    '{"prompt": "a", "prompt": "b"}', '{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}',
    '{"prompt": "a", "temperature": NaN}', '{"prompt": "a", "temperature": 1e999}',
])  # fmt: skip
def test_a_request_that_the_server_takes_for_no_json_is_told(folder, engine, body):
    write("in.jsonl", [json.dumps(request("a", prompt="DEEP")).replace('{"prompt": "DEEP"}', body)])
    with pytest.raises(ConfigError, match=r"in\.jsonl: line 1 is no JSON: "):
        answer_file(engine, "in.jsonl", "out.jsonl")
    assert not os.path.exists("out.jsonl.partial")


def test_other_json_texts_with_a_key_twice_are_refused(engine):
    twice = '{"type": "object", "type": "string"}'
    with pytest.raises(ConfigError, match=r"json_schema must be .*the same key twice"):
        oxd.Generate(engine, prompt="p", json_schema=twice)
    with pytest.raises(ConfigError, match=r"json_schema must be .*the same key twice"):
        ox.SamplerConfig(json_schema=twice)
    with pytest.raises(ox.GrammarError, match="the same key twice"):
        JsonSchemaCompiler.compile(twice)
    one = oxd.Generate(engine, messages="m", on_error="column", max_tokens=1)
    cell = '[{"role": "user", "content": "a", "content": "b"}]'
    assert "the same key twice" in one({"m": [cell]})["answer_error"][0]


# ---- what is no file


KINDS = ["pipe", "folder", "socket", "link", "device"]


def make(kind, path):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path)
    elif kind == "link":
        os.symlink("elsewhere", path)
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
            os.close(os.open(path, os.O_RDONLY))
        except OSError:
            pytest.skip("devices can't be made here")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job", ["rows", "requests"])
def test_a_journal_that_is_no_file_is_told_and_stays(folder, engine, kind, job):
    make(kind, "out.jsonl.partial")
    if job == "requests":
        write("in.jsonl", [request("a", prompt="b", max_tokens=1)])
    run, one = (map_file, mapper(engine)) if job == "rows" else (answer_file, engine)
    error = within_time(lambda: run(one, "in.jsonl", "out.jsonl"))
    word = {"link": "a symbolic link"}.get(kind, f"a {kind}")
    assert isinstance(error, ConfigError)
    assert f"out.jsonl.partial is {word}" in str(error)
    assert os.path.lexists("out.jsonl.partial")
    assert not os.path.exists("elsewhere")


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
@pytest.mark.parametrize("partial", [False, True])
def test_an_output_that_is_no_file_is_told_before_anything_is_computed(folder, engine, kind, partial):
    make(kind, "out.jsonl")
    if partial:
        write("out.jsonl.partial", [])
    error = within_time(lambda: map_file(mapper(engine), "in.jsonl", "out.jsonl"))
    assert isinstance(error, ConfigError)
    assert "out.jsonl: can't be written, this is a" in str(error)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_an_input_that_is_no_file_is_told(folder, capsys, engine, kind, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    make(kind, f"x.{suffix}")
    error = within_time(lambda: map_file(mapper(engine), f"x.{suffix}", "out.jsonl"))
    assert isinstance(error, ConfigError)
    assert f"x.{suffix} is a {kind}: give the name of a file" in str(error)
    error = within_time(lambda: open_table(f"x.{suffix}").n_rows)
    assert isinstance(error, ConfigError)
    assert within_time(lambda: main(["batch", f"x.{suffix}", "out.jsonl", "-t", "1"])) == 2
    assert f"x.{suffix} is a {kind}" in capsys.readouterr().err


def test_a_journal_is_not_the_input(folder, engine):
    write("out.jsonl.partial", [])
    with pytest.raises(ConfigError, match=r"out\.jsonl\.partial is out\.jsonl\.partial itself"):
        answer_file(engine, "out.jsonl.partial", "out.jsonl")


# ---- journals


def entry(**changes):
    return {"key": 0, "digest": "0" * 16, "failed": False, "value": {"answer": "a", "answer_error": None}} | changes


BAD_ENTRIES = [
    entry(value=7), entry(value=None), entry(value={}), entry(value={"answer": "a"}), entry(value=[1]),
    entry(value={"answer": 7, "answer_error": None}), entry(value={"answer": ["a"], "answer_error": None}),
    entry(value={"answer": "a", "answer_error": 7}), entry(value={"answer": "a", "answer_error": None, "more": 1}),
    entry(key=None), entry(key=[1]), entry(key=1.5), entry(key=True), entry(digest=7), entry(digest=None),
    entry(failed="no"), entry(failed=0), {"key": 0}, {}, [], 7, "text", None, "{", '{"key": 0, "key": 1}', "[" * 9999,
    "1" * 9999, "\x00", "\udce9",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_ENTRIES, ids=lambda bad: str(bad)[:60])
def test_a_bad_entry_of_a_journal_is_told_with_its_place(folder, engine, bad):
    map_file(mapper(engine), "in.jsonl", "out.jsonl", limit=2)
    before = (folder / "out.jsonl.partial").read_bytes()
    line = bad if isinstance(bad, str) and not bad.isalpha() else json.dumps(bad)
    after = before + line.encode("utf-8", "surrogateescape") + b"\n"
    (folder / "out.jsonl.partial").write_bytes(after)
    with pytest.raises(
        ConfigError, match=rf"out\.jsonl\.partial is no record of a job, or damaged at byte {len(before)}"
    ):
        map_file(mapper(engine), "in.jsonl", "out.jsonl")
    assert (folder / "out.jsonl.partial").read_bytes() == after


@pytest.mark.parametrize("value", [
    7, {}, {"response": 7}, {"response": {}}, {"custom_id": "a", "response": {"status_code": "x", "body": {}}},
    {"custom_id": "a", "response": {"status_code": 200, "body": 7}},
    {"custom_id": "a", "response": {"status_code": 400, "body": {"error": "text"}}},
])  # fmt: skip
def test_a_bad_answer_of_a_journal_is_told(folder, engine, value):
    write("in.jsonl", [request("a", prompt="b", max_tokens=1), request("b", prompt="b", max_tokens=1)])
    answer_file(engine, "in.jsonl", "out.jsonl", limit=1)
    with open("out.jsonl.partial", "a") as file:
        file.write(json.dumps({"key": "b", "digest": "0", "failed": False, "value": value}) + "\n")
    with pytest.raises(ConfigError, match=r"out\.jsonl\.partial is no record of a job, or damaged at byte"):
        answer_file(engine, "in.jsonl", "out.jsonl")


@pytest.mark.parametrize("header", [
    '{"oxillama_batch": [], "job": {}}', '{"oxillama_batch": 1, "job": 7}', '{"oxillama_batch"',
    '{"oxillama_batch": 1}', '{"oxillama_batch": 1, "job": [["a"]]}',
])  # fmt: skip
def test_a_bad_header_of_a_journal_is_told(folder, engine, header):
    (folder / "out.jsonl.partial").write_text(header + "\n")
    with pytest.raises(ConfigError, match=r"out\.jsonl\.partial is no record of a job, or damaged at byte 0"):
        map_file(mapper(engine), "in.jsonl", "out.jsonl")


def test_a_journal_that_is_damaged_anywhere_loses_no_row_in_silence(folder, engine):
    map_file(mapper(engine), "in.jsonl", "whole.jsonl")
    expected = (folder / "whole.jsonl").read_bytes()
    map_file(mapper(engine), "in.jsonl", "out.jsonl", limit=2)
    data = (folder / "out.jsonl.partial").read_bytes()
    (folder / "out.jsonl").unlink()
    for seed in range(60):
        for mutant in damaged(data, seed):
            (folder / "out.jsonl.partial").write_bytes(mutant)
            said = ""
            try:
                map_file(mapper(engine), "in.jsonl", "out.jsonl")
            except OxiLlamaError as error:
                said = str(error)
            else:  # a value may be another one of its type; rows are neither lost nor moved
                assert (folder / "out.jsonl").read_bytes().count(b"\n") == expected.count(b"\n")
                (folder / "out.jsonl").unlink()
            assert not said or "out.jsonl.partial" in said
            (folder / "out.jsonl.partial").unlink(missing_ok=True)


def test_a_journal_that_is_cut_while_it_is_read_is_told(folder):
    with Journal("a.partial", {}) as journal:
        journal.add(0, "x", {"a": 1}, failed=False)
        os.truncate("a.partial", 50)
        with pytest.raises(ConfigError, match=r"a\.partial changed at byte \d+ while it was read"):
            journal.value(0)
        with pytest.raises(KeyError):
            journal.value(1)


# ---- the same bytes


BODIES = [
    ("/v1/completions", {"prompt": "Once there was", "max_tokens": 4, "seed": 1}),
    ("/v1/completions", {"prompt": "Once there was", "max_tokens": 4, "seed": 1, "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16, "temperature": 0}),
    ("/v1/embeddings", {"input": "a cat"}),
    ("/v1/completions", {"prompt": 7}),
    ("/v1/chat/completions", {"messages": []}),
]


def test_answers_are_the_same_bytes_however_a_job_is_run(folder, engine):
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": url, "body": body} for i, (url, body) in enumerate(BODIES * 2)
    ]
    write("in.jsonl", lines)
    answer_file(engine, "in.jsonl", "one.jsonl")
    for limit in (3, 9):
        answer_file(engine, "in.jsonl", "two.jsonl", limit=limit)
    answer_file(engine, "in.jsonl", "two.jsonl")
    answer_file(engine, "in.jsonl", "three.jsonl")
    one = (folder / "one.jsonl").read_bytes()
    assert (folder / "two.jsonl").read_bytes() == one
    assert (folder / "three.jsonl").read_bytes() == one
    found = read("one.jsonl")
    ids = [line["id"] for line in found] + [line["response"]["body"].get("id") for line in found]
    assert len({id for id in ids if id}) == len([id for id in ids if id])
    assert all(line["response"]["body"].get("created", 0) == 0 for line in found)
    assert "prompt_tokens_details" not in str(found)
    assert found[0]["response"]["body"]["id"].startswith("cmpl-")
    assert [line["response"]["status_code"] for line in found[:7]] == [200] * 5 + [400] * 2
