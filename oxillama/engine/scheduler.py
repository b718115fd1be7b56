"""Who computes how much in the next step: ids and counts only."""

import heapq
import math
from bisect import insort
from operator import le

from oxillama.engine.holdings import Holdings
from oxillama.engine.sequence import Sequence
from oxillama.engine.waiting import WaitingQueue
from oxillama.errors import ConfigError, GenerateError, KvCacheFullError, QueueFullError
from oxillama.kv_cache.prefix import WINDOWED, PrefixKvCache
from oxillama.kv_cache.sequence_pool import SequencePool
from oxillama.kv_cache.state_slots import RUNNING_SLOTS, StateSlots

__all__ = ["MAX_RUNNING", "MAX_WAITING", "Scheduler"]

# Sequences in one step. Each costs a row of logits (600 kB for 150k tokens), and beyond this a step of a model that
# reads its weights once for all rows hardly gets cheaper per row.
MAX_RUNNING = 64
# Sequences in the queue; a list of prompts is queued as a whole.
MAX_WAITING = 1 << 16
# Who shares at least so much with a prompt that is being computed waits for it. A step for less costs about as much as
# computing it twice.
PREFIX_WORTH_WAITING = 64


class Scheduler(Holdings):
    """First come, first served within each priority, with one token budget per step.

    Running sequences go first: each decoding one gets its token, then prompts share what is left of the budget, in
    chunks, so that nobody who decodes waits longer than one chunk takes. A waiting sequence starts when there are
    blocks for the tokens that it has, and gets more as it grows. When there are none left, the one that ranks last is
    sent back to the queue with nothing but its tokens, which are computed again later; in such a step nobody starts.
    Who is first in the queue is never overtaken.

    Sequences may keep blocks and slots when they are finished; they lose them rather than that nothing runs, and
    checkpoints before that. What was lost is computed again when it is wanted. So whatever fits the pool alone ends.
    """

    def __init__(
        self,
        pool: SequencePool,
        block_size: int,
        token_budget: int,
        max_running: int = MAX_RUNNING,
        whole: bool = False,
        *,
        max_waiting: int = MAX_WAITING,
        prefix_cache: bool = True,
    ) -> None:
        """`whole`: each sequence is computed in one step, however long it is. Raises ConfigError for one slot."""
        if 0 < pool.n_slots < RUNNING_SLOTS:
            raise ConfigError(f"a recurrent model needs at least {RUNNING_SLOTS} slots to run, not {pool.n_slots}")
        super().__init__(pool, block_size, token_budget, PrefixKvCache(pool, block_size) if prefix_cache else None)
        self.token_budget = token_budget
        self.whole = whole
        # Never more than the budget, so that decoding sequences leave at least one token to a prompt.
        self.max_running = min(max_running, token_budget)
        self.max_waiting = max_waiting
        self.running: list[Sequence] = []  # by rank
        self.waiting = WaitingQueue()
        self.n_steps = 0
        self.n_preempted = 0
        self.preempting = False
        self.debug = False
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._stuck: tuple[int, tuple[int, ...]] = (
            -1,
            self.room,
        )  # id of the first in the queue, what room there was: too little

    def check_fits(self, n_tokens: int) -> None:
        """Raises KvCacheFullError if a sequence of n_tokens could never run, however empty the cache."""
        for kind, pool in self.groups:
            need = self.n_blocks(n_tokens)
            if kind == WINDOWED and self.windows:
                need = self.windows.n_needed(n_tokens)
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

    def add(self, sequence: Sequence, *, accepted: bool = False) -> None:
        """Queues a sequence that has tokens to compute; its block table may already hold some.

        Raises GenerateError if it waits or runs already, KvCacheFullError if it could never run, QueueFullError.
        """
        if sequence.busy:
            raise GenerateError(f"sequence {sequence.id} is {sequence.state.value} already: wait until it is finished")
        self.check_fits(sequence.n_reserve)
        if not accepted:  # by `check_queue`, when it was asked for
            self.check_queue()
        if sequence.slots is None and self.pool.n_slots:
            sequence.slots = StateSlots()
        sequence.finished = sequence.preempted = False
        self.waiting.add(sequence, self.n_steps)
        if sequence.deadline < math.inf:
            if len(self._deadlines) > 2 * (len(self.running) + len(self.waiting)) + 64:
                self._deadlines = [entry for entry in self._deadlines if entry[2].busy]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (sequence.deadline, sequence.id, sequence))

    def expired(self, now: float) -> list[Sequence]:
        """Those whose deadline has passed, each told once; they are to be ended by `finish`."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.busy:
                found.append(sequence)
        return found

    def first_waiting(self) -> Sequence | None:
        """Who is next in the queue."""
        return self.waiting.first()

    # ---- steps

    def schedule(self) -> list[tuple[Sequence, int]]:
        """The sequences of the next step with how many tokens each computes; empty if none can run.

        `preempting` tells whether it sent somebody back: then an empty step is followed by others.
        """
        self.n_steps += 1
        self.preempting = False
        plan, prompts, budget = [], [], self.token_budget
        has_room = self.has_room
        for sequence in list(self.running):
            if len(sequence.tokens) - sequence.n_computed != 1:
                prompts.append(sequence)
            elif sequence.running and (has_room(sequence) or self._make_room(sequence, 1)):
                plan.append((sequence, 1))
                budget -= 1
        for sequence in prompts:
            if sequence.running and (n := self._share(sequence, budget)) and self._make_room(sequence, n):
                plan.append((sequence, n))
                budget -= n
        if self.preempting:
            plan = [(sequence, n) for sequence, n in plan if sequence.running]
        while budget > 0 and not self.preempting and (admitted := self._admit(budget)):
            n = self._share(admitted, budget)
            plan.append((admitted, n))
            budget -= n
        if self.pool.n_slots:  # who waits for a beginning may have asked for a state before the end of this step
            plan = [(sequence, self.chunk(sequence, n) if n > 1 else n) for sequence, n in plan]
        if self.debug:
            self.check_invariants(plan)
        return plan

    def _share(self, sequence: Sequence, budget: int) -> int:
        """Tokens that a sequence computes, of the budget that is left."""
        n = len(sequence.tokens) - sequence.n_computed
        if self.whole:  # or more than the budget, if it is the first of the step
            return n if n <= budget or budget == self.token_budget else 0
        return self.chunk(sequence, min(n, budget)) if budget > 0 else 0

    def _make_room(self, sequence: Sequence, n: int) -> bool:
        """Gives a running sequence blocks for n more tokens; False if it had to go itself."""
        n += sequence.n_computed
        while not self.grow(sequence, n):
            if len(self.running) == 1:
                self.reclaim_blocks(sequence, n)
                return self.grow(sequence, n)
            victim = next(s for s in reversed(self.running) if s.restartable or s is sequence)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preempting = True
        self.n_preempted += 1
        self.running.remove(sequence)
        sequence.running, sequence.preempted = False, True
        if sequence.slots is not None:
            self.pool.slots.free(sequence.slots.drop_spare())
        self.rewind(sequence, 0)
        self.waiting.put_back(sequence)

    def _admit(self, budget: int) -> Sequence | None:
        """Starts the first waiting sequence, if there is room for it."""
        sequence = self.waiting.first()
        if sequence is None or len(self.running) >= self.max_running or not self._share(sequence, budget):
            return None
        if self.running and self._stuck[0] == sequence.id and all(map(le, self.room, self._stuck[1])):
            return None  # nothing has changed for it
        if self._awaits_prefix(sequence):
            return None
        # One block for each that runs, or the newcomer would soon be sent back for them.
        if not self._start(sequence, reserve=len(self.running)):
            self._stuck = (sequence.id, self.room)
            return None
        self.waiting.remove(sequence)
        sequence.running = True
        self.owns(sequence)
        insort(self.running, sequence, key=lambda s: s.rank)
        return sequence

    def _start(self, sequence: Sequence, reserve: int) -> bool:
        """Gives a sequence blocks and slots for the tokens that it has; False, and nothing of either, without room."""
        n = len(sequence.tokens)
        if not self.running:
            self.reclaim_blocks(sequence, n)
            if not self.fits(self.missing(sequence, n)):  # copies of blocks that it shares with the prefix cache
                self.rewind(sequence, 0)
        before = sequence.n_computed
        if not self.begin(sequence, reserve, reclaim_states=not self.running):
            return False
        if self.prefix and sequence.cache_key is not None and not sequence.preempted:
            self.prefix.hit_tokens += sequence.n_computed - before
            self.prefix.miss_tokens += len(sequence.tokens) - sequence.n_computed
        return True

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether a prompt that is being computed will soon have much of what this one begins with."""
        if self.prefix is None or sequence.cache_key is None:
            return False
        tokens, known = sequence.tokens, -1
        for other in self.running:
            if other.cache_key != sequence.cache_key or len(other.tokens) - other.n_computed <= PREFIX_WORTH_WAITING:
                continue
            if known < 0:
                known = len(self.prefix.find(sequence.cache_key, tokens, len(tokens) - 1)) * self.block_size
            need = max(known, sequence.n_computed) + PREFIX_WORTH_WAITING
            reach = min(len(tokens) - 1, len(other.tokens))
            if other.n_computed < need <= reach and other.tokens[:need] == tokens[:need]:
                self.expect(other, tokens)
                return True
        return False

    def advance(self, sequence: Sequence, n: int) -> None:
        """The step succeeded that computed n tokens of a sequence. Until then, nothing of it has changed."""
        sequence.n_computed += n
        if sequence.slots is not None:
            self.commit(sequence.slots)
            if sequence.n_computed == sequence.slots.mark:
                self.checkpoint(sequence)
        if sequence.cache_key is not None and sequence.n_computed // self.block_size > len(sequence.path):
            self.remember(sequence)
        if self.windows:
            self.give_back(sequence)

    def finish(self, sequence: Sequence, *, keep_blocks: bool = False) -> None:
        """Ends a sequence, waiting or running; its blocks and slots are free at once unless they are to be kept."""
        if sequence.running:
            self.running.remove(sequence)
        if sequence.queued:
            self.waiting.remove(sequence)
        sequence.finished, sequence.running = True, False
        if sequence.slots is not None:
            self.pool.slots.free(sequence.slots.drop_spare())
        if not keep_blocks:
            self.rewind(sequence, 0)

    def check_invariants(self, plan: list[tuple[Sequence, int]]) -> None:
        """Raises AssertionError unless blocks, users and tables agree. With `debug`, done in each step."""
        for pool in (self.pool.blocks, self.pool.windowed, self.pool.slots):
            pool.check_invariants()
        if self.prefix:
            self.prefix.check_invariants()
        for sequence in self.running:
            path, slots = sequence.path, sequence.slots
            assert len(path) <= sequence.n_computed // self.block_size, "a path to what is not computed"
            for kind, _ in self.groups:
                n_gone, table = sequence.n_gone if kind == WINDOWED else 0, sequence.tables[kind]
                of_path = [node.ids[kind] for node in path[n_gone:]]
                assert of_path == table[n_gone : len(path)], "a path that is not that of the table"
                assert len(set(table[n_gone:])) == len(table[n_gone:]), "a block is in a table twice"
                assert table[:n_gone] == [-1] * n_gone, "a block was not given back"
            if slots is not None:
                assert slots.n_missing(self.pool.slots) <= 0, "a sequence without the slots that it needs"
                assert all(self.pool.slots.users[i] == 1 for i in slots.spare), "a shared slot would be written"
        for sequence, n in plan:
            first, last = sequence.n_computed // self.block_size, self.n_blocks(sequence.n_computed + n)
            assert not self.windows or self.windows.first(sequence.n_computed) >= sequence.n_gone, (
                "given back too early"
            )
            for kind, pool in self.groups:
                assert last <= len(sequence.tables[kind]), "a table is too short for the step"
                assert not pool.n_shared(sequence.tables[kind], first, last), "a shared block would be written"
