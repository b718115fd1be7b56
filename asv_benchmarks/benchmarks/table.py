"""What compare.py measures beside llama.cpp, on our side alone: one benchmark for each row of its table.

``OXILLAMA_BENCH_SHAPE`` names the shape of the random models (default: llama-160m, which is made in seconds;
llama3.2-1b is what the table speaks of), ``OXILLAMA_BENCH_FOLDER`` where they are kept (default: a temporary folder of
the run).
"""

import os
import time
from pathlib import Path

import oxillama

from .shapes import make_model

SHAPE = os.environ.get("OXILLAMA_BENCH_SHAPE", "llama-160m")
QUANTISED = ("Q4_0", "Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "IQ4_XS")
PROMPT, DECODED = 512, 32


def _prompt(engine: oxillama.Engine, n: int, first: int = 5) -> list[int]:
    return [(7 * i + first) % (engine.n_vocab - 300) + 259 for i in range(n)]


class _Table:
    """Opens the model that a row names."""

    timeout = 1800
    unit = "tokens/s"
    number = 1

    def setup_cache(self) -> str:
        return os.environ.get("OXILLAMA_BENCH_FOLDER") or os.getcwd()

    def open(self, folder: str, type: str, *, shape: str = SHAPE, kv_type: str = "f16", depth: int = 0) -> None:
        self.open_file(make_model(Path(folder), shape, type), kv_type=kv_type, depth=depth)

    def open_file(self, path: Path, *, kv_type: str = "f16", depth: int = 0) -> None:
        self.engine = oxillama.load(path, kv_type=kv_type, context_size=depth + PROMPT + 64)
        if depth:
            self.engine.prefill(_prompt(self.engine, depth, 11))
        self.depth = depth

    def teardown(self, folder: str, *params: object) -> None:
        self.engine.close()

    def prefill(self) -> float:
        """Tokens a second of a prompt after `depth` tokens."""
        prompt = _prompt(self.engine, PROMPT)
        start = time.perf_counter()
        self.engine.forward_prefill(prompt, self.depth)
        seconds = time.perf_counter() - start
        self.engine.truncate(self.depth)
        return PROMPT / seconds

    def decode(self) -> float:
        """Tokens a second, one by one after `depth` tokens."""
        prompt = _prompt(self.engine, DECODED)
        start = time.perf_counter()
        for i, token in enumerate(prompt):
            self.engine.forward_decode(token, self.depth + i)
        seconds = time.perf_counter() - start
        self.engine.truncate(self.depth)
        return DECODED / seconds


class Types(_Table):
    """A prompt, and one token after another."""

    params = (*QUANTISED, "BF16", "F16")
    param_names = ("type",)

    def setup(self, folder: str, type: str) -> None:
        self.open(folder, type)

    def track_prefill(self, folder: str, type: str) -> float:
        return self.prefill()

    def track_decode(self, folder: str, type: str) -> float:
        return self.decode()


class Together(_Table):
    """Eight sequences, one token each a step."""

    params = ("Q4_K_M", "Q8_0")
    param_names = ("type",)

    def setup(self, folder: str, type: str) -> None:
        self.open(folder, type)

    def track_decode(self, folder: str, type: str) -> float:
        prompts = [_prompt(self.engine, 1, i) for i in range(8)]
        done = self.engine.generate(prompts, max_tokens=DECODED + 1, ignore_eos=True, temperature=0)
        return 8 * DECODED / max(c.timings.decode_seconds for c in done)


class Deep(_Table):
    """After 4096 tokens."""

    params = ("f16", "q8_0", "q4_0")
    param_names = ("kv_type",)

    def setup(self, folder: str, kv_type: str) -> None:
        self.open(folder, "Q4_K_M", kv_type=kv_type, depth=4096)

    def track_prefill(self, folder: str, kv_type: str) -> float:
        return self.prefill()

    def track_decode(self, folder: str, kv_type: str) -> float:
        return self.decode()


class Experts(_Table):
    """A mixture of 64 experts, of which a token uses 8; about 1 GB in Q4_K_M."""

    params = ("Q4_K_M", "Q8_0")
    param_names = ("type",)

    def setup(self, folder: str, type: str) -> None:
        self.open(folder, type, shape="qwen3moe-1.7b")

    def track_prefill(self, folder: str, type: str) -> float:
        return self.prefill()

    def track_decode(self, folder: str, type: str) -> float:
        return self.decode()


class Small(_Table):
    """A model of 260 thousand parameters: what a call costs."""

    params = ("F32",)
    param_names = ("type",)

    def setup(self, folder: str, type: str) -> None:
        self.open(folder, type, shape="llama-260k")

    def track_decode(self, folder: str, type: str) -> float:
        return self.decode()
