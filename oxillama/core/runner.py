"""Model runner: one forward pass for the sequences of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import EngineClosedError
from oxillama.kernels.batch import Batch, Span, divide
from oxillama.kernels.lora import Adapters
from oxillama.kernels.rows import Workspace
from oxillama.kv_cache.arrays import StateArrays
from oxillama.lora import LoraSet
from oxillama.models import Model
from oxillama.models.adaptable import Adaptable
from oxillama.offload import LayerPager
from oxillama.scheduling.prefill_throttle import PrefillThrottle
from oxillama.scheduling.prefix_cache import WINDOWED
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence as Tokens

__all__ = [
    "ClosedRunner",
    "RunnerProtocol",
    "StepAbandoned",
    "execute_plan",
    "next_plan",
]


class Runner:
    """A model with what its layers keep of the past and the memory of its forward pass."""

    def __init__(
        self,
        model: Model,
        *,
        num_threads: int,
        kv_type: str = "f16",
        kv_block_size: int = 16,
        n_blocks: int,
        n_slots: int = 0,
        n_windowed: int = 0,
        pager: LayerPager | None = None,
    ) -> None:
        """`pager`: brings the model's weights in; without one, they are in memory.

        `n_blocks` for models with attention layers, `n_slots` for those with recurrent layers.

        `n_windowed` of these for layers with a window alone; 0: they share the others' blocks.
        """
        self.model = model
        self.pager = pager
        self.num_threads = num_threads
        self.arrays = StateArrays(
            model.spec.states,
            kv_type=kv_type,
            block_tokens=kv_block_size,
            n_blocks=n_blocks,
            n_slots=n_slots,
            n_windowed=n_windowed,
        )
        self._workspace = Workspace(num_threads)

    def forward(self, spans: Sequence[Span], poll: Callable[[], None] | None = None) -> NDArray[np.float32]:
        """Logits of the wanted rows in span order, float32 [n, n_vocab]: a view, valid until the next call."""
        batch = self._batch(spans, poll)
        found = self.model.logits(self.model.forward(batch, self.arrays.layers), batch.outputs).numpy()
        for source in self.model.mapped:  # else its weights may have changed while they were multiplied by
            source.check()
        return found

    def hidden(self, spans: Sequence[Span], poll: Callable[[], None] | None = None) -> NDArray[np.float32]:
        """Hidden states after the final norm of every row, float32 [n, n_embd]: a view, valid until the next call."""
        found = self.model.forward(self._batch(spans, poll, every_row=True), self.arrays.layers).numpy()
        for source in self.model.mapped:
            source.check()
        return found

    def check_files(self) -> None:
        """Raises ModelFileError if a file that weights are read or mapped from was changed since it was opened."""
        for source in (*self.model.mapped, *(() if self.pager is None else self.pager.sources)):
            source.check()

    def _batch(self, spans: Sequence[Span], poll: Callable[[], None] | None, *, every_row: bool = False) -> Batch:
        """The batch of a pass that begins now: the pager gets its turn, mapped files are watched."""
        if self.pager is not None:
            self.pager.between_steps()
        for source in self.model.mapped:
            source.watch()
        self._workspace.reset()
        adapters = None
        for span in spans:
            if span.loras:
                adapters = Adapters([len(s.tokens) for s in spans], [s.loras for s in spans])
                break
        return Batch(spans, self._workspace, poll, adapters, every_row=every_row)

    @property
    def adaptable(self) -> Mapping[str, Adaptable]:
        """The model's tensors that adapters may change, by name."""
        return self.model.adaptable

    def copy_block(self, source: int, target: int, *, windowed: bool = False) -> None:
        """Copies keys and values of all layers of a group from one block to another, between two steps."""
        self.arrays.copy_block(source, target, windowed=windowed)

    def release(self, blocks: Sequence[int], windowed: Sequence[int], slots: Sequence[int]) -> int:
        """Gives the memory of unused blocks and slots back to the operating system: bytes released."""
        return self.arrays.release(blocks, windowed, slots)

    def cache_bytes(self, n_blocks: int, n_windowed: int, n_slots: int) -> int:
        """Bytes of so many blocks and slots."""
        numbers = n_blocks, n_windowed, n_slots
        return sum(n * size for n, size in zip(numbers, self.arrays.id_bytes, strict=True))

    def paging_counts(self) -> Mapping[str, float]:
        """Counts of the pager, and its budget; nothing without one."""
        return {} if self.pager is None else self.pager.counts()

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held: repacked weights, KV blocks, recurrent states, forward pass."""
        return {
            "weights": self.model.n_weight_bytes if self.pager is None else self.pager.nbytes,
            "kv_cache": self.arrays.kv_bytes,
            "recurrent_state": self.arrays.recurrent_bytes,
            "workspace": self._workspace.nbytes,
        }


Poll = Callable[[], None]


class RunnerProtocol(Protocol):
    """A runner, as the engine core and draft models know it; `Runner` is the one of a loaded model."""

    num_threads: int

    @property
    def arrays(self) -> StateArrays: ...

    @property
    def adaptable(self) -> Mapping[str, Adaptable]: ...

    def memory_bytes(self) -> dict[str, int]: ...

    def paging_counts(self) -> Mapping[str, float]: ...

    def check_files(self) -> None: ...

    def copy_block(self, source: int, target: int, *, windowed: bool = False) -> None: ...

    def release(self, blocks: list[int], windowed: list[int], slots: list[int]) -> int: ...

    def cache_bytes(self, n_blocks: int, n_windowed: int, n_slots: int) -> int: ...

    def forward(self, spans: list[Span], poll: Poll | None = None) -> NDArray[np.float32]: ...

    def hidden(self, spans: list[Span], poll: Poll | None = None) -> NDArray[np.float32]: ...


class ClosedRunner:
    """Runner of a closed engine: the model's memory is free."""

    num_threads = 0

    @property
    def arrays(self) -> StateArrays:
        raise EngineClosedError("the engine is closed")

    @property
    def adaptable(self) -> Mapping[str, Adaptable]:
        raise EngineClosedError("the engine is closed")

    def memory_bytes(self) -> dict[str, int]:
        return {}

    def check_files(self) -> None:
        """Checks nothing: there are no files."""

    def paging_counts(self) -> Mapping[str, float]:
        return {}

    def release(self, blocks: list[int], windowed: list[int], slots: list[int]) -> int:
        return 0

    def cache_bytes(self, n_blocks: int, n_windowed: int, n_slots: int) -> int:
        return 0

    def copy_block(self, source: int, target: int, *, windowed: bool = False) -> None:
        raise EngineClosedError("the engine is closed")

    def forward(self, spans: list[Span], poll: Poll | None = None) -> NDArray[np.float32]:
        raise EngineClosedError("the engine is closed")

    hidden = forward


