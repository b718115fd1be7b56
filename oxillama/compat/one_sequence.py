"""The sequence of `llama_decode`: a session of the engine, and the logits that the last batch asked for."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama._util.lazy import lazy
from oxillama.core.session import Session
from oxillama.engine import Engine
from oxillama.errors import EngineClosedError

__all__ = ["BatchTokens", "OneSequence"]

PART = 64  # tokens of a batch whose rows are computed at once, where some of them are wanted


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
        start = self.position
        if not batch.wanted or batch.wanted == [len(batch.tokens) - 1]:
            found = self.session.prefill(batch.tokens)[None][: len(batch.wanted)]
        elif len(batch.wanted) == len(batch.tokens):
            found = self.session.forward_logits(batch.tokens, start)
        else:
            try:
                found = self._some(batch)
            except BaseException:
                with suppress(EngineClosedError):
                    self.session.truncate(start)
                raise
        self.rows, self.places = np.ascontiguousarray(found), batch.wanted

    def _some(self, batch: BatchTokens) -> NDArray[np.float32]:
        """The rows that are wanted, computed with those beside them a part of the batch at a time."""
        found = np.empty((len(batch.wanted), self._engine.n_vocab), np.float32)
        done = 0
        for at in range(0, len(batch.tokens), PART):
            part = batch.tokens[at : at + PART]
            places = [place - at for place in batch.wanted[done:] if place < at + len(part)]
            if places:
                found[done : done + len(places)] = self.session.forward_logits(part, self.position)[places]
            else:
                self.session.prefill(part)
            done += len(places)
        return found

    def row(self, i: int) -> NDArray[np.float32] | None:
        """The logits of the batch's token i; counted from the last one that was asked for below 0."""
        place = len(self.places) + i if i < 0 else self.places.index(i) if i in self.places else -1
        return self.rows[place] if 0 <= place < len(self.places) else None
