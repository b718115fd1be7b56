"""What a draft would gain: how often it guesses the target's tokens, what both cost, and what follows from the two."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oxillama.config import SamplerConfig
from oxillama.engine import Engine
from oxillama.errors import GenerateError
from oxillama.sampling import Sampler

__all__ = ["Probe", "expected_speedup"]

SEED = 1
MAX_TOKENS = 64  # of each text
ROWS = (1, 2, 3, 5, 9, 17, 33)  # of the steps that are timed
REPEATS = 5
PROBE_CONTEXT = 512


@dataclass(frozen=True)
class ProbeText:
    """A prompt, what the target made of it, and its logits where each token was drawn, [tokens, n_vocab]."""

    prompt: list[int]
    output: list[int]
    rows: NDArray[np.float32]


class Probe:
    """Texts of a target and the seconds of its steps, against which drafts are measured.

    Attributes:
        seconds: of a step with so many rows, measured; others are interpolated.
    """

    def __init__(self, target: Engine, prompts: SequenceOf[str], sampler: SamplerConfig, num_speculative: int) -> None:
        self.sampler = replace(sampler, seed=SEED)
        rows = [n for n in ROWS if n <= num_speculative + 1] + [num_speculative + 1]
        self.texts = [text for prompt in prompts if (text := self._text(target, prompt)).output]
        self.seconds: Mapping[int, float] = {n: step_seconds(target, n) for n in sorted(set(rows))}
        self.num_speculative = num_speculative

    def _text(self, target: Engine, prompt: str) -> ProbeText:
        ids = target.tokenize(prompt)
        output = target.generate(ids, max_tokens=MAX_TOKENS, sampler=self.sampler).token_ids
        rows = target.forward_logits(ids + output)[len(ids) - 1 : -1] if output else np.empty((0, 0), np.float32)
        return ProbeText(ids, output, rows)

    def acceptance(self, draft: Engine) -> float:
        """The share of the target's tokens that the draft guesses, drawing as the request would: from its own logits,
        with the request's sampler in the same state.

        Raises GenerateError if the draft's logits can't be drawn from, or if there is no text.
        """
        hits = [hit for text in self.texts for hit in self._hits(text, draft)]
        if not hits:
            raise GenerateError("the target answers the probe's prompts with nothing: give others")
        return sum(hits) / len(hits)

    def _hits(self, text: ProbeText, draft: Engine) -> list[bool]:
        guessed = draft.forward_logits(text.prompt + text.output)[len(text.prompt) - 1 : -1]
        sampler = Sampler(self.sampler, prompt=text.prompt)
        hits = []
        for wanted, row, token in zip(text.rows, guessed, text.output, strict=True):
            hits.append(sampler.copy().sample(row) == token)
            sampler.sample(wanted)  # so that the generator goes on as it did in the text
            sampler.accept(token)
        return hits

    def speedup(self, acceptance: float, draft_seconds: float) -> tuple[float, int]:
        """The best expected speed-up, and for how many drafted tokens."""
        known = list(self.seconds)
        times = np.interp(range(1, self.num_speculative + 2), known, [self.seconds[n] for n in known])
        found = [
            (expected_speedup(acceptance, k, times[0], times[k], draft_seconds), k)
            for k in range(1, self.num_speculative + 1)
        ]
        return max(found, key=lambda pair: pair[0])


def expected_speedup(
    acceptance: float, k: int, plain_seconds: float, verify_seconds: float, draft_seconds: float
) -> float:
    """Tokens per second with k drafted tokens, by those without a draft (Leviathan et al. 2023, theorem 3.8).

    A round gives 1 + a + a² + … + a^k tokens if each guess is accepted with probability a, whatever came before. It
    costs k steps of the draft, and one of the target with k + 1 rows.
    """
    tokens = sum(acceptance**i for i in range(k + 1))
    return float(tokens * plain_seconds / (k * draft_seconds + verify_seconds))


def step_seconds(engine: Engine, n_rows: int) -> float:
    """Of the quickest of some steps that append so many tokens to a short text."""
    token = engine.tokenizer.n_vocab // 2
    with engine.session(cache_prompt=False) as session:
        session.prefill([token] * 16)
        found = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            session.prefill([token] * n_rows)
            found.append(time.perf_counter() - began)
    return min(found)
