"""Servers on real sockets: clients that leave, don't read, or are slow, and the end of a server."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from oxillama.errors import ConfigError
from oxillama.server import ServerConfig
from oxillama.server.peers import Peers
from oxillama.server.sockets import bound
from tests.server.client import HI, connected, raw, request_bytes, serving

LONG = {"messages": HI, "max_tokens": 900, "ignore_eos": True, "seed": 1}
CHAT = "/v1/chat/completions"


def eventually(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def running(engine):
    metrics = engine.metrics_snapshot()
    return metrics.running + metrics.waiting


@pytest.fixture(scope="module")
def served(engine):
    with serving(
        {"tiny": engine}, header_timeout=1.0, body_timeout=1.0, max_headers=4096, max_peer_connections=20
    ) as it:
        yield it


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request_alone(served, engine, stream):
    _, port = served
    before = engine.metrics_snapshot().finished["cancelled"]
    other = raw(port, request_bytes(CHAT, LONG | {"stream": True, "max_tokens": 300}))
    gone = raw(port, request_bytes(CHAT, LONG | {"stream": stream}))
    assert eventually(lambda: running(engine) == 2)
    gone.close()
    assert eventually(lambda: engine.metrics_snapshot().finished["cancelled"] == before + 1)
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        received += other.recv(1 << 16)
    assert b"data: [DONE]" in received
    other.close()
    assert eventually(lambda: running(engine) == 0)


def test_clients_that_leave_at_any_point(served, engine):
    """Before and within headers and body, and while the answer comes."""
    _, port = served
    data = request_bytes(CHAT, LONG | {"stream": True, "max_tokens": 40})
    for cut in (0, 1, 20, len(data) // 2, len(data) - 1, len(data)):
        made = raw(port, data[:cut])
        made.close()
    for seconds in (0.0, 0.001, 0.003, 0.01, 0.03):
        made = raw(port, data)
        time.sleep(seconds)
        made.close()
    assert eventually(lambda: running(engine) == 0)
    connection = connected(port)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    server, _ = served
    assert eventually(lambda: not server._app.service.open)
    assert server._app.service.gate.running == 0


@pytest.mark.parametrize(("data", "status"), [
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", 408),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Content-Length: 100\r\n\r\n{", 408),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 9000, 431),
    (b"nonsense\r\n\r\n", 400),
])  # fmt: skip
def test_requests_that_never_end(served, data, status):
    _, port = served
    made = raw(port, data)
    head = made.recv(1 << 16)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(head.partition(b"\r\n\r\n")[2] or made.recv(1 << 16))["error"]["type"] == "invalid_request_error"
    made.close()


def test_a_connection_that_says_nothing_is_closed(served):
    _, port = served
    made = raw(port, b"")
    assert made.recv(100) == b""
    made.close()


def test_connections_of_one_address(engine, monkeypatch):
    """Those beyond the limit are told so, also where they have sent a request by then."""
    monkeypatch.setattr(Peers, "_counted_as", lambda self, address: address)  # as if it were another machine
    with serving({"tiny": engine}, max_peer_connections=20) as (_, port):
        held = [raw(port, b"G") for _ in range(20)]
        time.sleep(0.05)
        for _ in range(3):
            refused = raw(port, request_bytes(CHAT, LONG))
            assert received_by(refused).startswith(b"HTTP/1.1 503 ")
            refused.close()
        for made in held:
            made.close()
        connection = connected(port)
        assert eventually(lambda: _answers(connection))
        connection.close()


def received_by(made):
    """All that comes until the server closes."""
    received = b""
    while piece := made.recv(1 << 16):
        received += piece
    return received


def _answers(connection):
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        return response.status == 200
    except OSError:
        connection.close()
        return False


def test_a_connection_serves_one_request_after_another(served):
    _, port = served
    connection = connected(port)
    for i in range(3):
        connection.request(
            "POST", CHAT, json.dumps({"messages": HI, "max_tokens": 2}), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        assert response.status == 200, i
        assert json.loads(response.read())["usage"]["completion_tokens"] == 2
    connection.close()


def test_a_client_that_does_not_read_is_cut_off(engine):
    """And its request with it, while others go on."""
    with serving({"tiny": engine}, stall_timeout=0.5) as (server, port):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", port))
        fields = {"prompt": ["a"] * 16, "n": 8, "max_tokens": 60, "ignore_eos": True, "logprobs": 20, "stream": True}
        made.sendall(request_bytes("/v1/completions", fields))
        assert eventually(lambda: len(server._app.service.open) == 1)
        assert eventually(lambda: not server._app.service.open, 60)
        assert server._app.service.metrics.disconnects == 1
        assert eventually(lambda: running(engine) == 0)
        made.close()


def test_two_servers_on_one_port(served):
    _, port = served
    with pytest.raises(ConfigError, match=f"can't listen on 127.0.0.1 port {port}"):
        bound(ServerConfig(port=port))


def test_a_unix_socket_is_for_its_owner(engine, tmp_path):
    path = str(tmp_path / "s")
    with serving({"tiny": engine}, uds=path):
        assert os.stat(path).st_mode & 0o777 == 0o600
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        made.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert made.recv(100).startswith(b"HTTP/1.1 200")
        made.close()
    assert not os.path.exists(path)


def start(*flags, **environment):
    command = [sys.executable, "-m", "oxillama", "serve", "--port", "0", "-t", "1", *flags]
    known = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=known)


def port_of(process):
    for line in process.stderr:
        if "listening on http" in line:
            return int(line.rsplit(":", 1)[1])
    raise AssertionError(f"it ended with {process.wait()}")


def wait_until_ready(port):
    def is_ready():
        connection = connected(port)
        connection.request("GET", "/ready")
        status = connection.getresponse().status
        connection.close()
        return status == 200

    assert eventually(is_ready, 60)


LISTENS = """
import sys
from oxillama.errors import ConfigError
from oxillama.cli import main
from oxillama.server import sockets

