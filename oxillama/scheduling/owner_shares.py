"""Owner shares: how much of the steps each owner of sequences has had, so that none keeps the others out."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from oxillama.scheduling.prefill_throttle import LEAST_CHUNK

__all__ = ["STEP_WORK", "OwnerShares", "prompt_work"]

# Work of a step besides its tokens, in tokens at depth 0. Without it an owner of many short prompts would have many
# steps for one of a long prompt.
STEP_WORK = LEAST_CHUNK
# Depth at which a token of a prompt counts twice: between that of the shipped model (1,400) and that of Llama 3.2 1B.
WORK_DEPTH = 2048
MAX_KEPT = 1024  # owners whose work is known when they have gone


def prompt_work(n: int, depth: int) -> float:
    """Work of n tokens of a prompt of which `depth` are computed, in tokens at depth 0."""
    return n * (WORK_DEPTH + depth) / WORK_DEPTH


class OwnerShares:
    """The work of the steps that was done for each owner of live sequences, while there were several.

    A virtual token counter for each owner (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024): the one
    that had least comes first. An owner that comes, or comes back, begins no further than `lag` behind the one that had
    most, so that none saves up turns. So far it comes first until it has had as much: with equal shares from the first
    step on, a prompt would take twice its time and that of all that steps take beside their tokens.

    live: live sequences of each owner, as the scheduler counts them. lag: work, half of a step's. done: work that was
    done for each owner; empty as long as none has live sequences. alone_from: step since which there has been one owner
    at most. The scheduler sets both where owners leave.
    """

    def __init__(self, live: Mapping[Hashable, int], lag: float) -> None:
        self._live, self._lag = live, max(lag, 1.0)
        self.done: dict[Hashable, float] = {}
        self.alone_from = 0

    def enter(self, owner: Hashable, n_steps: int, n_running: int) -> None:
        """An owner has a live sequence now, and others have. If that is one, it has had steps alone, for `n_running` of
        its sequences, which weren't counted.

        n_steps: number of the step.
        """
        others = [other for other in self._live if other != owner]
        if len(others) == 1:
            self.charge(others[0], (n_steps - self.alone_from) * (STEP_WORK + n_running))
        had = list(map(self.work, others))
        first = min(min(had), max(had) - self._lag)
        kept = len(self.done) <= MAX_KEPT
        self.done = {one: work for one, work in self.done.items() if one in self._live or (kept and work > first)}
        self.done[owner] = max(self.work(owner), first)

    def charge(self, owner: Hashable, work: float) -> None:
        """Adds work of a step that is done for this owner."""
        self.done[owner] = self.done.get(owner, 0.0) + work

    def work(self, owner: Hashable) -> float:
        """Work that was done for an owner, on the scale of those that are live."""
        return self.done.get(owner, 0.0)

    def catch_up(self, first: Hashable, others: Sequence[Hashable]) -> None:
        """A step was planned whose prompts are the first owner's, and then those of others, which have some.

        All the rest have what they ask for, or no place for more: they are no further than half of `lag` behind.
        """
        least = self.work(first) - self._lag / 2
        for owner in self._live:
            if self.work(owner) < least and owner != first and owner not in others:
                self.done[owner] = least

    def is_any_due(self, owners: Iterable[Hashable], rows: Collection[Hashable]) -> bool:
        """Whether one of these owners had no more than `lag` beyond each other one that has decoding sequences, of
        which there are some."""
        for owner in owners:
            had = [self.work(other) for other in rows if other != owner]
            if had and self.work(owner) <= min(had) + self._lag:
                return True
        return False

    def lead(self, owner: Hashable, others: Iterable[Hashable]) -> float:
        """Work until an owner has had `lag` more than the least of those that wait beside it."""
        return self._lag + min((self.work(other) for other in others), default=math.inf) - self.work(owner)

    def order(self, owners: Iterable[Hashable]) -> list[Hashable]:
        """Owners by what was done for them, least first; of equals the one with the fewest live sequences."""
        return sorted(owners, key=lambda owner: (self.work(owner), self._live.get(owner, 0)))
