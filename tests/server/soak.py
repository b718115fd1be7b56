"""Load of a server by many clients, of which some leave: python -m tests.server.soak --seconds 60

Clients chat, complete, stream, embed and tokenise, ask for what is refused, and leave at any moment. At the end no
request runs, no answer was an error but 429, and memory is what it was after the first quarter.
"""

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter

HI = [{"role": "user", "content": "Tell me a story about a cat."}]
ASKS = (
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 40}, 200),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 40, "stream": True}, 200),
    ("/v1/completions", {"prompt": ["Once", "The"], "n": 2, "max_tokens": 20, "logprobs": 2, "echo": True}, 200),
    ("/v1/messages", {"messages": HI, "max_tokens": 30, "stream": True}, 200),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 30}, 200),
    ("/v1/embeddings", {"input": ["a red ball"] * 8, "encoding_format": "base64"}, 200),
    ("/tokenize", {"prompt": "Once upon a time"}, 200),
    ("/v1/completions", {"prompt": "A: ", "json_schema": {"properties": {"n": {"type": "integer"}}}}, 200),
    ("/v1/completions", {"prompt": "a", "temperature": 9}, 400),
    ("/v1/completions", b'{"prompt": ', 400),
)


def client(port, until, seed, seen):
    """One client after another, until the time is over."""
    draw = random.Random(seed)
    while time.monotonic() < until:
        path, body, expected = draw.choice(ASKS)
        data = body if isinstance(body, bytes) else json.dumps({**body, "model": ""}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            for _ in range(draw.randrange(1, 4)):
                connection.request("POST", path, data, {"Content-Type": "application/json"})
                if draw.random() < 0.15:  # leaves before the answer
                    time.sleep(draw.random() * 0.05)
                    seen["left"] += 1
                    break
                response = connection.getresponse()
                if draw.random() < 0.1:  # leaves within it
                    response.read(draw.randrange(200))
                    seen["left"] += 1
                    break
                response.read()
                seen[response.status if response.status in (expected, 429) else f"wrong {response.status}"] += 1
        except OSError as error:
            seen[f"wrong {type(error).__name__}"] += 1
        finally:
            connection.close()


def resident(process):
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def number(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def poll(until, what, seconds=60):
    """Waits until a call says so; ends the program if it never does."""
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/ready")
    status = connection.getresponse().status
    connection.close()
    return status == 200


def busy(port):
    """Requests that run or wait."""
    return number(port, "oxillama_num_requests_running") + number(port, "oxillama_num_requests_waiting")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    command = [sys.executable, "-m", "oxillama", "serve", "--port", "0", "--max-peer-connections", "1000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = next(int(line.rsplit(":", 1)[1]) for line in process.stderr if "listening on" in line)
    threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()
    poll(lambda: ready(port), "a model that is ready")
    until, seen = time.monotonic() + given.seconds, Counter()
    threads = [threading.Thread(target=client, args=(port, until, i, seen)) for i in range(given.clients)]
    for thread in threads:
        thread.start()
    time.sleep(given.seconds / 4)
    early = resident(process)
    for thread in threads:
        thread.join()
    poll(lambda: not busy(port), "the end of all requests", seconds=10)
    late = resident(process)
    process.terminate()
    status = process.wait(60)
    wrong = sum(n for name, n in seen.items() if str(name).startswith("wrong"))
    print(dict(seen), f"none runs, memory {early >> 20} then {late >> 20} MiB, status {status}")
    return 1 if wrong or status or late > 1.05 * early else 0


if __name__ == "__main__":
    sys.exit(main())
