"""Beams as requests: each has a place, and sequence after sequence is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oxillama.engine.request import Outbox, Request
from oxillama.engine.results import FinishReason

if TYPE_CHECKING:
    from oxillama.engine.beam_search import BeamSearch

__all__ = ["Beam", "BeamOutbox"]


class Beam(Request):
    """A place for a beam: one sequence of it after another.

    number: of the beam, by rank. logprob: of its tokens after the prompt. sampler: follows the grammar. told: whether
    the round has its continuations.
    """

    shares = True

    def __init__(self, search: BeamSearch, number: int, **options: Any) -> None:
        super().__init__(search.sequence([]), search.outbox, loras=search.loras, **options)
        self._search = search
        self.number = number
        self.logprob = 0.0
        self.told = False
        self.sampler = search.sampler

    @property
    def generated(self) -> list[int]:
        """Its tokens after the prompt."""
        return self.sequence.tokens[self.n_prompt :]

    def absorb(self, rows: NDArray[np.float32]) -> None:
        self._search.hear(self, rows[-1])

    def close(self, reason: FinishReason) -> FinishReason:
        self._search.leave(self, reason)
        return reason


class BeamOutbox(Outbox):
    """Tells its search when a beam has ended."""

    search: BeamSearch

    def end(self, request: Request, error: BaseException | None) -> None:
        super().end(request, error)
        self.search.stop(error)
