"""Capture of engine state between two steps."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from oxillama._util.json_fields import Fields
from oxillama._util.lazy import lazy
from oxillama._util.signals import Finalizer
from oxillama.config import EngineConfig
from oxillama.core.loading import shipped_model
from oxillama.errors import (
    ConfigError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.gguf.fingerprint import ModelFingerprint, hub_origin
from oxillama.kernels._table import tier
from oxillama.scheduling.sequence import n_common
from oxillama.snapshot.format.layout import Section
from oxillama.snapshot.format.reader import MAX_CHAIN, ArrayRows, Contents, SnapshotReader, open_reader
from oxillama.snapshot.request_state import config_state, plain, sampler_state, text_state
from oxillama.snapshot.sequences import UNKNOWN, SequenceOwner, Since, check_shape, save_sequence

if TYPE_CHECKING:
    from oxillama.core.generation_request import GenerationRequest
    from oxillama.core.loading import EngineParts
    from oxillama.core.options import ServingOptions
    from oxillama.core.request import ResultQueue
    from oxillama.core.session import SessionSampler
    from oxillama.lora import LoraRegistry
    from oxillama.scheduling.sequence import Sequence

__all__ = [
    "WRITER",
    "BaseContents",
    "HeldBlocks",
    "SnapshotWriter",
    "check_format",
    "path_of",
]


class HeldBlocks:
    """KV blocks held for one save: until its end, or, after an exception anywhere, until this object is collected.

    A forked child releases the blocks of another thread's save, since that thread doesn't exist there.
    """

    def __init__(self, core: SequenceOwner) -> None:
        self._thread = threading.get_ident()
        self._held: list[Callable[[], None]] = []
        core.tell_of_fork(self)
        self._post = core.post
        self._dropped = Finalizer(partial(core.post, partial(_let_go, self._held)))

    def keep(self, saved: Contents) -> Contents:
        """Holds the blocks of contents, in the turn of the step loop in which these were captured."""
        self._held.append(saved.let_go)
        return saved

    def end(self) -> None:
        self._post(partial(_let_go, self._held))

    def after_fork(self) -> None:
        """Releases another thread's blocks in a forked child, in a turn of the step loop."""
        if self._thread != threading.get_ident():
            _let_go(self._held)


def _let_go(held: list[Callable[[], None]]) -> None:
    while held:
        held.pop()()


T = TypeVar("T")

log = logging.getLogger("oxillama")

# Settings that change results.
DECISIVE = ("kv_type", "rope", "overrides")


@dataclass(frozen=True)
class BaseContents:
    """Contents of the base file: rows of arrays, for these tokens computed with these adapters."""

    since: Since = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    weights: tuple[tuple[str, float], ...] = ()
    base: tuple[str, str] | None = None

    def n_common(self, sequence: Sequence) -> int:
        """Number of first tokens that are the same, and computed, in a sequence and the file."""
        if self.weights != sequence.weights:
            return 0
        n = min(n_common(self.tokens, sequence.tokens), sequence.n_computed)
        return sequence.tokens.index(UNKNOWN, 0, n) if UNKNOWN in sequence.tokens[:n] else n


EMPTY_BASE = BaseContents()
SEVERAL = ("speculative", "texts", "beams")
WRITER = "oxillama (Python)"
Capture = Callable[[BaseContents], Contents]


