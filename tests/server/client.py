"""Client of an ASGI application without sockets, and servers on real ones."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from dataclasses import dataclass

from oxillama.server import create_app
from oxillama.server.config import ServerConfig
from oxillama.server.serve import ServerProcess
from oxillama.server.sockets import listening

HI = [{"role": "user", "content": "hi"}]


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    @property
    def events(self):
        """(name, data) of each event of a stream; comments are left out."""
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in lines:
                data = lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])
                found.append((lines.get("event"), data))
        return found

    @property
    def lines(self):
        """The objects of a stream that has one a line."""
        assert self.headers["content-type"] == "application/x-ndjson"
        assert self.body.endswith(b"\n")
        return [json.loads(line) for line in self.body.decode().split("\n")[:-1]]


class Client:
    """Calls an application as a server would."""

    def __init__(self, app, **headers):
        self.app, self.headers = app, headers

    def get(self, path, **headers):
        return self.call("GET", path, b"", headers)

    def post(self, path, body=None, headers=None, **fields):
        data = body if isinstance(body, bytes) else json.dumps(fields if body is None else body).encode()
        return self.call("POST", path, data, {"content-type": "application/json", **(headers or {})})

    def call(self, method, path, body=b"", headers=None):
        return asyncio.run(self.acall(method, path, body, headers or {}))

    async def acall(self, method, path, body, headers, *, leave_after=None, pieces=None, peer="127.0.0.1"):
        """leave_after: messages of the answer after which the client leaves. pieces: the body as it comes. peer: the
        client's address."""
        known = {"host": "localhost", **self.headers, **headers}
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in known.items()],
            "root_path": "", "http_version": "1.1", "scheme": "http", "client": (peer, 1),
            "server": ("localhost", 80),
        }  # fmt: skip
        parts = pieces or [body]
        sent, gone = [], asyncio.Event()

        async def receive():
            if parts:
                part = parts.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(parts)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if leave_after is not None and len(sent) >= leave_after:
                gone.set()
                await asyncio.sleep(0)

        if leave_after == 0:
            gone.set()
        await self.app(scope, receive, send)
        if not sent:
            return None
        headers = {k.decode(): v.decode("latin-1") for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent))


@contextlib.contextmanager
def serving(engines, **settings):
    """(server, port) of a server in a thread of its own."""
    config = ServerConfig(port=0, **settings)
    with listening(config) as made:
        server = ServerProcess(create_app(engines, config), config)
        thread = threading.Thread(target=server.serve_on, args=(made,))
        port = None if config.uds else made.getsockname()[1]
        thread.start()
        try:
            yield server, port
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def connected(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=120)


def raw(port, data, timeout=120.0):
    """A socket on which data were sent."""
    made = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    made.sendall(data)
    return made


def request_bytes(path, body, *, extra=""):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{extra}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def until(condition, seconds=60.0):
    """Whether a condition comes to hold, while the event loop goes on."""
    end = asyncio.get_running_loop().time() + seconds
    while not condition() and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.01)
    return bool(condition())
