"""Waiting queue: requests by priority and age, and their deadlines."""

import heapq
import itertools
import math
from collections.abc import Hashable, Iterator

from oxillama.scheduling.sequence import Sequence

__all__ = [
    "AGEING_STEPS",
    "Deadlines",
    "WaitingQueue",
    "WaitingQueues",
]

# Steps of waiting that are worth one level of priority. So a request is overtaken at most by those that come within
# this many steps for each level that they have more.
AGEING_STEPS = 128


class WaitingQueue:
    """Sequences by rank: the step in which each came, less `AGEING_STEPS` for each level of its priority.

    A sequence ages by keeping its rank while the ranks of newcomers grow, so that nothing is sorted again. Entries of
    ended sequences are skipped when they come first: removing each would cost a walk of the heap.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        """`numbers`: of sequences in the order in which they came, of all queues of a scheduler."""
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._numbers = numbers
        self.n = 0

    def add(self, sequence: Sequence, step: int, beside: Sequence | None = None) -> None:
        """Adds a sequence behind those of its priority; or behind those that rank with `beside`, which came before."""
        first = step - AGEING_STEPS * sequence.priority if beside is None else beside.rank[0]
        sequence.rank = (first, next(self._numbers))
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Adds a sequence again at the place of its rank, as after a preemption."""
        sequence.queued = True
        self.n += 1
        heapq.heappush(self._heap, (sequence.rank, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Removes a waiting sequence."""
        sequence.queued = False
        self.n -= 1
        if self._heap[0][1] is sequence:  # it starts, and may be put back with the same rank
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * self.n + 64:
            self._heap = [entry for entry in self._heap if _waits(entry)]
            heapq.heapify(self._heap)

    def first(self) -> Sequence | None:
        """The next sequence to start; None if none waits."""
        while self._heap:
            rank, sequence = self._heap[0]
            if sequence.queued and sequence.rank == rank:  # as `_waits` says
                return sequence
            heapq.heappop(self._heap)
        return None

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences, in no particular order."""
        return (entry[1] for entry in self._heap if _waits(entry))


class WaitingQueues:
    """A waiting queue for each owner of sequences. n: sequences that wait in all of them."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, WaitingQueue] = {}
        self._numbers = itertools.count(1)
        self.n = 0

    @property
    def owners(self) -> list[Hashable]:
        """Owners of sequences that wait."""
        return list(self._queues)

    def n_of(self, owner: Hashable) -> int:
        """Sequences of an owner that wait."""
        queue = self._queues.get(owner)
        return 0 if queue is None else queue.n

    def add(self, sequence: Sequence, step: int, beside: Sequence | None = None) -> None:
        """`WaitingQueue.add` to the queue of its owner."""
        self._queue(sequence.owner).add(sequence, step, beside)
        self.n += 1

    def put_back(self, sequence: Sequence) -> None:
        """Adds a sequence again at the place of its rank, as after a preemption."""
        self._queue(sequence.owner).put_back(sequence)
        self.n += 1

    def remove(self, sequence: Sequence) -> None:
        """Removes a waiting sequence."""
        queue = self._queues[sequence.owner]
        queue.remove(sequence)
        self.n -= 1
        if not queue.n:
            del self._queues[sequence.owner]

    def first(self, owner: Hashable = None) -> Sequence | None:
        """The next sequence of an owner to start; None if none waits."""
        queue = self._queues.get(owner)
        return None if queue is None else queue.first()

    def _queue(self, owner: Hashable) -> WaitingQueue:
        if owner not in self._queues:
            self._queues[owner] = WaitingQueue(self._numbers)
        return self._queues[owner]

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences, in no particular order."""
        return itertools.chain.from_iterable(self._queues.values())


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
