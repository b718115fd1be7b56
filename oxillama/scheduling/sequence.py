"""Sequences: tokens, block tables and counts of one request. Ids and counts only."""

from __future__ import annotations

import enum
import itertools
import math
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama._util.checks import check_int
from oxillama.errors import ConfigError
from oxillama.layer_state import source_positions
from oxillama.scheduling.pools import StateSlots
from oxillama.scheduling.prefix_cache import PrefixNode, n_common
from oxillama.text_settings import MAX_PRIORITY

__all__ = ["Sequence", "SequenceState", "SourceLayout", "n_common"]


_ids = itertools.count()


class SequenceState(enum.Enum):
    """Lifecycle state of a sequence."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Sequence:
    """Tokens of one request, how many of them are computed, and the blocks and slots that hold the result.

    `Scheduler.add_request` queues it, and `Scheduler.cancel` takes it as a handle. The caller sets what `__init__`
    takes and appends to `tokens`; all other fields are the scheduler's and the block manager's.

    tokens: prompt and output so far; the last one may not be computed yet.
    n_prompt: how many of them are the prompt.
    n_reserve: tokens that it can come to have computed: those of the prompt, and of the output all but the last, which
        is drawn and not computed. Never more than all the blocks there are can hold.
    n_computed: tokens whose keys and values are in the cache, and whose state is the current one.
    draft_tokens: proposed tokens after `tokens`, to be verified in the next step.
    n_cached: tokens of the prompt that the prefix cache had when the sequence first began to run; None before.
    n_recompute: tokens after n_computed that were computed together with rejected draft tokens: a recurrent state can't
        be cut back to them, so they are computed again.
    block_table: block ids in the order of positions; token i is in block i // block_size.
    tables: this one, and that of sliding-window layers, which begins with -1 for each of the `n_freed_blocks`.
    path: prefix-cache nodes of the first blocks of the tables.
    cache_key: key of the prefix cache; None if the sequence neither uses nor fills it.
    n_source: of its first tokens, how many an encoder reads; 0 without one. n_encoded: positions that they take, which
        are computed in one step, kept as a whole, and lost as a whole.
    untrusted: whether some of what is computed came from a snapshot file, which is never shared.
    weights: identity of the adapters that it is computed with; () without adapters.
    slots: of recurrent states; None where the model has none, and before it was first queued.
    priority: higher goes first, 0 to MAX_PRIORITY.
    deadline: when it is to end, on the clock of `Scheduler.expired`.
    owner: whose sequence it is: owners share the steps evenly (`OwnerShares`). None where there is but one.
    yielded: whether it lost its blocks or its place to another owner's sequence; that happens once.
    queued, running, finished, preempted: its place in the scheduler; preempted says that it was running before.
    cancelled: whether `Scheduler.cancel` finished it.
    rank: its place in the queue and among running sequences, set by the waiting queue.
    every_row: whether each of its tokens gives a row of logits, not only the last one.
    most_cached: of its tokens, how many the prefix cache may give; those after it are computed in any case.
    handle: object of the caller's, such as its request; never looked into here.
    """

    __slots__ = (
        "cache_key",
        "cancelled",
        "deadline",
        "draft_tokens",
        "every_row",
        "finished",
        "handle",
        "id",
        "most_cached",
        "n_cached",
        "n_computed",
        "n_encoded",
        "n_freed_blocks",
        "n_prompt",
        "n_recompute",
        "n_reserve",
        "n_source",
        "owner",
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
        "yielded",
    )  # fmt: skip

    def __init__(
        self,
        tokens: Iterable[int],
        n_reserve: int,
        handle: Any = None,
        *,
        priority: int = 0,
        deadline: float = math.inf,
        cache_key: Hashable = None,
        weights: Hashable = (),
        n_source: int = 0,
        n_encoded: int = 0,
    ) -> None:
        """Raises ConfigError for a priority out of range, and for a deadline that is not a number."""
        self.id = next(_ids)
        self.tokens = list(tokens)
        self.n_prompt = len(self.tokens)
        self.n_reserve = max(n_reserve, self.n_prompt)
        self.n_computed = 0
        self.n_source, self.n_encoded = n_source, n_encoded
        self.n_cached: int | None = None
        self.draft_tokens: list[int] = []
        self.every_row = False
        self.most_cached = sys.maxsize
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
        self.yielded = False
        self.owner: Hashable = None
        self.rank = (0, 0)
        self.handle = handle

    @property
    def block_table(self) -> list[int]:
        return self.tables[0]

    @property
    def is_scheduled(self) -> bool:
        """Whether it waits or runs."""
        return self.queued or self.running

    @property
    def is_decoding(self) -> bool:
        """Whether only its last token is to be computed, besides those that are computed again for their state."""
        return len(self.tokens) - self.n_computed - self.n_recompute == 1

    def clear_drafts(self) -> None:
        """Drops draft tokens, and the tokens to recompute because of them."""
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


@dataclass(frozen=True)
class SourceLayout:
    """Place of a prompt that an encoder reads: whole KV blocks, behind which the decoder begins with a token.

    start: that token, which also fills the last block of the prompt, where nothing reads it. block_size: of KV blocks.
    """

    start: int
    block_size: int

    def place(self, prompt: list[int], fields: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """Tokens of a sequence with this prompt, and its fields.

        What an encoder makes of a token depends on all of the prompt: no two prompts have a prefix in common.
        """
        n = source_positions(len(prompt), self.block_size)
        key = fields.get("cache_key")
        placed = {**fields, "n_source": len(prompt), "n_encoded": n}
        if key is not None:
            placed["cache_key"] = key, tuple(prompt)
        return prompt + [self.start] * (n - len(prompt) + 1), placed
