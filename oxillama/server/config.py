"""Server settings: one table for the flags, the environment and the configuration file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama._util.checks import nearest
from oxillama._util.settings import Setting, check_fields, setting, settings, settings_of
from oxillama._util.sizes import read_size
from oxillama._util.text_files import read_setting
from oxillama.errors import ConfigError

__all__ = [
    "ENVIRONMENT",
    "OLLAMA_PORT",
    "PORT",
    "STORE",
    "ServerConfig",
    "from_environment",
    "from_file",
    "from_texts",
    "shown_default",
]

ENVIRONMENT = "OXILLAMA_SERVE_"
PORT, OLLAMA_PORT = 8000, 11434
STORE = "store"  # of models_dir: the folder of `oxillama pull`
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/?#*]+")
_HOST = re.compile(r"[^\s/?#*:@A-Z\[\]]+|[0-9a-f:]*:[0-9a-f:.]*")


@settings()
@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the server. Every field is a flag of `oxillama serve`, a key of the table [server] of its
    configuration file, and a variable of the environment; `python -m oxillama.server` prints the table of them.

    Raises ConfigError, which names the field, its value and its range.
    """

    host: str = setting("127.0.0.1", "address to listen on", metavar="ADDRESS")
    port: int | None = setting(None, f"port; 0 takes a free one; default {PORT}, with ollama {OLLAMA_PORT}",
                               most=65535)  # fmt: skip
    ollama: bool = setting(False, "be where Ollama's clients look: at its port, and / answers that it is running")
    uds: str | None = setting(None, "listen on this Unix socket instead, which its owner alone may use", metavar="PATH")
    api_key: str | None = setting(None, "key that requests need; other users see it in the list of processes",
                                  metavar="KEY", secret=True)  # fmt: skip
    api_key_file: str | None = setting(None, "keys, a line `NAME:KEY [max_concurrent=N] [tpm=N]` each", metavar="FILE")
    admin_key_file: str | None = setting(None, "keys for /admin and adapters, in the same form", metavar="FILE")
    insecure_no_key: bool = setting(False, "let every client that can connect use the models")
    allowed_host: tuple[str, ...] = setting((), "a further name by which clients call this server", metavar="NAME")
    cors_origin: tuple[str, ...] = setting((), "a web site whose pages may call this server", metavar="URL")
    served_model_name: tuple[str, ...] = setting((), "a further name of the model; * takes any", metavar="NAME")
    lora_dir: str | None = setting(None, "folder of adapters that may be loaded by request", metavar="DIR")
    max_body: int = setting(8 << 20, "bytes of a request's body", least=1024, most=1 << 40, size=True)
    max_headers: int = setting(32 << 10, "bytes of a request's headers", least=1024, most=1 << 30, size=True)
    max_n: int = setting(8, "choices of a request", least=1, most=128)
    max_logprobs: int = setting(20, "likeliest tokens in each place", most=1024)
    max_running: int = setting(128, "requests that the models work on at a time", least=1, most=1 << 20)
    max_queue: int = setting(1024, "requests that may wait for their turn", most=1 << 20)
    max_connections: int = setting(1000, "connections", least=1, most=1 << 20)
    max_peer_connections: int = setting(64, "connections of one address, but for this machine's and trusted proxies'",
                                        least=1, most=1 << 20)  # fmt: skip
    trusted_proxy: tuple[str, ...] = setting((), "address or network of a proxy, whose X-Forwarded-For is believed",
                                             metavar="ADDRESS")  # fmt: skip
    header_timeout: float = setting(10.0, "seconds for the headers of a request", least=0.01)
    body_timeout: float = setting(10.0, "seconds for its body, and one for each KiB", least=0.01)
    keep_alive: float = setting(15.0, "seconds that a connection may idle", least=0.01)
    request_timeout: float = setting(600.0, "seconds for an answer", least=0.001)
    queue_timeout: float = setting(60.0, "seconds that a request may wait for its turn", least=0.001)
    drain_timeout: float = setting(30.0, "seconds for running requests when the server ends")
    stall_timeout: float = setting(60.0, "seconds without a byte read after which a client is cut off", least=0.01)
    max_backlog: int = setting(1 << 20, "bytes that a client may be behind", least=1024, most=1 << 40, size=True)
    sse_ping: float = setting(15.0, "seconds of silence after which a stream gets a sign of life", least=0.01)
    generation_config: str = setting("openai", "whose defaults count: OpenAI's, or those of the model's file",
                                     choices=("openai", "file"))  # fmt: skip
    default: tuple[str, ...] = setting((), "another default of a sampling field", metavar="KEY=VALUE")
    tool_format: str | None = setting(None, "how the model writes calls, if its template doesn't tell; none refuses "
                                      "tools that the template doesn't show", metavar="NAME")  # fmt: skip
    reasoning_format: str | None = setting(None, "marks of reasoning, if the template doesn't tell; none leaves it in "
                                           "the text", metavar="'BEGIN END'")  # fmt: skip
    chat_template: str | None = setting(None, "a Jinja template in place of the model's own", metavar="FILE")
    trust_request_templates: bool = setting(False, "let requests bring templates of their own")
    allow_priority: bool = setting(False, "let requests say their priority")
    share_prefix_cache: bool = setting(False, "let keys share the KV of common beginnings")
    lenient: bool = setting(False, "leave out misspelt fields, too, and take values beyond the API's ranges")
    strict: bool = setting(False, "refuse what else would be left out, to test clients")
    public_metrics: bool = setting(False, "let /metrics, of all keys, be read without a key")
    ui: bool = setting(True, "the page at /")
    docs: bool = setting(True, "/openapi.json and /docs")
    tls_cert: str | None = setting(None, "certificate chain", metavar="FILE")
    tls_key: str | None = setting(None, "its key", metavar="FILE")
    log_format: str = setting("text", "of the access log", choices=("text", "json"))
    log_level: str = setting("info", "least level that is logged", choices=("debug", "info", "warning", "error"))
    log_content: bool = setting(False, "log prompts and answers")
    otel: bool = setting(False, "spans of requests for OpenTelemetry, whose API is the extra `otel`")
    models_max: int = setting(0, "models in memory at a time; 0: all", most=1 << 16)
    models_dir: str | None = setting(None, "folder of models, each of which is loaded when a request names it; store: "
                                     "that of `oxillama pull`", metavar="DIR")  # fmt: skip
    alias: tuple[str, ...] = setting((), "a further name of a model of that folder", metavar="NAME=MODEL")
    keep_loaded: tuple[str, ...] = setting((), "a model of that folder that is loaded at start and stays in memory",
                                           metavar="NAME")  # fmt: skip
    allow_pull: bool = setting(False, "let POST /api/pull fetch models of the Hugging Face Hub into that folder; with "
                               "keys, those of administrators alone")  # fmt: skip
    allow_delete: bool = setting(False, "let DELETE /api/delete remove models of that folder that were pulled; with "
                                 "keys, those of administrators alone")  # fmt: skip
    idle_unload: float = setting(0.0, "seconds without a request after which a model leaves memory; 0: never")

    def __post_init__(self) -> None:
        if self.port is None:
            object.__setattr__(self, "port", OLLAMA_PORT if self.ollama is True else PORT)
        check_fields(self)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key must be given together")
        _check_forms("cors_origin", self.cors_origin, _ORIGIN, "a site as browsers name it: https://app.example:8080")
        _check_forms("allowed_host", self.allowed_host, _HOST, "a name in small letters, without https:// and port")
        if self.strict and self.lenient:
            raise ConfigError("strict and lenient are both given: give one of them")
        for name in ("alias", "keep_loaded", "allow_pull", "allow_delete"):
            if getattr(self, name) and self.models_dir is None:
                raise ConfigError(f"{name} is for the models of a folder: give models_dir, too")


