"""Connections of both implementations of HTTP: half-closed ones, requests in one piece, refusals that arrive."""

import asyncio
import collections
import contextlib
import http.client
import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
import urllib.request

import pytest
import uvicorn

from oxillama.server import protocol
from tests.server.client import HI, raw, request_bytes, serving

CHAT = "/v1/chat/completions"
SHORT = {"messages": HI, "max_tokens": 12, "seed": 1}
LONG = {"messages": HI, "max_tokens": 900, "ignore_eos": True, "seed": 1}
MOST = 4096  # bytes of headers


def eventually(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


@pytest.fixture(scope="module", params=["httptools", "h11"])
def implementation(request):
    """Both protocols, each on the event loop that it comes with."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "httptools":
            pytest.importorskip("httptools")
            pytest.importorskip("uvloop")
        else:
            from uvicorn.protocols.http.h11_impl import H11Protocol

            patch.setattr(protocol, "base_protocol", lambda: H11Protocol)
            patch.setattr(uvicorn.Config, "get_loop_factory", lambda self: asyncio.SelectorEventLoop)
        yield request.param


@pytest.fixture(scope="module")
def served(implementation, engine):
    with serving(
        {"tiny": engine}, keep_alive=1.0, header_timeout=1.0, body_timeout=1.0, max_headers=MOST, stall_timeout=1.0
    ) as it:
        yield it


def all_of(made):
    """What comes until the server closes."""
    received = b""
    while piece := made.recv(1 << 16):
        received += piece
    made.close()
    return received


def head(path="/health", extra="", version="1.1"):
    return f"GET {path} HTTP/{version}\r\nHost: localhost\r\n{extra}\r\n".encode()


def statuses(received):
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def is_idle(server, engine):
    metrics = engine.metrics_snapshot()
    return not metrics.running and not metrics.waiting and not server._app.service.open


# ---- clients that shut their side down


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_its_answer(served, engine, stream, version):
    _, port = served
    data = request_bytes(CHAT, SHORT | {"stream": stream}).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    made = raw(port, data)
    made.shutdown(socket.SHUT_WR)
    received = all_of(made)
    assert statuses(received) == [200]
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    if stream:
        assert b"data: [DONE]" in received
    else:
        expected = engine.chat(HI, max_tokens=12, seed=1, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0).text
        assert json.loads(received.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == expected


def test_a_half_closed_client_gets_the_answers_to_all_its_requests(served):
    _, port = served
    made = raw(port, request_bytes(CHAT, SHORT) + head("/version") + head("/nothing"))
    made.shutdown(socket.SHUT_WR)
    assert statuses(all_of(made)) == [200, 200, 404]


@pytest.mark.parametrize("data", [b"", b"GET /hea", head()[:-2], request_bytes(CHAT, SHORT)[:-3]])
def test_a_client_that_shuts_its_side_within_a_request_is_closed(served, data):
    _, port = served
    made = raw(port, data)
    made.shutdown(socket.SHUT_WR)
    assert all_of(made) == b""


@pytest.mark.parametrize("wait", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_ends_after_it_has_shut_its_side_ends_its_request(served, engine, stream, wait):
    server, port = served
    before = engine.metrics_snapshot().finished["cancelled"]
    made = raw(port, request_bytes("/v1/completions", LONG_TEXT | {"stream": stream}))
    assert eventually(lambda: engine.metrics_snapshot().running > 0)
    made.shutdown(socket.SHUT_WR)
    time.sleep(wait)
    if engine.metrics_snapshot().running:
        made.close()
        assert eventually(lambda: is_idle(server, engine))
        assert engine.metrics_snapshot().finished["cancelled"] > before


LONG_TEXT = {"prompt": ["a"] * 16, "n": 8, "max_tokens": 900, "ignore_eos": True}


def test_a_client_that_leaves_before_its_turn_gives_its_place_back(implementation, engine):
    with serving({"tiny": engine}, max_running=1) as (server, port):
        first = raw(port, request_bytes("/v1/completions", LONG_TEXT))
        assert eventually(lambda: server._app.service.gate.running == 1)
        for stream in (False, True):
            waiting = raw(port, request_bytes(CHAT, SHORT | {"stream": stream}))
            assert eventually(lambda: server._app.service.gate.waiting == 1)
            waiting.close()
            assert eventually(lambda: server._app.service.gate.waiting == 0)
        first.close()
        assert eventually(lambda: is_idle(server, engine))


def test_a_reset_connection_ends_its_request(served, engine):
    server, port = served
    made = raw(port, request_bytes("/v1/completions", LONG_TEXT))
    assert eventually(lambda: engine.metrics_snapshot().running > 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
    assert eventually(lambda: is_idle(server, engine))


def test_clients_of_a_unix_socket_are_told_apart(implementation, engine, tmp_path):
    path = str(tmp_path / "s")

    def asked(fields):
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(30)
        made.connect(path)
        made.sendall(request_bytes("/v1/completions", fields))
        return made

    with serving({"tiny": engine}, uds=path) as (server, _):
        half = asked({"prompt": "a", "max_tokens": 2})
        half.shutdown(socket.SHUT_WR)
        assert statuses(all_of(half)) == [200]
        gone = asked(LONG_TEXT)
        assert eventually(lambda: engine.metrics_snapshot().running > 0)
        gone.close()
        assert eventually(lambda: is_idle(server, engine))


@pytest.mark.skipif(shutil.which("nc") is None, reason="nc asks")
def test_netcat_gets_its_answer(served):
    _, port = served
    command = ["nc", "-N", "127.0.0.1", str(port)]
    done = subprocess.run(command, input=request_bytes(CHAT, SHORT), capture_output=True, timeout=120, check=False)
    assert statuses(done.stdout) == [200]


# ---- headers


@pytest.mark.parametrize("n", [MOST // 2, MOST, 2 * MOST, 8 * MOST])
@pytest.mark.parametrize("before", [b"", head(), request_bytes("/nothing", {"a": "b"})])
def test_headers_that_come_in_one_piece_are_measured(served, before, n):
    _, port = served
    made = raw(port, before + head(extra=f"Connection: close\r\nX-Long: {'x' * n}\r\n"))
    assert statuses(all_of(made))[-1] == (200 if n < MOST else 431)


@pytest.mark.parametrize("kind", ["many", "path", "query", "blank"])
def test_all_of_the_headers_counts(served, kind):
    _, port = served
    long = {
        "many": head(extra="".join(f"x-{i}: {'y' * 100}\r\n" for i in range(60)) + "Connection: close\r\n"),
        "path": head("/" + "x" * MOST, extra="Connection: close\r\n"),
        "query": head("/health?" + "x" * MOST, extra="Connection: close\r\n"),
        "blank": head(extra="X-Blank:" + " " * 2 * MOST + "x\r\nConnection: close\r\n"),
    }[kind]
    assert statuses(all_of(raw(port, long))) == [431]


def test_exactly_the_bytes_that_are_allowed_are_taken(served):
    _, port = served
    bare = head(extra="Connection: close\r\nX: \r\n")
    for more, status in ((0, 200), (1, 431)):
        made = raw(port, bare.replace(b"X: ", b"X: " + b"x" * (MOST - len(bare) + more)))
        assert statuses(all_of(made)) == [status]


def test_headers_that_come_slowly_or_never_end_are_refused(served):
    """Also behind a request that was answered before its body came."""
    _, port = served
    early = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n"
    for before in (b"", early + b"abc"):
        made = raw(port, before + b"GET / HTTP/1.1\r\nX-Slow: ")
        assert statuses(all_of(made))[-1] == (404 if before else 408)
        made = raw(port, before + b"GET / HTTP/1.1\r\nX-Long: ")
        with contextlib.suppress(OSError):
            for _ in range(1000):
                made.sendall(b"x" * 1000)
        with contextlib.suppress(ConnectionResetError):
            assert statuses(all_of(made))[-1] == 431


# ---- requests that come together


def test_requests_that_come_together_are_answered_in_order(served):
    _, port = served
    last = head(extra="Connection: close\r\n")
    made = raw(port, head("/version") + request_bytes(CHAT, SHORT) + head("/nothing") + last)
    received = all_of(made)
    assert statuses(received) == [200, 200, 404, 200]
    assert received.index(b'"tier"') < received.index(b"chat.completion") < received.index(b"unknown_url")


def test_a_flood_of_requests_waits_in_the_connection(served):
    """Few are parsed ahead of their turn, and as few bytes as may wait are read."""
    server, port = served
    made = raw(port, b"", timeout=0.3)
    sent, data = 0, head("/version") * 20000
    with contextlib.suppress(TimeoutError):
        while sent < 32 << 20:
            sent += made.send(data)
    (connection,) = list(server.server_state.connections)
    assert len(getattr(connection, "pipeline", ())) < 4096 // len(head()) + 2
    assert len(connection._held) < 1 << 19
    assert sent < 32 << 20
    made.close()
    assert eventually(lambda: not server.server_state.connections)


def test_what_is_no_request_is_refused_after_the_answers_before_it(served):
    _, port = served
    made = raw(port, request_bytes(CHAT, SHORT) + b"nonsense\r\n\r\n")
    received = all_of(made)
    assert statuses(received) == [200, 400]
    assert b"chat.completion" in received


def test_a_client_that_leaves_ends_all_requests_that_it_sent(served, engine):
    server, port = served
    request = request_bytes("/v1/completions", LONG_TEXT)
    made = raw(port, request + request)
    assert eventually(lambda: engine.metrics_snapshot().running > 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
    assert eventually(lambda: is_idle(server, engine))


# ---- answers that arrive


def test_a_client_that_sends_too_much_gets_to_know(implementation, engine):
    with serving({"tiny": engine}, max_body=1024) as (_, port):
        for chunked in (False, True):
            body = json.dumps({"prompt": "x" * (4 << 20)}).encode()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                given = iter([body[i : i + 65536] for i in range(0, len(body), 65536)]) if chunked else body
                connection.request("POST", CHAT, given, {"Content-Type": "application/json"}, encode_chunked=chunked)
            assert connection.getresponse().status == 413
            connection.close()


def test_a_hundred_requests_at_once_are_answered(implementation, engine):
    """All of one client, on as many connections."""
    with serving({"tiny": engine}, max_running=4) as (_, port):
        found = collections.Counter()

        def ask(i):
            data = json.dumps(SHORT | {"stream": bool(i % 2), "max_tokens": 2}).encode()
            url = f"http://127.0.0.1:{port}{CHAT}"
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
                found[answer.status] += 1

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(130)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {200: 130}


def test_connections_beyond_the_limit_are_told_so(implementation, engine):
    """They have sent their request, as clients do, before the answer comes."""
    with serving({"tiny": engine}, max_connections=4) as (_, port):
        held = [raw(port, b"G") for _ in range(4)]
        time.sleep(0.1)
        for _ in range(8):
            made = raw(port, request_bytes(CHAT, LONG))
            received = all_of(made)
            assert statuses(received) == [503]
            assert b"\r\nretry-after: 1\r\n" in received
        for made in held:
            made.close()


def test_clients_behind_a_trusted_proxy_have_limits_of_their_own(implementation, engine):
    with serving({"tiny": engine}, max_peer_connections=2, trusted_proxy=("127.0.0.0/8",)) as (server, port):

        def asked(address):
            return raw(port, request_bytes("/v1/completions", LONG_TEXT, extra=f"X-Forwarded-For: {address}\r\n"))

        one = [asked("6.6.6.6, 203.0.113.1") for _ in range(2)]
        assert eventually(lambda: len(server._app.service.open) == 2)
        refused = asked("203.0.113.2, 203.0.113.1")
        assert refused.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        other = asked("203.0.113.1, 203.0.113.2")
        assert eventually(lambda: len(server._app.service.open) == 3)
        for made in (*one, refused, other):
            made.close()
        assert eventually(lambda: is_idle(server, engine))
        assert server._app.service.forwarded.number("203.0.113.1") == 0


def test_a_client_that_reads_nothing_of_whole_answers_is_cut_off(served):
    server, port = served
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", port))
    made.setblocking(False)
    data = head("/openapi.json") * 400
    with contextlib.suppress(BlockingIOError):
        while data:
            data = data[made.send(data) :]
    assert eventually(lambda: server.server_state.connections)
    assert eventually(lambda: not server.server_state.connections, 30)
    made.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl asks")
def test_curl_in_parallel(served):
    _, port = served
    urls = [f"http://127.0.0.1:{port}{path}" for path in ("/version", "/v1/models")] * 60
    command = ["curl", "-s", "-Z", "--parallel-immediate", "--parallel-max", "100", "-w", "%{http_code}\n"]
    command += [word for url in urls for word in ("-o", "/dev/null", url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert collections.Counter(done.stdout.split()) == {"200": 120}


def test_an_upgrade_that_is_not_made_changes_nothing(served):
    """As clients send it that know HTTP/2: the request is answered as one of HTTP/1.1, with its body."""
    _, port = served
    extra = "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    data = request_bytes(CHAT, SHORT | {"metadata": {str(i): "x" * 500 for i in range(16)}}, extra=extra)
    at = data.index(b"\r\n\r\n") + 4
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data) - at, data[at:])
    chunked = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", data[:at]) + body
    for whole in (data, chunked):
        for cut in (0, at - 2, at, at + 5):
            made = raw(port, whole[:cut])
            time.sleep(0.01)
            made.sendall(whole[cut:])
            received = all_of(made)
            assert statuses(received) == [200]
            assert b"chat.completion" in received
    assert statuses(all_of(raw(port, head(extra=extra)))) == [200]


@pytest.mark.parametrize("before", [b"", head()])
def test_a_body_whose_end_is_told_twice_is_refused_and_nothing_behind_it_is_read(served, before):
    """A proxy may have taken the other one for its end, and the rest for a request of another client."""
    _, port = served
    both = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"
    start = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{both}\r\n0\r\n\r\n"
    received = all_of(raw(port, before + start.encode() + head("/version")))
    assert statuses(received) == [200] * bool(before) + [400]


CHUNKED = (
    "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_body_that_breaks_off_spoils_no_answer_before_it(served, n, cut):
    """All in one piece, or the broken part by itself."""
    _, port = served
    before = (head("/nothing") + request_bytes(CHAT, SHORT) + head("/version"))[: 1 << 20] * n
    for broken in ("zz\r\n", "3\r\nabcd", "5\r\n"):
        data = before + CHUNKED.encode() + broken.encode()
        made = raw(port, data[: len(data) - cut * len(broken)])
        time.sleep(0.05 * cut)
        made.sendall(data[len(data) - cut * len(broken) :])
        ends = broken == "5\r\n"  # here the client ends in the middle, where no answer is due
        if ends:
            made.shutdown(socket.SHUT_WR)
        assert statuses(all_of(made)) == [404, 200, 200] * n + [400] * (not ends)


OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
INNER = head("/inner")  # a request that stands in a body is none


def tokenize(n, extra="", chunks=0):
    """A request for the tokens of a text of its own, and their number."""
    body = json.dumps({"prompt": f"{n}", "add_special_tokens": False}).encode()
    if not chunks:
        start = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {n}\r\nContent-Type: application/json\r\n"
        return f"{start}{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body
    start = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {n}\r\nContent-Type: application/json\r\n"
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + chunks]), body[i : i + chunks])
                      for i in range(0, len(body), chunks))  # fmt: skip
    return f"{start}{extra}Transfer-Encoding: chunked\r\n\r\n".encode() + pieces + b"0\r\n\r\n"


def offering(kind, n, extra):
    """A request of a kind with further headers, and the status of its answer."""
    own = f"{extra}X-Request-Id: {n}\r\n"
    inner = f"POST /none HTTP/1.1\r\nHost: localhost\r\n{own}Content-Length: {len(INNER)}\r\n\r\n".encode() + INNER
    return {
        "get": (head(extra=own), 200),
        "unknown": (head("/none", extra=own), 404),
        "empty": (f"POST /none HTTP/1.1\r\nHost: localhost\r\n{own}Content-Length: 0\r\n\r\n".encode(), 404),
        "body": (tokenize(n, extra), 200),
        "chunked": (tokenize(n, extra, chunks=3), 200),
        "inner": (inner, 404),
    }[kind]


@pytest.mark.parametrize("cut", [1, 7, 100, 4096, 1 << 20])
def test_requests_that_offer_another_protocol_are_answered_each(served, cut):
    """In order, each with its own body, beside those that offer none, however they arrive; also behind an error."""
    _, port = served
    kinds = ("get", "unknown", "empty", "body", "chunked", "inner")
    pairs = [(a, b) for a in kinds for b in kinds]
    asked = [offering(kind, f"{i}-{j}", OFFER if i % 2 == j else "") for i, pair in enumerate(pairs)
             for j, kind in enumerate(pair)]  # fmt: skip
    asked += [offering(kind, f"all-{i}", OFFER) for i, kind in enumerate(kinds * 4)]
    data = b"".join(request for request, _ in asked)
    made = raw(port, b"")
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(data), cut):
        made.sendall(data[start : start + cut])
    made.shutdown(socket.SHUT_WR)
    received = all_of(made)
    assert statuses(received) == [status for _, status in asked]
    expected = [re.search(rb"X-Request-Id: (\S+)", request)[1] for request, _ in asked]
    assert re.findall(rb"x-request-id: (\S+)", received) == expected


def test_many_small_offers_in_one_piece(served):
    _, port = served
    offer = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    made = raw(port, tokenize("first", OFFER) + offer * 500)
    made.shutdown(socket.SHUT_WR)
    assert statuses(all_of(made)) == [200] * 501
