"""Lifecycle of an engine: its memory, its metrics, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from oxillama.core.engine_core import EngineCore
from oxillama.core.reopening import ENGINES
from oxillama.lora import LoraRegistry
from oxillama.metrics import MetricsSnapshot

if TYPE_CHECKING:
    from oxillama.core.context import LoadedEngine
    from oxillama.speculative.draft_model import DraftModel

__all__ = ["LifeMethods"]

OWN_DRAFT = "_own_draft"


class LifeMethods:
    """Methods of the engine that compute nothing."""

    _core: EngineCore
    _loras: LoraRegistry

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def num_threads(self) -> int:
        """Threads that compute."""
        return self._core.runner.num_threads

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by part: repacked weights, KV cache and recurrent states (reserved; committed as used), workspace,
        adapters."""
        return self._core.runner.memory_bytes() | {"loras": self._loras.nbytes}

    def offload_counts(self) -> Mapping[str, float]:
        """What it took to have the weights where they are needed, since the engine was loaded; empty without `offload`.

        budget: bytes that weights may take now. hits, faults: pages of weights that were in memory when they were
        needed, or not. bytes: read; direct_bytes: those of them that were read past the system's page cache. stalls,
        stall_seconds: how often and how long products waited.
        """
        return self._core.runner.paging_counts()

    def prefix_cache_bytes(self) -> int:
        """Bytes of KV cache and recurrent states that the prefix cache has; others may use the same ones."""
        core = self._core
        return core.runner.cache_bytes(*(p.n_kept for p in (core.pool.blocks, core.pool.windowed, core.pool.slots)))

    def shrink_to_fit(self) -> int:
        """Forgets what only the prefix cache has, and gives the memory of free blocks back to the operating system.

        Returns the bytes that were in memory and are not any more: 0 on systems other than Linux, which have no way to
        do that at once. It changes no result, and waits for the step under way. Raises EngineClosedError.
        """
        return self._core.change(self._core.shrink)

    def metrics_snapshot(self) -> MetricsSnapshot:
        """What the engine has done since it was loaded, and does now, in numbers; also after `close`.

        All are of one moment between two steps. Its `prometheus()` is their text.
        """
        self._core.loop.post(self._core.publish)  # now, or if a step is under way, with its end
        return self._core.meter.snapshot()

    def as_draft(self) -> DraftModel:
        """A draft model of the same weights, with a cache of its own: the same one each time, closed with the engine.

        Raises EngineClosedError, GenerateError if the model is an encoder.
        """
        from oxillama.speculative.draft_model import DraftModel

        self._core.check_open()
        found: DraftModel | None = self.__dict__.get(OWN_DRAFT)
        if found is None:
            made = DraftModel(cast("LoadedEngine", self))
            found = self.__dict__.setdefault(OWN_DRAFT, made)  # atomic, for calls in other threads
            if found is not made:
                made.close()
        if self.closed:
            self._close_draft()
        return found

    def _close_draft(self) -> None:
        if (draft := self.__dict__.pop(OWN_DRAFT, None)) is not None:
            draft.close()

    def close(self) -> None:
        """Ends what is under way with EngineClosedError and frees the model; further calls do nothing."""
        self._core.close()
        ENGINES.forget(self)
        self._close_draft()
        self._loras.forget()

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
