"""Recorder between an agent and a server: `python -m tests.server.agents.record FILE PORT SERVER_PORT`.

It passes requests on to a server of this machine, and when it is ended by Ctrl-C it writes the shape of the longest
conversation that it saw to FILE. Agents should run without a network (`unshare -n`, with the loopback up), with a
home folder of their own.
"""

import http.client
import http.server
import json
import sys
from pathlib import Path

from tests.server.agents.shapes import shape

FIELDS = {"/v1/messages": "messages", "/v1/responses": "input", "/v1/chat/completions": "messages"}


def recording(seen, upstream):
    """A handler that keeps (path, body) of each conversation's request in `seen`."""

    class Recorder(http.server.BaseHTTPRequestHandler):
        def answer(self):
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            if path in FIELDS and data:
                seen.append((path, json.loads(data)))
            connection = http.client.HTTPConnection("127.0.0.1", upstream)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, data, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1():
                self.wfile.write(piece)
                self.wfile.flush()

        do_GET = do_HEAD = do_POST = do_DELETE = answer

    return Recorder


def longest(seen):
    """The recorded form of the conversation whose last request is the longest."""
    path, whole = max(seen, key=lambda pair: len(pair[1][FIELDS[pair[0]]]))
    field = FIELDS[path]
    own = [one for at, one in seen if at == path and begun(one[field]) == begun(whole[field])]
    lengths = sorted({len(one[field]) for one in own})
    return {"path": path, "field": field, "turns": lengths, "body": shape(whole)}


def begun(messages):
    """The first message, by which requests of one conversation are known: a mark of caches moves through them."""
    return json.dumps(messages[0]).replace(', "cache_control": {"type": "ephemeral"}', "")


def main(file, port, upstream):
    seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), recording(seen, int(upstream))) as server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            Path(file).write_text(json.dumps(longest(seen), indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
