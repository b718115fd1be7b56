"""Draft models of the replaced package: functions from tokens to those that may follow."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]


class LlamaDraftModel(abc.ABC):
    """Base of draft models: `__call__` gives tokens that may follow."""

    @abc.abstractmethod
    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """Draft tokens, as many as it likes, int32."""
        raise NotImplementedError


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Drafts what followed the first occurrence of the last tokens.

    An engine that is given one looks up by `oxillama.PromptLookup`, which takes the last occurrence instead.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = check_int("max_ngram_size", max_ngram_size, 1, 1 << 10)
        self.num_pred_tokens = check_int("num_pred_tokens", num_pred_tokens, 1, 1 << 10)

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: NDArray[np.intc], max_ngram_size: int, num_pred_tokens: int
    ) -> NDArray[np.intc]:
        """Tokens that followed the longest run of last tokens that occurred before, int32; empty if none did."""
        tokens = np.asarray(input_ids, np.intc)
        n = len(tokens)
        for size in range(min(max_ngram_size, n - 1), 0, -1):
            run = tokens[n - size :]
            for start in range(n - size):
                if np.array_equal(tokens[start : start + size], run):
                    return tokens[start + size : start + size + num_pred_tokens]
        return np.empty(0, np.intc)

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)
