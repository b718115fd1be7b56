"""What serving over HTTP costs: `python asv_benchmarks/over_http.py [-m FILE]`.

In turns, on the same machine and model: answers of one token over one connection and in process, requests a second of
16 connections, the speed of a stream over HTTP and in process, and embeddings of 1,000 short texts in one request. Only
ratios mean much on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time

import oxillama as ox

HI = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"
TEXTS = [f"a red ball number {i} in the park" for i in range(1000)]


def request_of(fields: dict[str, object]) -> bytes:
    """A request on the wire."""
    body = json.dumps({"messages": HI, "temperature": 0, **fields}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
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


async def streamed(port: int, n: int) -> float:
    """Tokens a second of one stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(request_of({"max_tokens": n, "ignore_eos": True, "stream": True}))
    rest = b""
    while b"[DONE]" not in rest:
        rest = rest[-5:] + await reader.read(1 << 16)
    writer.close()
    return n / (time.perf_counter() - began)


def embedded(port: int, form: str) -> float:
    """Seconds for the embeddings of all texts in one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body, began = json.dumps({"input": TEXTS, "encoding_format": form}), time.perf_counter()
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    connection.getresponse().read()
    connection.close()
    return time.perf_counter() - began


def embedded_in_process(engine: ox.Engine) -> float:
    """The same in process."""
    began = time.perf_counter()
    engine.embed(TEXTS)
    return time.perf_counter() - began


def in_process(engine: ox.Engine, n: int) -> list[float]:
    """Seconds of each of n answers of one token."""
    seconds = []
    for _ in range(n):
        began = time.perf_counter()
        engine.chat(HI, max_tokens=1, temperature=0)
        seconds.append(time.perf_counter() - began)
    return seconds


def streamed_in_process(engine: ox.Engine, n: int) -> float:
    """Tokens a second of one stream."""
    began = time.perf_counter()
    for _ in engine.chat(HI, max_tokens=n, ignore_eos=True, temperature=0, stream=True):
        pass
    return n / (time.perf_counter() - began)


def measure(engine: ox.Engine, port: int, n_tokens: int, rounds: int) -> None:
    """Prints medians of rounds in which all take turns."""
    alone, served, rates, here, there = [], [], [], [], []
    vectors, as_base64, as_numbers = [], [], []
    asyncio.run(many(port, 4, 10))
    for _ in range(rounds):
        alone.append(statistics.median(in_process(engine, 60)))
        served.append(statistics.median(asyncio.run(answers(port, 60))))
        rates.append(asyncio.run(many(port, 16, 20)))
        here.append(streamed_in_process(engine, n_tokens))
        there.append(asyncio.run(streamed(port, n_tokens)))
        vectors.append(embedded_in_process(engine))
        as_base64.append(embedded(port, "base64"))
        as_numbers.append(embedded(port, "float"))
    first, second = statistics.median(alone) * 1e3, statistics.median(served) * 1e3
    print(f"one token: {first:.2f} ms in process, {second:.2f} ms over HTTP, {second - first:.2f} ms more")
    print(f"16 connections: {statistics.median(rates):.0f} requests/s")
    local, remote = statistics.median(here), statistics.median(there)
    print(f"a stream: {local:.0f} tokens/s in process, {remote:.0f} over HTTP, ratio {remote / local:.2f}")
    ratios = (statistics.median(vectors) / statistics.median(found) for found in (as_base64, as_numbers))
    print("embeddings: ratio {:.2f} as base64, {:.2f} as numbers".format(*ratios))


def main() -> None:
    """Starts a server beside an engine of this process, and measures both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model")
    parser.add_argument("--tokens", type=int, default=600, help="of a stream")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    command = [sys.executable, "-m", "oxillama", "serve", "--port", "0"]
    server = subprocess.Popen(command + (["-m", given.model] if given.model else []), stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = iter(server.stderr)
        port = next(int(line.rsplit(":", 1)[1]) for line in lines if "listening on" in line)
        next(line for line in lines if "loaded" in line)
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()  # its log
        with ox.load(given.model) as engine:
            measure(engine, port, given.tokens, given.rounds)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