class StepAbandoned(Exception):
    """Raised by a poll: the step under way is not needed any more."""


class Work(Protocol):
    """Owner of a sequence in a plan: a request, or the drafting of one. want: as in `Request`."""

    @property
    def sequence(self) -> Tokens: ...

    @property
    def want(self) -> str: ...

    @property
    def loras(self) -> LoraSet: ...


def next_plan(
    runner: RunnerProtocol, scheduler: Scheduler, throttle: PrefillThrottle | None = None
) -> list[tuple[Tokens, int]]:
    """The scheduler's plan for the next step (`Scheduler.step`), after the copies of blocks that it asks for."""
    plan = scheduler.step(throttle)
    copies = scheduler.blocks.copies
    for kind, source, target in copies:
        runner.copy_block(source, target, windowed=kind == WINDOWED)
    copies.clear()
    return plan


def execute_plan(
    runner: RunnerProtocol, plan: Sequence[tuple[Work, int]], poll: Poll | None, *, hidden: bool = False
) -> list[Any] | None:
    """Computes a plan for the owners of its sequences and their next n tokens, in its order: for each rows, the
    likeliest token, or None where a prompt is not computed yet (`divide`).

    None if poll raised StepAbandoned. No state has changed in any case: that is for `Scheduler.advance`. hidden: rows
    are hidden states of all tokens. Raises what the forward pass raises.
    """
    spans = list(starmap(span_of, plan))
    try:
        rows = (runner.hidden if hidden else runner.forward)(spans, poll)
    except StepAbandoned:
        return None
    return divide(rows, spans, hidden)


def span_of(request: Work, n: int) -> Span:
    """The next n tokens of a request."""
    sequence, want = request.sequence, request.want
    start, tokens = sequence.n_computed, sequence.tokens
    if start < sequence.n_encoded and want != "hidden":
        want = "none"
    elif want == "hidden" or sequence.draft_tokens:
        want = "all"
    elif want != "all" and start + n < len(tokens):
        want = "none"
    if start or n < len(tokens):
        tokens = tokens[start : start + n]
    if sequence.draft_tokens:
        tokens = tokens + sequence.draft_tokens
    slots = None if sequence.slots is None else sequence.slots.span()
    blocks, windowed = sequence.tables
    return Span(tokens, start, blocks, want, slots, windowed, request.loras.members, sequence.n_source)
