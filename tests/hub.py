"""A stand-in for the Hub on this machine."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import quote, unquote, urlsplit

from oxillama.core.loading import shipped_model

COMMIT = "c0ffee" + "0" * 34
OTHER = "0ff1ce" + "0" * 34  # a commit whose files are those of the branch `other`
TOKEN = "hf_" + "x" * 20
PIECE = 1 << 16


class Hub(BaseHTTPRequestHandler):
    """Requests of downloads, answered: a repository's files; a file's size, hash and commit by HEAD; its bytes by GET.

    files: bytes by path, or a number of bytes that are all zero. faults: what becomes of the next requests for a path,
    one after another: ("cut", n) ends the connection after n bytes, ("status", code, headers) refuses, ("wrong",) sends
    other bytes, ("whole",) knows no ranges, ("redirect", site) leads elsewhere, ("slow", seconds) waits before each
    piece.
    """

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes | int]] = {}
    faults: ClassVar[dict[str, list[tuple]]] = {}
    extra: ClassVar[list[str]] = []  # names that the list of owner/model has beside its files
    requests: ClassVar[list[str]] = []
    ranges: ClassVar[list[str]] = []
    tokens: ClassVar[list[str | None]] = []
    n_sent: ClassVar[int] = 0

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = unquote(urlsplit(self.path).path)
        Hub.requests.append(f"{self.command} {path}")
        Hub.tokens.append(self.headers.get("Authorization"))
        fault = self.faults[path].pop(0) if body and self.faults.get(path) else ("none",)
        if not self.open_to(path):
            return self.reply(*self.closed(path), body)
        if fault[0] == "status":
            return self.reply(fault[1], b"", dict(fault[2]), body)
        if path.startswith("/api/models/"):
            return self.listing(path.removeprefix("/api/models/"), body)
        found = path.replace(f"/resolve/{COMMIT}/", "/resolve/main/").replace(f"/resolve/{OTHER}/", "/resolve/other/")
        if path.startswith("/blobs/"):
            found = path.removeprefix("/blobs")
        data = self.files.get(found)
        if data is None:
            known_repo = path.startswith("/owner/model/")
            code = "EntryNotFound" if known_repo else "RepoNotFound"
            if known_repo and "/resolve/main/" not in path:
                code = "RevisionNotFound"
            return self.reply(404, b"", {"X-Error-Code": code}, body)
        if fault[0] == "redirect":
            return self.reply(302, b"", {"Location": f"{''.join(fault[1:])}/blobs{quote(found)}"}, body)
        return self.file(found, data, fault, body)

    def open_to(self, path):
        gated = path.startswith(
            ("/owner/gated/resolve/", "/owner/locked/", "/owner/private/", "/api/models/owner/private")
        )
        return not gated or (self.headers.get("Authorization") == f"Bearer {TOKEN}" and "/locked/" not in path)

    def closed(self, path):
        if path.startswith("/owner/locked/"):
            return 403, b"", {}
        return 401, b"", {"X-Error-Code": "GatedRepo" if "/gated/" in path else "RepoNotFound"}

    def listing(self, repo, body):
        repo, tree, revision = repo.partition("/tree/")
        if not tree:
            repo, _, revision = repo.partition("/revision/")
        start = f"/{repo}/resolve/{revision or 'main'}/".replace(f"/{COMMIT}/", "/main/")
        found = {path.removeprefix(start): data for path, data in self.files.items() if path.startswith(start)}
        if not found:
            known = any(path.startswith(f"/{repo}/") for path in self.files)
            return self.reply(404, b"", {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"}, body)
        if tree:
            names = [*found, *(Hub.extra if repo == "owner/model" else [])]
            listed = [{"type": "file", "oid": "0" * 40, "size": size_of(found.get(n, 0)), "path": n} for n in names]
            return self.reply(200, json.dumps(listed).encode(), {"Content-Type": "application/json"}, body)
        siblings = [
            {"rfilename": name, "size": size_of(data), "blobId": "0" * 40,
             "lfs": {"sha256": hash_of(data), "size": size_of(data), "pointerSize": 134}}
            for name, data in found.items()
        ] + [{"rfilename": name} for name in (Hub.extra if repo == "owner/model" else [])]  # fmt: skip
        listed = {"id": repo, "modelId": repo, "sha": OTHER if revision == "other" else COMMIT, "siblings": siblings,
                  "private": False, "downloads": 0, "tags": []}  # fmt: skip
        return self.reply(200, json.dumps(listed).encode(), {"Content-Type": "application/json"}, body)

    def file(self, path, data, fault, body):
        size = size_of(data)
        commit = OTHER if "/resolve/other/" in path else COMMIT
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hash_of(data)}"', "Accept-Ranges": "bytes"}
        given = self.headers.get("Range")
        start = int(given.removeprefix("bytes=").split("-")[0]) if given and fault[0] != "whole" else 0
        if body:
            Hub.ranges.append(given or "")
        if start >= size > 0 and given:
            return self.reply(416, b"", {"Content-Range": f"bytes */{size}"}, body)
        if start:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        self.send_response(206 if start else 200)
        for name, value in {**headers, "Content-Length": str(size - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.pieces(data, start, fault)
        return None

    def pieces(self, data, start, fault):
        end = min(size_of(data), start + fault[1]) if fault[0] == "cut" else size_of(data)
        with contextlib.suppress(ConnectionError):
            for at in range(start, end, PIECE):
                n = min(PIECE, end - at)
                piece = bytes(n) if isinstance(data, int) else data[at : at + n]
                if fault[0] == "wrong":
                    piece = bytes(b ^ 0x55 for b in piece)
                if fault[0] == "slow":
                    time.sleep(fault[1])
                self.wfile.write(piece)
                Hub.n_sent += n
        if fault[0] == "cut":
            self.close_connection = True
            self.connection.close()

    def reply(self, status, data, headers, body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args):
        pass

    def finish(self):
        with contextlib.suppress(OSError, ValueError):  # of a connection that was cut
            super().finish()


def size_of(data):
    return data if isinstance(data, int) else len(data)


def hash_of(data):
    """The hash of a file; of zeros that are never sent whole, another one."""
    return hashlib.sha256(b"zeros %d" % data if isinstance(data, int) else data).hexdigest()


def put(name, data, repo="owner/model", revision="main"):
    """Adds a file to a repository."""
    Hub.files[f"/{repo}/resolve/{revision}/{name}"] = data


def fail(name, *faults, repo="owner/model", revision="main"):
    """Faults of the next requests for the bytes of a file."""
    Hub.faults[f"/{repo}/resolve/{revision}/{name}"] = list(faults)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Clients leave, and connections are cut, on purpose."""


@contextlib.contextmanager
def serving():
    """The address of a server with the shipped model and a file that is none."""
    with open(shipped_model(), "rb") as f:
        Hub.files = {"/owner/model/resolve/main/tiny.gguf": f.read(), "/owner/model/resolve/main/bad.gguf": b"junk"}
    Hub.requests, Hub.ranges, Hub.tokens, Hub.faults, Hub.extra, Hub.n_sent = [], [], [], {}, [], 0
    server = Server(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def environment(endpoint, home, offline=False, **more):
    """Variables of a process that has this stand-in for the Hub alone, and a home folder of its own."""
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
    env |= {
        "HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OXILLAMA_MODELS": str(home / "store"),
        "OLLAMA_MODELS": str(home / "ollama"),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    return env | more


def answer_of(script, endpoint, home, offline, arguments):
    """Last line that a script prints, as JSON, in a process that has this stand-in for the Hub alone."""
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(arguments)],
        env=environment(endpoint, home, offline), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
