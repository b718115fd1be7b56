"""Engine context: the parts of a loaded engine that its handles, drafts and snapshots work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from oxillama.config import EngineConfig
from oxillama.core.engine_core import EngineCore
from oxillama.core.request import SnapshotProtocol
from oxillama.core.request_factory import RequestFactory
from oxillama.core.session import Session
from oxillama.lora import Lora, LoraRegistry
from oxillama.models import ModelSpec
from oxillama.models.classifier import Classifier
from oxillama.tokenizer import Tokenizer

__all__ = ["EngineContext", "LoadedEngine", "context_of"]


@dataclass(frozen=True, eq=False)
class EngineContext:
    """Parts of one engine, made once when it is loaded. It keeps no weights: `core` gives them up when it is closed.

    session: of the calls that `Engine` has itself (`prefill`, `decode_step`, ...). snapshots: writes what the engine
    and its handles save. context_size: tokens of one request, prompt and output together.
    """

    config: EngineConfig
    core: EngineCore
    factory: RequestFactory
    loras: LoraRegistry
    snapshots: SnapshotProtocol
    session: Session
    tokenizer: Tokenizer
    spec: ModelSpec
    metadata: Mapping[str, Any]
    context_size: int
    pooling: str
    classifier: Classifier | None


class LoadedEngine(Protocol):
    """`Engine`, as the layers below it know it."""

    @property
    def context(self) -> EngineContext: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...

    def load_lora(self, name: str, path: Any) -> Lora: ...

    def push_lora(self, lora: Any, scale: float = 1.0) -> None: ...


def context_of(source: object) -> EngineContext | None:
    """The context of a loaded engine; None of a path, of bytes, or of any other object."""
    found = getattr(source, "context", None)
    return found if isinstance(found, EngineContext) else None
