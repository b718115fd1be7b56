"""`oxillama serve --check-config`: all that the settings name is opened and shown, and a wrong file is status 1."""

import json
import os
import subprocess

import pytest

from oxillama.cli import main
from oxillama.core.loading import shipped_draft, shipped_model
from oxillama.errors import ConfigError
from oxillama.server.config import from_file
from tests.lora.files import linear_shapes, random_factors, write_adapter

SIZE = 1 << 20


def check(*flags):
    return main(["serve", *map(str, flags), "--check-config"])


@pytest.fixture
def shown(capsys):
    def run(*flags):
        assert check(*flags) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys):
    def run(*flags):
        assert check(*flags) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("oxillama: error: ")
        assert printed.err.count("\n") == 1
        return printed.err

    return run


@pytest.fixture
def adapter(tmp_path):
    some = {name: shape for name, shape in linear_shapes(shipped_model()).items() if name == "blk.0.attn_q.weight"}
    write_adapter(tmp_path / "pirate.gguf", "llama", random_factors(some, 4))
    return tmp_path / "pirate.gguf"


def written(folder, text):
    (folder / "server.toml").write_text(text)
    return folder / "server.toml"


def test_the_model_of_the_command_line_is_shown(shown, adapter):
    (model,) = shown("-m", shipped_model(), "--lora", adapter, "--draft", shipped_draft(), "--kv-budget", "3M")[
        "models"
    ]
    assert (model["id"], model["path"]) == ("default", str(shipped_model()))
    assert (model["architecture"], model["context_size"], model["vocabulary"]) == ("llama", 1024, 1536)
    assert model["lora"] == {"pirate": {"path": str(adapter), "rank": 4, "tensors": 1}}
    assert model["draft"] == str(shipped_draft())
    assert model["options"]["kv_budget"] == 3 * SIZE
    assert [one["id"] for one in shown()["models"]] == ["oxillama-default"]


@pytest.mark.parametrize("setting", ["-m", "--lora", "--draft", "--packed", "--chat-template", "--api-key-file",
                                     "--admin-key-file", "--lora-dir", "--config"])  # fmt: skip
def test_a_file_that_is_not_there(setting, refused, tmp_path):
    assert str(tmp_path / "none") in refused(setting, tmp_path / "none")


@pytest.mark.parametrize("setting", ["-m", "--lora", "--draft", "--packed", "--api-key-file"])
def test_a_file_of_another_kind(setting, refused, tmp_path):
    (tmp_path / "other").write_text("of no such kind\n")
    assert "other" in refused(setting, tmp_path / "other")


@pytest.mark.parametrize(("key", "value"), [
    ("path", '"none.gguf"'), ("draft", '"none.gguf"'), ("tokenizer_path", '"none.gguf"'), ("packed", '"none.gguf"'),
    ("lora", '{ a = "none.gguf" }'),
])  # fmt: skip
def test_a_file_of_a_table_that_is_not_there(key, value, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "none.gguf" in refused("--config", written(tmp_path, f"[[model]]\n{key} = {value}\n"))


def test_what_loading_would_refuse(refused, tmp_path, adapter):
    assert "at most the 1024 tokens" in refused("-m", shipped_model(), "--context-size", "5000")
    write_adapter(tmp_path / "other.gguf", "qwen2", random_factors({"blk.0.attn_q.weight": (8, 8)}, 4))
    assert "architecture qwen2" in refused("--lora", tmp_path / "other.gguf")
    assert "there is no key" in refused("--host", "0.0.0.0")
    assert "did you mean temperature" in refused("--default", "temperatur=1")
    assert "top-p must be" in refused("--default", "top_p=7")
    assert "--reasoning-format must be" in refused("--reasoning-format", "one")
    assert "--tool-format must be" in refused("--tool-format", "none-such")
    (tmp_path / "bad.jinja").write_text("{% for %}")
    assert "bad.jinja" in refused("--chat-template", tmp_path / "bad.jinja")
    assert "--max-body must be a number of bytes" in refused("--max-body", "eight")


def test_what_other_settings_name_is_shown(shown, tmp_path):
    (tmp_path / "keys").write_text("a:12345678\nb:23456789\n")
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    found = shown(
        "--api-key-file", tmp_path / "keys", "--chat-template", tmp_path / "own.jinja", "--lora-dir", tmp_path
    )
    assert found["files"] == {"api_key_file": "2 keys", "chat_template": "14 characters", "lora_dir": "2 names"}
    assert "12345678" not in json.dumps(found)


def test_a_certificate_is_opened(shown, refused, tmp_path):
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", chain, "-subj", "/CN=a"],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl makes no certificate")
    assert shown("--tls-cert", chain, "--tls-key", key)["files"].keys() == {"tls_cert", "tls_key"}
    key.write_text("no key")
    assert "chain.pem" in refused("--tls-cert", chain, "--tls-key", key)


