"""Summary of a snapshot, read without its model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oxillama._util.json_fields import Fields
from oxillama._util.places import Place
from oxillama.errors import SnapshotDamagedError
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.snapshot.format.layout import MAGIC, VERSION
from oxillama.snapshot.format.reader import OpenSnapshot, SnapshotReader, check_part, open_snapshot
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.v1 import SPEC_MAGIC

__all__ = ["SnapshotInfo", "snapshot_info"]

# The section of a bundle that its model and engine are read from, by kind.
FIRST = {"speculative": "target", "texts": "text.0", "beams": "beam.0"}


@dataclass(frozen=True)
class SnapshotInfo:
    """Summary of a snapshot.

    magic, version: of its format. kind: "session", "conversation", "text" for a request, "texts" for the completions of
    one prompt, "beams" for a search (of which the first one is described), or "speculative". arch_id: architecture of
    the model. model_path, tokenizer_path: where these were; None of what was in memory, or of the model's own.
    max_context_length: tokens of the engine's context. num_threads: that it computed with. tokens_count: tokens of the
    session, as far as the file tells them. computed_count: those whose keys, values and states are there. kv_type: how
    they are stored. fingerprint: of the model. hub: repository, file and revision, if it was from a hub. adapters:
    digests of those in use. base: name of the file that it needs, if it does. shared_blocks: how many it has in the
    folder `blocks`. sections: (name, bytes in the file). written_by, tier: with what it was written.
    """

    magic: bytes
    version: int
    kind: str
    arch_id: str
    model_path: str | None
    tokenizer_path: str | None
    max_context_length: int
    num_threads: int
    tokens_count: int
    computed_count: int
    kv_type: str
    fingerprint: ModelFingerprint
    hub: dict[str, str] | None = None
    adapters: tuple[str, ...] = ()
    base: str | None = None
    shared_blocks: int = 0
    sections: tuple[tuple[str, int], ...] = ()
    written_by: str = "oxillama (Rust)"
    tier: str | None = None


def snapshot_info(snapshot: Place) -> SnapshotInfo:
    """Reads header and description of a snapshot, of either version and kind, not its arrays.

    snapshot: a path, or the bytes. Raises SnapshotError's children.
    """
    opened = open_snapshot(snapshot)
    try:
        if opened.is_version1 or opened.is_speculative_version1:
            return _info_of_version1(opened)
        return _info(opened.reader)
    finally:
        opened.close()


def _info(reader: SnapshotReader) -> SnapshotInfo:
    state = reader.state
    kind = state.text("kind")
    if kind in FIRST:
        return _info_of_several(reader, kind, FIRST[kind])
    model, engine, sequence = state.sub("model"), state.sub("engine"), state.sub("sequence")
    hub = model.maybe_sub("hub")
    if "tokens" not in reader.ranges:
        raise SnapshotDamagedError(f"{reader.label}: its tokens are missing")
    return SnapshotInfo(
        magic=MAGIC,
        version=VERSION,
        kind=state.text("kind"),
        arch_id=model.text("arch"),
        model_path=model.maybe_text("path"),
        tokenizer_path=model.maybe_text("tokenizer_path"),
        max_context_length=engine.integer("context_size"),
        num_threads=engine.integer("num_threads"),
        tokens_count=reader.ranges["tokens"][1],
        computed_count=sequence.integer("n_computed"),
        kv_type=engine.sub("config").text("kv_type"),
        fingerprint=ModelFingerprint.read(model.sub("fingerprint")),
        hub=None if hub is None else {name: hub.text(name) for name in ("repo_id", "revision", "filename")},
        adapters=tuple(digest for digest, _ in sequence.scaled("weights")),
        base=None if "base" not in state else state.sub("base").text("file"),
        shared_blocks=_n_blocks(state),
        sections=tuple((s.name, s.n_stored) for s in reader.sections.values()),
        written_by=state.text("written_by"),
        tier=state.text("tier"),
    )


def _info_of_several(reader: SnapshotReader, kind: str, first: str) -> SnapshotInfo:
    """Summary of a bundle: the first snapshot's, with the sections of all."""
    section = reader.sections.get(first)
    if section is None:
        raise SnapshotDamagedError(f"{reader.label}: section {first} is missing")
    check_part(section, reader.label)
    inner = SnapshotReader(MemorySource(reader.array(first).tobytes(), f"{reader.label}: {first}"))
    if inner.state.text("kind") not in ("session", "conversation", "text", "beam"):
        raise SnapshotDamagedError(f"{inner.label}: it is neither a session nor a request")
    return replace(_info(inner), kind=kind, sections=tuple((s.name, s.n_stored) for s in reader.sections.values()))


def _n_blocks(state: Fields) -> int:
    return len(state.sub("blocks").texts("digests")) if "blocks" in state else 0


def _info_of_version1(opened: OpenSnapshot) -> SnapshotInfo:
    """Description of a speculative session's target."""
    speculative = opened.is_speculative_version1
    v = opened.speculative_version1.target if speculative else opened.version1
    return SnapshotInfo(
        magic=SPEC_MAGIC if speculative else MAGIC,
        version=1,
        kind=opened.kind,
        arch_id=v.arch_id,
        model_path=v.model_path,
        tokenizer_path=v.tokenizer_path,
        max_context_length=v.max_context_length,
        num_threads=v.num_threads,
        tokens_count=len(v.tokens),
        computed_count=v.kv.seq_len if v.kv is not None else v.ssm.step if v.ssm is not None else 0,
        kv_type="f32",
        fingerprint=v.model_fingerprint,
    )
