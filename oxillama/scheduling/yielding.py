"""Yielding: which running sequence gives its place or its blocks to one of another owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from oxillama.scheduling.sequence import Sequence

__all__ = ["block_yielder", "place_yielder", "victim"]


def victim(running: list[Sequence], n_owners: int) -> Sequence:
    """The sequence that is preempted when blocks run out: the last in rank; of several owners', that of the owner that
    holds most, as long as it has one that has not yielded yet."""
    if n_owners > 1:
        held = _held(running)
        most = max(held.values())
        for sequence in reversed(running):
            if held[sequence.owner] == most and not sequence.yielded:
                sequence.yielded = True
                return sequence
    return running[-1]


def place_yielder(running: list[Sequence], owner: Hashable, share: int) -> Sequence | None:
    """The sequence that makes place for one of `owner`, which has less than its share of the running places: the last
    in rank of the owner that has most of them, and more than its share. None if there is no such owner."""
    counts = Counter(sequence.owner for sequence in running)
    most, n = counts.most_common(1)[0]
    if counts[owner] >= share or n <= share:
        return None
    return next(sequence for sequence in reversed(running) if sequence.owner == most)


def block_yielder(running: list[Sequence], newcomer: Sequence) -> Sequence | None:
    """The sequence that gives its blocks to one that starts for the first time: the last in rank of the owner that
    holds most, and more than the newcomer's. None if there is no such owner.

    Each yields once, and none makes another yield again when it comes back: so every sequence comes to its end.
    """
    if newcomer.n_cached is not None:
        return None
    held = _held(running)
    others = [s for s in running if held[s.owner] > held[newcomer.owner] and not s.yielded]
    if not others:
        return None
    most = max(held[sequence.owner] for sequence in others)
    found = next(sequence for sequence in reversed(others) if held[sequence.owner] == most)
    found.yielded = True
    return found


def _held(running: list[Sequence]) -> Counter[Hashable]:
    """Blocks and places that running sequences of each owner hold; blocks that they share count for each."""
    held: Counter[Hashable] = Counter()
    for sequence in running:
        held[sequence.owner] += 1 + sum(map(len, sequence.tables))
    return held
