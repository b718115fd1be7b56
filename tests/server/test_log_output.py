"""Log of the command: it never holds up the server, tells what it lost, and has no content."""

import contextlib
import http.client
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from oxillama.errors import ThreadStartError
from oxillama.server import log_output
from oxillama.server.log_output import LOSSES, LineFormatter, LogOutput, log_to, unblocked
from tests.server.client import HI, connected

LOST = re.compile(rb"(\d+) lines of the log were lost here: nothing took them\n")


def eventually(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def read_all(descriptor, seconds=2.0):
    """What comes until nothing more does."""
    received = b""
    while select.select([descriptor], [], [], seconds)[0] and (piece := os.read(descriptor, 1 << 16)):
        received += piece
    return received


def test_texts_come_whole_and_in_order(pipe):
    output = LogOutput(pipe[1])
    for i in range(1000):
        output.write(f"line {i} é\n")
    output.close()
    assert read_all(pipe[0], 0.1).decode() == "".join(f"line {i} é\n" for i in range(1000))


def test_a_pipe_that_is_not_read_takes_what_there_is_room_for(pipe):
    """And no more is kept; the place where lines are missing says how many."""
    before = LOSSES.n_lines
    output = LogOutput(pipe[1], most=1 << 17)
    line = "x" * 99 + "\n"
    for _ in range(20000):
        output.write(line)
    assert output._n_bytes <= 1 << 17
    lost = LOSSES.n_lines - before
    assert lost > 10000
    received = read_all(pipe[0], 0.3)
    output.write("after\n")
    received += read_all(pipe[0], 0.3)
    assert sum(map(int, LOST.findall(received))) == lost
    assert received.count(line.encode()) == 20000 - lost
    assert received.endswith(b"nothing took them\nafter\n")
    output.close()


def test_a_pipe_whose_reader_is_gone_loses_lines(pipe):
    before = LOSSES.n_lines
    output = LogOutput(pipe[1], most=1000)
    os.close(pipe[0])
    for _ in range(100):
        output.write("x" * 99 + "\n")
    output.close()
    assert LOSSES.n_lines - before >= 100
    before = LOSSES.n_lines
    output.write("late\n")
    assert LOSSES.n_lines - before == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a full disk")
def test_a_full_disk_loses_lines():
    before = LOSSES.n_lines
    descriptor = os.open("/dev/full", os.O_WRONLY)
    output = LogOutput(descriptor, most=1000)
    for _ in range(100):
        output.write("x" * 99 + "\n")
    output.close()
    assert LOSSES.n_lines - before >= 100
    os.close(descriptor)


def test_a_descriptor_that_another_process_made_non_blocking(pipe):
    os.set_blocking(pipe[1], False)
    output = LogOutput(pipe[1])
    line = "x" * 99 + "\n"
    for _ in range(5000):
        output.write(line)
    assert read_all(pipe[0], 1.0) == line.encode() * 5000
    output.close()


def test_long_texts_are_cut(pipe):
    output = LogOutput(pipe[1])
    threading.Thread(target=output.write, args=("x" * (1 << 20) + "\n",)).start()
    assert eventually(lambda: output._n_bytes)
    assert read_all(pipe[0], 0.5) == b"x" * (1 << 18) + b"...\n"
    output.close()


def test_standard_output_and_error_are_given_back(pipe, monkeypatch):
    with open(pipe[1], "w", closefd=False) as file:
        monkeypatch.setattr(sys, "stderr", file)
        with unblocked():
            assert isinstance(sys.stderr, LogOutput)
            assert (sys.stderr.encoding.lower(), sys.stderr.isatty(), sys.stderr.fileno()) == ("utf-8", False, pipe[1])
            print("a \ud800", file=sys.stderr)
        assert sys.stderr is file
    assert read_all(pipe[0], 0.1) == b"a \\ud800\n"
    monkeypatch.setattr(sys, "stderr", None)
    with unblocked(), log_to(sys.stderr, "info", False):
        logging.getLogger("oxillama").warning("to nowhere")


def formatted(record_of, **options):
    formatter = LineFormatter(**options)
    try:
        record_of()
    except Exception:
        record = logging.LogRecord("oxillama", logging.ERROR, "f.py", 1, "it failed", (), sys.exc_info())
    return formatter.format(record)


def test_lines_of_the_log_stay_lines():
    record = logging.LogRecord(
        "oxillama", logging.INFO, "f.py", 1, "a\r\n2026 INFO b\x1b[2J\u202e\u2028é %s", ("\0",), None
    )
    line = LineFormatter().format(record)
    assert line.endswith("INFO oxillama: a\\r\\n2026 INFO b\\x1b[2J\\u202e\\u2028é \\x00")
    assert line.isprintable()


def test_tracebacks_have_places_and_no_messages():
    def inner():
        raise KeyError("a secret prompt")

    def outer():
        try:
            inner()
        except KeyError as error:
            raise json.JSONDecodeError("a secret text", "more", 1) from error

    text = formatted(outer)
    assert "secret" not in text.replace('raise KeyError("a secret prompt")', "").replace(
        'raise json.JSONDecodeError("a secret text", "more", 1) from error', ""
    )
    assert text.index("KeyError: its message is left out") < text.index("json.decoder.JSONDecodeError: its message")
    assert "in inner" in text
    assert "a secret text" in formatted(outer, shows_content=True).splitlines()[-1]


def test_long_tracebacks_are_cut():
    def deep(n):
        return deep(n - 1) + 1 if n else {}["x"]

    def chained(n):
        try:
            if n:
                chained(n - 1)
            raise KeyError
        except KeyError:
            raise ValueError  # noqa: B904

    assert formatted(lambda: deep(500)).count("in deep") <= 24
    assert formatted(lambda: chained(50)).count("Traceback") <= 4


def start(stderr, *flags, prefix=""):
    code = f"{prefix}\nimport sys\nfrom oxillama.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "-t", "1", *flags]
    return subprocess.Popen(command, stderr=stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})