class SnapshotWriter:
    """Writer of the snapshots of one engine or draft model; nothing that it owns refers back to it.

    core: the owner of the sequences that are saved. model_path: absolute; None for a model in memory. context_size,
    num_threads: those in use. given_as: the argument that names the model.
    """

    given_as = "model_path"

    def __init__(self, core: SequenceOwner, config: EngineConfig, parts: EngineParts, loras: LoraRegistry) -> None:
        self.core, self.config, self.loras, self.spec = core, config, loras, parts.spec
        self.arch, self.n_vocab, self.context_size = parts.spec.arch, parts.spec.n_vocab, parts.context_size
        self.num_threads, self.arithmetic = core.runner.num_threads, parts.arithmetic
        source = shipped_model() if config.model_path is None else config.model_path
        self.model_path = os.path.abspath(source) if isinstance(source, str | os.PathLike) else None
        self.identity, self.tokenizer_identity = parts.identity, parts.tokenizer_identity

    @property
    def fingerprint(self) -> ModelFingerprint:
        """Fingerprint of the model as it was loaded. Raises SnapshotError if the model came from no file,
        ModelFileError if its file has changed."""
        if self.identity is None:
            raise SnapshotError("the engine was made of parts that are of no file: no snapshot could name its model")
        return self.identity.fingerprint

    # ---- capture

    @contextmanager
    def hold(self, take: Capture, known: BaseContents = EMPTY_BASE) -> Iterator[Contents]:
        """Contents that `take` returns between two steps, with their KV blocks held during the `with` block."""
        self.core.check_open()
        _ = self.described  # may read the model's file: do so before the step loop waits for the capture
        holding = HeldBlocks(self.core)
        try:
            yield self.between_steps(lambda: holding.keep(take(known)))
        finally:
            holding.end()

    def between_steps(self, action: Callable[[], T]) -> T:
        """Runs an action between two steps of the engine: its result, or the error that it raised."""
        outcome: list[T] = []
        errors: list[BaseException] = []

        def safely() -> None:
            try:
                outcome.append(action())
            except BaseException as error:
                errors.append(error)

        self.core.change(safely)
        if errors:
            raise errors[0]
        return outcome[0]

    def session(
        self, sequence: Sequence, serving: ServingOptions, logits: NDArray[np.float32] | None,
        sampling: SessionSampler | None, known: BaseContents,
    ) -> Contents:  # fmt: skip
        """Contents of a low-level session; call it in a turn of the step loop."""
        state = {
            "unknown_tokens": UNKNOWN in sequence.tokens,
            "session": {"lora": plain("lora", serving.lora), "cache_salt": serving.cache_salt},
        }
        more = {} if logits is None else {"logits": ArrayRows.whole(logits)}
        sampler = None if sampling is None else sampling.sampler
        if sampling is not None and sampler is not None:
            if sampler.memory.grammar is not None and sampler.config.constraint is None:
                raise SnapshotError("the sampler's grammar can't be saved: give it as a setting, grammar= or another")
            described, marks = sampler_state(sampler)
            state["sampler"] = described | ({"follows": True} if sampling.follows else {})
            more |= marks | {"history": ArrayRows.whole(np.array(sampler.memory.history.tokens, np.int32))}
        return self.saved("session", sequence, sequence.n_computed, known, state, more)

    def conversation(self, sequence: Sequence, messages: list[Any], known: BaseContents) -> Contents:
        """Contents of a conversation between two answers; call it in a turn of the step loop."""
        state = {"messages": plain("messages", messages)}
        return self.saved("conversation", sequence, sequence.n_computed, known, state, {})

    def text(self, request: GenerationRequest, outbox: ResultQueue, known: BaseContents) -> Contents:
        """Contents of a generation request; call it in a turn of the step loop."""
        sequence, unread = request.sequence, [chunk for index, chunk in outbox.items if index == request.index]
        sampler, marks = sampler_state(request.sampler)
        state = {"text": text_state(request, unread), "sampler": sampler}
        n = 0 if request.finish_reason is not None else sequence.n_computed
        return self.saved("text", sequence, n, known, state, marks)

    def saved(
        self,
        kind: str,
        sequence: Sequence,
        n: int,
        known: BaseContents,
        state: dict[str, Any],
        tensors: dict[str, ArrayRows],
    ) -> Contents:
        """Contents of a sequence whose first n tokens are computed, with the other state given."""
        weights = [list(pair) for pair in sequence.weights]  # type: ignore[attr-defined]
        described = {"n_prompt": sequence.n_prompt, "n_computed": n, "weights": weights}
        if sequence.n_source:
            described["n_source"] = sequence.n_source
        state = self.described | {"kind": kind, "sequence": described, "adapters": self.adapters} | state
        # This comes last, since blocks are held from here on.
        found, let_go = save_sequence(self.core, sequence, n, known.since, known.n_common(sequence))
        return Contents(state, found | tensors, let_go=let_go)

    @lazy
    def described(self) -> dict[str, Any]:
        """The state of engine and model that every snapshot has."""
        tokenizer = self.config.tokenizer_path
        model = {
            "arch": self.arch,
            "path": self.model_path,
            "shipped": self.config.model_path is None,
            "hub": hub_origin(self.model_path),
            "fingerprint": self.fingerprint.state(),
            "tokenizer_path": None if tokenizer is None else os.path.abspath(tokenizer),
            "tokenizer": None if self.tokenizer_identity is None else self.tokenizer_identity.fingerprint.state(),
        }
        sizes = {"context_size": self.context_size, "num_threads": self.num_threads}
        engine = {"config": config_state(self.config), **sizes}
        return {
            "written_by": WRITER, "tier": tier(), "arithmetic": self.arithmetic, "model": model, "engine": engine,
        }  # fmt: skip

    @property
    def adapters(self) -> dict[str, Any]:
        """The adapters that are loaded, and those that are pushed."""
        named, pushed = self.loras.named, self.loras.pushed
        found = {lora.digest: str(lora.path) for lora in [*named.values(), *(lora for lora, _ in pushed)]}
        return {
            "files": {digest: os.path.abspath(path) for digest, path in found.items()},
            "named": {name: lora.digest for name, lora in named.items()},
            "pushed": [[lora.digest, scale] for lora, scale in pushed],
        }

    # ---- resumption

    def known(self, target: Path, base: Path) -> BaseContents:
        """Contents of a base file; EMPTY_BASE if its chain is at the limit, or other arithmetic computed it.

        Raises SnapshotError's children, also if the file is of another model, or a file that it needs is missing;
        ConfigError if it needs the file that is to be written.
        """
        old, new = (Path(os.path.realpath(path)) for path in (base, target))
        if old.parent != new.parent:
            raise ConfigError(f"base must be in the folder of path, which refers to it by name, not {base}")
        if old == new:
            raise ConfigError("base and path must be two files: the new one needs what the old one has")
        with open_reader(base) as reader:
            if reader.state.text("kind") in SEVERAL:
                raise SnapshotFormatError(f"{base}: a bundle of snapshots can't be a base: give a single snapshot")
            self.check(reader)
            expect = self.expecting(reader.label)
            files = reader.check_chain(expect)
            if str(new) in map(os.path.realpath, files):
                raise ConfigError(
                    f"path {str(target)!r} is a file that base {str(base)!r} needs: give a name that is not in its "
                    "chain of bases, or leave base out"
                )
            if len(files) > MAX_CHAIN or reader.state.maybe_text("arithmetic") != self.arithmetic:
                log.info("%s is not used as the base of %s: it is written whole", base, target)
                return EMPTY_BASE
            if "tokens" not in reader.ranges:
                raise SnapshotDamagedError(f"{reader.label}: its tokens are missing")
            tokens = reader.saved(expect, ("tokens",)).tensors["tokens"].array.tolist()
            fields = reader.state.sub("sequence")
            n, weights = fields.integer("n_computed", 0, len(tokens)), fields.scaled("weights")
            return BaseContents(reader.ranges, tokens[:n], tuple(weights), (old.name, reader.digest))

    def check(self, reader: SnapshotReader) -> None:
        """Raises SnapshotMismatchError, which names the difference, unless a snapshot is of an engine like this one."""
        model = reader.state.sub("model")
        arch = model.text("arch")
        if arch != self.arch:
            raise SnapshotMismatchError(f"{reader.label}: it is of a model of architecture {arch}, not {self.arch}")
        ModelFingerprint.read(model.sub("fingerprint")).check(self.fingerprint, reader.label, self.given_as)
        engine = reader.state.sub("engine")
        for name in ("context_size", "num_threads"):
            engine.integer(name, 1)
        self._check_config(engine.sub("config"), reader.label)
        mine = self.described["model"]["tokenizer"]
        theirs = model.maybe_sub("tokenizer")
        if (mine is None) != (theirs is None):
            given = "with" if mine is None else "without"
            raise SnapshotMismatchError(f"{reader.label}: it is of an engine {given} a tokenizer_path: load it so")
        if theirs is not None:
            ModelFingerprint.read(theirs).check(
                ModelFingerprint.read(Fields(mine, "tokenizer_path")), f"{reader.label}: tokenizer_path"
            )

    def expecting(self, label: str) -> Callable[[Section], None]:
        """Raises SnapshotMismatchError for an array that this engine can't have."""
        return lambda section: check_shape(self.core, self.context_size, self.n_vocab, section, label)

    def _check_config(self, theirs: Fields, label: str) -> None:
        mine = config_state(self.config)
        for name in DECISIVE:
            if theirs.get(name) != mine[name]:
                raise SnapshotMismatchError(
                    f"{label}: it is of an engine with {name}={theirs.get(name)!r}, and this one has {mine[name]!r}: "
                    "load the model with the same"
                )


def path_of(name: str, path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in os.fsdecode(path):
        raise ConfigError(f"{name} must be the path of a file, not {path!r:.60}")
    return Path(os.fsdecode(path))


def check_format(format: Any) -> int:
    """Raises ConfigError for a format that can't be written."""
    if type(format) is not int or format not in (1, 2):
        raise ConfigError(f"format must be 1 or 2, not {format!r}")
    return format
