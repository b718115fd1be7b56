"""Scheduler: which sequences compute how many tokens in the next step."""

from bisect import insort
from operator import le

from oxillama._util.checks import check_int
from oxillama.config import PREFILL_CHUNK
from oxillama.errors import ConfigError, GenerateError, KvCacheFullError, QueueFullError
from oxillama.scheduling.block_manager import Holdings
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.prefix_cache import WINDOWED, PrefixKvCache
from oxillama.scheduling.sequence import Sequence
from oxillama.scheduling.state_slots import RUNNING_SLOTS, StateSlots
from oxillama.scheduling.waiting_queue import Deadlines, WaitingQueue

__all__ = [
    "MAX_DRAFT_TOKENS",
    "MAX_RUNNING",
    "MAX_WAITING",
    "MOST",
    "Admission",
    "Scheduler",
]

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
        if sequence.is_scheduled:
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
        if sequence.is_scheduled:
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
        sequence.clear_drafts()
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


Plan = list[tuple[Sequence, int]]  # who computes how many tokens

# Sequences in one step. Each costs a row of logits (600 kB for 150k tokens), and beyond this a step of a model that
# reads its weights once for all rows hardly gets cheaper per row.
MAX_RUNNING = 64
MAX_DRAFT_TOKENS = 128  # in one step, each with a row of logits too
# Who shares at least so much with a prompt that is being computed waits for it. A step for less costs about as much as
# computing it twice.
PREFIX_WORTH_WAITING = 64


