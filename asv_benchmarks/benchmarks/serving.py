"""Many requests at once, against one after another."""

import asyncio

import oxillama

from .common import STORY, load_engine

N_REQUESTS, N_TOKENS = 8, 32
PROMPTS = [STORY[i:] for i in range(N_REQUESTS)]


class Together:
    """Eight requests of 32 tokens each, greedily; the parameter says how they are asked for."""

    params = ("one after another", "list", "batch", "tasks")
    param_names = ("asked",)

    def setup(self, asked: str) -> None:
        self.engine = load_engine()
        self.run(asked)

    def teardown(self, asked: str) -> None:
        self.engine.close()

    def time_eight(self, asked: str) -> None:
        self.run(asked)

    def run(self, asked: str) -> None:
        options = oxillama.SamplerConfig(temperature=0)
        if asked == "one after another":
            for prompt in PROMPTS:
                self.engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True, sampler=options)
        elif asked == "list":
            self.engine.generate(PROMPTS, max_tokens=N_TOKENS, ignore_eos=True, sampler=options)
        elif asked == "batch":
            for _ in self.engine.batch(PROMPTS, max_tokens=N_TOKENS, ignore_eos=True, sampler=options):
                pass
        else:
            asyncio.run(self.tasks(options))

    async def tasks(self, options: oxillama.SamplerConfig) -> None:
        engine = oxillama.AsyncEngine(self.engine)
        calls = (engine.generate(p, max_tokens=N_TOKENS, ignore_eos=True, sampler=options) for p in PROMPTS)
        await asyncio.gather(*calls)
