"""Token masks of a request: allowed tokens, words that must not come, and no end before a text has some length."""

import math
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.kernels.sampling import Candidates

__all__ = ["NAMES", "Spelling", "TokenMasks"]

# Text as token ids, without a mark of the beginning and without a space that the tokenizer would put before it.
Spelling = Callable[[str], list[int]]

# What `Candidates` names when these leave no token.
NAMES = "allowed_token_ids, bad_words and min_tokens"


class TokenMasks:
    """Tokens that may not come next, by `allowed_token_ids`, `bad_words` and `min_tokens` of the settings.

    They follow from the tokens so far alone, so that copies of a sampler share one object, and a rewind needs nothing.
    """

    __slots__ = ("_allowed", "_banned", "_banned_early", "_continued", "_min_tokens")

    def __init__(
        self, config: SamplerConfig, *, spelling: Spelling | None = None, end_ids: Iterable[int] | None = None
    ) -> None:
        """spelling: needed if words are strings. end_ids: tokens that end a text, needed with `min_tokens`.

        Raises ConfigError if one of them is needed and missing, and for a word that has no tokens.
        """
        self._allowed = None if config.allowed_token_ids is None else _bits(config.allowed_token_ids)
        self._min_tokens = config.min_tokens
        if self._min_tokens and end_ids is None:
            raise ConfigError(
                "min_tokens is set, but this Sampler doesn't know which tokens end a text: give "
                "Sampler(end_ids=tokenizer.eog_ids)"
            )
        single: set[int] = set()
        # By the last of the tokens that stand before a word's last one: these, and the last one.
        self._continued: dict[int, list[tuple[array[int], int]]] = {}
        for word in _spelt(config.bad_words, spelling):
            if len(word) == 1:
                single.add(word[0])
            else:
                self._continued.setdefault(word[-2], []).append((array("i", word[:-1]), word[-1]))
        self._banned = np.array(sorted(single), np.int32)
        self._banned_early = np.array(sorted(single.union(end_ids or ())), np.int32)

    def apply(self, candidates: Candidates, tokens: "array[int]", n_prompt: int) -> None:
        """Bans tokens after `tokens`, of which the first `n_prompt` are the prompt's; only what follows those counts.

        Raises GenerateError if no token is left.
        """
        if self._allowed is not None:
            candidates.keep(self._allowed, NAMES)
        n = len(tokens) - n_prompt
        banned = self._banned_early if n < self._min_tokens else self._banned
        if n and tokens[-1] in self._continued:
            last = [
                token
                for before, token in self._continued[tokens[-1]]
                if len(before) <= n and tokens[-len(before) :] == before
            ]
            banned = np.concatenate([banned, np.array(last, np.int32)])
        if len(banned):
            candidates.bias(banned, np.full(len(banned), -math.inf, np.float32), NAMES)


def _bits(ids: Iterable[int]) -> NDArray[np.uint32]:
    """The mask in which only the bits of these tokens are set, as long as the highest of them needs."""
    tokens = np.array(list(ids), np.uint32)
    words = np.zeros(int(tokens.max()) // 32 + 1, np.uint32)
    np.bitwise_or.at(words, tokens // 32, np.uint32(1) << tokens % 32)
    return words


def _spelt(words: Iterable[Any], spelling: Spelling | None) -> set[tuple[int, ...]]:
    """Tokens of each word. A string is meant inside a text and after a space, which may be tokens of other kinds."""
    found: set[tuple[int, ...]] = set()
    for i, word in enumerate(words):
        if not isinstance(word, str):
            found.add(tuple(word))
            continue
        if spelling is None:
            raise ConfigError(
                f"bad_words[{i}] must be a list of token ids where it isn't known how words are spelt: give "
                "Sampler(spelling=lambda text: tokenizer.encode(text, add_special=False, continuation=True))"
            )
        bare = word.lstrip(" ")
        spelt = {tuple(spelling(text)) for text in ((bare, f" {bare}") if bare else (word,))}
        if () in spelt:
            raise ConfigError(f"bad_words[{i}] is {word!r}, which has no tokens: leave it out")
        found |= spelt
    return found
