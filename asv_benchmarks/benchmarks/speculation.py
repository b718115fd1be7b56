"""Guessing ahead, against decoding token by token; divide by the parameter "none"."""

from collections.abc import Sequence

import oxillama
from oxillama import Completion, DraftTask, PromptLookup, Proposal
from oxillama.core.options import GenerateOptions

from .common import load_engine, tokens

N_PROMPT, N_TOKENS = 64, 96


class Known:
    """Guesses from a text that it is given: the right one, or one that never comes true."""

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def bind(self, target: object) -> None:
        """Fits any engine."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        return [Proposal(self.text[len(t.tokens) : len(t.tokens) + t.n]) for t in tasks]

    def forget(self, key: int) -> None:
        """Keeps nothing."""


class Decoding:
    """One request of 96 tokens, greedily, guessing eight at a time.

    lookup: what the model says is in a text to look it up in, as when a text is copied or changed. ideal: a draft that
    is always right and costs nothing. hopeless: one that is always wrong, with and without the rule that shuts it off.
    """

    params = ("none", "lookup", "ideal", "hopeless", "hopeless, always asked")
    param_names = ("draft",)

    def setup(self, draft: str) -> None:
        self.engine = load_engine()
        self.prompt = tokens(self.engine, N_PROMPT)
        self.options: GenerateOptions = {"max_tokens": N_TOKENS, "sampler": GREEDY, "ignore_eos": True}
        text = self.prompt + self.run().token_ids
        wrong = [(token + 1) % self.engine.n_vocab for token in text]
        if draft != "none":
            known = PromptLookup(texts=[text]) if draft == "lookup" else Known(text if draft == "ideal" else wrong)
            self.options |= {"draft": known, "num_speculative": 8, "adaptive": not draft.endswith("asked")}
        assert self.run().token_ids == text[N_PROMPT:]

    def teardown(self, draft: str) -> None:
        self.engine.close()

    def time_decoding(self, draft: str) -> None:
        self.run()

    def track_acceptance(self, draft: str) -> float:
        """Part of the guesses that came true."""
        found = self.run().speculation
        return found.acceptance_rate if found else 0.0

    def run(self) -> Completion:
        return self.engine.generate(self.prompt, **self.options)


GREEDY = oxillama.SamplerConfig(temperature=0, repetition_penalty=1.0)
