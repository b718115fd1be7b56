"""Engine context: the parts of a loaded engine that its handles, drafts and snapshots work with."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from oxillama._util.pickling import OpenedOnce, frozen
from oxillama.config import EngineConfig
from oxillama.core.engine_core import EngineCore
from oxillama.core.request import SnapshotProtocol
from oxillama.core.request_factory import RequestFactory
from oxillama.core.session import Session
from oxillama.errors import PickleError, SnapshotMismatchError
from oxillama.lora import Lora, LoraRegistry
from oxillama.lora.adapter import reopened_lora
from oxillama.models import ModelSpec
from oxillama.models.classifier import Classifier
from oxillama.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.gguf.fingerprint import ModelFingerprint, ModelIdentity

__all__ = [
    "ENGINES",
    "EngineContext",
    "LoadedEngine",
    "ModelTicket",
    "context_of",
    "ticket_of",
    "ticket_of_model",
]


@dataclass(frozen=True, eq=False)
class EngineContext:
    """Parts of one engine, made once when it is loaded. It keeps no weights: `core` gives them up when it is closed.

    session: of the calls that `Engine` has itself (`prefill`, `forward_decode`, ...). snapshots: writes what the engine
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

    def shrink(self, keep_bytes: int) -> int:
        """`EngineCore.shrink`; where nothing is to stay, what is kept of texts is forgotten, too."""
        if not keep_bytes:
            self.factory.forget_texts()
        return self.core.shrink(keep_bytes)


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


ENGINES: OpenedOnce[Any] = OpenedOnce()

AdapterTicket = tuple[str, str]  # path, digest


@dataclass(frozen=True)
class ModelTicket:
    """Content of an engine's pickle: a class, its settings with absolute paths, and what the files are known by.

    adapters: those that are loaded, by name. pushed: those that are pushed, with their scales.
    """

    kind: type[Any]
    config: EngineConfig
    model: ModelFingerprint
    tokenizer: ModelFingerprint | None
    adapters: tuple[tuple[str, AdapterTicket], ...] = ()
    pushed: tuple[tuple[AdapterTicket, float], ...] = ()

    @property
    def key(self) -> Hashable:
        """Equal for models that are one when they are opened in one process."""
        files = [(f.file_size, f.head_hash, f.tail_hash, f.tensor_hash) for f in (self.model, self.tokenizer) if f]
        config = self.config.__reduce__()[1][1]
        return self.kind, frozen(config), tuple(files), self.adapters, self.pushed

    def check(self, model: ModelIdentity | None, tokenizer: ModelIdentity | None) -> None:
        """Raises PickleError unless these are the files that the pickled model was loaded from."""
        for name, wanted, found in (
            ("model_path", self.model, model),
            ("tokenizer_path", self.tokenizer, tokenizer),
        ):
            try:
                if wanted is not None and found is not None:
                    wanted.check(found.fingerprint, f"{self.kind.__name__}, pickled")
            except SnapshotMismatchError as error:
                raise PickleError(
                    f"{name} {found.path if found else None} is not the file that the pickled {self.kind.__name__} was "
                    f"loaded from ({error}): give every process the same file"
                ) from error


def ticket_of_model(
    kind: type[Any], config: EngineConfig, model: ModelIdentity | None, tokenizer: ModelIdentity | None
) -> ModelTicket:
    """Raises PickleError for a model of no file, ModelFileError if its file was changed since."""
    name = kind.__name__
    if model is None:
        raise PickleError(f"this {name} was made of parts that are of no file: make it anew in each process")
    if config.model_path is not None and model.path is None:
        raise PickleError(
            f"this {name} was loaded from bytes, and its pickle holds no weights: load it from a path, or load it in "
            "each process"
        )
    model_path = None if config.model_path is None else model.path
    if tokenizer is None:
        return ModelTicket(kind, replace(config, model_path=model_path), model.fingerprint, None)
    config = replace(config, model_path=model_path, tokenizer_path=tokenizer.path)
    return ModelTicket(kind, config, model.fingerprint, tokenizer.fingerprint)


def ticket_of(engine: LoadedEngine) -> ModelTicket:
    """Ticket of an engine, for its `__reduce__`. Raises EngineClosedError, and what `ticket_of_model` raises."""
    context = engine.context
    context.core.check_open()
    snapshots, loras = context.snapshots, context.loras
    ticket = replace(
        ticket_of_model(type(engine), context.config, snapshots.identity, snapshots.tokenizer_identity),
        adapters=tuple((name, (lora.place, lora.digest)) for name, lora in loras.named.items()),
        pushed=tuple(((lora.place, lora.digest), scale) for lora, scale in loras.pushed),
    )
    ENGINES.register(ticket.key, engine)
    return ticket


def reopened_engine(ticket: ModelTicket) -> Any:
    """The engine of a ticket: the one that this process has open, or else loaded now.

    Raises LoadError and its children, and PickleError if a file is another one than that of the pickled engine.
    """
    return ENGINES.get(ticket.key, lambda: _opened(ticket), lambda engine: not engine.closed)


def _opened(ticket: ModelTicket) -> Any:
    engine: LoadedEngine = ticket.kind(ticket.config)
    try:
        ticket.check(engine.context.snapshots.identity, engine.context.snapshots.tokenizer_identity)
        known: dict[AdapterTicket, Lora] = {}
        for name, adapter in ticket.adapters:
            known[adapter] = engine.load_lora(name, known.get(adapter) or reopened_lora(*adapter))
        for adapter, scale in ticket.pushed:
            known[adapter] = known.get(adapter) or reopened_lora(*adapter)
            engine.push_lora(known[adapter], scale)
    except BaseException:
        engine.close()
        raise
    return engine