class Scheduler(Admission):
    """First come, first served within each priority, with one token budget per step.

    Running sequences go first: each decoding one gets its token, then prompts share what is left of the budget, in
    chunks, so that nobody who decodes waits longer than one chunk takes (`engine/pace.py` says how long that is). A
    waiting sequence starts when there are blocks for the tokens that it has, and gets more as it grows. When there are
    none left, the one that ranks last is sent back to the queue with nothing but its tokens, which are computed again
    later; in such a step nobody starts. Who is first in the queue is never overtaken.

    Sequences may keep blocks and slots when they are finished; they lose them rather than that nothing runs, and
    checkpoints before that. What was lost is computed again when it is wanted. So whatever fits the pool alone ends.

    It computes nothing itself, and serves any model. Who drives it does in turns, all from one thread: `step`; the
    `copies` that it asks for, which are cleared then; each sequence's share of the plan; `advance` for what was
    computed. A sequence all of whose tokens are computed gets another one at the end of `tokens`, or `finish`; one that
    runs and has nothing to compute is passed over, and keeps what it has.

    Who decodes may have guesses of what follows (`Sequence.draft_tokens`), for which nobody gives up any budget or
    room. After the step, those that came true are at the end of `tokens`, and `advance` is told how many computed
    tokens count.

    running: by rank. live: those that wait or run, by id. n_steps, n_preempted: counts. preempting: whether the last
    step sent somebody back. debug: check everything in each step.
    """

    def __init__(
        self,
        pool: SequencePool,
        block_size: int = 16,
        token_budget: int = PREFILL_CHUNK,
        max_running: int = MAX_RUNNING,
        whole: bool = False,
        *,
        max_waiting: int = MAX_WAITING,
        prefix_cache: bool = True,
    ) -> None:
        """token_budget: tokens of a step at most. max_running, max_waiting: sequences.

        whole: each sequence is computed in one step, however long it is; it may keep nothing, and need no blocks.
        Raises ConfigError for numbers below 1, and for a pool in which nothing can run.
        """
        self.token_budget = check_int("token_budget", token_budget, 1, MOST)
        max_running = check_int("max_running", max_running, 1, MOST)
        if not (pool.blocks.n or pool.windowed.n or pool.n_slots or whole):
            raise ConfigError("the pool has 0 KV blocks and 0 recurrent slots: nothing can run in it")
        if 0 < pool.n_slots < RUNNING_SLOTS:
            raise ConfigError(f"a recurrent model needs at least {RUNNING_SLOTS} slots to run, not {pool.n_slots}")
        prefix = PrefixKvCache(pool, block_size) if prefix_cache else None
        super().__init__(pool, block_size, self.token_budget, prefix, max_waiting)
        self.whole = whole
        # Never more than the budget, so that decoding sequences leave at least one token to a prompt.
        self.max_running = min(max_running, token_budget)
        self.n_preempted = 0
        self.preempting = False
        self.debug = False
        # Id of the first in the queue, and what room there was: too little.
        self._stuck: tuple[int, tuple[int, ...]] = (-1, self.room)

    # ---- steps

    def step(self, beside: int | None = None) -> Plan:
        """The sequences of the next step with how many tokens each computes; empty if there is nothing to do.

        beside: prompt tokens at most, if somebody decodes, who would wait for them. None: up to the budget.
        It may also be empty where somebody was sent back (`preempting`): then others follow. Raises KvCacheFullError if
        a sequence has grown beyond its `n_reserve`, and the pool.
        """
        self.n_steps += 1
        self.preempting = False
        plan = self._decode()
        budget = self.token_budget - sum(n for _, n in plan)
        self._prefill(plan, budget if beside is None or not plan else min(budget, beside))
        self._guess(plan)
        if not plan and self.live and not self.preempting:
            self._check_reserves()
        if self.debug:
            self.check_invariants(plan)
        return plan

    def _decode(self) -> Plan:
        """One token of each that runs and lacks no other, with those that it computes again."""
        plan, has_room, budget = [], self.has_room, self.token_budget
        for sequence in list(self.running):
            n = len(sequence.tokens) - sequence.n_computed
            if n != 1 + sequence.n_recompute or n > budget or not sequence.running:
                continue
            if (n == 1 and has_room(sequence)) or self._make_room(sequence, n):
                plan.append((sequence, n))
                budget -= n
        return plan

    def _prefill(self, plan: Plan, budget: int) -> None:
        """Adds chunks of prompts: of those that run, then of newcomers. Who was sent back leaves the plan."""
        for sequence in list(self.running):
            if not sequence.running or sequence.is_decoding:
                continue
            if (n := self._share(sequence, budget)) and self._make_room(sequence, n):
                plan.append((sequence, n))
                budget -= n
        if self.preempting:
            plan[:] = [(sequence, n) for sequence, n in plan if sequence.running]
        while budget > 0 and not self.preempting and (admitted := self._admit(budget)):
            n = self._share(admitted, budget)
            plan.append((admitted, n))
            budget -= n
        if self.pool.n_slots:  # who waits for a beginning may have asked for a state before the end of this step
            plan[:] = [(sequence, self.chunk(sequence, n) if n > 1 else n) for sequence, n in plan]

    def _guess(self, plan: Plan) -> None:
        """Adds the guesses of those who decode, and cuts them to what there is of budget and room."""
        guessing = [i for i, (sequence, _) in enumerate(plan) if sequence.draft_tokens]
        if guessing:
            budget = 0 if self.preempting else min(MAX_DRAFT_TOKENS, self.token_budget - sum(n for _, n in plan))
        for i in guessing:
            sequence, n = plan[i]
            n_ahead = self._affordable(sequence, budget) if sequence.is_decoding and n == 1 else 0
            del sequence.draft_tokens[n_ahead:]
            plan[i] = sequence, n + n_ahead
            budget -= n_ahead

    def _affordable(self, sequence: Sequence, budget: int) -> int:
        """Guesses that a sequence can compute beside its next token, for which it has room."""
        n = min(len(sequence.draft_tokens), budget, sequence.n_reserve - len(sequence.tokens))
        if n < 1:
            return 0
        n = self.chunk(sequence, 1 + n)
        if not self.grow(sequence, sequence.n_computed + n):
            n = min(n, self.block_size - sequence.n_computed % self.block_size)
        return n - 1

    def _check_reserves(self) -> None:
        for sequence in self.live.values():
            if len(sequence.tokens) > max(sequence.n_reserve, self.capacity):
                raise KvCacheFullError(
                    f"sequence {sequence.id} has {len(sequence.tokens)} tokens to compute, more than its n_reserve of "
                    f"{sequence.n_reserve} and than the KV cache holds: finish it, or reserve more"
                )

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
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preempting = True
        self.n_preempted += 1
        self.running.remove(sequence)
        sequence.running, sequence.preempted = False, True
        sequence.clear_drafts()
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
        if sequence.n_cached is None:
            sequence.n_cached = min(sequence.n_computed, sequence.n_prompt)
        asked = before < len(sequence.tokens) - 1  # that one is computed in any case
        if asked and self.prefix and sequence.cache_key is not None and not sequence.preempted:
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
        """The step succeeded that computed n tokens of a sequence. Until then, nothing of it has changed.

        With guesses, n is the token before them and those that came true. Raises ConfigError if it has fewer tokens.
        """
        if not 0 < n <= len(sequence.tokens) - sequence.n_computed:
            left = len(sequence.tokens) - sequence.n_computed
            raise ConfigError(f"sequence {sequence.id} can't advance by {n} tokens: {left} are not computed")
        if sequence.draft_tokens or sequence.n_recompute:
            n_wrong = 1 + len(sequence.draft_tokens) - n if sequence.draft_tokens else 0
            sequence.clear_drafts()
            if n_wrong:
                self.trim(sequence, sequence.n_computed + n)
                if sequence.slots is not None:  # the step left the state after all of its tokens alone
                    sequence.n_recompute = n
                    return
        sequence.n_computed += n
        if sequence.slots is not None:
            self.commit(sequence.slots)
            if sequence.n_computed == sequence.slots.mark:
                self.checkpoint(sequence)
        if sequence.cache_key is not None and sequence.n_computed // self.block_size > len(sequence.path):
            self.remember(sequence)
        if self.windows:
            self.give_back(sequence)

    def check_invariants(self, plan: Plan) -> None:
        """Raises AssertionError unless blocks, users and tables agree. With `debug`, done in each step."""
        for pool in (self.pool.blocks, self.pool.windowed, self.pool.slots):
            pool.check_invariants()
        if self.prefix:
            self.prefix.check_invariants()
        for sequence in self.running:
            path, slots = sequence.path, sequence.slots
            assert len(path) <= sequence.n_computed // self.block_size, "a path to what is not computed"
            for kind, _ in self.groups:
                n_gone, table = sequence.n_freed_blocks if kind == WINDOWED else 0, sequence.tables[kind]
                of_path = [node.ids[kind] for node in path[n_gone:]]
                assert of_path == table[n_gone : len(path)], "a path that is not that of the table"
                assert len(set(table[n_gone:])) == len(table[n_gone:]), "a block is in a table twice"
                assert table[:n_gone] == [-1] * n_gone, "a block was not given back"
            if slots is not None:
                assert slots.n_missing(self.pool.slots) <= 0, "a sequence without the slots that it needs"
                assert all(self.pool.slots.users[i] == 1 for i in slots.spare), "a shared slot would be written"
        assert sum(n for _, n in plan) <= self.token_budget or self.whole, "a step of more tokens than its budget"
        for sequence, n in plan:
            first, last = sequence.n_computed // self.block_size, self.n_blocks(sequence.n_computed + n)
            assert not self.windows or self.windows.first(sequence.n_computed) >= sequence.n_freed_blocks, (
                "given back too early"
            )
            for kind, pool in self.groups:
                assert last <= len(sequence.tables[kind]), "a table is too short for the step"
                assert not pool.n_shared(sequence.tables[kind], first, last), "a shared block would be written"
