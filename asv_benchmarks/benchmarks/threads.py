"""What the default number of threads gains over one thread, alone and beside a process that wants the same cores."""

import os
import subprocess
import sys
import time
from statistics import median

import oxillama

from .common import STORY, model_path

N_TOKENS = 60
ROUNDS = 9


class AgainstOneThread:
    """Tokens per second of so many sequences with all threads, as a multiple of those with one, in turns.

    Beside one endless loop per core but one, teams are held up, and 1 / 1.3 is the least that may be left.
    """

    params = ([1, 2, 4, 8], ["alone", "beside"])
    param_names = ("sequences", "machine")
    timeout = 300

    def track_ratio(self, sequences: int, machine: str) -> float:
        n_busy = max(1, (os.cpu_count() or 2) - 1) if machine == "beside" else 0
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_busy)]
        engines = [oxillama.load(model_path(), num_threads=n, context_size=256) for n in (1, None)]
        try:
            for engine in engines:
                self.rate(engine, sequences)
            rates = [[self.rate(engine, sequences) for engine in engines] for _ in range(ROUNDS)]
        finally:
            for process in busy:
                process.kill()
                process.wait()
            for engine in engines:
                engine.close()
        one, team = (median(column) for column in zip(*rates, strict=True))
        return float(team / one)

    def rate(self, engine: oxillama.Engine, n: int) -> float:
        """Tokens per second."""
        prompts = [f"{STORY}{i}" for i in range(n)]
        began = time.perf_counter()
        for _ in engine.batch(prompts, max_tokens=N_TOKENS, ignore_eos=True, temperature=0):
            pass
        return n * N_TOKENS / (time.perf_counter() - began)


class ShortContexts:
    """32 requests in contexts of 128 tokens, with the default room and with room for four such contexts."""

    params = ("default", "four")
    param_names = ("room",)

    def setup(self, room: str) -> None:
        with oxillama.load(model_path(), context_size=128) as engine:  # room for 64 of them
            four = engine.memory_bytes()["kv_cache"] // 16
        budget = four if room == "four" else None
        self.engine = oxillama.load(model_path(), num_threads=1, context_size=128, kv_budget=budget)
        self.time_batch(room)

    def teardown(self, room: str) -> None:
        self.engine.close()

    def time_batch(self, room: str) -> None:
        prompts = [f"Once upon a time {i}" for i in range(32)]
        for _ in self.engine.batch(prompts, max_tokens=N_TOKENS, ignore_eos=True, temperature=0):
            pass
