"""One sequence of tokens on its way through the model: ids and counts only."""

import enum
import itertools
import math
from collections.abc import Hashable, Iterable

from oxillama._util.checks import check_int
from oxillama.errors import ConfigError
from oxillama.scheduling.prefix_cache import PrefixNode
from oxillama.scheduling.state_slots import StateSlots

__all__ = ["MAX_PRIORITY", "Sequence", "SequenceState"]

MAX_PRIORITY = 100

_ids = itertools.count()


class SequenceState(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Sequence:
    """Tokens, how many of them are computed, and where what the model keeps of those lies.

    `Scheduler.add_request` queues it, and it is the handle by which it is cancelled; `state` and `id` tell which it is
    and where. A caller sets what `__init__` takes and appends to `tokens`; the rest is the scheduler's.

    tokens: prompt and output so far; the last one may not be computed yet.
    n_prompt: how many of them are the prompt.
    n_reserve: tokens that it can come to have computed: those of the prompt, and of the output all but the last, which
        is drawn and not computed. Never more than all the blocks there are can hold.
    n_computed: tokens whose keys and values are in the cache, and whose state is the current one.
    n_cached: tokens of the prompt that were computed already when it first began to run; None before.
    n_recompute: those after them that were computed with wrong guesses behind: the state after these is of no use.
    block_table: block ids in the order of positions; token i is in block i // block_size.
    tables: this one, and that of layers with a window, which begins with `n_freed_blocks` times -1 for what was given
    back.
    path: of the prefix cache, for the first blocks of the tables; its nodes' blocks are those.
    cache_key: under which the prefix cache has what this computes; None if it is neither to find nor to leave any.
    untrusted: whether some of what is computed came from a file that may be anybody's.
    weights: what tells apart those with which sequences are computed: without adapters ().
    slots: of recurrent states; None where the model has none, and before it was first queued.
    priority: who has more goes first, 0 to MAX_PRIORITY.
    deadline: when it is to end, on the clock that the scheduler is told of.
    queued, running, finished, preempted: where the scheduler has it; the last, whether it waits for the second time.
    cancelled: whether `Scheduler.cancel` finished it.
    rank: its place in the queue and among those that run, which is for the scheduler to give.
    handle: whatever belongs to it; nothing here looks inside.
    """

    __slots__ = (
        "cache_key",
        "cancelled",
        "deadline",
        "draft_tokens",
        "finished",
        "handle",
        "id",
        "n_cached",
        "n_computed",
        "n_freed_blocks",
        "n_prompt",
        "n_recompute",
        "n_reserve",
        "path",
        "preempted",
        "priority",
        "queued",
        "rank",
        "running",
        "slots",
        "tables",
        "tokens",
        "untrusted",
        "weights",
    )  # fmt: skip

    def __init__(
        self,
        tokens: Iterable[int],
        n_reserve: int,
        handle: object = None,
        *,
        priority: int = 0,
        deadline: float = math.inf,
        cache_key: Hashable = None,
        weights: Hashable = (),
    ) -> None:
        """Raises ConfigError for a priority out of range, and for a deadline that is not a number."""
        self.id = next(_ids)
        self.tokens = list(tokens)
        self.n_prompt = len(self.tokens)
        self.n_reserve = max(n_reserve, self.n_prompt)
        self.n_computed = 0
        self.n_cached: int | None = None
        self.draft_tokens: list[int] = []
        self.n_recompute = 0
        self.tables: tuple[list[int], list[int]] = [], []
        self.n_freed_blocks = 0
        self.path: list[PrefixNode] = []
        self.cache_key = cache_key
        self.weights = weights
        self.untrusted = False
        self.slots: StateSlots | None = None
        self.priority = check_int("priority", priority, 0, MAX_PRIORITY)
        if math.isnan(deadline):
            raise ConfigError("deadline must be a number, or math.inf for none, not nan")
        self.deadline = deadline
        self.queued = self.running = self.finished = self.preempted = self.cancelled = False
        self.rank = (0, 0)
        self.handle = handle

    @property
    def block_table(self) -> list[int]:
        return self.tables[0]

    @property
    def is_scheduled(self) -> bool:
        """Whether the scheduler has it: it waits or runs."""
        return self.queued or self.running

    @property
    def is_decoding(self) -> bool:
        """Whether it lacks its last token alone, besides those that are computed again for their state."""
        return len(self.tokens) - self.n_computed - self.n_recompute == 1

    def clear_drafts(self) -> None:
        """Nothing is known of what follows the tokens that are computed."""
        self.draft_tokens, self.n_recompute = [], 0

    @property
    def state(self) -> SequenceState:
        if self.finished:
            return SequenceState.FINISHED
        if not self.running:
            return SequenceState.PREEMPTED if self.preempted else SequenceState.WAITING
        known = max(self.n_prompt, len(self.tokens) - 1)
        return SequenceState.PREFILLING if self.n_computed + self.n_recompute < known else SequenceState.DECODING

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.state.value}, {self.n_computed} of {len(self.tokens)} tokens computed>"
