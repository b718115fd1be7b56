"""Text files with and without a byte order mark, which Windows editors write, through every reader of the package."""

import io
import json
import os
import sys
import threading

import pytest

import oxillama as ox
import oxillama.compat as llama_cpp
from oxillama._util import text_files
from oxillama._util.text_files import read_setting, read_text, without_mark
from oxillama.cli import main
from oxillama.cli.chat import piped
from oxillama.cli.files import read_text_file
from oxillama.cli.options import read_prompt
from oxillama.data.files import open_table
from oxillama.data.request_job import is_request_file, read_requests
from oxillama.data.same_file import SameFile
from oxillama.data.schema import read_schema
from oxillama.errors import ConfigError
from oxillama.lora.peft import read_config
from oxillama.server.auth import read_keys
from oxillama.server.bodies import parse_body
from oxillama.server.config import from_file
from oxillama.server.models import read_template

MARK = "\ufeff"
GRAMMAR, SCHEMA = 'root ::= "yes" | "no"\n', '{"enum": ["yes", "no"]}'
REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
PEFT = '{"peft_type": "LORA", "r": 2, "lora_alpha": 4}'


def stdin_of(data):
    return io.TextIOWrapper(io.BytesIO(data), "utf-8")


def requests_of(path):
    assert is_request_file(str(path))
    return list(read_requests(SameFile(str(path))))


def rows_of(path):
    return list(open_table(str(path)).rows())


READERS = {
    "keys": ("keys", "joe:a-long-secret tpm=5\n", lambda path: read_keys(str(path))),
    "config": ("c.toml", "[server]\nport = 4000\n[[model]]\nname = 'a'\n", lambda path: from_file(str(path))),
    "template": ("t.jinja", "{{ messages[0].content }}", lambda path: read_template(str(path))),
    "flags": ("g.gbnf", GRAMMAR, lambda path: read_text_file("--grammar-file", str(path))),
    "compat": ("g.gbnf", GRAMMAR, lambda path: llama_cpp.LlamaGrammar.from_file(path).constraint),
    "adapter": ("adapter_config.json", PEFT, read_config),
    "json lines": ("t.jsonl", '{"a": 1}\n{"a": 2}\n', rows_of),
    "json lines after a blank one": ("t.jsonl", '\n{"a": 1}\n', rows_of),
    "csv": ("t.csv", "a,b\n1,2\n", rows_of),
    "body": ("b.json", '{"prompt": "a"}', lambda path: parse_body(path.read_bytes(), "application/json")),
    "requests": ("r.jsonl", json.dumps(REQUEST) + "\n", requests_of),
    "requests after a blank line": ("r.jsonl", "\n" + json.dumps(REQUEST) + "\n", requests_of),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_read_alike_with_a_mark(name, tmp_path):
    file, text, read = READERS[name]
    path = tmp_path / file
    path.write_text(text, encoding="utf-8", newline="")
    plain = read(path)
    path.write_text(MARK + text, encoding="utf-8", newline="")
    assert read(path) == plain


@pytest.mark.parametrize("text", ["", "a", "\r\na\r", "é\n\nb"])
def test_only_the_mark_at_the_beginning_is_left_out(text, tmp_path):
    path = tmp_path / "t.txt"
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    for written, found in ((text, expected), (MARK + text, expected), (MARK + text + MARK, expected + MARK)):
        path.write_bytes(written.encode())
        assert read_text(path) == found
    assert without_mark(MARK + MARK + text) == MARK + text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_named(encoding, tmp_path):
    """PowerShell's > writes it."""
    path = tmp_path / "t.txt"
    path.write_bytes((MARK * (encoding != "utf-16") + "[server]\nport = 1").encode(encoding))
    with pytest.raises(UnicodeDecodeError, match="UTF-16, save it in UTF-8"):
        read_text(path)
    for read in (
        lambda: read_text_file("--tools", str(path)), lambda: read_keys(str(path)), lambda: from_file(str(path)),
        lambda: read_template(str(path)),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="UTF-16, save it in UTF-8"):
            read()
    path.write_bytes(b"abc\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 at byte 3: text is needed"):
        read_text_file("--tools", str(path))


def test_texts_that_were_read_with_their_mark():
    """Of grammars and schemas, as `Path.read_text()` and shells give them."""
    assert ox.Grammar.parse(MARK + GRAMMAR).accepts("yes")
    assert ox.JsonSchemaCompiler.compile(MARK + SCHEMA).accepts('"yes"')
    assert ox.JsonSchemaCompiler.compile((MARK + SCHEMA).encode()).accepts('"yes"')
    assert ox.SamplerConfig(json_schema=MARK + SCHEMA) == ox.SamplerConfig(json_schema=SCHEMA)
    assert ox.SamplerConfig(grammar=MARK + GRAMMAR).grammar is not None
    assert llama_cpp.LlamaGrammar.from_json_schema(MARK + SCHEMA).constraint["json_schema"]
    assert read_schema(MARK + SCHEMA) == json.loads(SCHEMA)


def test_a_prompt_from_a_file(monkeypatch):
    """With `oxillama run - < prompt.txt`."""
    for data, text in ((b"\xef\xbb\xbfOnce upon", "Once upon"), (b"Once\r\n", "Once\r\n"), (b"", "")):
        monkeypatch.setattr(sys, "stdin", stdin_of(data))
        assert read_prompt("-", "PROMPT") == text
    monkeypatch.setattr(sys, "stdin", io.StringIO(MARK + "Once"))
    assert read_prompt(None, "PROMPT") == "Once"


def test_messages_of_a_chat_from_a_file(monkeypatch):
    lines = []
    monkeypatch.setattr("oxillama.cli.chat.obey", lambda dialogue, line: (lines.append(line), (True, True))[1])
    monkeypatch.setattr(sys, "stdin", stdin_of(b"\xef\xbb\xbfhello\nyou \xff\nthere\n"))
    assert not piped(None)
    assert lines == ["hello\n", "there\n"]


def test_a_command_with_files_that_have_marks(tmp_path, monkeypatch, capsys):
    (tmp_path / "s.json").write_text(MARK + SCHEMA, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin_of(b"\xef\xbb\xbfOnce upon a time"))
    assert main(["run", "-", "--json-schema-file", str(tmp_path / "s.json"), "-n", "8", "--seed", "1"]) == 0
    with_marks = capsys.readouterr().out
    assert main(["run", "Once upon a time", "--json-schema", SCHEMA, "-n", "8", "--seed", "1"]) == 0
    assert capsys.readouterr().out == with_marks
    assert json.loads(with_marks) in ("yes", "no")


def test_settings_are_no_pipes_without_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nothing is written to"):
        read_setting(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        read_setting(tmp_path)


def test_settings_come_from_pipes_with_one():
    reader, writer = os.pipe()
    try:
        late = threading.Timer(0.05, lambda: (os.write(writer, b"b\r\n"), os.close(writer)))
        late.start()
        assert read_setting(f"/dev/fd/{reader}") == "b\n"
    finally:
        os.close(reader)
        late.join()


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="there is no endless device here")
def test_settings_have_an_end(monkeypatch):
    monkeypatch.setattr(text_files, "MOST", 1 << 16)
    with pytest.raises(OSError, match="no end"):
        read_setting("/dev/zero")
