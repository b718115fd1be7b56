"""The sampler of a session, which goes with its tokens: forward, back, and into copies."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_keywords, check_type
from oxillama.config import SamplerConfig, SamplingOptions
from oxillama.engine.prompts import make_chain
from oxillama.errors import ConfigError, GenerateError, GrammarError
from oxillama.sampling import LogitsProcessor, Sampler, SamplerChain
from oxillama.sampling.sampler import check_processors

__all__ = ["SamplerLike", "SessionSampler"]

SamplerLike = SamplerConfig | SamplerChain | Sampler | None
Make = Callable[[SamplerChain, list[int], Iterable[LogitsProcessor]], Sampler]

KEYWORDS = ("sampler", "logits_processors", *SamplingOptions.__annotations__)


class SessionSampler:
    """A sampler, or none yet, and whether it goes with the session's tokens, which it does from its first draw on.

    Its prompt is what the session holds at that draw; what comes later is its text. One that only the caller uses is
    left alone.
    """

    def __init__(self, make: Make, defaults: SamplerConfig) -> None:
        """`make(chain, prompt, processors)` gives a sampler at the beginning of a text. `defaults`: settings of a call
        that gives none."""
        self._make, self._defaults = make, defaults
        self.sampler: Sampler | None = None
        self.follows = False
        self._lowest: int | None = None  # where the session went back to since then

    def put(self, sampler: Any) -> None:
        """Takes a sampler of the caller's own in place of the present one; None for none."""
        if sampler is not None:
            check_type("sampler", sampler, Sampler)
        if sampler is not self.sampler:
            self.sampler, self.follows = sampler, False

    def choose(self, sampler: SamplerLike, processors: Any, fields: dict[str, Any]) -> Sampler:
        """The sampler that a call asks for: the present one, unless it asks for other settings.

        Raises ConfigError, GrammarError, and TypeError for unknown fields.
        """
        check_keywords("sample", fields, KEYWORDS)
        if isinstance(sampler, Sampler):
            if processors is not None or fields:
                raise ConfigError("sampler is a Sampler, which has its settings: give it alone")
            self.put(sampler)
        elif self.sampler is None or sampler is not None or processors is not None or fields:
            chain, functions = make_chain(sampler, fields, self._defaults), check_processors(processors)
            if self.sampler is None or self.sampler.config != chain.config:
                self.put(self._make(chain, [], functions))
            else:  # functions made anew for each call don't begin a new text
                self.sampler.chain, self.sampler.processors = chain, functions
        assert self.sampler is not None
        return self.sampler

    def draw(self, logits: NDArray[np.float32], tokens: list[int]) -> int:
        """A token to follow the session's tokens. Raises what `Sampler.sample` raises, GrammarError, ConfigError."""
        sampler = self.sampler
        assert sampler is not None
        self._go_back(tokens)
        if not self.follows:
            self._begin(sampler, tokens)
        self._accept(tokens)
        return sampler.sample(logits)

    def went_back(self, n: int) -> None:
        """The session has forgotten what came after its first n tokens."""
        self._lowest = n if self._lowest is None else min(n, self._lowest)

    def settle(self, tokens: list[int]) -> None:
        """Goes with the session's tokens as far as the grammar allows: the next draw raises what is wrong."""
        self._go_back(tokens)
        with suppress(GrammarError):
            self._accept(tokens)

    def _begin(self, sampler: Sampler, tokens: list[int]) -> None:
        """The first draw: a sampler that has accepted nothing has the session's tokens as its prompt."""
        if min(tokens, default=0) < 0:
            raise GenerateError("not all tokens of the session are known: its snapshot doesn't tell them; reset() it")
        history = sampler.memory.history.tokens
        if not sampler.memory.n_accepted:
            if history.tolist() != tokens:
                sampler.restart(tokens)
        elif _n_common(history, tokens) < len(history):
            raise ConfigError(
                "session.sampler has accepted other tokens than the session has: use it by hand, or give sample() "
                "settings, with which it begins anew"
            )
        self.follows = True

    def _go_back(self, tokens: list[int]) -> None:
        """To where it was after the tokens that the session still has, or has again, before anything was drawn there.

        If the session went back into the prompt, the next draw begins anew: with the same seed, if there is one.
        """
        sampler, lowest, self._lowest = self.sampler, self._lowest, None
        if sampler is None or not self.follows:
            return
        history = sampler.memory.history.tokens
        n = _n_common(history, tokens)
        if n == len(history) and lowest is None:
            return
        if min(n, n if lowest is None else lowest) < sampler.memory.n_prompt:
            sampler.restart(reseed=True)
            self.follows = False
        else:
            sampler.rewind(len(history) - n)

    def _accept(self, tokens: list[int]) -> None:
        """What the session got since the last draw. Raises GrammarError for what may not come there."""
        if self.follows and self.sampler is not None:
            for token in tokens[len(self.sampler.memory.history.tokens) :]:
                self.sampler.accept(token)

    def fork(self) -> SessionSampler:
        """One in the same state, on its own from here on."""
        twin = SessionSampler(self._make, self._defaults)
        twin.sampler = None if self.sampler is None else self.sampler.copy()
        twin.follows, twin._lowest = self.follows, self._lowest
        return twin


def _n_common(history: array[int], tokens: list[int]) -> int:
    """Tokens that both begin with."""
    most = min(len(history), len(tokens))
    if history[:most] == array("i", tokens[:most]):
        return most
    return next(i for i in range(most) if history[i] != tokens[i])