def bound(config):
    heavy = ("numpy", "uvicorn", "starlette", "oxillama.engine", "oxillama.core", "oxillama.models")
    raise ConfigError(f"it listens, with {[name for name in heavy if name in sys.modules]}")

sockets.bound = bound
sys.exit(main(["serve", "--port", "0"]))
"""


def test_the_command_listens_before_it_imports_what_answers():
    """Clients connect at once, and wait until there is something that answers."""
    done = subprocess.run([sys.executable, "-c", LISTENS], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (2, "oxillama: error: it listens, with []\n")


def connected_early(process, path):
    """A connection to a server that listens, and still imports what answers."""
    while process.poll() is None:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(path)
        except OSError:
            made.close()
            time.sleep(0.001)
        else:
            made.settimeout(60)
            return made
    raise AssertionError(f"it ended with {process.wait()}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_before_the_loop_let_clients_be_answered(tmp_path, number):
    path = str(tmp_path / "socket")
    process = start("--uds", path)
    try:
        made = connected_early(process, path)
        made.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        process.send_signal(signal.SIGHUP)
        process.send_signal(number)
        assert made.recv(100).startswith(b"HTTP/1.1 200")
        made.close()
        log = process.communicate(timeout=120)[1]
        assert process.returncode == 0, log
        assert log.index("read the keys again") < log.index("ending: 0 requests")
        assert not os.path.exists(path)
    finally:
        process.kill()
        process.communicate()


def test_a_second_signal_before_the_loop_ends_it_at_once(tmp_path):
    path = str(tmp_path / "socket")
    process = start("--uds", path)
    try:
        made = connected_early(process, path)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=120)[1]
        assert (process.returncode, log) == (0, "")
        assert not os.path.exists(path)
        made.close()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_let_requests_end(number):
    process = start()
    try:
        port = port_of(process)
        wait_until_ready(port)
        made = raw(port, request_bytes(CHAT, LONG | {"stream": True, "n": 8}))
        assert made.recv(100).startswith(b"HTTP/1.1 200")
        process.send_signal(number)
        assert any("ending: 1 requests" in line for line in process.stderr)
        late = connected(port)
        late.request("GET", "/ready")
        assert late.getresponse().status == 503
        late.close()
        received = b""
        while piece := made.recv(1 << 16):
            received += piece
        assert b"data: [DONE]" in received
        assert process.wait(60) == 0
        made.close()
    finally:
        process.kill()
        process.communicate()


def test_a_second_signal_ends_it_at_once():
    process = start("-c", "1024")
    try:
        port = port_of(process)
        wait_until_ready(port)
        fields = {"prompt": ["a"] * 16, "n": 8, "max_tokens": 900, "ignore_eos": True, "stream": True}
        made = raw(port, request_bytes("/v1/completions", fields))
        assert made.recv(100).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGTERM)
        log = iter(process.stderr)
        assert any("ending: 1 requests" in line for line in log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in "".join(log)
        made.close()
    finally:
        process.kill()
        process.communicate()


def test_what_takes_too_long_gets_an_error_event():
    process = start("--drain-timeout", "0.2", "-c", "1024")
    try:
        port = port_of(process)
        wait_until_ready(port)
        fields = {"prompt": ["a"] * 16, "n": 8, "max_tokens": 900, "ignore_eos": True, "stream": True}
        made = raw(port, request_bytes("/v1/completions", fields))
        made.recv(100)
        process.send_signal(signal.SIGTERM)
        received = b""
        while piece := made.recv(1 << 16):
            received += piece
        assert b'"code":"draining"' in received
        assert b"[DONE]" not in received
        assert process.wait(60) == 0
        made.close()
    finally:
        process.kill()
        process.communicate()


def test_keys_are_read_again(tmp_path):
    file = tmp_path / "keys"
    file.write_text("ann:first-secret\n")
    process = start("--api-key-file", str(file))
    try:
        port = port_of(process)

        def status(key):
            connection = connected(port)
            connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            found = connection.getresponse().status
            connection.close()
            return found

        assert (status("first-secret"), status("second-secret")) == (200, 401)
        file.write_text("ann:second-secret\n")
        process.send_signal(signal.SIGHUP)
        assert eventually(lambda: (status("first-secret"), status("second-secret")) == (401, 200))
        file.write_text("damaged")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        assert status("second-secret") == 200
    finally:
        process.terminate()
        _, logged = process.communicate(timeout=120)
    assert "secret" not in logged.replace("--api-key", "")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_certificates_are_read_again(tmp_path):
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    made = ["openssl", "req", "-x509", *curve, "-nodes", "-subj", "/CN=localhost"]
    for name in ("one", "two"):
        files = ["-keyout", tmp_path / f"{name}.key", "-out", tmp_path / f"{name}.crt"]
        subprocess.run([*made, *files], check=True, capture_output=True)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(tmp_path / "one.crt", cert)
    shutil.copy(tmp_path / "one.key", key)
    process = start("--tls-cert", str(cert), "--tls-key", str(key))
    try:
        port = port_of(process)

        def shown():
            return ssl.get_server_certificate(("127.0.0.1", port)).strip()

        assert shown() == (tmp_path / "one.crt").read_text().strip()
        trusted = ssl.create_default_context(cafile=tmp_path / "one.crt")
        connection = http.client.HTTPSConnection("localhost", port, context=trusted, timeout=120)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        shutil.copy(tmp_path / "two.crt", cert)  # without its key
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        assert shown() == (tmp_path / "one.crt").read_text().strip()
        shutil.copy(tmp_path / "two.key", key)
        process.send_signal(signal.SIGHUP)
        assert eventually(lambda: shown() == (tmp_path / "two.crt").read_text().strip())
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_many_clients_at_once(engine):
    """Some leave, and all others get what they would get alone."""
    with serving({"tiny": engine}, max_peer_connections=200) as (server, port):
        alone = {i: engine.chat(HI, max_tokens=12, seed=i, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0).text
                 for i in range(4)}  # fmt: skip
        wrong = []

        def ask(i):
            if i % 3 == 0:
                made = raw(port, request_bytes(CHAT, LONG | {"stream": bool(i % 2)}))
                time.sleep(0.01 * (i % 5))
                made.close()
                return
            connection = connected(port)
            body = json.dumps({"messages": HI, "max_tokens": 12, "seed": i % 4})
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200 or answer["choices"][0]["message"]["content"] != alone[i % 4]:
                wrong.append((i, answer))
            connection.close()

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(48)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert eventually(lambda: running(engine) == 0 and not server._app.service.open)
        assert (server._app.service.gate.running, server._app.service.gate.waiting) == (0, 0)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_unix_socket_takes_the_place_of_nothing_else(tmp_path, kind):
    place = tmp_path / "own"
    (tmp_path / "target").write_text("kept")
    {"file": lambda: place.write_text("kept"), "folder": place.mkdir, "link": lambda: place.symlink_to("target")}[
        kind
    ]()
    with pytest.raises(ConfigError, match="no socket"):
        bound(ServerConfig(uds=str(place)))
    assert os.path.lexists(place)
    assert (tmp_path / "target").read_text() == "kept"
