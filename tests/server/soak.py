"""Load of a server by many clients, of which some leave: python -m tests.server.soak --seconds 60

Clients of two keys chat, complete, stream, embed and tokenise, ask for what is refused and for what is far too large,
and leave at any moment. At the end no request runs, no answer was an error but 429, memory is what it was after the
first half, and no callback kept the event loop for longer than 50 ms of its thread's CPU time.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from pathlib import Path

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
BIG = 2 << 20
# Far more than a request may have: each is refused before much is done for it.
LARGE = (
    ("/v1/completions", {"prompt": "word " * (BIG // 5)}, 400),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "é" * BIG}]}, 400),
    (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 1, "prediction": {"type": "content", "content": "word " * (BIG // 5)}},
        200,
    ),
    ("/v1/completions", b"[" * BIG, 400),
    ("/v1/completions", b'{"prompt": [' + b"[1]," * (BIG // 4) + b"[1]]}", 400),
    ("/v1/score", {"text_1": "a", "text_2": ["b"] * 65_536}, 400),
    ("/tokenize", {"prompt": "x" * BIG}, 400),
    ("/v1/messages", {"messages": HI, "max_tokens": 5, "system": "\u2581" * BIG}, 400),
    ("/v1/completions", {"prompt": "a", "regex": "(a|b)*" * (BIG // 6)}, 400),
)
KEYS = ("one", "two")
MOST_KEPT = 0.05  # seconds


def client(port, until, seed, seen):
    """One client after another, until the time is over."""
    draw = random.Random(seed)
    while time.monotonic() < until:
        path, body, expected = draw.choice(LARGE if draw.random() < 0.02 else ASKS)
        data = body if isinstance(body, bytes) else json.dumps({**body, "model": ""}).encode()
        if draw.random() < 0.5:  # longer than what is kept as it is, and seldom the same
            data = data.replace(b"cat", b"cat and " + b" ".join(b"%d" % draw.randrange(999) for _ in range(90)))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {draw.choice(KEYS)}-secret"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            for _ in range(draw.randrange(1, 4)):
                connection.request("POST", path, data, headers)
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
                right = response.status in (expected, 429) or (expected == 400 and response.status == 413)
                seen[response.status if right else f"wrong {response.status} of {path}"] += 1
        except (BrokenPipeError, ConnectionResetError) as error:
            # A large body is refused before all of it was sent, and the server reads the rest for some time alone.
            seen[f"{'refused' if len(data) >= BIG else 'wrong'} {type(error).__name__}"] += 1
        except OSError as error:
            seen[f"wrong {type(error).__name__}"] += 1
        finally:
            connection.close()


def resident(process):
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def number(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/metrics", headers={"Authorization": "Bearer admin-secret"})
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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
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
    with tempfile.TemporaryDirectory() as folder:
        return soak(Path(folder), given.seconds, given.clients)


def serve_all(process, port, seconds, seeds, seen):
    """Resident memory of the server after clients that ask at once for some time, when nothing runs."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(port, until, seed, seen)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    poll(lambda: not busy(port), "the end of all requests")
    return resident(process)


def soak(folder, seconds, clients):
    (folder / "keys").write_text("".join(f"{key}:{key}-secret\n" for key in KEYS))
    (folder / "admins").write_text("root:admin-secret\n")
    command = [
        sys.executable, "-m", "tests.server.gaps", "serve", "--port", "0", "--max-peer-connections", "1000",
        "--api-key-file", str(folder / "keys"), "--admin-key-file", str(folder / "admins"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = next(int(line.rsplit(":", 1)[1]) for line in process.stderr if "listening on" in line)
    last = deque(maxlen=1)
    reader = threading.Thread(target=lambda: last.extend(process.stderr), daemon=True)
    reader.start()
    poll(lambda: ready(port), "a model that is ready")
    process.send_signal(signal.SIGUSR1)  # what loading kept counts no more
    seen = Counter()
    early, late = (serve_all(process, port, seconds / 2, range(n, n + clients), seen) for n in (0, clients))
    process.terminate()
    status = process.wait(60)
    reader.join(60)
    longest = json.loads(last.pop().removeprefix("longest "))
    wrong = sum(n for name, n in seen.items() if str(name).startswith("wrong"))
    print(dict(seen), f"none runs, memory {early >> 20} then {late >> 20} MiB, status {status}")
    print("the loop was kept longest by", longest)
    grown = 1.05 if seconds >= 300 else 1.25  # in a minute, a few bodies of megabytes more or less are a tenth of it
    return 1 if wrong or status or late > grown * early or longest["cpu"][0] > MOST_KEPT else 0


if __name__ == "__main__":
    sys.exit(main())
