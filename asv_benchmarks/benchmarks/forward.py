"""The model's own speed: a prompt, and one token after another."""

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
    """DECODED tokens after a prompt of n tokens: as times, so that commits take turns at them."""

    params = (16, 512)
    param_names = ("depth",)
    number = 1

    def setup(self, n: int) -> None:
        self.engine = load_engine()
        self.prompt = tokens(self.engine, n)
        self.engine.prefill(self.prompt)

    def teardown(self, n: int) -> None:
        self.engine.close()

    def time_low_level(self, n: int) -> None:
        """Logits alone, through ``forward_one``."""
        self.engine.truncate(n)
        for i in range(DECODED):
            self.engine.forward_one(self.prompt[i % n])

    def time_generate(self, n: int) -> None:
        """All that `generate` does: scheduling, sampling, text. Of the prompt, the prefix cache has all but the end."""
        self.engine.reset()
        self.engine.generate(self.prompt, max_tokens=DECODED, ignore_eos=True, seed=1)


class Batch:
    """DECODED tokens for each of n prompts that are generated together, of which the prefix cache has none."""

    params = (1, 4, 16)
    param_names = ("sequences",)
    number = 1

    def setup(self, n: int) -> None:
        self.engine = load_engine(prefix_cache=False)
        self.prompts = [tokens(self.engine, 16 + i) for i in range(n)]

    def teardown(self, n: int) -> None:
        self.engine.close()

    def time_generate(self, n: int) -> None:
        self.engine.generate(self.prompts, max_tokens=DECODED, ignore_eos=True, seed=1)
