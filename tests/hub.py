"""A stand-in for the Hub on this machine."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from oxillama.core.loading import shipped_model

COMMIT = "c0ffee" + "0" * 34


class Hub(BaseHTTPRequestHandler):
    """What a download asks of the Hub: the file's size, hash and commit by HEAD, then its bytes by GET."""

    files: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        self.requests.append(f"{self.command} {self.path}")
        data = self.files.get(self.path)
        if self.path.startswith("/owner/locked/"):
            self.reply(403, b"", {}, body)
            return
        if data is None:
            known_repo = self.path.startswith("/owner/model/")
            code = "EntryNotFound" if known_repo else "RepoNotFound"
            if known_repo and "/resolve/main/" not in self.path:
                code = "RevisionNotFound"
            self.reply(404, b"", {"X-Error-Code": code}, body)
            return
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0]
        self.reply(200, data[int(start or 0) :], headers, body)

    def reply(self, status, data, headers, body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving():
    """The address of a server with the shipped model and a file that is none."""
    with open(shipped_model(), "rb") as f:
        Hub.files = {"/owner/model/resolve/main/tiny.gguf": f.read(), "/owner/model/resolve/main/bad.gguf": b"junk"}
    Hub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def answer_of(script, endpoint, home, offline, arguments):
    """What a script prints in its last line, as JSON, in a process that has this stand-in for the Hub alone."""
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
    env |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(arguments)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
