"""What sequences have of the cache: blocks, beginnings that they share, and slots. Ids and counts only."""

from oxillama.engine.sequence import Sequence
from oxillama.kv_cache.prefix import BLOCK, STATE, PrefixKvCache
from oxillama.kv_cache.sequence_pool import SequencePool
from oxillama.kv_cache.state_slots import StateSlots

__all__ = ["Holdings"]


class Holdings:
    """Gives blocks and slots to sequences, and takes them back.

    copies: (source, target) of blocks, to be copied in this order before the next step computes anything.
    prefix: None if no beginnings are shared.
    """

    def __init__(self, pool: SequencePool, block_size: int, prefix: PrefixKvCache | None = None) -> None:
        self.pool = pool
        self.block_size = block_size
        self.prefix = prefix
        self.copies: list[tuple[int, int]] = []
        self._owners: dict[Sequence, None] = {}  # who began to run last comes last

    # ---- blocks

    def n_blocks(self, n_tokens: int) -> int:
        """Blocks that hold n_tokens."""
        return -(-n_tokens // self.block_size) if self.pool.n_blocks else 0

    @property
    def n_available(self) -> int:
        """Blocks that can be had: the free ones, and those that only the prefix cache has."""
        return self.pool.blocks.n_available

    @property
    def room(self) -> tuple[int, int]:
        """Blocks and slots that can be had without taking anything from a sequence."""
        return self.pool.blocks.n_available, self.pool.slots.n_available

    def missing_blocks(self, sequence: Sequence, n_tokens: int) -> int:
        """Blocks that a sequence needs to compute its tokens up to the first n_tokens."""
        table, n = sequence.block_table, self.n_blocks(n_tokens)
        shared = self.pool.blocks.n_shared(table, sequence.n_computed // self.block_size, n)
        return max(0, n - len(table)) + shared

    def has_room(self, sequence: Sequence) -> bool:
        """`not missing_blocks` for the next token alone: what is asked of each in every step, and mostly so."""
        table, i = sequence.block_table, sequence.n_computed // self.block_size
        return i < len(table) and self.pool.blocks.users[table[i]] == 1

    def grow(self, sequence: Sequence, n_tokens: int) -> bool:
        """Gives a sequence what it needs to compute its tokens up to the first n_tokens; False if that can't be had.

        Blocks that it is to write to become its own: what others have of them is copied.
        """
        missing = self.missing_blocks(sequence, n_tokens)
        if not missing:
            return True
        if missing > self.n_available:
            return False
        blocks = self.pool.blocks
        if self.prefix:
            self.prefix.evict(BLOCK, missing - blocks.n_free)
        first, filled = divmod(sequence.n_computed, self.block_size)
        table, n = sequence.block_table, self.n_blocks(n_tokens)
        partial = bool(filled) and blocks.n_shared(table, first, first + 1)
        replaced = blocks.own(table, first, n)
        self.copies += replaced[:1] if partial else []
        table += blocks.alloc(max(0, n - len(table)))
        return True

    def begin(self, sequence: Sequence, reserve: int, *, reclaim_states: bool) -> bool:
        """Starts a sequence with slots, and blocks for all its tokens, as many computed as the prefix cache has.

        False, and it has nothing more than before, if there is too little room: `reserve` blocks more must be left. The
        last token is computed in any case, since its logits are wanted.
        """
        n = len(sequence.tokens)
        adopted = self._adopt(sequence, n, reserve)
        if not adopted and self.missing_blocks(sequence, n) + reserve > self.n_available:
            return False
        if not self.take_slots(sequence, reclaim_states=reclaim_states):
            if adopted:  # which would keep others from it
                self.rewind(sequence, 0)
            return False
        return self.grow(sequence, n)

    def _adopt(self, sequence: Sequence, n: int, reserve: int) -> bool:
        """Begins with what the prefix cache has, if that is more than the sequence has, and there is room for n tokens.

        Where others went on alike, but left no state, the next one is to find one: the sequence leaves it there.
        """
        size = self.block_size
        # A session that is fed token by token has all full blocks itself: it would look for more in vain each time.
        longer = (n - 1) // size > sequence.n_computed // size
        if self.prefix is None or sequence.cache_key is None or not longer:
            return False
        known = self.prefix.walk(sequence.cache_key, sequence.tokens, n - 1)
        found = known[: self.prefix.n_usable(known)]
        if sequence.slots is not None:
            sequence.slots.shared_marks = [len(known) * size, (n - 1) // size * size]
        n_idle = sum(self.pool.blocks.users[node.ids[BLOCK]] == 1 for node in found) if self.pool.n_blocks else 0
        needed = self.n_blocks(n) - self.n_blocks(len(found) * size) + reserve
        # Without room for what was found it goes on with what it has, which the count leaves out.
        if len(found) * size <= sequence.n_computed or needed > self.n_available - n_idle:
            return False
        held = self.prefix.hold(found)
        state = found[-1].ids[STATE]
        if sequence.slots is not None:
            self.pool.slots.share([state])
        self.rewind(sequence, 0)
        if sequence.slots is not None:
            sequence.slots.current = state
        sequence.path, sequence.block_table, sequence.n_computed = found, held, len(found) * size
        return True

    def chunk(self, sequence: Sequence, n: int) -> int:
        """n tokens, or less: so that a step ends where a checkpoint is wanted, or otherwise at the end of a block."""
        if sequence.slots is None:
            return n
        at = sequence.n_computed
        n = sequence.slots.until_mark(at, n)
        if self.prefix is None or sequence.cache_key is None or at + n == len(sequence.tokens):
            return n
        return (at + n) // self.block_size * self.block_size - at if (at + n) % self.block_size < n else n

    def remember(self, sequence: Sequence) -> None:
        """Shows the prefix cache the full blocks of what a sequence has computed, and the state if it is after one."""
        if self.prefix is None or sequence.cache_key is None:
            return
        n_full, over = divmod(sequence.n_computed, self.block_size)
        while len(sequence.path) < n_full:
            self.prefix.extend(sequence.cache_key, sequence.tokens, sequence.path, sequence.block_table)
        if sequence.slots is not None and not over:
            self._share_state(sequence, sequence.slots)

    def expect(self, sequence: Sequence, tokens: list[int]) -> None:
        """Another one, of these tokens, waits for what a sequence computes of their common beginning.

        It is to leave its state where they part.
        """
        if sequence.slots is None:
            return
        size, mine = self.block_size, sequence.tokens
        end = sequence.n_computed // size * size
        while end + size < min(len(tokens), len(mine)) and tokens[end : end + size] == mine[end : end + size]:
            end += size
        if end not in sequence.slots.shared_marks:
            sequence.slots.shared_marks.append(end)

    def _share_state(self, sequence: Sequence, slots: StateSlots) -> None:
        """A checkpoint for others: in a free slot, or in another checkpoint's if it is at one of the marks.

        The sequence gets another slot for the one that it can't write again. What a prompt leaves on its way takes
        nobody's place, or a long one would leave nothing of the others.
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

    # ---- both

    def rewind(self, sequence: Sequence, n_tokens: int) -> None:
        """Gives back what a sequence keeps of tokens beyond the first n_tokens.

        A recurrent state goes back to the last checkpoint before that: `n_computed` tells how far.
        """
        if sequence.slots is None:
            sequence.n_computed = min(sequence.n_computed, n_tokens)
        else:
            sequence.n_computed, freed = sequence.slots.rewind(sequence.n_computed, n_tokens)
            self.pool.slots.free(freed)
        kept = self.n_blocks(sequence.n_computed)
        self.pool.blocks.free(sequence.block_table[kept:])
        del sequence.block_table[kept:]
        if self.prefix:
            self.prefix.leave(sequence.path, sequence.n_computed // self.block_size)
        if not sequence.block_table and (sequence.slots is None or sequence.slots.current < 0):
            self._owners.pop(sequence, None)

    def hand_over(self, before: Sequence, sequence: Sequence) -> None:
        """All that an idle sequence keeps goes to another one, which begins with the same tokens.

        Nothing does if it would have to be found under another key of the prefix cache.
        """
        if before.path and before.cache_key != sequence.cache_key:
            self.rewind(before, 0)
        sequence.n_computed, before.n_computed = before.n_computed, 0
        sequence.block_table, before.block_table = before.block_table, []
        sequence.path, before.path = before.path, []
        sequence.slots, before.slots = before.slots, None
        if sequence.slots is None and self.pool.n_slots:
            sequence.slots = StateSlots()
        if before in self._owners:
            del self._owners[before]
            self._owners[sequence] = None

    def fork(self, source: Sequence, sequence: Sequence) -> None:
        """A new sequence that begins with the same tokens shares the blocks of all that another has computed.

        Nothing is copied until one of them writes to the block in which they part. A recurrent state isn't shared, nor
        anything under different keys of the prefix cache: then the new one computes its tokens itself.
        """
        if source.slots is not None or source.cache_key != sequence.cache_key or not source.n_computed:
            return
        sequence.path = list(source.path)
        held = self.prefix.hold(sequence.path) if self.prefix else []
        rest = source.block_table[len(held) : self.n_blocks(source.n_computed)]
        sequence.block_table = held + self.pool.blocks.fork(rest)
        sequence.n_computed = source.n_computed
        self.owns(sequence)
        # The last token is to be computed, since its logits are wanted.
        self.rewind(sequence, len(sequence.tokens) - 1)

    def owns(self, sequence: Sequence) -> None:
        """From now on a sequence has blocks or slots; it is the last to lose them."""
        self._owners.pop(sequence, None)
        self._owners[sequence] = None

    def reclaim_blocks(self, n: int, wanting: Sequence) -> None:
        """Takes blocks from sequences that don't run until n can be had: what they lose is computed again if wanted."""
        for owner in list(self._owners):
            if self.n_available >= n:
                break
            if owner is not wanting and not owner.running:
                self.rewind(owner, 0)

    def take_slots(self, sequence: Sequence, *, reclaim_states: bool) -> bool:
        """Gives a sequence the slots that it needs to run; False if they can't be had.

        Slots that idle sequences keep go to those that need them: checkpoints at once, and their states too if told so.
        What was lost is computed again when it is wanted.
        """
        if sequence.slots is None:
            return True
        slots, pool = sequence.slots, self.pool.slots

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
        if short() and self.prefix:  # not of use to the next one any more: this one goes on writing it
            self.prefix.disown(STATE, slots.current)
        if short():
            return False
        slots.spare.extend(pool.alloc(slots.n_missing(pool)))
        return True

    def commit(self, slots: StateSlots) -> None:
        """A step wrote a sequence's next state. Checkpoints of its own are worth more than what nobody uses."""
        if slots.needs_another and self.prefix and not self.pool.slots.n_free:
            self.prefix.evict(STATE, 1)
        slots.commit(self.pool.slots)

    def checkpoint(self, sequence: Sequence) -> None:
        """Keeps the state after what is computed so far, to come back to; nothing without recurrent layers."""
        if sequence.slots is not None and sequence.n_computed:
            self.pool.slots.free(sequence.slots.checkpoint(sequence.n_computed))
