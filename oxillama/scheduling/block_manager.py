"""Block manager: block tables, windowed blocks and state slots of each sequence. Ids and counts only.

A sequence has one table of KV blocks for the full-attention layers and one for the sliding-window layers, and slots for
recurrent states. The block manager allocates them, shares prefixes through the radix cache (`prefix_cache.py`), copies
a shared block before it is written, frees the blocks that no window reaches any more, and reclaims what idle sequences
hold when a running one needs room.
"""

import sys
from collections.abc import Iterable

from oxillama.layer_state import TILE, first_read
from oxillama.scheduling.pools import KvCachePool, SequencePool, StateSlots
from oxillama.scheduling.prefix_cache import BLOCK, LEAST_PART, STATE, WINDOWED, PrefixKvCache, PrefixNode
from oxillama.scheduling.sequence import Sequence, n_common

__all__ = ["BlockManager", "Windows", "n_alive"]


def n_alive(window: int, block_size: int, n: int) -> int:
    """Windowed blocks that a sequence needs at most to compute n tokens in a step, at any position."""
    return -(-(window + n - 1 + max(TILE, block_size) - 1) // block_size)


# A sequence that shares at least so many tokens with a prompt that is being computed waits for it. A step for fewer
# costs about as much as computing them twice.
PREFIX_WORTH_WAITING = 64


class Windows:
    """Arithmetic of sliding windows: which blocks of a sequence are alive, and how long a step of it may be.

    max_chunk: tokens that a step may compute of a sequence that is longer than all windowed blocks together.
    """

    def __init__(self, n_blocks: int, window: int, block_size: int, max_chunk: int) -> None:
        """max_chunk: tokens of one sequence in a step of this scheduler."""
        self.window = window
        self.block_size = block_size
        self.n_blocks = n_blocks
        self.max_chunk = max(1, min(max_chunk, n_blocks * block_size - window - max(TILE, block_size) + 2))
        self._max_alive = min(n_blocks, n_alive(window, block_size, max_chunk))

    def reach(self, n_computed: int) -> int:
        """Length of the table, freed entries included, beyond which a sequence gets no block yet."""
        return self.first(n_computed) + self._max_alive

    def first(self, n_computed: int) -> int:
        """Index of the first block that is still read after n_computed tokens."""
        return first_read(n_computed, self.window) // self.block_size

    def n_needed(self, n_tokens: int) -> int:
        """Blocks without which a sequence of n_tokens can't run."""
        return min(-(-n_tokens // self.block_size), max(self.n_blocks, n_alive(self.window, self.block_size, 1)))

    def chunk(self, n: int, n_reserve: int) -> int:
        """n tokens, or `max_chunk` if a sequence that can grow to n_reserve outgrows all windowed blocks."""
        return n if n_reserve <= self.n_blocks * self.block_size else min(n, self.max_chunk)


class BlockManager:
    """Allocates blocks and slots to sequences, and takes them back.

    pool: ids of blocks and slots. groups: (kind, pool) of the kinds of blocks that the model has; a sequence has a
    table of each kind. prefix: the radix cache; None if no prefixes are shared. windows: None without sliding-window
    layers. copies: (kind, source, target) of blocks, to be copied in this order before the next step computes anything.
    held: lists of (pool, ids) of blocks that no sequence uses, such as those that a snapshot is reading.
    """

    def __init__(
        self, pool: SequencePool, block_size: int, max_chunk: int, prefix: PrefixKvCache | None = None
    ) -> None:
        """block_size: tokens of a block. max_chunk: tokens of one sequence in a step, at most."""
        self.pool = pool
        self.block_size = block_size
        self.groups = [(kind, p) for kind, p in ((BLOCK, pool.blocks), (WINDOWED, pool.windowed)) if p.n]
        self.windows = Windows(pool.windowed.n, pool.window, block_size, max_chunk) if pool.window else None
        self.prefix = prefix
        self.copies: list[tuple[int, int, int]] = []
        self.held: list[list[tuple[KvCachePool, list[int]]]] = []
        # Sequences that hold something, entered before they get it; the one that started last comes last.
        self._owners: dict[Sequence, None] = {}

    # ---- room

    @property
    def room(self) -> tuple[int, ...]:
        """Free and idle ids of each pool: what can be had without taking anything from a sequence."""
        return self.pool.blocks.n_available, self.pool.windowed.n_available, self.pool.slots.n_available

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that could run alone; without a limit, more than any context."""
        limits = [pool.n * self.block_size for kind, pool in self.groups if kind != WINDOWED]
        if self.windows and self.windows.n_needed(sys.maxsize) > self.pool.windowed.n:
            limits.append(self.pool.windowed.n * self.block_size)
        return min(limits, default=sys.maxsize)

    def n_blocks(self, n_tokens: int) -> int:
        """Blocks that hold n_tokens."""
        return -(-n_tokens // self.block_size) if self.groups else 0

    def length(self, kind: int, n_computed: int, n_tokens: int) -> int:
        """Length of a table, freed entries included, to compute tokens from n_computed up to the first n_tokens.

        A windowed table is no longer than the blocks that can be alive at once: it grows as its first ones are freed.
        """
        n = self.n_blocks(n_tokens)
        return min(n, self.windows.reach(n_computed)) if kind == WINDOWED and self.windows else n

    def missing(self, sequence: Sequence, n_tokens: int) -> list[int]:
        """Blocks of each group that a sequence needs to compute its tokens up to the first n_tokens."""
        first, found = sequence.n_computed // self.block_size, []
        for kind, pool in self.groups:
            table, n = sequence.tables[kind], self.length(kind, sequence.n_computed, n_tokens)
            n_shared = pool.n_shared(table, first, n) if first < len(table) else 0
            found.append(max(0, n - len(table)) + n_shared)
        return found

    def fits(self, missing: list[int], reserve: int = 0) -> bool:
        """Whether so many blocks of each group can be had, and `reserve` more."""
        for n, (_, pool) in zip(missing, self.groups, strict=True):  # noqa: SIM110 (a generator costs more than this)
            if n + reserve > pool.n_available:
                return False
        return True

    def can_append(self, sequence: Sequence) -> bool:
        """Whether the next token needs no new block: `not any(missing)`, asked of each decoding sequence each step."""
        i = sequence.n_computed // self.block_size
        for kind, pool in self.groups:
            table = sequence.tables[kind]
            if i >= len(table) or pool.users[table[i]] != 1:
                return False
        return True

    def append(self, sequence: Sequence) -> bool:
        """Gives a decoding sequence a free block, where its next token begins one; False where that isn't all it takes.

        Without layers of windows: their tables grow as far as blocks are freed.
        """
        pool, table = self.pool.blocks, sequence.tables[BLOCK]
        if self.windows or not pool.n_free or sequence.n_computed != len(table) * self.block_size:
            return False
        table.append(pool.take())
        return True

    # ---- start of a sequence

    def allocate(self, sequence: Sequence, reserve: int, *, reclaim_states: bool) -> bool:
        """Starts a sequence: slots, the longest cached prefix, and blocks for all its tokens.

        False, and the sequence has nothing more than before, if there is too little room: `reserve` blocks more must be
        left. The last token is computed in any case, since its logits are wanted.
        """
        n, size = len(sequence.tokens), self.block_size
        self._owners.setdefault(sequence)
        # A session that is fed token by token has all full blocks itself: each look-up would be in vain.
        longer = (n - 1) // size > sequence.n_computed // size or (not sequence.n_computed and n > LEAST_PART)
        matched = longer and self._match_prefix(sequence, n, reserve)
        if not matched and not self.fits(self.missing(sequence, n), reserve):
            return False
        if sequence.slots is not None and not self.take_slots(sequence, sequence.slots, reclaim_states=reclaim_states):
            if matched:  # a path that is held would keep its blocks from other sequences
                self.rewind(sequence, 0)
            return False
        return self.extend(sequence, n)

    def _match_prefix(self, sequence: Sequence, n: int, reserve: int) -> bool:
        """Begins with what the prefix cache has, if that is more than the sequence has, and there is room for n tokens.

        Where the cached path continues without a recurrent state, the sequence is to leave a state (`shared_marks`), so
        that the next sequence finds one.
        """
        if self.prefix is None or sequence.cache_key is None:
            return False
        size = self.block_size
        most = min(n - 1, sequence.most_cached)
        known = self.prefix.match(sequence.cache_key, sequence.tokens, most)
        found = known[: self.prefix.n_usable(known)]
        if sequence.slots is not None:
            sequence.slots.shared_marks = [len(known) * size, (n - 1) // size * size]
        missing = self._missing_after(found, n)
        part, n_more = self.prefix.match_partial(sequence.cache_key, found, sequence.tokens, most)
        if n_more and not self.fits([missing[0] + (self.pool.blocks.users[part] == 1), *missing[1:]], reserve):
            n_more = 0
        n_found = len(found) * size + n_more
        # Without room for the cached prefix, the sequence keeps the blocks that it has, which `missing` leaves out.
        if n_found <= sequence.n_computed or n_found < sequence.n_encoded or not self.fits(missing, reserve):
            return False
        tables = self.prefix.acquire(found)
        if n_more:  # `extend` copies it
            tables[BLOCK].extend(self.pool.blocks.fork([part]))
        state = [found[-1].ids[STATE]] if sequence.slots is not None else []
        self.pool.slots.share(state)
        self.rewind(sequence, 0)
        self._owners.setdefault(sequence)
        if sequence.slots is not None:
            sequence.slots.current = state[0]
        sequence.path, sequence.tables, sequence.n_computed = found, tables, n_found
        sequence.n_freed_blocks = self.prefix.first_windowed(len(found))
        return True

    def _missing_after(self, found: list[PrefixNode], n_tokens: int) -> list[int]:
        """`missing` of a sequence that begins with a path. Idle blocks of the path count: they can't be evicted
        then."""
        assert self.prefix is not None
        n_found, missing = len(found), []
        for kind, pool in self.groups:
            used = found[self.prefix.first_windowed(n_found) if kind == WINDOWED else 0 :]
            n_idle = sum(pool.users[node.ids[kind]] == 1 for node in used)
            missing.append(self.length(kind, n_found * self.block_size, n_tokens) - n_found + n_idle)
        return missing

    def allocate_restored(self, sequence: Sequence, n_computed: int, n_running: int) -> bool:
        """Gives an empty sequence the blocks and slot that it would have with its first n_computed tokens computed.

        Their contents are to be written before the next step. False, and the sequence has nothing, if there is too
        little room, with one block left for each of the n_running sequences: then it is computed as if it were new.
        """
        pool, prefix = self.pool, self.prefix
        n_freed = self.windows.first(n_computed) if self.windows else 0
        n_blocks, n_slots = self.n_blocks(n_computed), int(pool.n_slots > 0)
        wanted = [(kind, p, n_blocks - (n_freed if kind == WINDOWED else 0)) for kind, p in self.groups]
        if any(n + n_running > p.n_available for _, p, n in wanted) or n_slots > pool.slots.n_available:
            return False
        self.touch(sequence)
        for kind, p, n in wanted:
            if prefix:
                prefix.evict(kind, n - p.n_free)
            sequence.tables[kind][:] = [-1] * (n_blocks - n) + p.alloc(n)
        if n_slots:
            if prefix:
                prefix.evict(STATE, n_slots - pool.slots.n_free)
            sequence.slots = StateSlots()
            sequence.slots.current = pool.slots.alloc(1)[0]
        sequence.n_computed, sequence.n_freed_blocks = n_computed, n_freed
        return True

    def touch(self, sequence: Sequence) -> None:
        """Marks a sequence as the latest owner of blocks or slots: it is the last to lose them."""
        self._owners.pop(sequence, None)
        self._owners[sequence] = None

    # ---- growth

    def extend(self, sequence: Sequence, n_tokens: int) -> bool:
        """Gives a sequence what it needs to compute its tokens up to the first n_tokens; False if that can't be had.

        Blocks that it is to write become its own: a shared block that is partly filled is copied (copy-on-write).
        """
        missing = self.missing(sequence, n_tokens)
        if not self.fits(missing):
            return False
        first, filled = divmod(sequence.n_computed, self.block_size)
        for n_missing, (kind, pool) in zip(missing, self.groups, strict=True):
            if not n_missing:
                continue
            if self.prefix and n_missing > pool.n_free:
                self.prefix.evict(kind, n_missing - pool.n_free)
            table, n = sequence.tables[kind], self.length(kind, sequence.n_computed, n_tokens)
            if first < len(table):
                partial = bool(filled) and pool.n_shared(table, first, first + 1)
                replaced = pool.own(table, first, n)
                self.copies += [(kind, *replaced[0])] if partial else []
            table += pool.alloc(max(0, n - len(table)))
        return True

    def chunk(self, sequence: Sequence, n: int) -> int:
        """n tokens, or fewer, so that a step ends where a checkpoint is wanted, or else at the end of a block."""
        if self.windows:
            n = self.windows.chunk(n, sequence.n_reserve)
        if sequence.slots is None:
            return n
        at = sequence.n_computed
        n = sequence.slots.until_mark(at, n)
        if self.prefix is None or sequence.cache_key is None or at + n == len(sequence.tokens):
            return n
        return (at + n) // self.block_size * self.block_size - at if (at + n) % self.block_size < n else n

    def commit(self, sequence: Sequence, n: int, *, provisional: bool = False) -> None:
        """The next n tokens of a sequence are computed: commits its state, publishes full blocks, frees old ones.

        provisional: draft tokens, which may be taken back. No windowed block is freed then, and nothing is published.
        """
        sequence.n_computed += n
        if sequence.slots is not None:
            self._commit_state(sequence.slots)
            if sequence.n_computed == sequence.slots.mark and not provisional:
                self.checkpoint(sequence)
        if provisional:
            return
        if sequence.cache_key is not None and sequence.n_computed // self.block_size > len(sequence.path):
            self.publish(sequence)
        if self.windows:
            self.free_out_of_window(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Enters the full blocks of a sequence into the prefix cache, and its state if it stands at a block's end."""
        if self.prefix is None or sequence.cache_key is None:
            return
        n_full, over = divmod(sequence.n_computed, self.block_size)
        while len(sequence.path) < n_full:
            self.prefix.extend(sequence.cache_key, sequence.tokens, sequence.path, sequence.tables)
        if sequence.slots is not None and not over:
            self._share_state(sequence, sequence.slots)

    def keep_tail(self, sequence: Sequence) -> None:
        """Enters the last tokens of a sequence that has ended, which don't fill a block, into the prefix cache.

        Where a sequence could continue within a block (`shares_parts`), and unless another one has this block: it would
        need a copy of its own to go on, for which there may be no room.
        """
        n_full, n = divmod(sequence.n_computed, self.block_size)
        published = sequence.cache_key is not None and len(sequence.path) == n_full
        if published and n >= LEAST_PART and self.prefix and self.prefix.shares_parts:
            block = sequence.tables[BLOCK][n_full]
            if self.pool.blocks.users[block] == 1:
                tail = tuple(sequence.tokens[n_full * self.block_size : sequence.n_computed])
                self.prefix.keep_tail(sequence.cache_key, tail, sequence.path, block)

    def awaits_prefix(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether a prompt that is being computed will soon have much of what this sequence begins with."""
        if self.prefix is None or sequence.cache_key is None:
            return False
        tokens, known = sequence.tokens, -1
        for other in running:
            if other.owner != sequence.owner:  # it may have to wait itself
                continue
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

    def expect(self, sequence: Sequence, tokens: list[int]) -> None:
        """A waiting request with these tokens will reuse what a running sequence computes of their common prefix.

        The running sequence is to leave its state where they part.
        """
        if sequence.slots is None:
            return
        size, most = self.block_size, min(len(tokens), len(sequence.tokens)) - 1
        end = max(sequence.n_computed, min(n_common(tokens, sequence.tokens), most)) // size * size
        if end not in sequence.slots.shared_marks:
            sequence.slots.shared_marks.append(end)

    # ---- recurrent states

    def take_slots(self, sequence: Sequence, slots: StateSlots, *, reclaim_states: bool) -> bool:
        """Gives a sequence the slots that it needs to run; False if they can't be had.

        Checkpoints of other sequences go first; with `reclaim_states` the states of idle sequences go too. What was
        lost is computed again when it is wanted.
        """
        pool = self.pool.slots

        def short() -> bool:
            if self.prefix:
                self.prefix.evict(STATE, slots.n_missing(pool) - pool.n_free)
            return slots.n_missing(pool) > pool.n_free

        for owner in self._owners:
            while short() and owner.slots is not None and owner.slots.checkpoints:
                pool.free(owner.slots.drop_checkpoint())
        for owner in list(self._owners) if reclaim_states else []:
            if short() and owner is not sequence:
                self.rewind(owner, 0)
        if short() and self.prefix:  # the cached state can't serve another sequence: this one keeps writing it
            self.prefix.evict_id(STATE, slots.current)
        if short():
            return False
        slots.spare.extend(pool.alloc(slots.n_missing(pool)))
        return True

    def _commit_state(self, slots: StateSlots) -> None:
        """A step wrote a sequence's next state. Its own checkpoints are worth more than idle states of the cache."""
        if slots.needs_another and self.prefix and not self.pool.slots.n_free:
            self.prefix.evict(STATE, 1)
        slots.commit(self.pool.slots)

    def checkpoint(self, sequence: Sequence) -> None:
        """Keeps the state after what is computed so far, to come back to; nothing without recurrent layers."""
        if sequence.slots is not None and sequence.n_computed:
            self.pool.slots.free(sequence.slots.checkpoint(sequence.n_computed))

    def _share_state(self, sequence: Sequence, slots: StateSlots) -> None:
        """Puts the current state into the prefix cache: in a free slot, or in an idle state's at one of the marks.

        The sequence gets another slot for the one that it can't write again. A prompt evicts nothing for the states
        that it leaves on its way, or a long prompt would leave nothing of the others.
        """
        assert self.prefix is not None
        pool, node = self.pool.slots, sequence.path[-1]
        if node.ids[STATE] >= 0:
            return
        if sequence.n_computed in slots.shared_marks and not pool.n_free:
            self.prefix.evict(STATE, 1)
        if pool.n_free and sequence.n_computed < len(sequence.tokens):
            self.prefix.add(STATE, node, slots.current)
            slots.spare += pool.alloc(1)

    # ---- return of blocks

    def truncate(self, sequence: Sequence, n_tokens: int) -> None:
        """Frees the blocks after those that hold the first n_tokens, of which as many are computed."""
        n = self.n_blocks(n_tokens)
        for kind, pool in self.groups:
            pool.free(sequence.tables[kind][n:])
            del sequence.tables[kind][n:]

    def free_out_of_window(self, sequence: Sequence) -> None:
        """Frees the windowed blocks that nothing reads any more after what a sequence has computed.

        In the prefix cache they are the first to be evicted: a prefix is resumed at its end.
        """
        if self.windows is None or (n := self.windows.first(sequence.n_computed)) <= sequence.n_freed_blocks:
            return
        table, before = sequence.tables[WINDOWED], sequence.n_freed_blocks
        self.pool.windowed.free(table[before:n], stale=True)
        table[before:n] = [-1] * (n - before)
        sequence.n_freed_blocks = n

    def rewind(self, sequence: Sequence, n_tokens: int) -> None:
        """Frees what a sequence holds of tokens beyond the first n_tokens.

        A recurrent state goes back to the last checkpoint before that; where windowed blocks before that are freed,
        nothing is left. `n_computed` says how far it went back. The prefix cache may help when the sequence starts
        again.
        """
        n_computed = min(sequence.n_computed, n_tokens)
        if sequence.slots is not None:
            n_computed = self._rewind_state(sequence.slots, sequence.n_computed, n_tokens)
        if self.windows and self.windows.first(n_computed) < sequence.n_freed_blocks:
            n_computed = 0
            if sequence.slots is not None:
                self._rewind_state(sequence.slots, sequence.n_computed, 0)
        if n_computed < sequence.n_encoded:
            n_computed = 0
        sequence.n_computed, n_kept = n_computed, self.n_blocks(n_computed)
        for kind, pool in self.groups:
            table = sequence.tables[kind]
            n_freed = sequence.n_freed_blocks if kind == WINDOWED else 0
            pool.free(table[max(n_kept, n_freed) :])
            del table[n_kept:]
        sequence.n_freed_blocks = min(sequence.n_freed_blocks, n_kept)
        if sequence.path and self.prefix:
            self.prefix.release(sequence.path, n_computed // self.block_size)
        if not any(sequence.tables) and (sequence.slots is None or sequence.slots.current < 0):
            self._owners.pop(sequence, None)

    def _rewind_state(self, slots: StateSlots, n_computed: int, n_tokens: int) -> int:
        n_computed, freed = slots.rewind(n_computed, n_tokens)
        self.pool.slots.free(freed)
        return n_computed

    def reclaim_blocks(self, sequence: Sequence, n_tokens: int) -> None:
        """Takes blocks from idle sequences until one can have those for its first n_tokens.

        What the idle sequences lose is computed again if wanted.
        """
        for owner in list(self._owners):
            if self.fits(self.missing(sequence, n_tokens)):
                break
            if owner is not sequence and not owner.running:
                self.rewind(owner, 0)

    # ---- two sequences

    def transfer(self, before: Sequence, sequence: Sequence) -> None:
        """Moves all that an idle sequence holds to another one, which begins with the same tokens.

        Nothing is moved if it would have to be found under another key of the prefix cache.
        """
        if before.path and before.cache_key != sequence.cache_key:
            self.rewind(before, 0)
        if before in self._owners:
            self.touch(sequence)
        sequence.n_computed, before.n_computed = before.n_computed, 0
        sequence.tables, before.tables = before.tables, ([], [])
        sequence.n_freed_blocks, before.n_freed_blocks = before.n_freed_blocks, 0
        sequence.path, before.path = before.path, []
        sequence.slots, before.slots = before.slots, None
        if sequence.slots is None and self.pool.n_slots:
            sequence.slots = StateSlots()
        self._owners.pop(before, None)

    def fork(self, source: Sequence, sequence: Sequence, n_recompute: int = 1) -> None:
        """Shares the blocks of all that one sequence has computed with a new one that begins with the same tokens.

        Nothing is copied until one of them writes to the block in which they part. A recurrent state isn't shared, nor
        anything under different keys of the prefix cache: then the new one computes its tokens itself.

        n_recompute: of its last tokens, whose logits are wanted; those it computes again in any case.
        """
        if source.slots is not None or source.cache_key != sequence.cache_key or not source.n_computed:
            return
        self.touch(sequence)
        n, sequence.path = self.n_blocks(source.n_computed), list(source.path)
        if self.prefix:
            self.prefix.pin(sequence.path)
        for kind, pool in self.groups:
            sequence.tables[kind][:] = pool.fork(source.tables[kind][:n])
        sequence.n_computed, sequence.n_freed_blocks = source.n_computed, source.n_freed_blocks
        self.rewind(sequence, len(sequence.tokens) - n_recompute)

    def reset(self) -> None:
        """Takes everything from all sequences, whatever state they and the pools are in, except what is `held`."""
        for sequence in list(self._owners):
            sequence.n_computed = sequence.n_freed_blocks = 0
            sequence.tables, sequence.path, sequence.slots = ([], []), [], None
            sequence.clear_drafts()
        self._owners = {}
        for pool in (self.pool.blocks, self.pool.windowed, self.pool.slots):
            pool.reset(i for held in self.held for p, ids in held if p is pool for i in ids if i >= 0)
        if self.prefix:
            self.prefix.reset()
        self.copies.clear()

    # ---- tests

    def check_invariants(self, sequences: list[Sequence]) -> None:
        """Raises AssertionError unless blocks, users and the tables of running sequences agree. For tests."""
        for pool in (self.pool.blocks, self.pool.windowed, self.pool.slots):
            pool.check_invariants()
        if self.prefix:
            self.prefix.check_invariants()
        for sequence in sequences:
            path, slots = sequence.path, sequence.slots
            assert len(path) <= sequence.n_computed // self.block_size, "a path to what is not computed"
            for kind, _ in self.groups:
                n_freed, table = sequence.n_freed_blocks if kind == WINDOWED else 0, sequence.tables[kind]
                of_path = [node.ids[kind] for node in path[n_freed:]]
                assert of_path == table[n_freed : len(path)], "a path that is not that of the table"
                assert len(set(table[n_freed:])) == len(table[n_freed:]), "a block is in a table twice"
                assert table[:n_freed] == [-1] * n_freed, "a block was not given back"
            if slots is not None:
                assert slots.n_missing(self.pool.slots) <= 0, "a sequence without the slots that it needs"
                assert all(self.pool.slots.users[i] == 1 for i in slots.spare), "a shared slot would be written"

    def check_writable(self, sequence: Sequence, n: int) -> None:
        """Raises AssertionError unless a sequence has blocks of its own for its next n tokens. For tests."""
        first, last = sequence.n_computed // self.block_size, self.n_blocks(sequence.n_computed + n)
        assert not self.windows or self.windows.first(sequence.n_computed) >= sequence.n_freed_blocks, (
            "given back too early"
        )
        for kind, pool in self.groups:
            assert last <= len(sequence.tables[kind]), "a table is too short for the step"
            assert not pool.n_shared(sequence.tables[kind], first, last), "a shared block would be written"
