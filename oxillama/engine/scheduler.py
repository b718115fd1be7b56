"""Who computes how much in the next step: ids and counts only."""

from collections import deque

from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, GenerateError, KvCacheFullError
from oxillama.kv_cache.sequence_pool import SequencePool
from oxillama.kv_cache.state_slots import RUNNING_SLOTS, StateSlots

__all__ = ["MAX_RUNNING", "Scheduler"]

# Sequences in one step. Each costs a row of logits (600 kB for 150k tokens), and beyond this a step of a model that
# reads its weights once for all rows hardly gets cheaper per row.
MAX_RUNNING = 64


class Scheduler:
    """First come, first served, with one token budget per step.

    Running sequences go first: each decoding one gets its token, then prompts share what is left of the budget, in
    chunks. A waiting sequence starts only when all the blocks and slots that it can ever need are free, and takes them:
    so nothing that runs can get stuck or be sent back, and who is first in the queue is never overtaken.

    Slots that idle sequences keep are given to those that need them: checkpoints at once, and their states rather than
    that nothing runs. What was lost is computed again when it is wanted.
    """

    def __init__(
        self,
        pool: SequencePool,
        block_size: int,
        token_budget: int,
        max_running: int = MAX_RUNNING,
        whole: bool = False,
    ) -> None:
        """`whole`: each sequence is computed in one step, however long it is. Raises ConfigError for one slot."""
        if 0 < pool.n_slots < RUNNING_SLOTS:
            raise ConfigError(f"a recurrent model needs at least {RUNNING_SLOTS} slots to run, not {pool.n_slots}")
        self.pool = pool
        self.block_size = block_size
        self.token_budget = token_budget
        self.whole = whole
        # Never more than the budget, so that decoding sequences leave at least one token to a prompt.
        self.max_running = min(max_running, token_budget)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._owners: dict[Sequence, None] = {}  # of slots, who ran last comes last

    def n_blocks(self, n_tokens: int) -> int:
        """Blocks that hold n_tokens."""
        return -(-n_tokens // self.block_size) if self.pool.n_blocks else 0

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
        if sequence.slots is None and self.pool.n_slots:
            sequence.slots = StateSlots()
        sequence.finished, sequence.queued = False, True
        self.waiting.append(sequence)

    # ---- steps

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
            if n := self._share(sequence, budget):
                plan.append((sequence, n))
                budget -= n
        while budget > 0 and (admitted := self._admit(budget)):
            n = self._share(admitted, budget)
            plan.append((admitted, n))
            budget -= n
        return plan

    def _share(self, sequence: Sequence, budget: int) -> int:
        """Tokens that a sequence computes, of the budget that is left."""
        n = len(sequence.tokens) - sequence.n_computed
        if self.whole:  # or more than the budget, if it is the first of the step
            return n if n <= budget or budget == self.token_budget else 0
        if sequence.slots is not None and sequence.n_computed < sequence.slots.mark:
            n = min(n, sequence.slots.mark - sequence.n_computed)
        return max(0, min(n, budget))

    def _admit(self, budget: int) -> Sequence | None:
        """Starts the first waiting sequence, if there is room for it."""
        sequence = self.first_waiting()
        if sequence is None or len(self.running) >= self.max_running or not self._share(sequence, budget):
            return None
        n_slots = 0 if sequence.slots is None else sequence.slots.n_missing
        if n_slots > self.pool.slots.n_free:
            self._reclaim(n_slots, sequence)
        missing = self.missing_blocks(sequence)
        if missing > self.pool.blocks.n_free or n_slots > self.pool.slots.n_free:
            return None
        blocks, slots = self.pool.acquire(missing, n_slots)
        sequence.block_table.extend(blocks)
        if sequence.slots is not None:
            sequence.slots.spare.extend(slots)
            self._owners.pop(sequence, None)
            self._owners[sequence] = None
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

    def advance(self, sequence: Sequence, n: int) -> None:
        """The step succeeded that computed n tokens of a sequence. Until then, nothing of it has changed."""
        sequence.n_computed += n
        if sequence.slots is not None:
            sequence.slots.commit(self.pool.slots)
            if sequence.n_computed == sequence.slots.mark:
                self.checkpoint(sequence)

    # ---- what sequences keep

    def finish(self, sequence: Sequence, *, keep_blocks: bool = False) -> None:
        """Ends a sequence, waiting or running; its blocks and slots are free at once unless they are to be kept."""
        if sequence.running:
            self.running.remove(sequence)
        # One that waits stays in the queue until it comes first, to be passed over: removing it would cost a walk.
        sequence.finished, sequence.queued, sequence.running = True, False, False
        if sequence.slots is not None:
            self.pool.slots.free(sequence.slots.drop_spare())
        if not keep_blocks:
            self.rewind(sequence, 0)

    def rewind(self, sequence: Sequence, n_tokens: int) -> None:
        """Gives back what a sequence keeps of tokens beyond the first n_tokens.

        A recurrent state goes back to the last checkpoint before that: `n_computed` tells how far.
        """
        if sequence.slots is None:
            sequence.n_computed = min(sequence.n_computed, n_tokens)
        else:
            sequence.n_computed, freed = sequence.slots.rewind(sequence.n_computed, n_tokens)
            self.pool.slots.free(freed)
            if sequence.slots.current < 0:
                self._owners.pop(sequence, None)
        kept = self.n_blocks(n_tokens)
        self.pool.blocks.free(sequence.block_table[kept:])
        del sequence.block_table[kept:]

    def checkpoint(self, sequence: Sequence) -> None:
        """Keeps the state after what is computed so far, to come back to; nothing without recurrent layers."""
        if sequence.slots is not None and sequence.n_computed:
            self.pool.slots.free(sequence.slots.checkpoint(sequence.n_computed))

    def hand_over(self, before: Sequence, sequence: Sequence) -> None:
        """All that an idle sequence keeps goes to another one, which begins with the same tokens."""
        sequence.n_computed, before.n_computed = before.n_computed, 0
        sequence.block_table, before.block_table = before.block_table, []
        sequence.slots, before.slots = before.slots, None
        if sequence.slots is None and self.pool.n_slots:
            sequence.slots = StateSlots()
        if before in self._owners:
            del self._owners[before]
            self._owners[sequence] = None

    def _reclaim(self, n_slots: int, wanting: Sequence) -> None:
        """Frees slots until there are n_slots, of those first that haven't run for the longest time."""
        pool = self.pool.slots
        for owner in self._owners:
            while pool.n_free < n_slots and owner.slots is not None and owner.slots.checkpoints:
                pool.free(owner.slots.drop_checkpoint())
        for owner in [] if self.running else list(self._owners):
            if pool.n_free < n_slots and owner is not wanting:
                self.rewind(owner, 0)
