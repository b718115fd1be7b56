"""What serving over HTTP costs: `python asv_benchmarks/over_http.py [-m FILE] [--peer LLAMA_SERVER]`.

A server of ours, an engine in this process and, with --peer, llama.cpp's server on the same file and threads take
turns: answers of one token over one connection, requests a second of 16 connections, one stream and eight, the first
token behind a beginning that is cached and behind one that isn't, the longest gap in four streams while a long prompt
arrives, with the seconds to the first token behind that, and embeddings of 1,000 short texts in one request. Only
ratios mean much on a shared machine; on a busy one those of CPU time do, which is that of the whole process, and is
known to a hundredth of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oxillama as ox

HI = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"
TEXTS = [f"a red ball number {i} in the park" for i in range(1000)]
WORDS = (
    "the",
    "little",
    "girl",
    "saw",
    "a",
    "red",
    "ball",
    "in",
    "park",
    "and",
    "she",
    "wanted",
    "to",
    "play",
    "with",
    "it",
)
# For a file without a template, on both sides.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
STREAMS = 8
WARM = 8  # answers behind a cached beginning
TEXT = re.compile(rb'"content": ?"[^"]')
_SEEDS = itertools.count()


def request_of(fields: dict[str, Any], path: str = PATH) -> bytes:
    """A request on the wire."""
    body = json.dumps({"messages": HI, "temperature": 0, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def answers(port: int, n: int) -> list[float]:
    """Seconds of each of n answers of one token, over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request, seconds = request_of({"max_tokens": 1}), []
    for _ in range(n):
        began = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in head, head
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
        seconds.append(time.perf_counter() - began)
    writer.close()
    return seconds


async def many(port: int, connections: int, n: int) -> float:
    """Requests a second of several connections."""
    began = time.perf_counter()
    await asyncio.gather(*(answers(port, n) for _ in range(connections)))
    return connections * n / (time.perf_counter() - began)


async def moments(port: int, fields: dict[str, Any]) -> list[float]:
    """When the request was sent, and when each piece of its stream came that has text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found: list[float] = [time.perf_counter()]
    rest = b""
    writer.write(request_of({"stream": True, "ignore_eos": True, **fields}))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head[:40], head + await reader.read(1 << 16)
    while b"[DONE]" not in rest:
        piece = await reader.read(1 << 16)
        assert piece, rest
        if TEXT.search(piece):
            found.append(time.perf_counter())
        rest = rest[-5:] + piece
    writer.close()
    return found


async def streamed(port: int, n: int, n_streams: int = 1) -> float:
    """Tokens a second of streams that run together."""
    began = time.perf_counter()
    await asyncio.gather(*(moments(port, {"max_tokens": n}) for _ in range(n_streams)))
    return n_streams * n / (time.perf_counter() - began)


async def first_token(port: int, prefix: str, question: str) -> float:
    """Seconds to the first token of an answer."""
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
    sent, first, *_ = await moments(port, {"messages": messages, "max_tokens": 4})
    return first - sent


async def first_tokens(port: int, prefix: str, n: int) -> float:
    """The median of the seconds to the first token of n answers behind the same beginning."""
    return statistics.median([await first_token(port, prefix, f"Tell me about {i}.") for i in range(n)])


async def gaps(port: int, prompt: str, n: int) -> tuple[float, float, float]:
    """The median and the longest gap between pieces of four streams while a long prompt arrives, and the seconds to the
    first token behind that."""
    running = [asyncio.ensure_future(moments(port, {"max_tokens": n})) for _ in range(4)]
    alone = await moments(port, {"max_tokens": 4})  # by then they run
    late = [{"role": "user", "content": prompt}]
    came = await moments(port, {"messages": late, "max_tokens": 1, "ignore_eos": False})
    found = await asyncio.gather(*running)
    between = [b - a for times in found for a, b in itertools.pairwise(times[1:])]
    beside = [b - a for times in found for a, b in itertools.pairwise(times[1:]) if alone[-1] < b and a < came[-1]]
    return statistics.median(between), max(beside or between), came[1] - came[0]


def embedded(port: int, form: str = "float") -> float:
    """Seconds for the embeddings of all texts in one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body, began = json.dumps({"input": TEXTS, "encoding_format": form}), time.perf_counter()
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()[:400]
    answer.read()
    connection.close()
    return time.perf_counter() - began


def in_process(engine: ox.Engine, template: str | None, n: int) -> list[float]:
    """Seconds of each of n answers of one token."""
    seconds = []
    for _ in range(n):
        began = time.perf_counter()
        engine.chat(HI, max_tokens=1, temperature=0, chat_template=template)
        seconds.append(time.perf_counter() - began)
    return seconds


