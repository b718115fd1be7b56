"""Values of headers: whatever a request, a key file or a model says, they are short and printable."""

import json
import re

import pytest

from oxillama.server import exchange as exchanges
from oxillama.server.errors import ApiError
from oxillama.server.headers import MOST_OF_A_VALUE, encoded, header_text, listed
from oxillama.server.protocol import raw_answer
from tests.server.client import HI, raw, request_bytes, serving

CHAT = "/v1/chat/completions"
HOSTILE = "a\r\nSet-Cookie: b\x00\x07\x7f\x1b[31m\u202e\u00e9\U0001f600 "
HELD_BY_NONE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {}}}}


@pytest.mark.parametrize(("given", "value"), [
    ("a, b", "a, b"),
    ("a\r\nb: c", "a??b: c"),
    ("\x00\t\x7f\u00e9\u2028\ud800", "??????"),
    (" a ", "a"),
    ("x" * 5000, "x" * MOST_OF_A_VALUE),
    ("x" * (MOST_OF_A_VALUE - 1) + " y", "x" * (MOST_OF_A_VALUE - 1)),
    ("", ""),
])  # fmt: skip
def test_values_are_printable_and_short(given, value):
    assert header_text(given) == value
    assert encoded({"X-A": given}) == [(b"x-a", value.encode())]


def test_lists_end_in_the_number_of_what_has_no_room():
    assert listed(["a", "b"], 2, "; ") == "a; b"
    assert listed(["a", "b"], 9, ", ") == "a, b, and 7 more"
    found = listed(["x" * 100] * 50, 50, "; ")
    assert found == "; ".join(["x" * 100] * 9) + "; and 41 more"
    assert len(listed(["y" * 9000], 1, "; ")) <= MOST_OF_A_VALUE


def test_raw_answers_have_the_headers_of_their_errors():
    made = raw_answer(ApiError(503, "a", "b", headers={"Retry-After": "1\r\nX: y" + "z" * 5000}))
    head, _, body = made.partition(b"\r\n\r\n")
    assert json.loads(body)["error"]["message"] == "b"
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 503 Service Unavailable"
    assert [line.partition(b":")[0] for line in lines[1:]] == [
        b"content-type", b"content-length", b"retry-after", b"connection",
    ]  # fmt: skip
    assert max(map(len, lines)) < MOST_OF_A_VALUE + 64


