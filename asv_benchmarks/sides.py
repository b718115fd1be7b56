"""The engines that compare.py measures, each in a process of its own: python sides.py KIND MODEL.gguf JSON.

A process loads its model once and then measures once for each line that it is sent: tokens a second for a prompt after
``depth`` tokens, and for tokens one by one after ``depth``, of ``sequences`` sequences together. A line may hold a
smaller depth; those of consecutive lines must not fall.
"""

import ctypes
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import harness

CHUNK = 2048  # tokens that an engine is given at once


@dataclass(frozen=True)
class Work:
    """What is measured."""

    prompt: int = 512
    decode: int = 64
    depth: int = 0
    sequences: int = 1
    kv_type: str = "f16"
    threads: int = 2
    cpu_time: bool = False  # speeds are those per second of CPU of the whole process

    @property
    def context(self) -> int:
        """Positions that one sequence needs."""
        return self.depth + max(self.prompt, self.decode) + 64


def tokens(n: int, n_vocab: int, first: int) -> list[int]:
    """Tokens that are neither special nor bytes."""
    return [(7 * i + first) % (n_vocab - 300) + 259 for i in range(n)]


class Side(Protocol):
    """An engine under test."""

    n_vocab: int

    def rewind(self, n: int) -> None:
        """Forget all but the first n tokens."""

    def feed(self, given: list[int], start: int) -> None:
        """Tokens of the first sequence, with the logits of the last."""

    def fill(self, given: list[int], start: int) -> None:
        """Tokens that others are to come after, however their keys and values are computed."""

    def together(self, n: int) -> float:
        """Tokens a second of all sequences, each going on by n tokens."""


class Ours:
    """oxillama: its low-level session for one sequence, greedy `generate` for several."""

    def __init__(self, path: str, work: Work, packed: bool = False) -> None:
        import oxillama

        key = oxillama.gguf.open(path).metadata.arch + ".context_length"
        start = time.perf_counter()
        self.engine = oxillama.load(
            path,
            num_threads=work.threads,
            context_size=work.context,
            kv_type=work.kv_type,
            kv_budget=None,
            overrides={key: work.context},
            prefix_cache=False,  # or every round but the first would find its prompt there
            packed=packed,
        )
        self.load_seconds = time.perf_counter() - start
        self.sequences = work.sequences
        self.n_vocab = self.engine.n_vocab

    def rewind(self, n: int) -> None:
        self.engine.truncate(n)

    def feed(self, given: list[int], start: int) -> None:
        for first in range(0, len(given), CHUNK):
            self.engine.forward_prefill(given[first : first + CHUNK], start + first)

    fill = feed

    def together(self, n: int) -> float:
        prompts = [tokens(1, self.n_vocab, 5 + i) for i in range(self.sequences)]
        done = self.engine.generate(
            prompts, max_tokens=n + 1, ignore_eos=True, temperature=0, repetition_penalty=1.0, seed=1
        )
        return self.sequences * n / max(c.timings.decode_seconds for c in done)


class Peer:
    """llama.cpp through the functions that llama-cpp-python binds; its own choice of flash attention."""

    def __init__(self, path: str, work: Work) -> None:
        import llama_cpp  # type: ignore[import-not-found,unused-ignore]

        self.lib: Any = llama_cpp
        # Kept: the library holds a bare pointer to it.
        self.silent = llama_cpp.llama_log_callback(lambda *message: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        start = time.perf_counter()
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not model:
            sys.exit(f"llama.cpp can't load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = work.context * work.sequences, CHUNK, 512
        settings.n_threads = settings.n_threads_batch = work.threads
        settings.n_seq_max = work.sequences + (work.sequences == 1)  # one that is filled from
        settings.kv_unified = work.sequences == 1
        settings.type_k = settings.type_v = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}[work.kv_type]
        self.context = llama_cpp.llama_init_from_model(model, settings)
        if not self.context:
            sys.exit(f"llama.cpp can't make a context with {work.kv_type} KV")
        self.load_seconds = time.perf_counter() - start
        self.sequences = work.sequences
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)

    def rewind(self, n: int) -> None:
        memory = self.lib.llama_get_memory(self.context)
        if n:
            self.lib.llama_memory_seq_rm(memory, -1, n, -1)
        else:  # recurrent states can't be cut, nor can they be emptied by a cut
            self.lib.llama_memory_clear(memory, False)

    def feed(self, given: list[int], start: int) -> None:
        for first in range(0, len(given), CHUNK):
            part = given[first : first + CHUNK]
            rows = [(token, start + first + i, 0, first + i == len(given) - 1) for i, token in enumerate(part)]
            self._decode(rows)

    def fill(self, given: list[int], start: int) -> None:
        """Parts that see only themselves: to attend to them costs the same, and to compute them far less."""
        memory = self.lib.llama_get_memory(self.context)
        for first in range(0, len(given), CHUNK):
            part = enumerate(given[first : first + CHUNK])
            self._decode([(token, start + first + i, 1, False) for i, token in part])
            self.lib.llama_memory_seq_cp(memory, 1, 0, -1, -1)
            self.lib.llama_memory_seq_rm(memory, 1, -1, -1)

    def together(self, n: int) -> float:
        start = time.perf_counter()
        for i, token in enumerate(tokens(n, self.n_vocab, 5)):
            self._decode([((token + s) % self.n_vocab, i, s, True) for s in range(self.sequences)])
        return self.sequences * n / (time.perf_counter() - start)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Rows of token, position, sequence, and whether its logits are wanted."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            self.batch.logits[i] = wanted
        if self.lib.llama_decode(self.context, self.batch):
            sys.exit("llama_decode failed")
        self.lib.llama_synchronize(self.context)


def measure(side: Side, work: Work) -> dict[str, float]:
    """Tokens a second, by the name of what was done; the first `depth` tokens are there."""
    if work.sequences > 1:
        side.rewind(0)
        return {"decode": side.together(work.decode)}
    clock = time.process_time if work.cpu_time else time.perf_counter
    speeds = {}
    for name, n, step in (("prefill", work.prompt, work.prompt), ("decode", work.decode, 1)):
        if not n:
            continue
        side.rewind(work.depth)
        given = tokens(n, side.n_vocab, 5)
        start = clock()
        for i in range(0, n, step):
            side.feed(given[i : i + step], work.depth + i)
        speeds[name] = n / (clock() - start)
    return speeds


def peak_bytes() -> int:
    """Resident memory at its highest. (What getrusage says includes the process that started this one.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    kind, path, settings = sys.argv[1:]
    work = Work(**json.loads(settings))
    side = (Ours if kind == "oxillama" else Peer)(path, work)
    measure(side, Work(**asdict(work) | {"prompt": 64, "decode": 4, "depth": 0}))
    filled = 0

    def measured(line: str) -> dict[str, float]:
        nonlocal filled
        depth = int(line) if line else work.depth
        if depth > filled:
            side.rewind(filled)
            side.fill(tokens(depth - filled, side.n_vocab, 11), filled)
            filled = depth
        return measure(side, replace(work, depth=depth)) | {"peak_bytes": peak_bytes()}

    harness.serve(measured, {"load_seconds": side.load_seconds})


if __name__ == "__main__":
    main()
