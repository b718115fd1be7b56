"""Settings of the server: of flags, the environment and a file."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from oxillama.cli import main
from oxillama.cli.arguments import make_parser
from oxillama.cli.serve import read_settings
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, LoadError
from oxillama.server import ServerConfig
from oxillama.server.config import from_environment, from_file

NAMES = [one.name for one in fields(ServerConfig)]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_values_are_refused_by_name(name):
    for value in (object(), -5, 1e308 * 10, "", ["", 3], {}):
        with pytest.raises(ConfigError, match=name):
            ServerConfig(**{name: value})


def test_unknown_fields():
    with pytest.raises(TypeError, match="did you mean 'max_body'"):
        ServerConfig(max_bodi=3)
    with pytest.raises(ConfigError, match=r"OXILLAMA_SERVE_PROT.*did you mean 'port'"):
        from_environment({"OXILLAMA_SERVE_PROT": "1"})


def settings(*flags):
    return read_settings(make_parser().parse_args(["serve", *flags]))


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path, monkeypatch):
    file = tmp_path / "server.toml"
    file.write_text('[server]\nport = 1\nmax_n = 2\nmax_body = "2M"\nallowed_host = ["a", "b"]\n[[model]]\nid = "x"\n')
    monkeypatch.setenv("OXILLAMA_SERVE_MAX_N", "3")
    monkeypatch.setenv("OXILLAMA_SERVE_PORT", "2")
    monkeypatch.setenv("OXILLAMA_SERVE_LENIENT", "true")
    monkeypatch.setenv("OXILLAMA_SERVE_ALLOWED_HOST", "c, d")
    found, models = settings("--config", str(file), "--port", "3", "--no-ui", "--max-headers", "8K")
    assert found == {
        "port": 3, "max_n": 3, "max_body": 2 << 20, "max_headers": 8 << 10, "lenient": True, "ui": False,
        "allowed_host": ("c", "d"),
    }  # fmt: skip
    assert models == [{"id": "x"}]


def test_the_port_is_that_of_ollama_where_its_clients_are_to_find_it(capsys):
    assert (ServerConfig().port, ServerConfig(ollama=True).port, ServerConfig(ollama=True, port=1).port) == (
        8000, 11434, 1,
    )  # fmt: skip
    assert main(["serve", "--ollama", "--check-config"]) == 0
    assert json.loads(capsys.readouterr().out)["server"]["port"] == 11434


def test_the_key_of_the_environment():
    assert from_environment({"OXILLAMA_API_KEY": "abc"}) == {"api_key": "abc"}
    assert "abc" not in repr(ServerConfig(api_key="abc"))


@pytest.mark.parametrize(("text", "said"), [
    ("[server]\nprot = 1", "did you mean 'port'"),
    ("[sever]\n", "sever"),
    ("[server", "is no TOML"),
    ("model = 3", "must have"),
    ('[server]\nmax_body = "x"', "max_body must be a number of bytes"),
])  # fmt: skip
def test_files_that_are_wrong(tmp_path, text, said):
    file = tmp_path / "server.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        from_file(str(file))


@pytest.mark.parametrize(("flags", "said"), [
    (["--port", "x"], "--port must be a number, not 'x'"),
    (["--port", "99999"], "port must be from 0 to 65535"),
    (["--host", "0.0.0.0"], "there is no key"),
    (["--api-key-file", "/none"], "can't be read"),
    (["--config", "/none"], "can't be read"),
    (["--tls-cert", "/none"], "must be given together"),
    (["--tls-cert", "/none", "--tls-key", "/none"], "can't be used"),
    (["--lora-scaled", "a", "2"], "not for serve"),
    (["-m", "/none.gguf"], "there is no such file"),
    (["--draft", "/none.gguf"], "there is no such file"),
    (["--num-speculative", "3"], "without --draft"),
    (["--draft", "lookup", "--num-speculative", "99"], "--num-speculative must be from 0 to 32"),
])  # fmt: skip
def test_wrong_command_lines_end_in_one_line(flags, said, capsys):
    assert main(["serve", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("flag", ["-m", "--draft"])
@pytest.mark.parametrize("cut", [0, 3, 1000])
def test_files_are_looked_into_before_the_address_is_taken(flag, cut, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("oxillama.server.sockets.bound", lambda config: pytest.fail("it listens"))
    file = tmp_path / "bad.gguf"
    file.write_bytes(Path(shipped_model()).read_bytes()[:cut])
    assert main(["serve", flag, str(file)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert error.count("\n") == 1


def test_a_draft_of_other_tokens_is_told_before_the_address_is_taken(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("oxillama.server.sockets.bound", lambda config: pytest.fail("it listens"))
    monkeypatch.setattr("oxillama.speculative.draft_model.first_difference", lambda draft, target: 7)
    assert main(["serve", "--draft", shipped_model()]) == 2
    error = capsys.readouterr().err
    assert "the draft's vocabulary is not the model's: token 7" in error
    assert error.count("\n") == 1


def test_a_server_of_models_that_all_fail_ends(monkeypatch, capsys):
    def failing(**options):
        raise LoadError("no such tensor")

    monkeypatch.setattr("oxillama.load", failing)
    assert main(["serve", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "can't be loaded: no such tensor" in error
    assert error.endswith("no model could be loaded: the log says why\n")


def test_settings_are_printed_without_keys(capsys):
    assert main(["serve", "--check-config", "--max-n", "4", "--api-key", "very-secret"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["server"]["max_n"] == 4
    assert "secret" not in printed


@pytest.mark.parametrize(("table", "said"), [
    ("id = 3", r"model\[0\].id"),
    ("contextsize = 3", "did you mean 'context_size'"),
    ('load = "later"', r"model\[0\].load"),
    ("aliases = 3", r"model\[0\].aliases"),
    ("lora = 3", r"model\[0\].lora"),
    ('path = "/none.gguf"', r"model\[0\].path /none.gguf: there is no such file"),
    ("context_size = 0", "--context-size must be from 2"),
    ("draft = 3", r"model\[0\].draft must be a file"),
    ("num_speculative = 3", r"model\[0\].num_speculative is given without"),
])  # fmt: skip
def test_models_of_a_file_that_are_wrong(tmp_path, table, said, capsys):
    file = tmp_path / "server.toml"
    file.write_text(f"[[model]]\n{table}\n")
    assert main(["serve", "--config", str(file)]) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("tables", ['[[model]]\nid = "a"\n[[model]]\nid = "b"\n[[model]]\nid = "a"\n',
                                    '[[model]]\n[[model]]\nid = "b"\n[[model]]\n'])  # fmt: skip
def test_two_models_of_a_file_with_one_name(tmp_path, tables, capsys):
    file = tmp_path / "server.toml"
    file.write_text(f'[server]\nhost = "fd://999999"\n{tables}')  # where it couldn't listen
    assert main(["serve", "--config", str(file)]) == 2
    assert re.search(r"model\[2\]\.id is '.*', as model\[0\]\.id: give another one", capsys.readouterr().err)
