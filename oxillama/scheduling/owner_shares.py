"""Owner shares: how much of the steps each owner of sequences has had, so that none keeps the others out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from oxillama.scheduling.prefill_throttle import DEPTH, LEAST_CHUNK

__all__ = ["STEP_WORK", "OwnerShares", "prompt_work"]

# Work of a step besides its tokens, in tokens at depth 0. Without it an owner of many short prompts would have many
# steps for one of a long prompt.
STEP_WORK = LEAST_CHUNK


def prompt_work(n: int, depth: int) -> float:
    """Work of n tokens of a prompt of which `depth` are computed, in tokens at depth 0."""
    return n * (DEPTH + depth) / DEPTH


class OwnerShares:
    """The work of the steps that was done for each owner of live sequences, while there were several.

    A virtual token counter for each owner (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024): the one
    that had least comes first. An owner that comes, or comes back, begins with no less than the least of those that are
    there, so that none saves up turns. While an owner is alone it takes from none, and nothing is counted.

    live: live sequences of each owner, as the scheduler counts them.
    """

    def __init__(self, live: Mapping[Hashable, int]) -> None:
        self._live = live
        self._work: dict[Hashable, float] = {}

    def enter(self, owner: Hashable) -> None:
        """An owner has a live sequence now, and others have, too."""
        least = min(self._work.get(other, 0.0) for other in self._live if other != owner)
        self._work = {other: work for other, work in self._work.items() if other in self._live or work > least}
        self._work[owner] = max(self._work.get(owner, 0.0), least)

    def clear(self) -> None:
        """One owner at most has live sequences now."""
        self._work.clear()

    def charge(self, owner: Hashable, work: float) -> None:
        """Adds work of a step that is done for this owner."""
        self._work[owner] = self._work.get(owner, 0.0) + work

    def work(self, owner: Hashable) -> float:
        """Work that was done for an owner, on the scale of those that are live."""
        return self._work.get(owner, 0.0)

    def order(self, owners: Iterable[Hashable]) -> list[Hashable]:
        """Owners by what was done for them, least first; of equals the one with the fewest live sequences."""
        return sorted(owners, key=lambda owner: (self.work(owner), self._live.get(owner, 0)))
