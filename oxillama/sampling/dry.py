"""DRY, "don't repeat yourself" (p-e-w, text-generation-webui #5677; as in llama.cpp): where repetitions may begin."""

from collections.abc import Callable, Sequence

import numpy as np

from oxillama._util.rounded import log, power
from oxillama.errors import ConfigError
from oxillama.kernels.repeats import repeat_lengths
from oxillama.sampler_config import SamplerConfig

__all__ = ["Breaks", "TokenBytes", "dry_penalties"]

TokenBytes = Callable[[int], bytes]

MOST = 1e30  # taken off a logit


class Breaks:
    """Tokens of a text that end a sequence breaker: a string, wherever tokens divide it, or a list of ids.

    last: positions of these tokens, of the prompt the last one only.
    """

    __slots__ = ("_ids", "_length", "_strings", "_token_bytes", "last")

    def __init__(self, config: SamplerConfig, token_bytes: TokenBytes | None) -> None:
        """Raises ConfigError if there are strings, and no `token_bytes` for the bytes of tokens."""
        self._strings = [b.encode() for b in config.dry_sequence_breakers if isinstance(b, str)]
        self._ids = [list(b) for b in config.dry_sequence_breakers if not isinstance(b, str)]
        self._length = max(map(len, self._strings), default=0)
        if self._strings and token_bytes is None:
            raise ConfigError(
                "dry_sequence_breakers must be lists of token ids, or none, where it isn't known what tokens stand "
                "for: give Sampler(token_bytes=tokenizer.token_bytes)"
            )
        self._token_bytes = token_bytes
        self.last: list[int] = []

    def start(self, tokens: Sequence[int], window: int | None) -> None:
        """Looks for the last break of a prompt, and forgets those that there were."""
        self.last = []
        first = 0 if window is None else max(0, len(tokens) - window)
        for end in range(len(tokens), first, -1):
            if self._is_break(tokens, end):
                self.last = [end - 1]
                return

    def push(self, tokens: Sequence[int]) -> None:
        """After a token was added to `tokens`."""
        if self._is_break(tokens, len(tokens)):
            self.last.append(len(tokens) - 1)

    def cut(self, n_tokens: int) -> None:
        """After all but the first n tokens were taken back."""
        while self.last and self.last[-1] >= n_tokens:
            self.last.pop()

    def copy(self) -> "Breaks":
        twin = object.__new__(Breaks)
        twin._strings, twin._ids, twin._length = self._strings, self._ids, self._length
        twin._token_bytes, twin.last = self._token_bytes, self.last[:]
        return twin

    def is_breaker(self, token: int) -> bool:
        """Whether a breaker lies within the token: such a one is never penalised."""
        return self._is_break([token], 1)

    def _is_break(self, tokens: Sequence[int], end: int) -> bool:
        """Whether a breaker ends in the last of the first `end` tokens."""
        if any(len(ids) <= end and list(tokens[end - len(ids) : end]) == ids for ids in self._ids):
            return True
        if self._token_bytes is None or not self._strings:
            return False
        text = last = self._token_bytes(tokens[end - 1])
        wanted = len(last) + self._length - 1
        while len(text) < wanted and end > 1:
            end -= 1
            text = self._token_bytes(tokens[end - 1]) + text
        return any(text.find(b, max(0, len(text) - len(last) - len(b) + 1)) >= 0 for b in self._strings)


def dry_penalties(tokens: Sequence[int], breaks: Breaks, config: SamplerConfig) -> dict[int, float]:
    """Penalties of the logits of tokens that would lengthen a repetition; O(window)."""
    limit = len(tokens) - 1 - breaks.last[-1] if breaks.last else len(tokens)
    least = config.dry_allowed_length
    if limit < least or not config.dry_multiplier:
        return {}
    found = repeat_lengths(np.asarray(tokens, np.int32)[-(config.dry_window or 0) :], limit, least)
    return {token: _penalty(n - least, config) for token, n in found.items() if not breaks.is_breaker(token)}


def _penalty(exponent: int, config: SamplerConfig) -> float:
    if config.dry_base > 1.0:
        exponent = min(exponent, int(log(MOST) / log(config.dry_base)))
    return min(config.dry_multiplier * power(config.dry_base, float(exponent)), MOST)
