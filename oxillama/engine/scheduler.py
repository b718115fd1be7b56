"""Who computes how much in the next step: ids and counts only."""

from collections import deque

from oxillama.engine.sequence import Sequence
from oxillama.errors import GenerateError, KvCacheFullError
from oxillama.kv_cache.block_pool import BlockPool

__all__ = ["MAX_RUNNING", "Scheduler"]

# Sequences in one step. Each costs a row of logits (600 kB for 150k tokens), and beyond this a step of a model that
# reads its weights once for all rows hardly gets cheaper per row.
MAX_RUNNING = 64


class Scheduler:
    """First come, first served, with one token budget per step.

    Running sequences go first: each decoding one gets its token, then prompts share what is left of the budget, in
    chunks. A waiting sequence starts only when all the blocks that it can ever need are free, and takes them: so
    nothing that runs can get stuck or be sent back, and who is first in the queue is never overtaken.
    """

    def __init__(self, pool: BlockPool, block_size: int, token_budget: int, max_running: int = MAX_RUNNING) -> None:
        self.pool = pool
        self.block_size = block_size
        self.token_budget = token_budget
        # Never more than the budget, so that decoding sequences leave at least one token to a prompt.
        self.max_running = min(max_running, token_budget)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def n_blocks(self, n_tokens: int) -> int:
        """Blocks that hold n_tokens."""
        return -(-n_tokens // self.block_size)

    def check_fits(self, n_tokens: int) -> None:
        """Raises KvCacheFullError if a sequence of n_tokens could never run, however empty the cache."""
        need = self.n_blocks(n_tokens)
        if need > self.pool.n_blocks:
            raise KvCacheFullError(
                f"{n_tokens} tokens of prompt and output need {need} KV blocks of {self.block_size} tokens, and there "
                f"are {self.pool.n_blocks} in all: lower max_tokens or raise kv_budget"
            )

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence that has tokens to compute; its block table may already hold some.

        Raises GenerateError if it waits or runs already, KvCacheFullError if it could never run.
        """
        if sequence.busy:
            raise GenerateError(f"sequence {sequence.id} is {sequence.state.value} already: wait until it is finished")
        self.check_fits(sequence.n_reserve)
        sequence.finished, sequence.queued = False, True
        self.waiting.append(sequence)

    def schedule(self) -> list[tuple[Sequence, int]]:
        """The sequences of the next step with how many tokens each computes; empty if none can run."""
        plan = []
        budget = self.token_budget
        prompts = []
        for sequence in self.running:
            if len(sequence.tokens) - sequence.n_computed == 1:
                plan.append((sequence, 1))
                budget -= 1
            else:
                prompts.append(sequence)
        for sequence in prompts:
            if budget > 0:
                n = min(len(sequence.tokens) - sequence.n_computed, budget)
                plan.append((sequence, n))
                budget -= n
        while budget > 0 and (admitted := self._admit()):
            n = min(len(admitted.tokens) - admitted.n_computed, budget)
            plan.append((admitted, n))
            budget -= n
        return plan

    def _admit(self) -> Sequence | None:
        """Starts the first waiting sequence, if there is room for it."""
        sequence = self.first_waiting()
        if sequence is None or len(self.running) >= self.max_running:
            return None
        missing = self.missing_blocks(sequence)
        if missing > self.pool.n_free:
            return None
        sequence.block_table.extend(self.pool.alloc(missing))
        self.waiting.popleft()
        sequence.queued, sequence.running = False, True
        self.running.append(sequence)
        return sequence

    def missing_blocks(self, sequence: Sequence) -> int:
        """Blocks that a sequence needs before it may run."""
        return max(0, self.n_blocks(sequence.n_reserve) - len(sequence.block_table))

    def first_waiting(self) -> Sequence | None:
        """Who is next in the queue."""
        while self.waiting and (self.waiting[0].finished or self.waiting[0].running):
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None

    def finish(self, sequence: Sequence, *, keep_blocks: bool = False) -> None:
        """Ends a sequence, waiting or running; its blocks are free at once unless they are to be kept."""
        if sequence.running:
            self.running.remove(sequence)
        # One that waits stays in the queue until it comes first, to be passed over: removing it would cost a walk.
        sequence.finished, sequence.queued, sequence.running = True, False, False
        if not keep_blocks:
            self.release(sequence, 0)

    def release(self, sequence: Sequence, n_tokens: int) -> None:
        """Gives back the blocks beyond the first n_tokens."""
        kept = self.n_blocks(n_tokens)
        self.pool.free(sequence.block_table[kept:])
        del sequence.block_table[kept:]
