"""The sequence of `llama_decode`: a session of the engine, and the logits that the last batch asked for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama._util.lazy import lazy
from oxillama.core.session import Session
from oxillama.engine import Engine

__all__ = ["BatchTokens", "OneSequence"]


class BatchTokens(NamedTuple):
    """Tokens of a batch. wanted: indices of the tokens whose logits are to be kept."""

    tokens: list[int]
    wanted: list[int]


class OneSequence:
    """The sequence that `llama_decode` appends to: a session, and the logits that the last batch asked for.

    It is beside that of `Llama.eval`: neither changes the other's tokens.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self.places: list[int] = []  # of the rows, in the batch

    @lazy
    def session(self) -> Session:
        return self._engine.session()

    @property
    def position(self) -> int:
        return self.session.position

    def decode(self, batch: BatchTokens) -> None:
        """Appends the tokens of a batch, and keeps the logits that it asks for."""
        if not batch.wanted or batch.wanted == [len(batch.tokens) - 1]:
            found = self.session.prefill(batch.tokens)[None][: len(batch.wanted)]
        else:
            found = self.session.forward_logits(batch.tokens, self.position)
            found = found if len(batch.wanted) == len(found) else found[batch.wanted]
        self.rows, self.places = np.ascontiguousarray(found), batch.wanted

    def row(self, i: int) -> NDArray[np.float32] | None:
        """The logits of the batch's token i; counted from the last one that was asked for below 0."""
        place = len(self.places) + i if i < 0 else self.places.index(i) if i in self.places else -1
        return self.rows[place] if 0 <= place < len(self.places) else None
