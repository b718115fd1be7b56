"""How far a beam search has come, as plain data, and another one that goes on from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from oxillama.engine.beams import Candidate, choose
from oxillama.errors import GrammarError

if TYPE_CHECKING:
    from oxillama.engine.beam_places import Beam
    from oxillama.engine.beam_search import BeamSearch
    from oxillama.engine.results import FinishReason
    from oxillama.engine.sequence import Sequence

__all__ = ["Fill", "go_on", "progress"]

Fill = Callable[["Sequence"], None]


def progress(search: BeamSearch) -> dict[str, Any]:
    """All but the tokens of beams, in a turn of the loop. Raises the error of a search that failed."""
    if search._stopped:  # what is to end in the next turn ends in this one
        search._core._end_all(search.beams, search.reason)
    if search.outbox.error is not None:
        raise search.outbox.error
    ended, chosen = choose(search._candidates, search._width, search._end_ids)
    error = search._dead_end
    return {
        "limit": search._limit,
        "over": not search.outbox.n_open,
        "found": [[logprob, tokens, reason] for _, logprob, tokens, reason in search._found.kept],
        # Those that can be chosen, whatever beams tell that have not told yet.
        "candidates": [[*candidate] for candidate in ended + chosen],
        "beams": [[beam.logprob, beam.told] for beam in search._live],
        "dead_end": None if error is None else [isinstance(error, GrammarError), str(error)],
    }


def go_on(
    search: BeamSearch,
    beams: list[tuple[list[int], float, bool]],
    found: Iterable[tuple[float, list[int], FinishReason]],
    candidates: list[Candidate],
    dead_end: Exception | None,
    fill: list[Fill],
) -> None:
    """Brings a search that has not begun to where another one was.

    beams: (tokens after the prompt, log-probability, whether it has told its continuations), by rank. fill: gives the
    sequence of each, in a turn of the loop, what is computed of it.
    Raises ConfigError and GrammarError for tokens that can't be.
    """
    for result in found:
        search._found.add(*result)
    search._candidates, search._dead_end = candidates, dead_end
    search._live, search._root = search._places[: len(beams)], None
    search._n_awaited = sum(not told for *_, told in beams)
    for place in search._places:
        place.follows, place.followers = True, []  # none is queued by itself
    for number, (tokens, logprob, told) in enumerate(beams):
        beam = search._live[number]
        beam.sequence, beam.sampler = search.sequence(tokens), search.sampler.copy()
        for token in tokens:
            beam.sampler.accept(token)
        beam.number, beam.logprob, beam.told = number, logprob, told
        beam.begin = partial(_begin, search, beam, fill[number])


def _begin(search: BeamSearch, beam: Beam, fill: Fill, sequence: Sequence) -> None:
    """In the turn that queues it."""
    beam.begin = None  # which keeps what was saved
    fill(sequence)
    if beam.generated:
        beam.first_at = beam.counted_at = time.perf_counter()
        beam.n_counted = len(sequence.tokens)
    if beam.told:
        beam.started_at = time.perf_counter()
        search._core.meter.started(beam)
    if beam is search._live[0]:
        search._core.loop.post(search.take_up)
