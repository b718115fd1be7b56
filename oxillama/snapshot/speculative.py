"""Snapshots of speculative engines and their drafts.

In version 2 a bundle holds whole snapshots: the sections ``target`` and ``draft.0``, ``draft.1``, …
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from oxillama._util.checks import check_bool
from oxillama._util.json_fields import Fields
from oxillama._util.places import Place
from oxillama.core.context import LoadedEngine, context_of
from oxillama.core.draft_options import NAMED
from oxillama.core.loading import OF_USE
from oxillama.core.options import ServingOptions
from oxillama.drafts.draft import Draft, DraftTask, SpecStats
from oxillama.errors import (
    ConfigError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.kernels._table import tier
from oxillama.lora import LoraRegistry
from oxillama.sampler_config import MAX_SEED, SamplerConfig
from oxillama.sampling import Sampler
from oxillama.scheduling.sequence import Sequence
from oxillama.snapshot.bundle import parts_of
from oxillama.snapshot.capture import WRITER, BaseContents, check_format, path_of
from oxillama.snapshot.engine_snapshots import EngineSnapshots
from oxillama.snapshot.format.reader import ArrayRows, Contents, OpenSnapshot, open_snapshot
from oxillama.snapshot.format.v1 import EngineV1, SpeculativeV1
from oxillama.snapshot.format.writer import packed, write_file, write_version
from oxillama.snapshot.request_state import check_same, described, descriptions, model_of, read_draft_options, remade
from oxillama.snapshot.restore import check_tokenizer, engine_settings, model_source, restored
from oxillama.snapshot.resume import load_saved
from oxillama.snapshot.resume_request import tokens_of
from oxillama.snapshot.sequences import UNKNOWN, put
from oxillama.speculative.draft_model import DraftModel
from oxillama.text_settings import MAX_SPECULATIVE

__all__ = [
    "KIND",
    "DraftSession",
    "pack_speculative",
    "restored_speculative",
    "write_speculative",
]


class DraftSession:
    """Session of a draft model that was loaded from a file. key: the draft's key of the engine's session."""

    def __init__(self, draft: DraftModel, key: int) -> None:
        self._draft, self._core, self._key = draft, draft._core, key
        loras = LoraRegistry(draft._parts.spec, dict)
        self.writer = EngineSnapshots(draft._core, draft.config, draft._parts, loras)
        self.writer.given_as = "draft"

    def pack(self, *, compress: bool = False) -> bytes:
        """The snapshot in version 2. Raises SnapshotError's children, EngineClosedError."""
        return self.writer.pack(self._take, compress=compress)

    def version1(self, tokens: list[int]) -> bytes:
        """The snapshot in version 1, with all the session's tokens computed. Raises SnapshotError if that can't be."""
        known = self._core.sequences.find(self._key) is not None
        if not tokens or (UNKNOWN in tokens and self._has(tokens)):
            return self.writer.version1(self._take)
        if UNKNOWN in tokens:
            raise SnapshotError(
                "format=1 needs the draft's keys and values, and the session's tokens, from which they could be "
                "computed again, are not known: use format=2"
            )
        try:
            greedy = Sampler(replace(SamplerConfig.greedy(), seed=1))  # without one, the system is asked for it
            self._draft.propose([DraftTask(self._key, tokens, 1, greedy)])
            if not self._has(tokens):
                raise SnapshotError(f"format=1 needs room for the session's {len(tokens)} tokens in the draft's cache")
            return self.writer.version1(self._take)
        finally:
            if not known:
                self._draft.forget(self._key)

    def _has(self, tokens: list[int]) -> bool:
        text = self._core.sequences.find(self._key)
        return text is not None and text.sequence.n_computed == len(tokens) and text.agrees(tokens)

    def _take(self, known: BaseContents) -> Contents:
        text = self._core.sequences.find(self._key)
        sequence = Sequence([], 0) if text is None else text.sequence
        n = sequence.n_computed
        saved = self.writer.session(sequence, ServingOptions(), None, None, known)
        saved.state["sequence"]["n_prompt"] = n
        # Draft tokens can be drafted again.
        saved.tensors["tokens"] = ArrayRows.whole(np.array(sequence.tokens[:n], np.int32))
        return saved

    def restore(self, snapshot: OpenSnapshot) -> None:
        """Restores saved contents. Raises SnapshotError's children; the draft stays unchanged then."""
        saved, label = load_saved(self.writer, snapshot), snapshot.label
        tokens = tokens_of(saved, self.writer.n_vocab, label)
        n = Fields(saved.state, label).sub("sequence").integer("n_computed", 0, len(tokens))
        if len(tokens) > self._draft.context_size:
            raise SnapshotMismatchError(
                f"{label}: its {len(tokens)} tokens are more than the draft's context_size, {self._draft.context_size}"
            )

        def fill() -> None:
            text = self._core.sequences.sync(self._key, None, tokens, None)
            try:
                put(self._core, text.sequence, saved.tensors, n, label)
            except Exception:
                self._core.sequences.forget(self._key)
                raise

        if tokens:
            self.writer.between_steps(fill)


