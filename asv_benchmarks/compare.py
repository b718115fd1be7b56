"""oxillama and llama.cpp side by side: python asv_benchmarks/compare.py MODEL.gguf... [--peer-python PATH]

Absolute speeds of a shared or throttled machine say little; ratios of two engines that take turns say more. Each engine
runs in a process of its own, loaded once, and they are measured alternately: a prompt of --prompt tokens, then --decode
tokens one by one, --rounds times; medians are compared. The peer is llama-cpp-python, from the interpreter that
--peer-python names; without one, oxillama is measured alone.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol


class Side(Protocol):
    """An engine under test."""

    n_vocab: int

    def clear(self) -> None: ...

    def feed(self, tokens: list[int], start: int) -> None: ...


class Ours:
    """oxillama through its low-level session."""

    def __init__(self, path: str, threads: int, context: int, kv_type: str) -> None:
        import oxillama

        key = oxillama.gguf.open(path).metadata.arch + ".context_length"
        self.engine = oxillama.load(
            path, num_threads=threads, context_size=context, kv_type=kv_type, overrides={key: context}
        )
        self.n_vocab = self.engine.n_vocab

    def clear(self) -> None:
        self.engine.reset()

    def feed(self, tokens: list[int], start: int) -> None:
        self.engine.forward_prefill(tokens, start)


class Peer:
    """llama.cpp through the functions that llama-cpp-python binds; flash attention for 8-bit KV, else its choice."""

    def __init__(self, path: str, threads: int, context: int, kv_type: str) -> None:
        import llama_cpp  # type: ignore[import-not-found,unused-ignore]

        self.lib: Any = llama_cpp
        # Kept: the library holds a bare pointer to it.
        self.silent = llama_cpp.llama_log_callback(lambda *message: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not model:
            sys.exit(f"llama.cpp can't load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = context, 2048, 512
        settings.n_threads = settings.n_threads_batch = threads
        settings.type_k = settings.type_v = {"f32": 0, "f16": 1, "q8_0": 8}[kv_type]
        if kv_type == "q8_0":  # else its own choice
            settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = llama_cpp.llama_init_from_model(model, settings)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)

    def clear(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def feed(self, tokens: list[int], start: int) -> None:
        for first in range(0, len(tokens), 2048):
            part = tokens[first : first + 2048]
            self.batch.n_tokens = len(part)
            for i, token in enumerate(part):
                self.batch.token[i], self.batch.pos[i] = token, start + first + i
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
                self.batch.logits[i] = first + i == len(tokens) - 1
            if self.lib.llama_decode(self.context, self.batch):
                sys.exit("llama_decode failed")
        self.lib.llama_synchronize(self.context)


def measure(side: Side, prompt: int, decode: int, depth: int) -> dict[str, float]:
    """Tokens a second for a prompt after `depth` tokens, and for tokens one by one after `depth`."""

    def tokens(n: int, first: int) -> list[int]:
        return [(7 * i + first) % (side.n_vocab - 300) + 259 for i in range(n)]

    speeds = {}
    for name, n, step in (("prefill", prompt, prompt), ("decode", decode, 1)):
        side.clear()
        if depth:
            side.feed(tokens(depth, 11), 0)
        given = tokens(n, 5)
        start = time.perf_counter()
        for i in range(0, n, step):
            side.feed(given[i : i + step], depth + i)
        speeds[name] = n / (time.perf_counter() - start)
    return speeds


def work(kind: str, path: str, a: argparse.Namespace) -> None:
    """A process that measures once for each line that it is sent."""
    side: Side = (Ours if kind == "ours" else Peer)(path, a.threads, a.depth + max(a.prompt, a.decode) + 64, a.kv_type)
    measure(side, 64, 4, 0)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure(side, a.prompt, a.decode, a.depth)), flush=True)


class Worker:
    """One engine in its process."""

    def __init__(self, kind: str, python: str, path: str, options: list[str]) -> None:
        command = [python, __file__, path, "--worker", kind, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.speeds: dict[str, list[float]] = {"prefill": [], "decode": []}
        self._line("ready")

    def _line(self, expected: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line.startswith(expected):
            sys.exit(f"{' '.join(map(str, self.process.args))} ended")  # type: ignore[arg-type]
        return line

    def round(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for name, speed in json.loads(self._line("{")).items():
            self.speeds[name].append(speed)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(path: str, a: argparse.Namespace, options: list[str]) -> None:
    workers = {"oxillama": Worker("ours", sys.executable, path, options)}
    if a.peer_python:
        workers["llama.cpp"] = Worker("peer", a.peer_python, path, options)
    for _ in range(a.rounds):
        for worker in workers.values():
            worker.round()
    for worker in workers.values():
        worker.close()
    for name, n in (("prefill", a.prompt), ("decode", a.decode)):
        medians = {who: statistics.median(w.speeds[name]) for who, w in workers.items()}
        text = ", ".join(f"{who} {speed:.1f}" for who, speed in medians.items()) + " tokens/s"
        if a.peer_python:
            text += f": {medians['oxillama'] / medians['llama.cpp']:.2f}x"
        print(f"{Path(path).name}: {name} {n} at {a.depth}, {a.kv_type} KV: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="oxillama and llama.cpp side by side")
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--peer-python", help="interpreter that has llama_cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--decode", type=int, default=64, help="tokens one by one")
    parser.add_argument("--depth", type=int, default=0, help="tokens in the cache before anything is timed")
    parser.add_argument("--kv-type", default="f16", choices=("f16", "f32", "q8_0"), help="of both engines")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=("ours", "peer"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        work(a.worker, a.models[0], a)
        return
    options = [f"--{n}={getattr(a, n)}" for n in ("threads", "prompt", "decode", "depth")]
    options.append(f"--kv-type={a.kv_type}")
    for path in a.models:
        compare(path, a, options)


if __name__ == "__main__":
    main()
