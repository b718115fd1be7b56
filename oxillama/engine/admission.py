"""Who is to be served: requests as they come, wait, and end. Ids and counts only."""

from oxillama.checks import check_int
from oxillama.engine.holdings import Holdings
from oxillama.engine.sequence import Sequence
from oxillama.engine.waiting import Deadlines, WaitingQueue
from oxillama.errors import ConfigError, GenerateError, KvCacheFullError, QueueFullError
from oxillama.kv_cache.prefix import WINDOWED, PrefixKvCache
from oxillama.kv_cache.sequence_pool import SequencePool
from oxillama.kv_cache.state_slots import StateSlots

__all__ = ["MAX_WAITING", "MOST", "Admission"]

# Sequences in the queue; a list of prompts is queued as a whole.
MAX_WAITING = 1 << 16
MOST = 1 << 62  # of anything that is counted


class Admission(Holdings):
    """The half of the scheduler that its callers see: what they send, and what has ended."""

    def __init__(
        self, pool: SequencePool, block_size: int, max_chunk: int, prefix: PrefixKvCache | None, max_waiting: int
    ) -> None:
        super().__init__(pool, check_int("block_size", block_size, 1, MOST), max_chunk, prefix)
        self.max_waiting = check_int("max_waiting", max_waiting, 1, MOST)
        self.running: list[Sequence] = []
        self.live: dict[int, Sequence] = {}
        self.waiting = WaitingQueue()
        self.n_steps = 0
        self._deadlines = Deadlines()
        self._ended: list[Sequence] = []

    def check_fits(self, n_tokens: int) -> None:
        """Raises KvCacheFullError if a sequence of n_tokens could never run, however empty the cache."""
        for kind, pool in self.groups:
            windowed = kind == WINDOWED and self.windows
            need = windowed.n_needed(n_tokens) if windowed else self.n_blocks(n_tokens)
            if need > pool.n:
                raise KvCacheFullError(
                    f"{n_tokens} tokens of prompt and output need {need} {pool.noun}s of {self.block_size} tokens, and "
                    f"there are {pool.n} in all: lower max_tokens or raise kv_budget"
                )

    def check_queue(self, n: int = 1) -> None:
        """Raises QueueFullError if n more can't wait."""
        if len(self.waiting) + n > self.max_waiting:
            raise QueueFullError(
                f"{len(self.waiting)} requests are waiting, and {n} more would be over the limit of {self.max_waiting} "
                "(max_queue_size): try again later, or send fewer at once"
            )

    def add_request(self, sequence: Sequence, *, accepted: bool = False, beside: Sequence | None = None) -> Sequence:
        """Queues a sequence that has tokens to compute, and returns it: it is the handle of the request.

        One that ended may come again, with what it kept. accepted: whether `check_queue` was asked already.
        beside: one with which it ranks, as if they had come together.

        Raises GenerateError if it waits or runs, ConfigError if it has nothing to compute, KvCacheFullError if it could
        never run, QueueFullError; and queues nothing then.
        """
        if sequence.busy:
            raise GenerateError(f"sequence {sequence.id} is {sequence.state.value} already: wait until it is finished")
        if len(sequence.tokens) <= sequence.n_computed:
            raise ConfigError(f"sequence {sequence.id} has no token to compute: give it at least one")
        self.check_fits(sequence.n_reserve)
        if not accepted:
            self.check_queue()
        if sequence.slots is None and self.pool.n_slots:
            sequence.slots = StateSlots()
        sequence.finished = sequence.preempted = sequence.cancelled = False
        self.waiting.add(sequence, self.n_steps, beside)
        self.live[sequence.id] = sequence
        self._deadlines.add(sequence, len(self.live))
        return sequence

    def set_deadline(self, sequence: Sequence, deadline: float) -> None:
        """Another deadline for a sequence, which waits or runs, or will."""
        sequence.deadline = deadline
        if sequence.busy:
            self._deadlines.add(sequence, len(self.live))

    def expired(self, now: float) -> list[Sequence]:
        """Those whose deadline has passed, each told once; they are to be ended by `cancel`."""
        return self._deadlines.expired(now)

    def cancel(self, handle: Sequence | int, *, keep_blocks: bool = False) -> None:
        """`finish` for a sequence, or its id, whose end nobody awaited.

        Raises GenerateError if it is finished already, ConfigError for one that is not known here: never added, or
        drained since it ended.
        """
        i = handle.id if isinstance(handle, Sequence) else handle
        sequence = self.live.get(i)
        if sequence is None:
            if (isinstance(handle, Sequence) and handle.finished) or any(s.id == i for s in self._ended):
                raise GenerateError(f"sequence {i} is finished already")
            raise ConfigError(f"sequence {i!r} is not known here: it was never added, or has ended and was drained")
        sequence.cancelled = True
        self.finish(sequence, keep_blocks=keep_blocks)

    def finish(self, sequence: Sequence, *, keep_blocks: bool = False) -> None:
        """Ends a sequence, waiting or running; its blocks and slots are free at once unless they are to be kept.

        Raises GenerateError if it does neither.
        """
        self.pause(sequence)
        self._ended.append(sequence)
        if not keep_blocks:
            self.rewind(sequence, 0)

    def pause(self, sequence: Sequence) -> None:
        """`finish` of one that is to come again, with what it keeps until then; nobody is told of an end.

        It may lose what it keeps to others, who couldn't run otherwise. Raises GenerateError if it neither waits nor
        runs.
        """
        if self.live.pop(sequence.id, None) is None:
            raise GenerateError(f"sequence {sequence.id} neither waits nor runs, and can't be finished")
        if sequence.running:
            self.running.remove(sequence)
        if sequence.queued:
            self.waiting.remove(sequence)
        sequence.finished, sequence.running = True, False
        sequence.drop_guesses()
        if sequence.slots is not None:
            self.pool.slots.free(sequence.slots.drop_spare())

    def reset(self) -> None:
        """Forgets all requests, and what sequences have, after an error that left any of it half done.

        Idle sequences keep their tokens. Those that waited or ran are not told of in `drain_finished`.
        """
        for sequence in [*self.live.values(), *self._ended]:
            self.owns(sequence)
            sequence.queued = sequence.running = False
            sequence.finished = True
        self.disown()
        self.running, self.live, self._ended = [], {}, []
        self.waiting, self._deadlines = WaitingQueue(), Deadlines()

    def drain_finished(self) -> list[Sequence]:
        """Those that ended since the last call, in that order; `cancelled` tells which of them were cancelled."""
        ended, self._ended = self._ended, []
        return ended
