"""One sequence of tokens on its way through the model: ids and counts only."""

import enum
import itertools
from collections.abc import Iterable

from oxillama.kv_cache.state_slots import StateSlots

__all__ = ["Sequence", "SequenceState"]

_ids = itertools.count()


class SequenceState(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


class Sequence:
    """Tokens, how many of them are computed, and where what the model keeps of those lies.

    tokens: prompt and output so far; the last one may not be computed yet.
    n_prompt: how many of them are the prompt.
    n_reserve: tokens that its KV must have room for before it may run.
    n_computed: tokens whose keys and values are in the cache, and whose state is the current one.
    block_table: block ids in the order of positions; token i is in block i // block_size.
    slots: of recurrent states; None where the model has none, and before it was first queued.
    queued, running, finished: where the scheduler has it.
    handle: whatever belongs to it; nothing here looks inside.
    """

    __slots__ = (
        "block_table", "finished", "handle", "id", "n_computed", "n_prompt", "n_reserve", "queued", "running", "slots",
        "tokens",
    )  # fmt: skip

    def __init__(self, tokens: Iterable[int], n_reserve: int, handle: object = None) -> None:
        self.id = next(_ids)
        self.tokens = list(tokens)
        self.n_prompt = len(self.tokens)
        self.n_reserve = max(n_reserve, self.n_prompt)
        self.n_computed = 0
        self.block_table: list[int] = []
        self.slots: StateSlots | None = None
        self.queued = False
        self.running = False
        self.finished = False
        self.handle = handle

    @property
    def busy(self) -> bool:
        """Whether the scheduler has it: it waits or runs."""
        return self.queued or self.running

    @property
    def state(self) -> SequenceState:
        if self.finished:
            return SequenceState.FINISHED
        if not self.running:
            return SequenceState.WAITING
        return SequenceState.PREFILLING if self.n_computed < self.n_prompt else SequenceState.DECODING

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.state.value}, {self.n_computed} of {len(self.tokens)} tokens computed>"
