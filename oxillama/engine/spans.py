"""What a step asks of the runner: spans of requests' tokens."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from oxillama.engine.request import Request
from oxillama.engine.runner import Span
from oxillama.errors import EngineClosedError
from oxillama.models.adaptable import Adaptable

__all__ = ["NoRunner", "RunnerLike", "n_rows", "span_of"]

Poll = Callable[[], None]


class RunnerLike(Protocol):
    """What the engine needs of a runner; `engine/runner.py` has the real one."""

    num_threads: int

    @property
    def adaptable(self) -> Mapping[str, Adaptable]: ...

    def memory_bytes(self) -> dict[str, int]: ...

    def paging_counts(self) -> Mapping[str, float]: ...

    def copy_block(self, source: int, target: int, *, windowed: bool = False) -> None: ...

    def release(self, blocks: list[int], windowed: list[int], slots: list[int]) -> int: ...

    def cache_bytes(self, n_blocks: int, n_windowed: int, n_slots: int) -> int: ...

    def forward(self, spans: list[Span], poll: Poll | None = None) -> NDArray[np.float32]: ...

    def hidden(self, spans: list[Span], poll: Poll | None = None) -> NDArray[np.float32]: ...


class NoRunner:
    """In a closed engine: the model's memory is free."""

    num_threads = 0

    @property
    def adaptable(self) -> Mapping[str, Adaptable]:
        raise EngineClosedError("the engine is closed")

    def memory_bytes(self) -> dict[str, int]:
        return {}

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


def span_of(request: Request, n: int) -> Span:
    """The next n tokens of a request."""
    sequence = request.sequence
    start = sequence.n_computed
    tokens = sequence.tokens
    if n < len(tokens) or start:
        tokens = tokens[start : start + n]
    want = "last" if request.want == "last" and start + n == len(sequence.tokens) else "none"
    if sequence.ahead:
        tokens, want = tokens + sequence.ahead, "all"
    slots = None if sequence.slots is None else sequence.slots.span()
    want = want if request.want == "last" else "all"
    blocks, windowed = sequence.tables
    return Span(tokens, start, blocks, want, slots, windowed, request.loras.members)


def n_rows(request: Request, n: int) -> int:
    """Rows that the model returns for a span of n tokens of this request."""
    if request.want != "last" or request.sequence.ahead:
        return n
    return int(request.sequence.n_computed + n == len(request.sequence.tokens))
