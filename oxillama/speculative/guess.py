"""Guessing the tokens of one text, one after another, as the request's own sampler would draw them."""

import numpy as np
from numpy.typing import NDArray

from oxillama.engine.sequence import Sequence
from oxillama.errors import GenerateError, OxiLlamaError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Distribution
from oxillama.speculative.draft import DraftTask, Proposal
from oxillama.speculative.draft_texts import DraftText, Mark

__all__ = ["Guess"]

MASK = (1 << 64) - 1


def derived(state: int) -> int:
    """State of a generator whose numbers have nothing to do with those that follow `state` in the request's own.

    The finaliser of SplitMix64 (Steele et al. 2014) of another place; never 0, which xorshift doesn't leave.
    """
    x = (state ^ 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return (x ^ x >> 31) or 1


class Guess:
    """What is guessed for one task. The task's sampler goes along, and back by `end`.

    n: tokens wanted. done: whether there are no more to come.
    """

    __slots__ = ("_end_ids", "_n_before", "_probs", "_sampler", "_start", "_text", "done", "n", "tokens")

    def __init__(self, task: DraftTask, n: int, scratch: Candidates, end_ids: frozenset[int]) -> None:
        """n may be less than the task wants. end_ids: no token is guessed after one of these."""
        memory = task.sampler.memory
        self.n, self._end_ids = n, end_ids
        self.tokens: list[int] = []
        self.done = n < 1
        self._probs: list[Distribution] | None = [] if task.with_probs else None
        self._start: Mark = memory.rng.state, memory.mu
        self._n_before = memory.n_accepted
        self._sampler = task.sampler.guesser(scratch)
        self._text: DraftText | None = None

    @property
    def sequence(self) -> Sequence:
        """Of the text; there is one after `begin`."""
        assert self._text is not None
        return self._text.sequence

    @property
    def mark(self) -> Mark | None:
        """Where the sampler was at the beginning; None if guesses from another time are of no use."""
        return None if self._probs is not None else self._start

    def begin(self, text: DraftText) -> None:
        """Takes what was guessed before and still holds."""
        memory, sequence = self._sampler.memory, text.sequence
        self._text, sequence.handle = text, self
        sequence.n_prompt, sequence.n_reserve = text.n_known, text.n_known + self.n - 1
        if self._probs is not None:
            memory.rng.state = derived(memory.rng.state)
        for token, mark in zip(text.guessed[: self.n], text.marks[1:], strict=False):
            memory.rng.state, memory.mu = mark
            self._sampler.accept(token)
            self._add(token)

    def _add(self, token: int) -> None:
        self.tokens.append(token)
        self.done = len(self.tokens) >= self.n or token in self._end_ids

    def draw(self, row: NDArray[np.float32]) -> None:
        """The next token, from the draft's logits; none if the request's chain or grammar has nothing to draw there.

        That is not told here: if it comes to this place, the model's own draw will. Raises GenerateError if a logit is
        NaN or plus infinity.
        """
        try:
            self._sampler.scratch.load(row)
        except GenerateError as error:
            raise GenerateError(f"in the draft model: {error}") from None
        try:
            self._take(*self._choose())
        except OxiLlamaError:
            self.done = True

    def _take(self, token: int, q: Distribution | None) -> None:
        # Once drawn it is told, whether or not it can be accepted: what is left out has another law.
        self._add(token)
        if self._probs is not None and q is not None:
            self._probs.append(q)
        self._sampler.accept(token)
        self.sequence.tokens.append(token)
        if self._probs is None and self._text is not None:
            self._text.marks.append((self._sampler.memory.rng.state, self._sampler.memory.mu))

    def _choose(self) -> tuple[int, Distribution | None]:
        chain, candidates, memory = self._sampler.chain, self._sampler.scratch, self._sampler.memory
        if self._probs is None:
            return chain.choose(candidates, memory), None
        q = chain.distribution(candidates, memory)
        return q.draw(memory.rng.uniform()), q

    def end(self) -> Proposal:
        """What there is; leaves the sampler as it was found."""
        memory = self._sampler.memory
        self._sampler.rewind(memory.n_accepted - self._n_before)
        memory.rng.state, memory.mu = self._start
        if self._text is not None:
            self._text.sequence.handle = None
        return Proposal(self.tokens, self._probs)
