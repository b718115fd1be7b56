"""What a request's sampling remembers between tokens; plain data that can be copied."""

import os
from collections import deque
from collections.abc import Iterable

from oxillama.config import SamplerConfig
from oxillama.kernels.sampling import XorShift64
from oxillama.sampling.grammar import GrammarState

__all__ = ["PenaltyWindow", "SamplerState"]


class PenaltyWindow:
    """The last `size` tokens and how often each occurs among them; O(1) per token."""

    __slots__ = ("counts", "tokens")

    def __init__(self, size: int, tokens: Iterable[int] = ()) -> None:
        self.tokens: deque[int] = deque(maxlen=size)
        self.counts: dict[int, int] = {}
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        """Adds a token; the oldest leaves when the window is full."""
        tokens, counts = self.tokens, self.counts
        if tokens.maxlen == 0:
            return
        if len(tokens) == tokens.maxlen:
            oldest = tokens[0]
            counts[oldest] -= 1
            if not counts[oldest]:
                del counts[oldest]
        tokens.append(token)
        counts[token] = counts.get(token, 0) + 1

    def copy(self) -> "PenaltyWindow":
        return PenaltyWindow(self.tokens.maxlen or 0, self.tokens)


class SamplerState:
    """Random generator, penalty window and grammar (None: any text) of one request."""

    __slots__ = ("grammar", "rng", "window")

    def __init__(self, rng: XorShift64, window: PenaltyWindow, grammar: GrammarState | None = None) -> None:
        self.rng = rng
        self.window = window
        self.grammar = grammar

    @classmethod
    def start(cls, config: SamplerConfig, prompt: Iterable[int] = ()) -> "SamplerState":
        """Before the first token; the window starts with the end of `prompt`."""
        seed = int.from_bytes(os.urandom(8), "little") if config.seed is None else config.seed
        return cls(XorShift64(seed), PenaltyWindow(config.repetition_penalty_window, prompt))

    def copy(self) -> "SamplerState":
        grammar = None if self.grammar is None else self.grammar.fork()
        return SamplerState(XorShift64(self.rng.state), self.window.copy(), grammar)