def streamed_in_process(engine: ox.Engine, template: str | None, n: int) -> float:
    """Tokens a second of one stream."""
    began = time.perf_counter()
    for _ in engine.chat(HI, max_tokens=n, ignore_eos=True, temperature=0, stream=True, chat_template=template):
        pass
    return n / (time.perf_counter() - began)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes and of all their threads so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """A server, or this process. port, embeddings: of chats, and of embeddings. found: what was measured, and cpu:
    seconds of CPU time for it, by name."""

    pids: list[int]
    port: int = 0
    embeddings: int = 0
    found: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    def measure(self, name: str, work: Callable[[], float]) -> None:
        before = cpu_seconds(self.pids)
        self.found.setdefault(name, []).append(work())
        self.cpu[name] = self.cpu.get(name, 1e-3) + cpu_seconds(self.pids) - before

    def median(self, name: str) -> float:
        return statistics.median(self.found[name])


def prompt_of(engine: ox.Engine, n: int) -> str:
    """A text of about n tokens that no one had before."""
    draw, words = random.Random(next(_SEEDS)), [str(time.time_ns())]
    while len(engine.tokenize(" ".join(words))) < n:
        words += draw.choices(WORDS, k=max(n // 20, 1))
    return " ".join(words)


def look(side: Side, engine: ox.Engine, given: argparse.Namespace) -> None:
    """One round of a server."""
    run: Callable[..., Any] = asyncio.run
    n, port, prefix = given.tokens, side.port, prompt_of(engine, given.prompt)
    side.measure("one", lambda: statistics.median(run(answers(port, given.answers))))
    side.measure("rate", lambda: run(many(port, 16, max(given.answers // 3, 2))))
    side.measure("stream", lambda: run(streamed(port, n)))
    side.measure("streams", lambda: run(streamed(port, n // 2, STREAMS)))
    side.measure("cold", lambda: run(first_token(port, prefix, "Why?")))
    side.measure("warm", lambda: run(first_tokens(port, prefix, WARM)))
    middle, longest, late = run(gaps(port, prompt_of(engine, given.long), n))
    for name, seconds in (("gap", middle), ("longest", longest), ("late", late)):
        side.found.setdefault(name, []).append(seconds)
    if side.embeddings:
        side.measure("numbers", lambda: embedded(side.embeddings))
        side.measure("base64", lambda: embedded(side.embeddings, "base64"))


def look_in_process(alone: Side, engine: ox.Engine, template: str | None, given: argparse.Namespace) -> None:
    """The same in process, as far as there is something to compare."""
    alone.measure("one", lambda: statistics.median(in_process(engine, template, given.answers)))
    alone.measure("stream", lambda: streamed_in_process(engine, template, given.tokens))
    if not given.no_embeddings:
        alone.measure("numbers", lambda: timed(lambda: engine.embed(TEXTS)))


def report(ours: Side, alone: Side, peer: Side | None, given: argparse.Namespace) -> None:
    """Prints medians, and ratios."""
    m, n_ones = ours.median, given.answers * given.rounds
    more = (ours.cpu["one"] - alone.cpu["one"]) / n_ones * 1e3
    print(f"one token: {m('one') * 1e3:.2f} ms over HTTP, {(m('one') - alone.median('one')) * 1e3:.2f} ms more than in "
          f"process, {more:.2f} ms of CPU time")  # fmt: skip
    print(f"16 connections: {m('rate'):.0f} requests/s")
    share = alone.cpu["stream"] / ours.cpu["stream"]
    print(f"a stream: {m('stream'):.0f} tokens/s, {m('stream') / alone.median('stream'):.2f} of that in process, "
          f"{share:.2f} by CPU time")  # fmt: skip
    together = STREAMS * (given.tokens // 2) / ours.cpu["streams"] / (given.tokens / ours.cpu["stream"])
    print(f"{STREAMS} streams: {m('streams'):.0f} tokens/s, {m('streams') / m('stream'):.2f} of one stream, "
          f"{together:.2f} by CPU time")  # fmt: skip
    whole = ours.cpu["warm"] / WARM / ours.cpu["cold"]
    print(f"first token behind {given.prompt} cached tokens: {m('warm') * 1e3:.2f} ms, {m('warm') / m('cold'):.3f} of "
          f"uncached; {whole:.3f} by CPU time, with the rest of the answers")  # fmt: skip
    print(f"gaps of 4 streams: median {m('gap') * 1e3:.1f} ms, longest {m('longest') * 1e3:.1f} ms of "
          f"{m('gap') * 2e3 + 100:.1f} beside a prompt of {given.long} tokens, whose first token takes "
          f"{m('late') * 1e3:.0f} ms")  # fmt: skip
    if "numbers" in alone.found:
        shares = [alone.median("numbers") / m(name) for name in ("base64", "numbers")]
        shares += [alone.cpu["numbers"] / ours.cpu[name] for name in ("base64", "numbers")]
        print("embeddings: {:.2f} of the speed of engine.embed as base64, {:.2f} as numbers; by CPU time {:.2f}, {:.2f}"
              .format(*shares))  # fmt: skip
    if peer is not None:
        against(ours, peer)


def against(ours: Side, peer: Side) -> None:
    """Prints how much better we are than llama-server: above 1, we are faster."""
    print("times llama-server, and by CPU time:")
    for name, mine in ours.found.items():
        if name in peer.found and name != "gap":
            ratio = peer.median(name) / statistics.median(mine)
            ratio = 1 / ratio if name in ("rate", "stream", "streams") else ratio
            cpu = f", {peer.cpu[name] / ours.cpu[name]:.2f}" if name in ours.cpu else ""
            print(f"  {name}: {ratio:.2f}{cpu}")
    print(f"  its cached first token: {peer.median('warm') / peer.median('cold'):.3f} of uncached")


@contextlib.contextmanager
def our_server(arguments: list[str]) -> Iterator[tuple[int, int]]:
    """Its process and port."""
    command = [sys.executable, "-m", "oxillama", "serve", "--port", "0", *arguments]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = iter(server.stderr)
        port = next(int(line.rsplit(":", 1)[1]) for line in lines if "listening on" in line)
        next(line for line in lines if "loaded" in line)
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()  # its log
        yield server.pid, port
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def peer_server(command: list[str]) -> Iterator[tuple[int, int]]:
    """Process and port of llama-server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen([*command, "--port", str(port)], stdout=quiet, stderr=quiet)
    try:
        until = time.monotonic() + 120
        while True:
            assert server.poll() is None, "llama-server has ended"
            assert time.monotonic() < until, "llama-server doesn't answer"
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            time.sleep(0.1)
        yield server.pid, port
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Starts the servers, and lets them take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model")
    parser.add_argument("--peer", help="llama-server of llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, help="tokens of one request; default: the model's")
    parser.add_argument("--tokens", type=int, default=600, help="of a stream")
    parser.add_argument("--answers", type=int, default=60, help="of one token, in a round")
    parser.add_argument("--prompt", type=int, default=900, help="tokens of the beginning that is cached")
    parser.add_argument("--long", type=int, default=900, help="tokens of the prompt beside streams")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-embeddings", action="store_true")
    given = parser.parse_args()
    options: dict[str, Any] = {"num_threads": given.threads}
    if given.context:
        options["context_size"] = given.context
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(ox.load(given.model, **options))
        template = None if engine.tokenizer.chat_template else CHATML
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "template.jinja").write_text(CHATML)
        arguments = ["--threads", str(given.threads), *(["-m", given.model] if given.model else [])]
        arguments += ["--context-size", str(given.context)] if given.context else []
        arguments += ["--chat-template", str(folder / "template.jinja")] if template else []
        pid, port = stack.enter_context(our_server(arguments))
        sides = [Side([pid], port, 0 if given.no_embeddings else port)]
        if given.peer:
            from oxillama.core.loading import shipped_model

            size = engine.context_size * STREAMS
            command = [given.peer, "-m", given.model or shipped_model(), "-t", str(given.threads), "--jinja"]
            command += ["-np", str(STREAMS), "-c", str(size), "--no-webui"]
            command += ["--chat-template-file", str(folder / "template.jinja")] if template else []
            pid, port = stack.enter_context(peer_server(command))
            sides.append(Side([pid], port))
            if not given.no_embeddings:
                batch = ["--embeddings", "--pooling", "mean", "-b", "4096", "-ub", "4096"]
                pid, sides[1].embeddings = stack.enter_context(peer_server([*command, *batch]))
                sides[1].pids.append(pid)
        alone = Side([os.getpid()])
        for side in sides:
            asyncio.run(many(side.port, 4, 3))
        for _ in range(given.rounds):
            look_in_process(alone, engine, template, given)
            for side in sides:
                look(side, engine, given)
        report(sides[0], alone, sides[1] if given.peer else None, given)


if __name__ == "__main__":
    main()