def _check_forms(name: str, given: tuple[str, ...], form: re.Pattern[str], wanted: str) -> None:
    """Raises ConfigError for what no request's header can be equal to."""
    for one in given:
        if not form.fullmatch(one):
            raise ConfigError(f"{name} must be {wanted}, not {one!r:.60}")


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def from_texts(given: Mapping[str, Any], shown: Callable[[str], str]) -> dict[str, Any]:
    """Fields of a flag's or a variable's text, by name; `shown` names one in an error. Raises ConfigError."""
    known = settings_of(ServerConfig)
    return {name: _of_text(known[name], value, shown(name)) for name, value in given.items()}


def _of_text(one: Setting, value: Any, shown: str) -> Any:
    kind = one.kind
    if not isinstance(value, str) or kind == "str":
        return value
    if kind == "tuple[str, ...]":
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if kind == "bool":
        if value.lower() not in _SWITCHES:
            raise ConfigError(f"{shown} must be 1 or 0, not {value!r:.60}")
        return _SWITCHES[value.lower()]
    try:
        if one.size:
            if (n_bytes := read_size(value)) is None:
                raise ValueError(value)
            return n_bytes
        return int(value) if kind == "int" else float(value)
    except ValueError:
        example = "a number of bytes, as 800K or 8M" if one.size else "a number"
        raise ConfigError(f"{shown} must be {example}, not {value!r:.60}") from None


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Fields that variables of the environment give. Raises ConfigError for unknown ones that begin like ours."""
    given = {n.removeprefix(ENVIRONMENT).lower(): v for n, v in environment.items() if n.startswith(ENVIRONMENT)}
    for name in given:
        _check_known(name, f"the variable {ENVIRONMENT}{name.upper()}")
    found = from_texts(given, lambda name: ENVIRONMENT + name.upper())
    if key := environment.get("OXILLAMA_API_KEY"):
        found.setdefault("api_key", key)
    return found


def from_file(path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The table [server] of a TOML file, and its tables [[model]]. Raises ConfigError, which names the place."""
    import tomllib  # the command line imports this module for every command

    try:
        read = tomllib.loads(read_setting(path))
    except OSError as error:
        raise ConfigError(f"config {path}: the file can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config {path} is no TOML: {error}") from None
    for name in read:
        if name not in ("server", "model"):
            raise ConfigError(f"config {path} must have [server] and [[model]], not {name!r:.60}")
    server, models = read.get("server", {}), read.get("model", [])
    if not isinstance(server, dict) or not isinstance(models, list):
        raise ConfigError(f"config {path} must have [server] once and [[model]] for each model")
    for i, model in enumerate(models):
        if not isinstance(model, dict):
            raise ConfigError(f"config {path}: model[{i}] must be a table [[model]], not {model!r:.60}")
    for name in server:
        _check_known(name, f"config {path}: [server] {name}")
    sizes = {one.name for one in settings_of(ServerConfig).values() if one.size}
    texts = {name: value for name, value in server.items() if name in sizes and isinstance(value, str)}
    return server | from_texts(texts, lambda name: f"config {path}: {name}"), models


def _check_known(name: str, place: str) -> None:
    known = settings_of(ServerConfig)
    if name not in known:
        near = nearest(name, known)
        raise ConfigError(f"{place} is not known" + (f"; did you mean {near!r}?" if near else ""))


def shown_default(value: object) -> str:
    """A default as it is typed."""
    for power, unit in ((20, "M"), (10, "K")):
        if isinstance(value, int) and value >= 8 << 10 and not value % (1 << power):
            return f"{value >> power}{unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)
