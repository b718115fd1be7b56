"""Sampler state: a request's data between tokens, which can be copied, taken back and saved."""

import math
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int
from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.grammar import GrammarState
from oxillama.kernels.random import XorShift64
from oxillama.sampling.dry import Breaks, TokenBytes
from oxillama.sampling.masks import TokenMasks

__all__ = ["History", "SamplerState", "check_ids"]

# Ids are 32-bit integers in the files.
MAX_TOKEN = (1 << 31) - 1
UNKNOWN = -1  # in place of a number of tokens


def check_ids(name: str, tokens: Any) -> list[int]:
    """`tokens` as a list of int. Raises ConfigError, which names the first that is no token id."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise ConfigError(f"{name} must be token ids, not {type(tokens).__name__}")
    ids = list(tokens)
    for token in ids:
        if type(token) is not int or not 0 <= token <= MAX_TOKEN:
            return [check_int(f"{name}[{i}]", token, 0, MAX_TOKEN) for i, token in enumerate(ids)]
    return ids


Bias = tuple[NDArray[np.int32], NDArray[np.float32]]  # tokens, and what is added to their logits
NO_BIAS: Bias = np.array([], np.int32), np.array([], np.float32)


class History:
    """The tokens of a text, and how often each occurs among the last `size`.

    A token that comes is only appended: `counts` is brought up to date where a stage reads it, which most texts' stages
    never do.
    """

    __slots__ = ("_counts", "_n_counted", "size", "tokens")

    def __init__(self, size: int, tokens: Iterable[int] = ()) -> None:
        self.size = size
        self.tokens = array("i", tokens)
        self._counts: dict[int, int] = {}
        self._n_counted = 0  # tokens up to the end of the window that `_counts` is of

    @property
    def counts(self) -> dict[int, int]:
        """Occurrences of each token of the window, those that occur. O(1) for each that came since the last look."""
        tokens, size, counted = self.tokens, self.size, self._n_counted
        self._n_counted = UNKNOWN  # until it is done: Ctrl-C may come in between
        if counted < 0 or len(tokens) - counted > size:
            self._counts, counted = {}, len(tokens)
            for token in tokens[-size:] if size else ():
                self._counts[token] = self._counts.get(token, 0) + 1
        for i in range(counted, len(tokens)):
            self._count(tokens[i], 1)
            if i >= size:
                self._count(tokens[i - size], -1)
        self._n_counted = len(tokens)
        return self._counts

    def pop(self) -> None:
        """Takes the last token back; the one that left the window for it returns."""
        tokens, size = self.tokens, self.size
        if self._n_counted == len(tokens):
            self._n_counted = UNKNOWN
            if size:
                self._count(tokens[-1], -1)
                if len(tokens) > size:
                    self._count(tokens[-size - 1], 1)
            self._n_counted = len(tokens) - 1
        tokens.pop()

    def _count(self, token: int, change: int) -> None:
        n = self._counts.get(token, 0) + change
        if n:
            self._counts[token] = n
        else:
            del self._counts[token]

    def copy(self) -> "History":
        twin = History(self.size)
        twin.tokens, twin._counts, twin._n_counted = self.tokens[:], self._counts.copy(), self._n_counted
        return twin


class SamplerState:
    """Generator, tokens so far, mirostat's mu, breaks of repetitions and grammar (None: any text) of one request.

    bias: tokens, int32, and the additions to their logits, float32; the same for all tokens of the request.
    masks: which tokens may not come by the text so far; None for settings that say nothing of it.
    """

    __slots__ = ("_mu", "_mus", "_rngs", "bias", "breaks", "grammar", "history", "masks", "mu", "n_prompt", "rng")

    def __init__(
        self, config: SamplerConfig, prompt: Sequence[int] = (), token_bytes: TokenBytes | None = None
    ) -> None:
        """Before the first token after `prompt`. Raises ConfigError if there are strings that break repetitions, and no
        `token_bytes`."""
        seed = int.from_bytes(os.urandom(8), "little") if config.seed is None else config.seed
        self.rng = XorShift64(seed)
        self.mu = 2.0 * config.mirostat_tau
        self.history = History(config.repetition_penalty_window, prompt)
        self.n_prompt = len(prompt)
        self.breaks = Breaks(config, token_bytes) if config.dry_multiplier else None
        if self.breaks is not None:
            self.breaks.start(self.history.tokens, config.dry_window)
        self.bias = _bias(config) if config.logit_bias or config.banned_tokens else NO_BIAS
        self.grammar: GrammarState | None = None
        self.masks: TokenMasks | None = None
        # As they were before the first token, and after each up to the last that moved one of them: greedy ones don't.
        self._rngs, self._mus = array("Q", [self.rng.state]), array("d", [self.mu])
        self._mu = self.mu  # the object that was marked last

    @property
    def n_accepted(self) -> int:
        """Tokens after the prompt."""
        return len(self.history.tokens) - self.n_prompt

    def push(self, token: int) -> None:
        """A token follows.

        Raises ConfigError for an invalid id, GrammarError for a token that the grammar doesn't allow; and changes
        nothing then.
        """
        if type(token) is not int or not 0 <= token <= MAX_TOKEN:
            token = check_int("token", token, 0, MAX_TOKEN)
        if self.grammar is not None:
            self.grammar.advance(token)
        self.history.tokens.append(token)
        if self.breaks is not None:
            self.breaks.push(self.history.tokens)
        if self.rng.moved or self.mu is not self._mu:
            n_before = len(self.history.tokens) - self.n_prompt
            if n_before > len(self._rngs):
                self._fill(n_before)
            self._rngs.append(self.rng.state)
            self._mus.append(self.mu)
            self.rng.moved, self._mu = False, self.mu

    def _fill(self, n: int) -> None:
        """Marks up to the first n: tokens that are not marked moved nothing."""
        n_missing = n - len(self._rngs)
        if n_missing > 0:
            self._rngs.extend(self._rngs[-1:] * n_missing)
            self._mus.extend(self._mus[-1:] * n_missing)

    def rewind(self, n: int) -> None:
        """Restores the state after the last token but n, before any draw of the next one."""
        if self.grammar is not None:
            self.grammar.rollback(n)
        for _ in range(n):
            self.history.pop()
        if self.breaks is not None:
            self.breaks.cut(len(self.history.tokens))
        n_left = self.n_accepted + 1
        del self._rngs[n_left:], self._mus[n_left:]
        self.rng.state, self.mu = self._rngs[-1], self._mus[-1]

    def restart(self, config: SamplerConfig, prompt: Sequence[int], seed: int | None) -> None:
        """Restores the state before the first token, after another prompt. seed: of a new generator; None keeps it."""
        self.rewind(self.n_accepted)
        self.history, self.n_prompt = History(self.history.size, prompt), len(prompt)
        if self.breaks is not None:
            self.breaks.start(self.history.tokens, config.dry_window)
        if seed is not None:
            self.rng = XorShift64(seed)
            self._rngs[0] = self.rng.state

    def copy(self) -> "SamplerState":
        twin = object.__new__(SamplerState)
        twin.rng, twin.mu = XorShift64(self.rng.state), self.mu
        twin.history, twin.n_prompt = self.history.copy(), self.n_prompt
        twin.breaks = None if self.breaks is None else self.breaks.copy()
        twin._mu, twin.bias, twin.masks = self._mu, self.bias, self.masks
        twin._rngs, twin._mus = self._rngs[:], self._mus[:]
        twin.grammar = None if self.grammar is None else self.grammar.fork()
        return twin

    def data(self) -> dict[str, Any]:
        """All of it as lists and numbers, without the settings, the grammar and the masks."""
        self._fill(self.n_accepted + 1)
        return {
            "tokens": self.history.tokens.tolist(),
            "n_prompt": self.n_prompt,
            "rng": self.rng.state,
            "mu": self.mu,
            "marks": [list(mark) for mark in zip(self._rngs, self._mus, strict=True)],
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Restores the state of `data`, from that of the prompt. Raises ConfigError for damaged data, GrammarError."""
        tokens = check_ids("tokens of the saved state", data.get("tokens"))[self.n_prompt :]
        marks = data.get("marks")
        if not isinstance(marks, list | tuple) or len(marks) != len(tokens) + 1:
            raise ConfigError(f"marks of the saved state must be {len(tokens) + 1} pairs of numbers")
        checked = [_checked_mark(mark) for mark in marks]
        now = _checked_mark([data.get("rng"), data.get("mu")])
        for token in tokens:
            self.push(token)
        self._rngs, self._mus = array("Q", (rng for rng, _ in checked)), array("d", (mu for _, mu in checked))
        self.rng.state, self.mu = now


def _checked_mark(mark: Any) -> tuple[int, float]:
    if not isinstance(mark, list | tuple) or len(mark) != 2:
        raise ConfigError(f"marks of the saved state must be pairs of numbers, not {mark!r}")
    rng, mu = mark
    # The generator never leaves zero.
    rng = check_int("generator of the saved state", rng, 1, (1 << 64) - 1)
    if isinstance(mu, bool) or not isinstance(mu, int | float) or not math.isfinite(mu):
        raise ConfigError(f"mu of the saved state must be a finite number, not {mu!r}")
    return rng, float(mu)


def _bias(config: SamplerConfig) -> Bias:
    biases = dict(config.logit_bias or {}) | dict.fromkeys(config.banned_tokens, -math.inf)
    return np.array(list(biases), np.int32), np.array(list(biases.values()), np.float32)
