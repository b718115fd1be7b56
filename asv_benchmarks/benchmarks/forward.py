"""The model's own speed: a prompt, and one token after another."""

import time

from .common import load_engine, tokens

DECODED = 64


class Prefill:
    """Logits of the last of n tokens, none of which is found in the prefix cache."""

    params = (16, 128, 512)
    param_names = ("tokens",)

    def setup(self, n: int) -> None:
        self.engine = load_engine(prefix_cache=False)
        self.prompt = tokens(self.engine, n)
        self.engine.prefill(self.prompt)

    def teardown(self, n: int) -> None:
        self.engine.close()

    def time_prefill(self, n: int) -> None:
        self.engine.reset()
        self.engine.prefill(self.prompt)


class Decode:
    """Tokens a second after a prompt of n tokens."""

    params = (16, 512)
    param_names = ("depth",)
    unit = "tokens/s"
    number = 1

    def setup(self, n: int) -> None:
        self.engine = load_engine()
        self.prompt = tokens(self.engine, n)
        self.engine.prefill(self.prompt)

    def teardown(self, n: int) -> None:
        self.engine.close()

    def track_low_level(self, n: int) -> float:
        """Logits alone, through ``forward_one``."""
        self.engine.truncate(n)
        start = time.perf_counter()
        for i in range(DECODED):
            self.engine.forward_one(self.prompt[i % n])
        return DECODED / (time.perf_counter() - start)

    def time_low_level(self, n: int) -> None:
        """The same as a time, of which that of the CPU can be compared."""
        self.engine.truncate(n)
        for i in range(DECODED):
            self.engine.forward_one(self.prompt[i % n])

    def track_generate(self, n: int) -> float:
        """All that `generate` does: scheduling, sampling, text."""
        self.engine.reset()
        done = self.engine.generate(self.prompt, max_tokens=DECODED, ignore_eos=True, seed=1)
        return (len(done.token_ids) - 1) / done.timings.decode_seconds


class Batch:
    """Tokens a second of n sequences that are generated together."""

    params = (1, 4, 16)
    param_names = ("sequences",)
    unit = "tokens/s"

    def setup(self, n: int) -> None:
        self.engine = load_engine()
        self.prompts = [tokens(self.engine, 16 + i) for i in range(n)]

    def teardown(self, n: int) -> None:
        self.engine.close()

    def track_generate(self, n: int) -> float:
        start = time.perf_counter()
        done = self.engine.generate(self.prompts, max_tokens=DECODED, ignore_eos=True, seed=1)
        return sum(len(c.token_ids) for c in done) / (time.perf_counter() - start)
