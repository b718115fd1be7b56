"""Scheduler: which sequences compute how many tokens in the next step. Ids and counts only.

`Scheduler.step` gives each decoding sequence its next token, then chunks of prompts, then admits waiting sequences, and
adds draft tokens where there is room. Memory is the block manager's (`block_manager.py`), order the waiting queue's.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Hashable, Mapping
from operator import attrgetter, le

from oxillama._util.checks import check_int
from oxillama.config import PREFILL_CHUNK
from oxillama.errors import ConfigError, GenerateError, KvCacheFullError, QueueFullError
from oxillama.scheduling import yielding
from oxillama.scheduling.block_manager import BlockManager
from oxillama.scheduling.owner_shares import STEP_WORK, OwnerShares, prompt_work
from oxillama.scheduling.pools import RUNNING_SLOTS, SequencePool, StateSlots
from oxillama.scheduling.prefill_throttle import LEAST_CHUNK, PrefillThrottle
from oxillama.scheduling.prefix_cache import LEAST_PART, WINDOWED, PrefixKvCache
from oxillama.scheduling.sequence import Sequence
from oxillama.scheduling.waiting_queue import Deadlines, WaitingQueue

__all__ = [
    "MAX_DRAFT_TOKENS",
    "MAX_RUNNING",
    "MAX_WAITING",
    "Plan",
    "Scheduler",
]

# Sequences in the queue; a list of prompts is queued as a whole.
MAX_WAITING = 1 << 16
MOST = 1 << 62  # of anything that is counted

NONE: Mapping[Hashable, int] = {}
by_rank = attrgetter("rank")
Plan = list[tuple[Sequence, int]]  # each sequence of a step with the tokens that it computes

# Sequences in one step. Each costs a row of logits (600 kB for 150k tokens), and beyond this a step of a model that
# reads its weights once for all rows hardly gets cheaper per row.
MAX_RUNNING = 64
MAX_DRAFT_TOKENS = 128  # in one step, each with a row of logits too


class Scheduler:
    """First come, first served within each priority, with one token budget per step.

    Running sequences go first: each decoding one gets its token, then prompts share what is left of the budget, in
    chunks, so that no decoding sequence waits longer than one chunk takes (`PrefillThrottle` says how long that
    is). A waiting sequence starts when there are blocks for the tokens that it has, and gets more as it grows. When
    there are none left, the running sequence of the lowest rank is preempted: it goes back to the queue with nothing
    but its tokens, which are computed again later; no sequence starts in such a step. The first of the queue is never
    overtaken.

    Sequences may keep blocks and slots when they are finished; they lose them before a running one would starve, and
    checkpoints before that. Lost tokens are computed again when needed: every sequence that fits the pool alone ends.

    Where sequences have several owners (`Sequence.owner`), first come is first served within each, and owners share
    what there is: steps by what was done for each (`OwnerShares`), running places and blocks by number.

    The scheduler computes nothing itself, and serves any model. Its driver takes turns, all from one thread: `step`;
    the `copies` that it asks for, which are cleared then; each sequence's share of the plan; `advance` for what was
    computed. A sequence all of whose tokens are computed gets another one at the end of `tokens`, or `finish`; a
    running sequence with nothing to compute is passed over, and keeps what it has.

    A decoding sequence may have draft tokens (`Sequence.draft_tokens`), for which no other sequence gives up budget or
    room. After the step, the accepted ones are at the end of `tokens`, and `advance` gets the number of computed tokens
    that count.

    pool: ids of blocks and slots. prefix: the radix cache; None if no prefixes are shared. block_size: tokens of a KV
    block. blocks: the block manager. shares: of owners. running: by rank. live: sequences that wait or run, by id.
    ended: those that ended and were not drained yet. deadlines: of live sequences. n_steps, n_preempted: counts.
    preempting: whether the last step preempted a sequence. debug: check everything in each step.
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
        row_budget: int = MOST,
    ) -> None:
        """token_budget: tokens of a step at most. max_running, max_waiting: sequences.

        row_budget: prompt tokens of a step at most that give a row of logits each (`Sequence.every_row`).

        whole: each sequence is computed in one step, however long it is; it may keep nothing, and need no blocks.
        Raises ConfigError for numbers below 1, and for a pool in which nothing can run.
        """
        self.token_budget = check_int("token_budget", token_budget, 1, MOST)
        max_running = check_int("max_running", max_running, 1, MOST)
        if not (pool.blocks.n or pool.windowed.n or pool.n_slots or whole):
            raise ConfigError("the pool has 0 KV blocks and 0 recurrent slots: nothing can run in it")
        if 0 < pool.n_slots < RUNNING_SLOTS:
            raise ConfigError(f"a recurrent model needs at least {RUNNING_SLOTS} slots to run, not {pool.n_slots}")
        block_size = check_int("block_size", block_size, 1, MOST)
        prefix = PrefixKvCache(pool, block_size) if prefix_cache else None
        self.pool, self.prefix, self.block_size = pool, prefix, block_size
        self.row_budget = check_int("row_budget", row_budget, 1, MOST)
        self._n_rows_left = 0  # of it, in this step
        self.blocks = BlockManager(pool, block_size, self.token_budget, prefix)
        self.max_waiting = check_int("max_waiting", max_waiting, 1, MOST)
        self.whole = whole
        # Never more than the budget, so that decoding sequences leave at least one token to a prompt.
        self.max_running = min(max_running, token_budget)
        self.running: list[Sequence] = []
        self.live: dict[int, Sequence] = {}
        self.waiting = WaitingQueue()
        self.owners: dict[Hashable, int] = {}  # live sequences of each
        self.shares = OwnerShares(self.owners, self.token_budget // 2)
        self.n_steps = 0
        self.n_preempted = 0
        self.preempting = False
        self.debug = False
        self.deadlines = Deadlines()
        self.ended: list[Sequence] = []
        # Id of the first sequence in the queue, and the room that was too little for it.
        self._stuck: tuple[int, tuple[int, ...]] = (-1, self.blocks.room)
        self._left_out = False  # whether the last step left decoding sequences out, beside another owner's prompt

    @property
    def copies(self) -> list[tuple[int, int, int]]:
        """(kind, source, target) of blocks, to be copied in this order before the next step computes anything."""
        return self.blocks.copies

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that could run alone; without a limit, more than any context."""
        return self.blocks.capacity

    # ---- requests

    def check_fits(self, n_tokens: int) -> None:
        """Raises KvCacheFullError if a sequence of n_tokens could never run, however empty the cache."""
        blocks = self.blocks
        for kind, pool in blocks.groups:
            windowed = kind == WINDOWED and blocks.windows
            need = windowed.n_needed(n_tokens) if windowed else blocks.n_blocks(n_tokens)
            if need > pool.n:
                raise KvCacheFullError(
                    f"{n_tokens} tokens of prompt and output need {need} {pool.noun}s of {blocks.block_size} tokens, "
                    f"and there are {pool.n} in all: lower max_tokens or raise kv_budget"
                )

    def check_queue(self, n: int = 1, owner: Hashable = None, coming: Mapping[Hashable, int] = NONE) -> None:
        """Raises QueueFullError if n more of an owner can't wait: where there is no room for them in the queue, and
        none in its owner's share of it. coming: sequences of each owner that are about to be queued."""
        if self.waiting.n + sum(coming.values()) + n <= self.max_waiting:
            return
        n_owners = len({owner, *self.waiting.counts, *coming})
        n_own = self.waiting.counts.get(owner, 0) + coming.get(owner, 0) + n
        if n_owners < 2 or n_own > max(1, self.max_waiting // n_owners):
            raise QueueFullError(
                f"{self.waiting.n} requests are waiting, and {n} more would be over the limit of {self.max_waiting} "
                "(max_queue_size): try again later, or send fewer at once"
            )

    def add_request(self, sequence: Sequence, *, accepted: bool = False, beside: Sequence | None = None) -> Sequence:
        """Queues a sequence that has tokens to compute, and returns it: it is the handle of the request.

        An ended sequence may be queued again, with the blocks that it kept. accepted: whether `check_queue` was called
        already. beside: a sequence with which it ranks, as if they had been queued together.
        Raises GenerateError if it waits or runs, ConfigError if it has nothing to compute, KvCacheFullError if it could
        never run, QueueFullError; and queues nothing then.
        """
        if sequence.queued or sequence.running:
            raise GenerateError(f"sequence {sequence.id} is {sequence.state.value} already: wait until it is finished")
        if len(sequence.tokens) <= sequence.n_computed:
            raise ConfigError(f"sequence {sequence.id} has no token to compute: give it at least one")
        self.check_fits(sequence.n_reserve)
        if not accepted:
            self.check_queue(owner=sequence.owner)
        if sequence.slots is None and self.pool.n_slots:
            sequence.slots = StateSlots()
        sequence.finished = sequence.preempted = sequence.cancelled = False
        self.waiting.add(sequence, self.n_steps, beside)
        self.live[sequence.id] = sequence
        self.owners[sequence.owner] = n = self.owners.get(sequence.owner, 0) + 1
        if n == 1 and len(self.owners) > 1:
            self.shares.enter(sequence.owner, self.n_steps, len(self.running))
        if sequence.deadline < math.inf:
            self.deadlines.add(sequence, len(self.live))
        return sequence

    def set_deadline(self, sequence: Sequence, deadline: float) -> None:
        """Sets another deadline for a sequence, which waits or runs, or will."""
        sequence.deadline = deadline
        if deadline < math.inf and sequence.is_scheduled:
            self.deadlines.add(sequence, len(self.live))

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed, each reported once; they are to be ended by `cancel`."""
        return self.deadlines.expired(now)

    def cancel(self, handle: Sequence | int, *, keep_blocks: bool = False) -> None:
        """`finish` for a sequence, or its id, that is given up.

        Raises GenerateError if it is finished already, ConfigError for one that is not known here: never added, or
        drained since it ended.
        """
        i = handle.id if isinstance(handle, Sequence) else handle
        sequence = self.live.get(i)
        if sequence is None:
            if (isinstance(handle, Sequence) and handle.finished) or any(s.id == i for s in self.ended):
                raise GenerateError(f"sequence {i} is finished already")
            raise ConfigError(f"sequence {i!r} is not known here: it was never added, or has ended and was drained")
        sequence.cancelled = True
        self.finish(sequence, keep_blocks=keep_blocks)

    def finish(self, sequence: Sequence, *, keep_blocks: bool = False) -> None:
        """Ends a sequence, waiting or running; its blocks and slots are free at once unless they are to be kept.

        Raises GenerateError if it does neither.
        """
        self.pause(sequence)
        self.ended.append(sequence)
        if not keep_blocks:
            if sequence.n_computed % self.block_size >= LEAST_PART:
                self.blocks.keep_tail(sequence)
            self.blocks.rewind(sequence, 0)

    def pause(self, sequence: Sequence) -> None:
        """`finish` of a sequence that will be queued again and keeps its blocks until then; it isn't drained.

        It may lose the blocks to running sequences. Raises GenerateError if it neither waits nor runs.
        """
        if self.live.pop(sequence.id, None) is None:
            raise GenerateError(f"sequence {sequence.id} neither waits nor runs, and can't be finished")
        self.owners[sequence.owner] -= 1
        if not self.owners[sequence.owner]:
            del self.owners[sequence.owner]
            self.shares.alone_from = self.n_steps
            if not self.owners:
                self.shares.done.clear()
        if sequence.running:
            self.running.remove(sequence)
        if sequence.queued:
            self.waiting.remove(sequence)
        sequence.finished, sequence.running = True, False
        if sequence.draft_tokens or sequence.n_recompute or sequence.slots is not None:
            self._drop_step_state(sequence)

    def reset(self) -> None:
        """Forgets all requests, and what sequences hold, after an error that left any of it half done.

        Idle sequences keep their tokens. Sequences that waited or ran are not returned by `drain_finished`.
        """
        for sequence in [*self.live.values(), *self.ended]:
            self.blocks.touch(sequence)
            sequence.queued = sequence.running = False
            sequence.finished = True
        self.blocks.reset()
        self.running, self.live, self.ended = [], {}, []
        self.waiting, self.deadlines = WaitingQueue(), Deadlines()
        self.owners.clear()
        self.shares.done.clear()

    def drain_finished(self) -> list[Sequence]:
        """Sequences that ended since the last call, in that order; `cancelled` tells which of them were cancelled."""
        ended, self.ended = self.ended, []
        return ended

    # ---- steps

    def step(self, beside: int | PrefillThrottle | None = None) -> Plan:
        """The sequences of the next step with how many tokens each computes; empty if there is nothing to do.

        beside: prompt tokens at most, if there are decoding sequences, which would wait for them; or a throttle that
        limits them, and to which the driver says how long the step took. None: as many as the budget allows.

        The plan may also be empty where a sequence was preempted (`preempting`): then others follow. Raises
        KvCacheFullError if a sequence has grown beyond its `n_reserve`, and the pool.
        """
        self.n_steps += 1
        self.preempting = False
        self._n_rows_left = self.row_budget
        if len(self.owners) > 1:
            plan = self._schedule_owners(beside)
        else:
            plan, budget = self._schedule_decodes(self.running, self.token_budget)
            if self.waiting.n or len(plan) < len(self.running):
                throttle = beside if plan and isinstance(beside, PrefillThrottle) else None
                if throttle is not None:
                    throttle.begin(len(plan))
                elif plan and isinstance(beside, int):
                    budget = min(budget, beside)
                self._schedule_prefills(plan, budget, throttle)
        if self.pool.n_slots:  # a waiting sequence may have asked for a state before the end of this step
            plan = [(sequence, self.blocks.chunk(sequence, n) if n > 1 else n) for sequence, n in plan]
        for sequence, _ in plan:
            if sequence.draft_tokens:
                self._schedule_drafts(plan)
                break
        if not plan and self.live and not self.preempting:
            self._check_reserves()
        if self.debug:
            self.check_invariants(plan)
        return plan

    def _schedule_decodes(self, sequences: list[Sequence], budget: int) -> tuple[Plan, int]:
        """One token of each decoding sequence, with those that it computes again; and what is left of the budget."""
        plan, blocks = [], self.blocks
        can_append = blocks.can_append
        for sequence in list(sequences):
            n = len(sequence.tokens) - sequence.n_computed
            if n != 1 + sequence.n_recompute or n > budget or not sequence.running:
                continue
            if (n == 1 and (can_append(sequence) or blocks.append(sequence))) or self._make_room(sequence, n):
                plan.append((sequence, n))
                budget -= n
        return plan, budget

    def _schedule_prefills(self, plan: Plan, budget: int, throttle: PrefillThrottle | None) -> None:
        """Adds chunks of prompts: of running sequences, then of admitted ones. Preempted ones leave the plan."""
        for sequence in list(self.running):
            if not sequence.running or sequence.is_decoding:
                continue
            if (n := self._share(sequence, budget, throttle)) and self._make_room(sequence, n):
                plan.append((sequence, n))
                budget -= n
                self._n_rows_left -= n * sequence.every_row
                if throttle is not None and n > 1:
                    throttle.take(n, sequence.n_computed)
        if self.preempting:
            plan[:] = [(sequence, n) for sequence, n in plan if sequence.running]
        owner = next(iter(self.waiting.counts), None)
        while budget > 0 and not self.preempting and (admitted := self._admit(budget, throttle, owner)):
            n = self._share(admitted, budget, throttle)
            if not n:  # it begins deep in its prompt, by the prefix cache, where not even one more token fits
                break
            plan.append((admitted, n))
            budget -= n
            self._n_rows_left -= n * admitted.every_row
            if throttle is not None and n > 1:  # a single token costs what one of a decoding sequence does
                throttle.take(n, admitted.n_computed)

    def _schedule_owners(self, beside: int | PrefillThrottle | None) -> Plan:
        """The plan of a step where sequences have several owners, without draft tokens.

        Prompts of the owner that had least lead. Each other owner has no more work done in the step than they take: of
        decoding sequences, all of which are in the next step after one that left some out, then of its prompts.
        """
        rows = [sequence for sequence in self.running if sequence.is_decoding]
        order = self.shares.order({*self.waiting.counts, *(s.owner for s in self.running if not s.is_decoding)})
        throttle = beside if rows and order and isinstance(beside, PrefillThrottle) else None
        if throttle is not None:
            throttle.begin(len(rows), equal=self.shares.is_any_due(order, {sequence.owner for sequence in rows}))
        budget = max(1, self.token_budget - len(rows))
        if rows and isinstance(beside, int):
            budget = min(budget, beside)
        prompts: Plan = []
        first, starts = None, True
        while order and not prompts:
            first = order.pop(0)
            lead = self.shares.lead(first, order)
            starts = self._schedule_prompts(prompts, first, budget, lead, throttle, starts=starts, leads=True)
        work = math.inf
        if prompts:
            work = STEP_WORK + sum(prompt_work(n, s.n_computed) for s, n in prompts)
            if not rows or any(s.n_computed + n == len(s.tokens) for s, n in prompts):  # else the rows pay (`row_work`)
                self.shares.charge(first, STEP_WORK)
        row_work = 1.0 if throttle is None else throttle.row_work(len(rows))
        plan = self._schedule_rows(rows, first, work / row_work, self.token_budget - _n_tokens(prompts))
        if throttle is not None:
            throttle.beside(len(plan))
        for owner in order:
            left = work - row_work * sum(s.owner == owner for s, _ in plan)
            starts = self._schedule_prompts(prompts, owner, budget - _n_tokens(prompts), left, throttle, starts=starts)
        if self.preempting:
            plan, prompts = _running(plan), _running(prompts)
        for sequence, n in plan:
            self.shares.charge(sequence.owner, row_work * n)
        for sequence, n in prompts:
            self.shares.charge(sequence.owner, prompt_work(n, sequence.n_computed))
        if prompts:
            self.shares.catch_up(first, order)
        return plan + prompts

    def _schedule_prompts(
        self, plan: Plan, owner: Hashable, budget: int, work: float, throttle: PrefillThrottle | None, *, starts: bool,
        leads: bool = False,
    ) -> bool:  # fmt: skip
        """Adds chunks of an owner's prompts, of so much work at most; whether other owners' may start in this step.

        starts: whether its own may. leads: whether they may take places and blocks of other owners.
        """
        running = iter([s for s in self.running if s.owner == owner and not s.is_decoding])
        yielded = admitted = False
        n = 1
        while budget > 0 and work > 0 and (n or not admitted):
            sequence = next((s for s in running if s.running), None)
            if sequence is None:
                if not starts or self.preempting:
                    break
                sequence, admitted = self._admit(budget, throttle, owner, leads=leads), True
                yielded, self.preempting = yielded or self.preempting, False
                if sequence is None:
                    break
            depth = sequence.n_computed
            most = budget if work == math.inf else min(budget, int(work / prompt_work(1, depth)))
            heads = leads and not plan  # it is computed whole, too, and its last tokens at any depth
            if heads and most < budget:
                whole = self.whole or depth < sequence.n_encoded
                most = budget if whole else max(most, min(budget, LEAST_CHUNK))
            n = self._share(sequence, most, throttle)
            if n > most and work < math.inf and not heads:
                n = 0
            if n and self._make_room(sequence, n):
                plan.append((sequence, n))
                budget -= n
                self._n_rows_left -= n * sequence.every_row
                work -= prompt_work(n, depth)
                if throttle is not None and n > 1:  # a single token costs what one of a decoding sequence does
                    throttle.take(n, depth)
        self.preempting |= yielded
        head = self.waiting.first(owner)
        return starts and not yielded and (head is None or head.id != self._stuck[0])

    def _schedule_rows(self, rows: list[Sequence], first: Hashable, most: float, budget: int) -> Plan:
        """The plan of decoding sequences: all of the owner `first`, and `most` of each other one."""
        counts: Counter[Hashable] = Counter()
        chosen = []
        for sequence in rows:
            counts[sequence.owner] += 1
            if self._left_out or sequence.owner == first or counts[sequence.owner] <= most:
                chosen.append(sequence)
            else:
                del sequence.draft_tokens[:]
        self._left_out = len(chosen) < len(rows)
        return self._schedule_decodes(chosen, budget)[0]

    def _schedule_drafts(self, plan: Plan) -> None:
        """Adds the draft tokens of decoding sequences, cut to what there is of budget and room."""
        budget = 0 if self.preempting else min(MAX_DRAFT_TOKENS, self.token_budget - sum(n for _, n in plan))
        for i, (sequence, n) in enumerate(plan):
            if not sequence.draft_tokens:
                continue
            n_drafts = self._n_affordable(sequence, budget) if sequence.is_decoding and n == 1 else 0
            del sequence.draft_tokens[n_drafts:]
            plan[i] = sequence, n + n_drafts
            budget -= n_drafts

    def _n_affordable(self, sequence: Sequence, budget: int) -> int:
        """Draft tokens that a sequence can compute beside its next token, for which it has room."""
        n = min(len(sequence.draft_tokens), budget, sequence.n_reserve - len(sequence.tokens))
        if n < 1:
            return 0
        n = self.blocks.chunk(sequence, 1 + n)
        if not self.blocks.extend(sequence, sequence.n_computed + n):
            n = min(n, self.block_size - sequence.n_computed % self.block_size)
        return n - 1

    def _check_reserves(self) -> None:
        for sequence in self.live.values():
            if len(sequence.tokens) > max(sequence.n_reserve, self.capacity):
                raise KvCacheFullError(
                    f"sequence {sequence.id} has {len(sequence.tokens)} tokens to compute, more than its n_reserve of "
                    f"{sequence.n_reserve} and than the KV cache holds: finish it, or reserve more"
                )

    def _share(self, sequence: Sequence, budget: int, throttle: PrefillThrottle | None) -> int:
        """Tokens that a sequence computes, of the budget that is left."""
        n = len(sequence.tokens) - sequence.n_computed
        if throttle is not None and n > 1:  # a single one costs what a decoding sequence does
            budget = min(budget, throttle.fit(sequence.n_computed, n))
        if self.whole:  # or more than the budget, if it is the first of the step
            return n if n <= budget or budget == self.token_budget else 0
        if sequence.n_computed < sequence.n_encoded:
            # Also of more than the budget: beside decoding sequences, there may never be one that is large enough.
            return sequence.n_encoded if budget > 0 else 0
        if sequence.every_row:
            budget = min(budget, self._n_rows_left)
        return self.blocks.chunk(sequence, min(n, budget)) if budget > 0 else 0

    def _make_room(self, sequence: Sequence, n: int) -> bool:
        """Gives a running sequence blocks for n more tokens, preempting others; False if it is preempted itself."""
        n += sequence.n_computed
        while not self.blocks.extend(sequence, n):
            if len(self.running) == 1:
                self.blocks.reclaim_blocks(sequence, n)
                return self.blocks.extend(sequence, n)
            victim = yielding.victim(self.running, len(self.owners))
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Sends a running sequence back to the queue, at the place of its rank, with nothing but its tokens."""
        self.preempting = True
        self.n_preempted += 1
        self.running.remove(sequence)
        sequence.running, sequence.preempted = False, True
        self._drop_step_state(sequence)
        self.blocks.rewind(sequence, 0)
        self.waiting.put_back(sequence)

    def _drop_step_state(self, sequence: Sequence) -> None:
        """A sequence stops running: draft tokens and the slots that only a step needs go."""
        if sequence.draft_tokens or sequence.n_recompute:
            sequence.clear_drafts()
        if sequence.slots is not None:
            self.pool.slots.free(sequence.slots.drop_spare())

    def _admit(
        self, budget: int, throttle: PrefillThrottle | None, owner: Hashable, *, leads: bool = False
    ) -> Sequence | None:
        """Starts the first waiting sequence of an owner, if there is room for it.

        leads: other owners' sequences make room, of which theirs have more than this one's.
        """
        sequence = self.waiting.first(owner)
        full = len(self.running) >= self.max_running
        if sequence is None or (full and not leads):
            return None
        if not self._share(sequence, budget, throttle):
            return None
        if self.running and self._stuck[0] == sequence.id and all(map(le, self.blocks.room, self._stuck[1])):
            return None  # nothing has changed for it
        if self.running and self.blocks.awaits_prefix(sequence, self.running):
            return None
        if full:
            share = max(1, self.max_running // len(self.owners))
            if (other := yielding.place_yielder(self.running, owner, share)) is None:
                return None
            self._preempt(other)
        # One block for each running sequence, or the newcomer would soon be preempted for them.
        while not self._start(sequence, reserve=len(self.running)):
            if not leads or (other := yielding.block_yielder(self.running, sequence)) is None:
                self._stuck = (sequence.id, self.blocks.room)
                return None
            self._preempt(other)
        self.waiting.remove(sequence)
        sequence.running = True
        self.blocks.touch(sequence)
        insort(self.running, sequence, key=by_rank)
        return sequence

    def _start(self, sequence: Sequence, reserve: int) -> bool:
        """Gives a sequence blocks and slots for the tokens that it has; False, and nothing of either, without room."""
        n, blocks = len(sequence.tokens), self.blocks
        if not self.running and not blocks.fits(blocks.missing(sequence, n)):
            blocks.reclaim_blocks(sequence, n)
            if not blocks.fits(blocks.missing(sequence, n)):  # copies of blocks that it shares with the prefix cache
                blocks.rewind(sequence, 0)
        before = sequence.n_computed
        if not blocks.allocate(sequence, reserve, reclaim_states=not self.running):
            return False
        if sequence.n_cached is None:
            sequence.n_cached = min(sequence.n_computed, sequence.n_prompt)
        asked = before < len(sequence.tokens) - 1  # that one is computed in any case
        if asked and self.prefix and sequence.cache_key is not None and not sequence.preempted:
            self.prefix.hit_tokens += sequence.n_computed - before
            self.prefix.miss_tokens += len(sequence.tokens) - sequence.n_computed
        return True

    def advance(self, sequence: Sequence, n: int, *, provisional: bool = False) -> None:
        """The step succeeded that computed n tokens of a sequence. Until then, nothing of it has changed.

        With draft tokens, n is the token before them and the accepted ones. provisional: the tokens may be taken back
        (`BlockManager.rewind`). Raises ConfigError if it has fewer tokens.
        """
        if not 0 < n <= len(sequence.tokens) - sequence.n_computed:
            left = len(sequence.tokens) - sequence.n_computed
            raise ConfigError(f"sequence {sequence.id} can't advance by {n} tokens: {left} are not computed")
        if sequence.draft_tokens or sequence.n_recompute:
            n_rejected = 1 + len(sequence.draft_tokens) - n if sequence.draft_tokens else 0
            sequence.clear_drafts()
            if n_rejected:
                self.blocks.truncate(sequence, sequence.n_computed + n)
                if sequence.slots is not None:  # the step left the state after all of its tokens alone
                    sequence.n_recompute = n
                    return
        self.blocks.commit(sequence, n, provisional=provisional)

    def check_invariants(self, plan: Plan) -> None:
        """Raises AssertionError unless blocks, users and tables agree. With `debug`, done in each step."""
        self.blocks.check_invariants(self.running)
        n = sum(n for sequence, n in plan if sequence.n_computed >= sequence.n_encoded)
        assert n <= self.token_budget or self.whole, "a step of more tokens than its budget"
        for sequence, n in plan:
            self.blocks.check_writable(sequence, n)


def _n_tokens(plan: Plan) -> int:
    return sum(n for _, n in plan)


def _running(plan: Plan) -> Plan:
    """A plan without sequences that were preempted since."""
    return [(sequence, n) for sequence, n in plan if sequence.running]
