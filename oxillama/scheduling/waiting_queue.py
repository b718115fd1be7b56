"""Waiting queue: requests by priority and age, and their deadlines."""

import heapq
import math
from collections.abc import Hashable, Iterator

from oxillama.scheduling.sequence import Sequence

__all__ = [
    "AGEING_STEPS",
    "Deadlines",
    "WaitingQueue",
]

# Steps of waiting that are worth one level of priority. So a request is overtaken at most by those that come within
# this many steps for each level that they have more.
AGEING_STEPS = 128


class WaitingQueue:
    """Sequences of each owner by rank: the step in which each came, less `AGEING_STEPS` for each level of its priority.

    A sequence ages by keeping its rank while the ranks of newcomers grow, so that nothing is sorted again. Entries of
    ended sequences are skipped when they come first: removing each would cost a walk of the heap.

    n: sequences that wait, of all owners. counts: of each owner that has some.
    """

    def __init__(self) -> None:
        self._heaps: dict[Hashable, list[tuple[tuple[int, int], Sequence]]] = {}
        self._n_added = self.n = 0
        self.counts: dict[Hashable, int] = {}

    def add(self, sequence: Sequence, step: int, beside: Sequence | None = None) -> None:
        """Adds a sequence behind those of its priority; or behind those that rank with `beside`, which came before."""
        self._n_added += 1
        first = step - AGEING_STEPS * sequence.priority if beside is None else beside.rank[0]
        sequence.rank = (first, self._n_added)
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Adds a sequence again at the place of its rank, as after a preemption."""
        owner = sequence.owner
        sequence.queued = True
        self.n += 1
        self.counts[owner] = self.counts.get(owner, 0) + 1
        heapq.heappush(self._heaps.setdefault(owner, []), (sequence.rank, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Removes a waiting sequence."""
        owner = sequence.owner
        sequence.queued = False
        self.n -= 1
        self.counts[owner] -= 1
        if not self.counts[owner]:
            del self.counts[owner], self._heaps[owner]
            return
        heap = self._heaps[owner]
        if heap[0][1] is sequence:  # it starts, and may be put back with the same rank
            heapq.heappop(heap)
        if len(heap) > 2 * self.counts[owner] + 64:
            self._heaps[owner] = heap = [entry for entry in heap if _waits(entry)]
            heapq.heapify(heap)

    def first(self, owner: Hashable = None) -> Sequence | None:
        """The next sequence of an owner to start; None if none waits."""
        heap = self._heaps.get(owner)
        while heap:
            rank, sequence = heap[0]
            if sequence.queued and sequence.rank == rank:  # as `_waits` says
                return sequence
            heapq.heappop(heap)
        return None

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences, in no particular order."""
        return (entry[1] for heap in self._heaps.values() for entry in heap if _waits(entry))


class Deadlines:
    """Heap of sequences with a deadline. soonest: the earliest deadline, maybe of a sequence that has ended."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self.soonest = math.inf

    def add(self, sequence: Sequence, n_live: int) -> None:
        """Adds a sequence that has a deadline. n_live: sequences that wait or run."""
        if len(self._heap) > 2 * n_live + 64:  # most have ended before their time
            self._heap = [entry for entry in self._heap if entry[2].is_scheduled]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (sequence.deadline, sequence.id, sequence))
        self.soonest = self._heap[0][0]

    def expired(self, now: float) -> list[Sequence]:
        """Sequences that wait or run beyond their deadline, each reported once."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            sequence = heapq.heappop(self._heap)[2]
            if sequence.is_scheduled:
                found.append(sequence)
        self.soonest = self._heap[0][0] if self._heap else math.inf
        return found

    def __len__(self) -> int:
        return len(self._heap)


def _waits(entry: tuple[tuple[int, int], Sequence]) -> bool:
    """Whether this entry is current: a sequence that was ended may have been queued again since."""
    rank, sequence = entry
    return sequence.queued and sequence.rank == rank