def port_in(process, read):
    text = b""
    while (found := re.search(rb"listening on http://127.0.0.1:(\d+)\n", text)) is None:
        assert process.poll() is None, text
        text += read()
    return int(found[1])


def asked(port, n):
    """Statuses of so many requests."""
    found = set()
    for _ in range(n):
        connection = connected(port)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health?" + "x" * 100)
            found.add(connection.getresponse().status)
    return found


def text_of_metrics(port):
    connection = connected(port)
    connection.request("GET", "/metrics")
    with contextlib.closing(connection):
        return connection.getresponse().read().decode()


@pytest.mark.parametrize("closed", [False, True])
def test_a_server_whose_log_is_not_read_answers(pipe, closed):
    """What a pipe and the room for what waits don't hold is counted by the metrics, and it ends as ever."""
    process = start(
        pipe[1],
        prefix="import oxillama.server.log_output as it\nit.LogOutput.__init__.__defaults__ = ('utf-8', 1 << 16)",
    )
    try:
        os.close(pipe[1])
        port = port_in(process, lambda: os.read(pipe[0], 1))
        if closed:
            os.close(pipe[0])
        connection = connected(port)
        statuses = set()
        for _ in range(2000):
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            statuses.add(response.status)
        connection.close()
        assert statuses == {200}
        assert int(re.search(r"^oxillama_log_lines_lost_total (\d+)$", text_of_metrics(port), re.MULTILINE)[1]) > 100
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a full disk")
def test_a_server_with_a_full_disk_answers(tmp_path):
    path = str(tmp_path / "socket")
    with open("/dev/full", "wb") as full:
        process = start(full, "--uds", path)
    try:
        assert eventually(lambda: os.path.exists(path), 60)
        for _ in range(20):
            command = ["curl", "-s", "--unix-socket", path, "http://localhost/health"]
            answer = subprocess.run(command, capture_output=True, check=False, timeout=120).stdout
            assert answer.startswith(b'{"status":')
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_server_without_standard_error_answers(tmp_path):
    path = str(tmp_path / "socket")
    command = f"exec {sys.executable} -m oxillama serve -t 1 --uds {path} 2>&-"
    process = subprocess.Popen(["sh", "-c", command])
    try:
        assert eventually(lambda: os.path.exists(path), 60)
        command = ["curl", "-s", "--unix-socket", path, "http://localhost/health"]
        assert subprocess.run(command, capture_output=True, check=False, timeout=120).stdout.startswith(b'{"status":')
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


FAULTS = """
import oxillama.server.respond as generating
async def broken(self):
    import warnings
    warnings.warn("a warning of Python")
    print("something printed")
    raise RuntimeError(f"a secret: {self}")
generating.GenerationRun.next = broken
"""


def test_faults_are_logged_once_a_second_and_without_content(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        process = start(log, prefix=FAULTS)
    try:
        port = port_in(process, lambda: (time.sleep(0.05), (tmp_path / "log").read_bytes())[1])
        began = time.monotonic()
        for _ in range(50):
            connection = connected(port)
            body = json.dumps({"messages": HI, "max_tokens": 2})
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            assert connection.getresponse().status == 500
            connection.close()
        seconds = time.monotonic() - began
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "log").read_text()
    assert "a secret:" not in text.replace('raise RuntimeError(f"a secret: {self}")', "")
    assert 1 <= text.count("Traceback") <= seconds + 1
    assert len(re.findall(r"ERROR oxillama: request req_\w+ failed", text)) == 50
    assert "py.warnings: <string>" in text


@pytest.mark.parametrize("loop", ["default", "asyncio"])
def test_a_server_out_of_descriptors_says_so_once_a_second(tmp_path, loop):
    """And has as many connections as there are descriptors for, which it says when it starts."""
    prefix = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))\n"
    if loop == "asyncio":
        prefix += "import sys\nsys.modules['uvloop'] = None\n"
    with open(tmp_path / "log", "wb") as log:
        process = start(log, prefix=prefix)
    started = time.monotonic()
    try:
        port = port_in(process, lambda: (time.sleep(0.05), (tmp_path / "log").read_bytes())[1])
        assert eventually(lambda: asked(port, 1) == {200})
        began, held = time.monotonic(), []
        while time.monotonic() < began + 2.5:
            made = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with contextlib.suppress(OSError):
                made.connect()
                made.sock.sendall(b"GET /hea")
            held.append(made)
            time.sleep(0.002)
        for made in held:
            made.close()
        assert eventually(lambda: asked(port, 1) == {200}, 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        seconds = time.monotonic() - started
    finally:
        process.kill()
        process.wait()
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("max_connections is 48, of 1000" in line for line in lines) == 1
    assert sum("no connection can be accepted" in line for line in lines) <= seconds + 1
    assert not any("Traceback" in line for line in lines)


def test_no_thread_for_the_log_is_a_typed_error(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(log_output.threading.Thread, "start", start)
    with pytest.raises(ThreadStartError, match="the thread that writes the log"), log_output.unblocked():
        pass