@pytest.fixture(scope="module")
def served(engine, tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("ann:a-long-secret max_concurrent=4 tpm=100000\n")
    settings = {"api_key_file": str(file), "cors_origin": ("http://page.example",), "log_format": "json"}
    with serving({"tiny": engine, "odd\r\nname": engine}, **settings) as it:
        yield it


def answer_of(port, data):
    """Status, headers and body of an answer; its head is checked."""
    made = raw(port, data)
    received = b""
    while piece := made.recv(1 << 16):
        received += piece
    made.close()
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert len(head) < 4096
    for line in lines[1:]:
        assert re.fullmatch(rb"[A-Za-z-]+: ?[\x21-\x7e]?[\x20-\x7e]*", line), line  # h11 writes names in title case
        assert len(line) <= MOST_OF_A_VALUE + 64
        assert not line.lower().startswith(b"set-cookie")
    headers = (line.decode().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), {name.lower(): value for name, value in headers}, body


def asked(port, fields, extra="", path=CHAT):
    return answer_of(
        port, request_bytes(path, fields, extra=f"x-api-key: a-long-secret\r\nConnection: close\r\n{extra}")
    )


def tools(n, name=HOSTILE):
    return [{"type": "function", "function": {"name": f"t{i}{name}", "parameters": HELD_BY_NONE}} for i in range(n)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_names_of_tools(served, caplog, n, stream):
    _, port = served
    status, headers, _ = asked(port, {"messages": HI, "max_tokens": 2, "stream": stream, "tools": tools(n)})
    assert status == 200
    said = headers["x-oxillama-warnings"]
    assert "the arguments of t0a??Set-Cookie: b" in said
    assert "Set-Cookie" not in caplog.text


def test_many_warnings_end_in_their_number(served, monkeypatch):
    _, port = served
    started = exchanges.Exchange.start

    async def warned(self, *args):
        self.warnings += [f"{HOSTILE} {i} {'x' * 100}" for i in range(1024)]
        await started(self, *args)

    monkeypatch.setattr(exchanges.Exchange, "start", warned)
    status, headers, _ = asked(port, {"messages": HI, "max_tokens": 1})
    assert status == 200
    assert re.search(r"; and 10\d\d more$", headers["x-oxillama-warnings"])


def test_names_of_fields(served):
    _, port = served
    fields = {f"{HOSTILE}{i}{'x' * 200}": i for i in range(200)}
    status, headers, _ = asked(port, {"messages": HI, "max_tokens": 1, **fields})
    assert status == 200
    assert re.search(r"and 1\d\d more$", headers["x-oxillama-left-out"])


@pytest.mark.parametrize("fields", [
    {"model": HOSTILE * 40},
    {"messages": HOSTILE},
    {"tool_choice": {"type": "function", "function": {"name": HOSTILE}}, "tools": tools(1, "")},
    {"tools": tools(2, "") + tools(1, "")},
    {"stop": [HOSTILE] * 900},
    {"response_format": {"type": "json_schema", "json_schema": {"name": HOSTILE, "schema": {"type": HOSTILE}}}},
    {"temperature": HOSTILE},
])  # fmt: skip
def test_refusals(served, fields):
    _, port = served
    status, headers, body = asked(port, {"messages": HI, "max_tokens": 1, **fields})
    assert status in (400, 404)
    assert headers["x-should-retry"] == "false"
    assert json.loads(body)["error"]["message"]


def test_a_model_of_an_odd_name_answers(served):
    _, port = served
    status, _, body = asked(port, {"model": "odd\r\nname", "messages": HI, "max_tokens": 1})
    assert (status, json.loads(body)["model"]) == (200, "odd\r\nname")


def test_what_clients_send_in_headers_comes_back_as_values_alone(served):
    _, port = served
    wanted = "x-" + "y" * 5000
    options = "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://page.example\r\nConnection: close\r\n"
    options += f"Access-Control-Request-Headers: {wanted}, \u00e9\r\n\r\n"
    status, headers, _ = answer_of(port, options.encode("latin-1"))
    assert status == 204
    assert headers["access-control-allow-headers"] == wanted[:MOST_OF_A_VALUE]
    for given, comes in (("mine-1", True), ("x" * 129, False), ("a b", False), ("\u00e9", False)):
        head = f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {given}\r\nConnection: close\r\n\r\n"
        _, headers, _ = answer_of(port, head.encode("latin-1"))
        assert (headers["x-request-id"] == given) == comes


def test_limits_of_keys(served):
    _, port = served
    _, headers, _ = asked(port, {"messages": HI, "max_tokens": 1})
    assert headers["x-ratelimit-limit-tokens"] == "100000"
    assert headers["x-ratelimit-limit-requests"] == "4"


def test_retry_after(served):
    server, port = served
    server._app.service.draining = True
    try:
        status, headers, _ = asked(port, {"messages": HI})
        assert (status, headers["retry-after"]) == (503, "5")
    finally:
        server._app.service.draining = False


@pytest.mark.parametrize(
    "path", ["/%0d%0aSet-Cookie:b", "/v1/models/%0d%0aSet-Cookie:b%00", "/\u00e9", "/" + "x" * 3000]
)
@pytest.mark.parametrize("method", ["GET", "POST", "BREW"])
def test_paths_and_methods(served, path, method):
    _, port = served
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nx-api-key: a-long-secret\r\nConnection: close\r\n\r\n"
    status, _, _ = answer_of(port, head.encode("latin-1"))
    assert status in (400, 404, 405)


@pytest.mark.parametrize("dialect", ["ollama", "anthropic", "responses"])
def test_other_dialects(served, dialect):
    _, port = served
    path, fields = {
        "ollama": ("/api/chat", {"messages": HI, "stream": False, "options": {"num_predict": 1}, "tools": tools(1)}),
        "anthropic": ("/v1/messages", {
            "messages": HI, "max_tokens": 1, "tools": [{"name": f"t{HOSTILE}", "input_schema": HELD_BY_NONE}],
        }),
        "responses": ("/v1/responses", {
            "input": "hi", "max_output_tokens": 1,
            "tools": [{"type": "function", "name": f"t{HOSTILE}", "parameters": HELD_BY_NONE}],
        }),
    }[dialect]  # fmt: skip
    status, headers, _ = asked(port, fields, path=path)
    assert status in (200, 400)
    assert (status == 400) or "ta??Set-Cookie" in headers["x-oxillama-warnings"]
