"""From scheduled spans to logits: the one place that calls ``model.forward``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError
from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows, Workspace
from oxillama.kv_cache.paged import KvShape, PagedKvCache
from oxillama.models import Model


@dataclass(slots=True)
class Span:
    """One sequence's share of a step: consecutive tokens, and which of their logits are wanted.

    ``start`` is the absolute position of ``tokens[0]``; ``block_table`` covers every position up to the last token;
    ``want`` is "last", "all" or "none".
    """

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    want: str = "last"


class Runner:
    """A model with its KV blocks and the memory of its forward pass."""

    def __init__(
        self, model: Model, *, num_threads: int, kv_type: str = "f16", kv_block_size: int = 16, n_blocks: int
    ) -> None:
        spec = model.spec
        self.model = model
        self.num_threads = num_threads
        self.kv_shape = KvShape(spec.n_layers, spec.n_kv_heads, spec.head_dim, kv_block_size, kv_type)
        self.kv = PagedKvCache(self.kv_shape, n_blocks)
        self._workspace = Workspace(num_threads)

    def forward(self, spans: Sequence[Span], poll: Callable[[], None] | None = None) -> NDArray[np.float32]:
        """Logits of the wanted rows in span order, float32 [n, n_vocab]: a view, valid until the next call."""
        for s in spans:
            if s.want not in ("last", "all", "none"):
                raise ConfigError(f"want must be 'last', 'all' or 'none', not {s.want!r}")
        return self.model.logits(self._hidden(spans, poll, [s.want for s in spans])).numpy()

    def hidden(self, spans: Sequence[Span], poll: Callable[[], None] | None = None) -> NDArray[np.float32]:
        """Hidden states after the final norm of every row, float32 [n, n_embd]: a view, valid until the next call."""
        return self._hidden(spans, poll, None).numpy()

    def _hidden(self, spans: Sequence[Span], poll: Callable[[], None] | None, wants: list[str] | None) -> Rows:
        self._workspace.reset()
        batch = Batch([(s.tokens, s.start, s.block_table) for s in spans], self._workspace, poll, wants)
        return self.model.forward(batch, self.kv.slabs)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held: repacked weights, KV blocks, forward pass."""
        return {
            "weights": self.model.n_weight_bytes,
            "kv_cache": self.kv.memory_bytes,
            "workspace": self._workspace.nbytes,
        }
