"""The recurrent slots of one sequence: its state, the one that its next step writes, and checkpoints. Ids only.

A state can't be taken back token by token as keys and values can. But a step leaves the state before it untouched in
its own slot, so to keep that slot is to have a checkpoint, and to go back to it is to read it again.
"""

from bisect import bisect_right

from oxillama.kv_cache.id_pool import IdPool

__all__ = ["MAX_CHECKPOINTS", "RUNNING_SLOTS", "StateSlots"]

MAX_CHECKPOINTS = 3  # of a sequence
RUNNING_SLOTS = 2  # that a sequence needs to compute: a step reads one and writes the other


class StateSlots:
    """Slots that a sequence owns in a pool.

    current: of the state after all that is computed; -1 if nothing is. spare: to be written, the last one next.
    checkpoints: (tokens computed, slot), fewest tokens first; the newest may be `current` itself. mark: number of
    tokens at which the scheduler is to end a step, for a checkpoint there; 0 is none.
    """

    __slots__ = ("checkpoints", "current", "mark", "spare")

    def __init__(self) -> None:
        self.current = -1
        self.spare: list[int] = []
        self.checkpoints: list[tuple[int, int]] = []
        self.mark = 0

    @property
    def n_missing(self) -> int:
        """Slots to be added to `spare` before the sequence may run."""
        return RUNNING_SLOTS - (self.current >= 0) - len(self.spare)

    def span(self) -> tuple[int, int]:
        """(slot to read, slot to write) of the next step."""
        return self.current, self.spare[-1]

    def commit(self, pool: IdPool) -> None:
        """The next step's state was written: it is the current one."""
        before, self.current = self.current, self.spare.pop()
        if before >= 0 and all(slot != before for _, slot in self.checkpoints):
            self.spare.append(before)
        elif not self.spare:
            self.spare.append(pool.alloc(1)[0] if pool.n_free else self.checkpoints.pop(0)[1])

    def checkpoint(self, n_tokens: int) -> list[int]:
        """Keeps the current state, which is that after n_tokens > 0; slots that are not needed any more.

        Of more than MAX_CHECKPOINTS, the one goes whose loss makes the least of a difference: the distances to go back
        grow with the distance that is asked for. Before the first there is the beginning, which costs nothing.
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
        """Slots that a sequence that doesn't run has no use for."""
        freed, self.spare, self.mark = self.spare, [], 0
        return freed

    def drop_checkpoint(self) -> list[int]:
        """Gives the oldest checkpoint up: its slot, unless it is the current state's as well."""
        _, slot = self.checkpoints.pop(0)
        return [slot] if slot != self.current else []
