"""Adapters of rank 16 on every matrix, against none: one request, and eight at once with four of them."""

import asyncio
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np

import oxillama
from oxillama.core.loading import shipped_model

from .common import STORY, load_engine, model_path

N_ADAPTERS, N_REQUESTS, N_TOKENS, RANK = 4, 8, 32, 16
GREEDY = oxillama.SamplerConfig(temperature=0)


def write_adapter(path: Path, seed: int) -> None:
    """Random factors for every matrix of the layers of the model that is measured."""
    rng = np.random.default_rng(seed)
    with oxillama.gguf.open(model_path() or shipped_model()) as file:
        tensors = {}
        for name, t in file.tensors.items():
            if name.startswith("blk.") and len(t.shape) == 2:
                tensors[f"{name}.lora_a"] = 0.01 * rng.standard_normal((RANK, t.shape[1]), np.float32)
                tensors[f"{name}.lora_b"] = 0.01 * rng.standard_normal((t.shape[0], RANK), np.float32)
        kind = {"general.type": "adapter", "general.architecture": file.metadata.arch, "adapter.type": "lora"}
    oxillama.gguf.write_gguf(path, kind | {"adapter.lora.alpha": 16.0}, tensors)


class Adapters:
    """Tokens a second; the parameter says with how many adapters."""

    params = (0, 1, 4)
    param_names = ("adapters",)
    unit = "tokens/s"
    number = 1
    timeout = 600

    def setup(self, n: int) -> None:
        self.engine = load_engine()
        self.names = [str(i) for i in range(n)]
        with tempfile.TemporaryDirectory() as folder:
            for name in self.names:
                write_adapter(Path(folder) / name, int(name))
                self.engine.load_lora(name, Path(folder) / name)
        self.run(1)

    def teardown(self, n: int) -> None:
        self.engine.close()

    def track_one(self, n: int) -> float:
        """One request, which uses all of them."""
        return self.run(1)

    def track_eight(self, n: int) -> float:
        """Eight requests at once, each with one of them."""
        return self.run(N_REQUESTS)

    def run(self, n_requests: int) -> float:
        start = time.perf_counter()
        asyncio.run(self.tasks(n_requests))
        return n_requests * N_TOKENS / (time.perf_counter() - start)

    async def tasks(self, n_requests: int) -> None:
        engine = oxillama.AsyncEngine(self.engine)
        names = itertools.cycle(self.names or [None])
        calls = []
        for i in range(n_requests):
            used = self.names if n_requests == 1 else [name for name in [next(names)] if name is not None]
            call = engine.generate(STORY[i:], max_tokens=N_TOKENS, ignore_eos=True, sampler=GREEDY, lora=used)
            calls.append(call)
        await asyncio.gather(*calls)
