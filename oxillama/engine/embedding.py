"""Embeddings: hidden states of all tokens, pooled."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from oxillama.config import check_bool, check_choice
from oxillama.engine.request import Outbox, Request, Want
from oxillama.engine.results import FinishReason
from oxillama.engine.sequence import Sequence

__all__ = ["POOLINGS", "EmbedPooling", "EmbeddingRequest", "check_embedding"]

# Poolings that give one vector for a text.
EmbedPooling = Literal["mean", "last", "cls", "max"]
POOLINGS = ("mean", "last", "cls", "max", "none")


def check_embedding(pooling: Any, normalize: Any) -> None:
    """Raises ConfigError for options that `Engine.embed` doesn't have."""
    check_choice("pooling", pooling, POOLINGS)
    check_bool("normalize", normalize)


class EmbeddingRequest(Request):
    """Hidden states after the final norm, pooled over the tokens of one text; `result` when finished.

    Rows are added one by one in double, so that the mean doesn't depend on how the text was divided into chunks.
    """

    want: Want = "hidden"

    def __init__(self, tokens: list[int], pooling: str, normalize: bool, outbox: Outbox, **options: Any) -> None:
        super().__init__(Sequence(tokens, len(tokens)), outbox, **options)
        self.result: NDArray[np.float32] = np.empty(0, np.float32)
        self._pooling = pooling
        self._normalize = normalize
        self._left = len(tokens)
        self._rows: list[NDArray[Any]] = []

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        self._left -= len(rows)
        kept = self._rows
        match self._pooling:
            case "none":
                kept.append(rows.copy())
            case "cls":
                self._rows = kept or [rows[0].copy()]
            case "last":
                self._rows = [rows[-1].copy()]
            case "max":
                self._rows = [np.maximum.reduce([*kept, *rows])]
            case _:
                total = kept[0] if kept else np.zeros(rows.shape[1], np.float64)
                for row in rows:
                    total += row
                self._rows = [total]
        if self._left:
            return None
        self.result = self._pooled()
        return "stop"

    def _pooled(self) -> NDArray[np.float32]:
        pooled = np.concatenate(self._rows) if self._pooling == "none" else self._rows[0]
        if self._pooling == "mean":
            pooled = pooled / len(self.sequence.tokens)
        if self._normalize:
            wide = pooled.astype(np.float64)
            length = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
            pooled = np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)
        return pooled.astype(np.float32)
