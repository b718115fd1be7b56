"""State slots of one sequence: its recurrent state, the slot that the next step writes, and checkpoints. Ids only.

A state can't be taken back token by token as keys and values can. But a step leaves the state before it untouched in
its own slot: keeping that slot makes a checkpoint, and reading it again goes back to it.
"""

from bisect import bisect_right

from oxillama.scheduling.pools import RefCountedPool

__all__ = ["MAX_CHECKPOINTS", "RUNNING_SLOTS", "StateSlots"]

MAX_CHECKPOINTS = 3  # of a sequence
RUNNING_SLOTS = 2  # that a sequence needs to compute: a step reads one and writes the other


class StateSlots:
    """Slots that a sequence has a reference to, one of each. Those in `spare` are its own.

    current: of the state after all that is computed; -1 if nothing is. spare: to be written, the last one next.
    checkpoints: (tokens computed, slot), fewest tokens first; the newest may be `current` itself. They are at any
    number of tokens and for this sequence alone, to go back to; those that others may begin with are at the ends of
    blocks, and the prefix cache has them. mark: number of tokens at which the scheduler is to end a step, for a
    checkpoint there; 0 is none. shared_marks: the same for checkpoints of the prefix cache.
    """

    __slots__ = ("checkpoints", "current", "mark", "shared_marks", "spare")

    def __init__(self) -> None:
        self.current = -1
        self.spare: list[int] = []
        self.checkpoints: list[tuple[int, int]] = []
        self.mark = 0
        self.shared_marks: list[int] = []

    def n_missing(self, pool: RefCountedPool) -> int:
        """Slots to be added to `spare` before the sequence may run.

        A shared slot can't be written after the next step, and doesn't count: a running sequence has all the slots
        that it will ever need, and no other sequence can take them away.
        """
        return RUNNING_SLOTS - (self.current >= 0 and pool.users[self.current] == 1) - len(self.spare)

    def span(self) -> tuple[int, int]:
        """(slot to read, slot to write) of the next step."""
        return self.current, self.spare[-1]

    @property
    def needs_another(self) -> bool:
        """Whether `commit` will take a free slot, or else a checkpoint's."""
        return len(self.spare) == 1 and any(slot == self.current for _, slot in self.checkpoints)

    def commit(self, pool: RefCountedPool) -> None:
        """The next step's state was written: it is the current one."""
        before, self.current = self.current, self.spare.pop()
        if before >= 0 and all(slot != before for _, slot in self.checkpoints):
            if pool.users[before] == 1:
                self.spare.append(before)
            else:
                pool.free([before])
        while not self.spare:
            if not pool.n_free:
                pool.free(self.drop_checkpoint())
            if pool.n_free:
                self.spare += pool.alloc(1)

    def until_mark(self, n_computed: int, n: int) -> int:
        """n, or as many tokens less as the next step has to end before that."""
        ahead = [mark - n_computed for mark in (self.mark, *self.shared_marks) if mark > n_computed]
        return min(n, *ahead) if ahead else n

    def checkpoint(self, n_tokens: int) -> list[int]:
        """Keeps the current state, which is that after n_tokens > 0; slots that are not needed any more.

        Of more than MAX_CHECKPOINTS, the one goes that costs least: distances between checkpoints grow with the
        distance from the end, so that going back n tokens computes about as many again. Position 0 is a checkpoint for
        free.
        """
        kept = self.checkpoints
        if kept and kept[-1][1] == self.current:
            return []
        kept.append((n_tokens, self.current))
        if len(kept) <= MAX_CHECKPOINTS:
            return []
        at = [0, *(n for n, _ in kept)]
        gaps = [(at[i + 1] - at[i - 1]) / (at[-1] + 1 - at[i]) for i in range(1, len(kept))]
        return [kept.pop(gaps.index(min(gaps)))[1]]

    def rewind(self, n_computed: int, n_tokens: int) -> tuple[int, list[int]]:
        """Back from n_computed tokens to at most n_tokens: (how many are computed now, slots that are free by that)."""
        if n_computed <= n_tokens:
            return n_computed, []
        split = bisect_right(self.checkpoints, n_tokens, key=lambda kept: kept[0])
        freed = {self.current, *(slot for _, slot in self.checkpoints[split:])} - {-1}
        del self.checkpoints[split:]
        n_computed, self.current = self.checkpoints[-1] if self.checkpoints else (0, -1)
        return n_computed, sorted(freed)

    def drop_spare(self) -> list[int]:
        """Gives up the slots that only a running sequence needs."""
        freed, self.spare, self.mark, self.shared_marks = self.spare, [], 0, []
        return freed

    def drop_checkpoint(self) -> list[int]:
        """Gives up the oldest checkpoint: its slot, unless that holds the current state as well."""
        _, slot = self.checkpoints.pop(0)
        return [slot] if slot != self.current else []