KIND = "speculative"
TARGET = "target"


class Speculative(Protocol):
    """`SpeculativeEngine`, as its snapshots know it."""

    draft: Any
    engine: Any
    seed: int | None
    accepted_tokens: tuple[int, ...]
    rng_state: int | None

    @property
    def stats(self) -> SpecStats: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def go_on(self, stats: SpecStats, accepted: tuple[int, ...], rng_state: int | None, closing: ExitStack) -> None: ...


S = TypeVar("S", bound=Speculative)


@dataclass(frozen=True)
class _Found:
    """Contents of a file. drafts: their descriptions; sessions: those of draft models, by number."""

    target: OpenSnapshot
    drafts: list[Fields]
    sessions: dict[int, OpenSnapshot]
    options: dict[str, Any]
    seed: int | None
    stats: SpecStats = field(default_factory=SpecStats)
    accepted_tokens: tuple[int, ...] = ()
    rng_state: int | None = None


# ---- out


def write_speculative(spec: Speculative, path: Any, *, compress: bool, format: int) -> None:
    """`SpeculativeEngine.snapshot`."""
    target = path_of("path", path)
    if _is_version1(compress, format):
        write_version(_version1(spec), target)
    else:
        write_file(_saved(spec, compress), target)


def pack_speculative(spec: Speculative, *, compress: bool, format: int) -> bytes:
    """`SpeculativeEngine.snapshot_bytes`."""
    return _version1(spec) if _is_version1(compress, format) else packed(_saved(spec, compress))


def _is_version1(compress: bool, format: int) -> bool:
    old, squeeze = check_format(format) == 1, check_bool("compress", compress)
    if old and squeeze:
        raise ConfigError("compress is not for format=1: leave it out")
    return old


def _drafts(spec: Speculative) -> list[Draft]:
    return spec.draft if isinstance(spec.draft, list) else [spec.draft]


def _key(engine: LoadedEngine) -> int:
    return engine.context.session._sequence.id


def _saved(spec: Speculative, compress: bool) -> Contents:
    parts = {TARGET: spec.engine.snapshot_bytes(compress=compress)}
    stated = [described(draft) for draft in _drafts(spec)]
    for i, (draft, one) in enumerate(zip(_drafts(spec), stated, strict=True)):
        model = model_of(draft)
        if model is not None and one["kind"] == "model":
            parts[f"draft.{i}"] = DraftSession(model, _key(spec.engine)).pack(compress=compress)
    state = {
        "kind": KIND,
        "written_by": WRITER,
        "tier": tier(),
        **spec.options,
        "seed": spec.seed,
        "rng_state": spec.rng_state,
        "accepted_tokens": list(spec.accepted_tokens),
        "stats": asdict(spec.stats),
        "drafts": stated,
    }
    return Contents(state, {name: ArrayRows.whole(np.frombuffer(data, np.uint8)) for name, data in parts.items()})


def _version1(spec: Speculative) -> bytes:
    """``OXISPEC1``. Raises SnapshotError for what that has no place for."""
    models = [model_of(draft) for draft in _drafts(spec)]
    model = models[0]
    if len(models) > 1 or model is None:
        raise SnapshotError("format=1 has a place for one draft, which is a model: use format=2")
    if spec.options["acceptance"] == "rejection":
        raise SnapshotError("format=1 has no place for acceptance='rejection': use format=2")
    target = EngineV1.decode(spec.engine.snapshot_bytes(format=1))
    tokens = spec.engine.context.session.tokens
    draft = EngineV1.decode(DraftSession(model, _key(spec.engine)).version1(tokens))
    rng = spec.rng_state if spec.rng_state is not None else spec.seed or 1
    k, accepted = spec.options["num_speculative"], list(spec.accepted_tokens)
    return SpeculativeV1(target, draft, k, spec.seed, accepted, rng).encode()


# ---- in


def restored_speculative(
    kind: Callable[..., S],
    load: Callable[..., LoadedEngine],
    place: Place,
    model_path: Any,
    draft: Any,
    adapters: Iterable[Any],
    allow_download: bool,
    given: Mapping[str, Any],
) -> S:
    """`SpeculativeEngine.restore`."""
    check_bool("allow_download", allow_download)
    snapshot = open_snapshot(place)
    try:
        found = _found(snapshot)
    finally:
        snapshot.close()
    with ExitStack() as closing:
        drafts = _restored_drafts(found, draft, snapshot.label, closing, allow_download)
        engine = restored(load, found.target, model_path, adapters=adapters, allow_download=allow_download, **given)
        closing.callback(engine.close)
        try:
            spec = kind(engine, drafts if len(drafts) > 1 else drafts[0], seed=found.seed, **found.options)
        except ConfigError as error:
            raise SnapshotMismatchError(f"{snapshot.label}: {error}") from None
        for i, session in found.sessions.items():
            model = model_of(drafts[i])
            assert model is not None
            DraftSession(model, _key(engine)).restore(session)
        if any(token >= engine.context.spec.n_vocab for token in found.accepted_tokens):
            raise SnapshotDamagedError(
                f"{snapshot.label}: accepted_tokens are not all below {engine.context.spec.n_vocab}"
            )
        spec.go_on(found.stats, found.accepted_tokens, found.rng_state, closing.pop_all())
        return spec