def test_sizes_of_a_file_are_those_of_the_flags(shown, refused, tmp_path):
    text = '[server]\nmax_body = "2MiB"\n[[model]]\nid = "a"\nkv_budget = "3M"\noffload = "1M"\n[[model]]\nid = "b"\n'
    text += 'offload = "auto"\n[[model]]\nid = "c"\nkv_budget = 7\noffload = { budget = "2M", pinned = ["output"] }\n'
    found = shown("--config", written(tmp_path, text))
    assert found["server"]["max_body"] == 2 * SIZE
    one, two, three = (model["options"] for model in found["models"])
    assert (one["kv_budget"], one["offload"]["budget"]) == (3 * SIZE, SIZE)
    assert two["offload"]["automatic"]
    assert (three["offload"]["budget"], three["kv_budget"]) == (2 * SIZE, 7)
    for key in ("kv_budget", "offload", "offload.budget"):
        said = refused("--config", written(tmp_path, f'[[model]]\n{key} = "much"\n'))
        assert "must be a number of bytes, as 800M or 4G" in said
        assert "much" in said
    with pytest.raises(ConfigError, match="max_body must be a number of bytes"):
        from_file(str(written(tmp_path, '[server]\nmax_body = "2X"\n')))


@pytest.mark.parametrize("flags", [["--threads", "1"], ["--kv-budget", "3M"], ["--no-repack"], ["--lora", "a.gguf"],
                                   ["--context-size", "64"]])  # fmt: skip
def test_flags_of_a_model_beside_those_of_a_file_are_refused(flags, refused, tmp_path):
    said = refused("--config", written(tmp_path, '[[model]]\nid = "a"\n'), *flags)
    assert f"{flags[0]} is not for models of a file" in said


@pytest.mark.parametrize(("flag", "value", "said"), [
    ("--cors-origin", "app.example", "a site as browsers name it"), ("--cors-origin", "https://a.b/c", "not 'https"),
    ("--cors-origin", "https://a.b/", "not 'https"), ("--cors-origin", "*", "not '*'"),
    ("--allowed-host", "http://a.b", "without https:// and port"), ("--allowed-host", "a.b:80", "not 'a.b:80'"),
    ("--allowed-host", "A.b", "small letters"), ("--uds", "x" * 150, "at most 103 bytes"),
    ("--host", "256.1.1.1", "can't listen on 256.1.1.1"), ("--host", "fd://x", "can't listen on fd://x"),
    ("--trusted-proxy", "10.0.0.1/33", "--trusted-proxy"), ("--trusted-proxy", "10.1.2.3/8", "give 10.0.0.0/8"),
])  # fmt: skip
def test_addresses_that_nothing_can_be(flag, value, said, refused):
    extra = ("--insecure-no-key",) if flag == "--host" else ()
    assert said in refused(flag, value, *extra)


@pytest.mark.parametrize(("flag", "value"), [
    ("--cors-origin", "https://a.b:8080"), ("--cors-origin", "vscode-webview://x1"), ("--cors-origin", "null"),
    ("--allowed-host", "::1"), ("--allowed-host", "my_host.example"), ("--trusted-proxy", "10.0.0.0/8"),
    ("--host", "localhost"),
])  # fmt: skip
def test_addresses_that_can_be(flag, value, shown):
    assert shown(flag, value)["models"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_socket_has_a_name_that_is_free(kind, refused, tmp_path):
    place = tmp_path / "own"
    place.write_text("kept") if kind == "file" else place.mkdir()
    assert "no socket" in refused("--uds", place)
    assert place.exists()


@pytest.mark.parametrize("flag", ["--api-key-file", "--admin-key-file", "--chat-template", "--config", "--tls-cert"])
def test_a_pipe_that_nothing_is_written_to(flag, refused, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    extra = ("--tls-key", tmp_path / "pipe") if flag == "--tls-cert" else ()
    assert "pipe" in refused(flag, tmp_path / "pipe", *extra)


@pytest.mark.parametrize("name", ["uds", "chat_template", "lora_dir", "api_key_file", "admin_key_file", "host"])
def test_a_null_character(name, refused, tmp_path):
    assert "null character" in refused("--config", written(tmp_path, f'[server]\n{name} = "a\\u0000b"\n'))


@pytest.mark.parametrize(("text", "said"), [
    ("model = [1]", "model[0] must be a table"),
    ('[[model]]\nid = "a"\naliases = ["b"]\n[[model]]\nid = "b"', "'b' is that of two models"),
    ('[[model]]\nid = "a"\naliases = ["x"]\n[[model]]\nid = "b"\naliases = ["x"]', "'x' is that of two models"),
    ('[[model]]\nid = ""', "model[0].id is empty"),
])  # fmt: skip
def test_models_of_a_file(text, said, refused, tmp_path):
    assert said in refused("--config", written(tmp_path, text + "\n"))


def test_overrides_are_shown(shown, tmp_path):
    file = written(tmp_path, '[[model]]\noverrides = { "general.name" = "x" }\nrope = { freq_base = 20000 }\n')
    (model,) = shown("--config", file)["models"]
    assert (model["options"]["overrides"], model["name"]) == ({"general.name": "x"}, "x")
