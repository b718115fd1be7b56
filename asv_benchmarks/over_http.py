"""What serving over HTTP costs: `python asv_benchmarks/over_http.py [-m FILE] [--peer LLAMA_SERVER]`.

A server of ours, an engine in this process and, with --peer, llama.cpp's server on the same file and threads take
turns: answers of one token over one connection, requests a second of 16 connections, one stream and eight, the first
token behind a beginning that is cached and behind one that isn't, the longest gap in four streams while a long prompt
arrives, and embeddings of 1,000 short texts in one request. Only ratios mean much on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import random
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
        if b'"content":"' in piece and b'"content":""' not in piece:
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
    sent, first, *_ = await moments(port, {"messages": messages, "max_tokens": 2})
    return first - sent


async def cached(port: int, prefix: str, n: int) -> tuple[float, float]:
    """Seconds to the first token behind a beginning that is new, and the median behind one that was there."""
    cold = await first_token(port, prefix, "Why?")
    return cold, statistics.median([await first_token(port, prefix, f"Tell me about {i}.") for i in range(n)])


async def gaps(port: int, prompt: str, n: int) -> tuple[float, float]:
    """The median and the longest gap between pieces of four streams while a long prompt arrives."""
    running = [asyncio.ensure_future(moments(port, {"max_tokens": n})) for _ in range(4)]
    alone = await moments(port, {"max_tokens": 4})  # by then they run
    late = [{"role": "user", "content": prompt}]
    came = await moments(port, {"messages": late, "max_tokens": 1, "ignore_eos": False})
    found = await asyncio.gather(*running)
    between = [b - a for times in found for a, b in itertools.pairwise(times[1:])]
    beside = [b - a for times in found for a, b in itertools.pairwise(times[1:]) if alone[-1] < b and a < came[-1]]
    return statistics.median(between), max(beside or between)


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


@dataclass
class Side:
    """One server. ports: of chats, and of embeddings. found: what was measured, by name."""

    name: str
    port: int
    embeddings: int
    found: dict[str, list[float]] = field(default_factory=dict)

    def note(self, **values: float) -> None:
        for name, value in values.items():
            self.found.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.found[name])


def prompt_of(engine: ox.Engine, n: int) -> str:
    """A text of about n tokens that no one had before."""
    draw, words = random.Random(next(_SEEDS)), [str(time.time_ns())]
    while len(engine.tokenize(" ".join(words))) < n:
        words += draw.choices(WORDS, k=max(n // 20, 1))
    return " ".join(words)


def look(side: Side, engine: ox.Engine, given: argparse.Namespace) -> None:
    """One round of a side."""
    run: Callable[..., Any] = asyncio.run
    n = given.tokens
    side.note(one=statistics.median(run(answers(side.port, given.answers))))
    side.note(rate=run(many(side.port, 16, max(given.answers // 3, 2))))
    side.note(stream=run(streamed(side.port, n)), streams=run(streamed(side.port, n // 2, STREAMS)))
    cold, warm = run(cached(side.port, prompt_of(engine, given.prompt), 8))
    side.note(cold=cold, warm=warm)
    middle, longest = run(gaps(side.port, prompt_of(engine, given.long), n))
    side.note(gap=middle, longest=longest)
    if side.embeddings and not given.no_embeddings:
        side.note(numbers=embedded(side.embeddings))


def look_in_process(engine: ox.Engine, template: str | None, given: argparse.Namespace, ours: Side) -> None:
    """The same in process, as far as there is something to compare."""
    ours.note(alone=statistics.median(in_process(engine, template, given.answers)))
    ours.note(here=streamed_in_process(engine, template, given.tokens))
    if not given.no_embeddings:
        ours.note(vectors=timed(lambda: engine.embed(TEXTS)), base64=embedded(ours.embeddings, "base64"))


def report(ours: Side, peer: Side | None, given: argparse.Namespace) -> None:
    """Prints medians, and ratios to the peer: above 1 is better than it."""
    m = ours.median
    print(f"one token: {m('one') * 1e3:.2f} ms over HTTP, {(m('one') - m('alone')) * 1e3:.2f} ms more than in process")
    print(f"16 connections: {m('rate'):.0f} requests/s")
    print(f"a stream: {m('stream'):.0f} tokens/s, {m('stream') / m('here'):.2f} of that in process")
    print(f"{STREAMS} streams: {m('streams'):.0f} tokens/s, {m('streams') / m('stream'):.2f} of one stream")
    print(f"first token behind {given.prompt} cached tokens: {m('warm') * 1e3:.2f} ms, "
          f"{m('warm') / m('cold'):.3f} of uncached")  # fmt: skip
    print(f"gaps of 4 streams: median {m('gap') * 1e3:.1f} ms, longest {m('longest') * 1e3:.1f} ms beside a prompt of "
          f"{given.long} tokens")  # fmt: skip
    if "vectors" in ours.found:
        shares = (m("vectors") / m(name) for name in ("base64", "numbers"))
        print("embeddings: {:.2f} of the speed of engine.embed as base64, {:.2f} as numbers".format(*shares))
    if peer is None:
        return
    print("times llama-server:")
    for name, better in (("one", -1), ("rate", 1), ("stream", 1), ("streams", 1), ("cold", -1), ("warm", -1),
                         ("longest", -1), ("numbers", -1)):  # fmt: skip
        if name in peer.found and name in ours.found:
            ratio = (m(name) / peer.median(name)) ** better
            print(f"  {name}: {ratio:.2f} ({m(name):.5g} to {peer.median(name):.5g})")
    print(f"  warm / cold of llama-server: {peer.median('warm') / peer.median('cold'):.3f}")


@contextlib.contextmanager
def our_server(arguments: list[str]) -> Iterator[int]:
    """Its port."""
    command = [sys.executable, "-m", "oxillama", "serve", "--port", "0", *arguments]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = iter(server.stderr)
        port = next(int(line.rsplit(":", 1)[1]) for line in lines if "listening on" in line)
        next(line for line in lines if "loaded" in line)
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()  # its log
        yield port
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def peer_server(command: list[str]) -> Iterator[int]:
    """The port of llama-server."""
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
        yield port
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
        port = stack.enter_context(our_server(arguments))
        sides = [Side("oxillama", port, port)]
        if given.peer:
            from oxillama.core.loading import shipped_model

            size = engine.context_size * STREAMS
            command = [given.peer, "-m", given.model or shipped_model(), "-t", str(given.threads), "--jinja"]
            command += ["-np", str(STREAMS), "-c", str(size), "--no-webui"]
            command += ["--chat-template-file", str(folder / "template.jinja")] if template else []
            chats = stack.enter_context(peer_server(command))
            batch = ["-b", "4096", "-ub", "4096"]
            vectors = 0 if given.no_embeddings else stack.enter_context(
                peer_server([*command, "--embeddings", "--pooling", "mean", *batch])
            )  # fmt: skip
            sides.append(Side("llama-server", chats, vectors))
        for side in sides:
            asyncio.run(many(side.port, 4, 3))
        for _ in range(given.rounds):
            look_in_process(engine, template, given, sides[0])
            for side in sides:
                look(side, engine, given)
        report(sides[0], sides[1] if given.peer else None, given)


if __name__ == "__main__":
    main()