def _found(snapshot: OpenSnapshot) -> _Found:
    if snapshot.is_speculative_version1:
        return _found_version1(snapshot.speculative_version1, snapshot.label)
    reader = snapshot.reader
    state, label = reader.state, snapshot.label
    if state.text("kind") != KIND:
        raise SnapshotFormatError(f"{label}: it is of kind {state.text('kind')!r}: restore it with Engine.restore")
    drafts = descriptions(state, label)
    names = {TARGET} | {f"draft.{i}" for i, one in enumerate(drafts) if one.text("kind") == "model"}
    if set(reader.ranges) != names:
        raise SnapshotDamagedError(f"{label}: it has the sections {sorted(reader.ranges)}, not {sorted(names)}")
    parts = parts_of(reader)
    for part in parts.values():
        kind = part.reader.state.text("kind")
        if kind != "session":
            raise SnapshotDamagedError(f"{part.label}: it must be of a session, not of kind {kind!r}")
    sessions = {i: parts[f"draft.{i}"] for i in range(len(drafts)) if f"draft.{i}" in parts}
    return _Found(
        parts[TARGET], drafts, sessions, read_draft_options(state, label), state.maybe_integer("seed", 0, MAX_SEED),
        _read_stats(state.sub("stats")), tuple(_read_tokens(state)), state.maybe_integer("rng_state", 0, MAX_SEED),
    )  # fmt: skip


def _read_tokens(state: Fields) -> list[int]:
    return state.integers("accepted_tokens", len(state.items_of("accepted_tokens")))


def _read_stats(given: Fields) -> SpecStats:
    values = {f.name: given.integer(f.name) for f in fields(SpecStats) if f.type in (int, "int")}
    return SpecStats(
        **values, elapsed=given.number("elapsed"), draft_seconds=given.number("draft_seconds"), off=given.text("off")
    )


def _found_version1(v: SpeculativeV1, label: str) -> _Found:
    if v.num_speculative > MAX_SPECULATIVE:
        raise SnapshotMismatchError(
            f"{label}: it drafts {v.num_speculative} tokens at a time; the most here are {MAX_SPECULATIVE}"
        )
    return _Found(
        OpenSnapshot.of_version1(v.target, f"{label}: target"),
        [Fields({"kind": "model"}, f"{label}: draft")],
        {0: OpenSnapshot.of_version1(v.draft, f"{label}: draft")},
        {"num_speculative": v.num_speculative},
        v.spec_seed,
        accepted_tokens=tuple(v.accepted_tokens),
        rng_state=v.rng_state,
    )


def _restored_drafts(found: _Found, given: Any, label: str, closing: ExitStack, allow_download: bool) -> list[Any]:
    """Raises SnapshotMismatchError for a draft that is missing, or another one than it was."""
    alone = (
        given is None
        or isinstance(given, Draft | str | bytes | bytearray | memoryview | os.PathLike)
        or context_of(given)
    )
    own = [given] * (len(found.drafts) if given is None else 1) if alone else list(given)
    if len(own) != len(found.drafts):
        raise SnapshotMismatchError(f"{label}: it was made with {len(found.drafts)} drafts, and {len(own)} are given")
    drafts = []
    for i, (one, mine) in enumerate(zip(found.drafts, own, strict=True)):
        if i in found.sessions:
            draft = _model(found.sessions[i], mine, closing, allow_download)
        else:
            draft = _other(one, mine, label)
        if found.options.get("acceptance") == "rejection":
            check_same(draft, one, label)
        drafts.append(draft)
    return drafts


def _other(one: Fields, given: Any, label: str) -> Any:
    draft = remade(one) if given is None else given
    if draft is None:
        raise SnapshotMismatchError(
            f"{label}: its draft was {dict(one)}, which can't be made again from the file: give draft="
        )
    return draft


def _model(snapshot: OpenSnapshot, given: Any, closing: ExitStack, allow_download: bool) -> Draft:
    """A draft model with the saved settings; a loaded one keeps its own."""
    named = isinstance(given, str) and given in NAMED
    if named or (isinstance(given, Draft) and not isinstance(given, type)):
        if model_of(given) is None:
            raise SnapshotMismatchError(f"{snapshot.label}: its draft was a model, not {given!r:.80}")
        return cast(Draft, given)
    settings, stated = engine_settings(snapshot)
    if context_of(given) is not None:
        draft = DraftModel(given, **{name: value for name, value in settings.items() if name in OF_USE})
    else:
        check_tokenizer(stated, settings, snapshot.label)
        place = model_source(stated, given, snapshot.label, "draft", allow_download=allow_download)
        draft = DraftModel(place, **settings)
    closing.callback(draft.close)
    return draft
