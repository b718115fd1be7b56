"""Snapshot reader: contents of a file, and of its chain of bases.

The sections beside ``state``, of which those without a use are left out:

============ ================= =====================================================================
``tokens``   i32 [n]           ids so far; -1 for those that a file of version 1 doesn't tell
``logits``   f32 [n_vocab]     of a session's last position
``history``  i32 [n]           tokens that a session's sampler has accepted
``rng mu``   u64, f64 [d + 1]  generator and mirostat's state before each of d drawn tokens, and now
``state.I.J`` f32 [n_values]   recurrent state J of layer I
``kv.I.J.k`` u8 [p, h, bytes]  keys in panels of 16 tokens: p panels, h heads; ``kv.I.J.v``: values
============ ================= =====================================================================

A panel of keys as floats is [k_dim, 16 tokens], of values [16 tokens, v_dim, padded to 16]. With ``q8_0`` codes come
first and then scales, f16 [dimensions / 32, 16 tokens]: codes of keys u8 [k_dim / 4, 16 tokens, 4], 128 too large;
those of values i8 [4, v_dim, 4], where the first and the last number the tokens. With ``q4_0`` a byte has two codes, of
dimensions i and i + 16 of a chunk of 32: keys [k_dim / 32, 4, 16 tokens, 4], values [4, v_dim / 32, 16, 4]; the vectors
that they stand for are rotated (``csrc/scalar/four_bits.h``). What no token fills is zero.

``state`` is one object: ``kind`` (session, conversation, text, or texts, beams and speculative, whose sections are
whole snapshots), ``written_by``, ``tier``; ``model``: arch, path, hub, fingerprint, tokenizer; ``engine``:
context_size, num_threads, config; ``sequence``: n_prompt, n_computed (tokens that arrays are of), weights ([digest,
scale] of adapters); ``adapters``: files, named, pushed; ``tensors``: for each array its first row and the one after its
last. ``base``: file and digest of its header, where rows before those stored are; ``blocks``: arrays and digests of
blocks that have them (`format/block_store.py`). The state of a sampler, a text, a session, drafts and a beam search is
described in `snapshot/request_state.py`, `capture.py` and `beam_state.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from oxillama._util.json_fields import Fields
from oxillama._util.lazy import lazy
from oxillama._util.places import Place
from oxillama.errors import SnapshotDamagedError, SnapshotFormatError
from oxillama.kv_cache.kv_io import HeldPanels
from oxillama.snapshot.format.block_store import read_blocks
from oxillama.snapshot.format.codec import Hashing, decompress
from oxillama.snapshot.format.layout import (
    ALIGNMENT,
    BYTES,
    HEADER_BYTES,
    MAGIC,
    RAW,
    SIGNED_BYTES,
    Section,
    read_head,
    read_size,
)
from oxillama.snapshot.format.layout import HEADER_BYTES as HEADER
from oxillama.snapshot.format.source import FileSource, MemorySource, Source, open_source
from oxillama.snapshot.format.v1 import SPEC_MAGIC, EngineV1, SpeculativeV1

__all__ = [
    "MAX_CHAIN",
    "STATE",
    "ArrayRows",
    "Contents",
    "OpenSnapshot",
    "SnapshotReader",
    "check_part",
    "open_reader",
    "open_snapshot",
]

STATE = "state"
# Files of a chain, each of which refers to its base.
MAX_CHAIN = 1024

# Raises SnapshotMismatchError for a section that doesn't fit the engine, before its values are read.
Expect = Callable[[Section], None]


@dataclass
class ArrayRows:
    """Rows `start` to `stop` of an array; `data` has the rows from `first` on, a base file the rows before.

    data: an array, or an object whose slices are arrays.
    """

    start: int
    first: int
    data: NDArray[Any] | HeldPanels

    @classmethod
    def whole(cls, data: NDArray[Any], start: int = 0) -> Self:
        return cls(start, start, data)

    @property
    def stop(self) -> int:
        return self.first + len(self.data)

    @property
    def array(self) -> NDArray[Any]:
        return self.data[:]


@dataclass
class Contents:
    """Contents of a snapshot.

    state: JSON values. tensors: arrays by name. base: (name, digest in hexadecimal) of the file with the other rows.
    let_go: releases the arrays' KV blocks; to be called in a turn of the step loop.
    """

    state: dict[str, Any]
    tensors: dict[str, ArrayRows] = field(default_factory=dict)
    base: tuple[str, str] | None = None
    let_go: Callable[[], None] = lambda: None

    def described(self) -> bytes:
        """The section `state`."""
        state = self.state | {"tensors": {name: [rows.start, rows.stop] for name, rows in self.tensors.items()}}
        if self.base is not None:
            state["base"] = dict(zip(("file", "digest"), self.base, strict=True))
        return json.dumps(state, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode(
            "utf-8", "surrogatepass"
        )


class _Gap:
    """Rows `start` to `stop` of an array, not found in any file so far. pieces: the rows after these, last first.

    begun: whether the first file has been searched. A file may have more rows than are wanted: in layers with a
    window, those that the window no longer reaches.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop, self.begun = start, stop, False
        self.pieces: list[NDArray[Any]] = []

    @property
    def is_open(self) -> bool:
        return self.stop > self.start

    def reach(self, first: int) -> None:
        """Marks the rows from `first` on as found."""
        self.begun, self.stop = True, min(self.stop, max(self.start, first))

    def fill(self, first: int, values: NDArray[Any]) -> None:
        """Takes the rows from `first` on, up to the gap's stop at least."""
        rows = values[max(0, self.start - first) : self.stop - first]
        self.pieces.append(rows if 2 * len(rows) >= len(values) else rows.copy())  # a view would keep all of `values`
        self.reach(first)


class SnapshotReader:
    """Reader of a version 2 snapshot: header, table and state are checked at once, arrays when they are read.

    digest: of the header, in hexadecimal; the header holds the digests of everything else in the file.
    """

    def __init__(self, source: Source, header: bytes | None = None) -> None:
        """header: the first bytes of the source, where they were read before."""
        self.source, label = source, source.label
        if header is None:
            header = bytes(source.read(0, min(HEADER, source.n_bytes)))
        head = header + bytes(source.read(HEADER, read_size(header, label) - HEADER))
        self.sections = {s.name: s for s in read_head(head, source.n_bytes, label)}
        self.digest = head[SIGNED_BYTES:HEADER].hex()
        state = self.sections.get(STATE)
        if state is None or state.codec != RAW or state.first:
            raise SnapshotDamagedError(f"{label}: there is no section {STATE}, or it is compressed")
        if any((s.code == BYTES) != (s is state) for s in self.sections.values()):
            raise SnapshotDamagedError(f"{label}: the section {STATE}, and no other, is bytes")
        self.state = Fields(_parsed(bytes(self._stored(state)), label), label)
        self.ranges = self._ranges()

    @property
    def label(self) -> str:
        return self.source.label

    def _stored(self, section: Section) -> memoryview:
        data = self.source.read(section.offset, section.n_stored)
        self._check(section, blake3(data).digest())
        return data

    def _check(self, section: Section, digest: bytes) -> None:
        if digest != section.digest:
            raise SnapshotDamagedError(f"{self.label}: section {section.name} holds other bytes than were written")

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """The range of rows of each array, base files included."""
        given = self.state.sub("tensors")
        found = {}
        for name in given.names:
            start, stop = given.integers(name, 2)
            section = self.sections.get(name)
            if section is None or not start <= section.first <= stop == section.first + section.shape[0]:
                raise SnapshotDamagedError(f"{self.label}: array {name} is not in the section of that name")
            if section.first > start and not ("base" in self.state or "blocks" in self.state):
                raise SnapshotDamagedError(f"{self.label}: the beginning of array {name} is missing")
            found[name] = start, stop
        if len(found) != len(self.sections) - 1:
            raise SnapshotDamagedError(f"{self.label}: there are sections that the state doesn't name")
        return found

    def array(self, name: str) -> NDArray[Any]:
        """The rows of an array that are in this file. Raises SnapshotDamagedError."""
        return self._values(self.sections[name], self._stored(self.sections[name]))

    def _values(self, section: Section, data: memoryview) -> NDArray[Any]:
        if section.codec != RAW:
            data = memoryview(decompress(data, section.nbytes, f"{self.label}: section {section.name}"))
        return np.frombuffer(data, section.dtype).reshape(section.shape)

    def saved(self, expect: Expect, only: Collection[str] | None = None) -> Contents:
        """The contents, or `only` some arrays, with the rows in base files.

        Raises SnapshotError's children, and what `expect` raises.
        """
        gaps = self._gaps(only)
        with closing(self._needed(gaps)) as needed:  # a generator's finalizer would swallow Ctrl-C
            for reader in needed:
                reader._take(gaps, expect)
        self._check_closed(gaps)
        state = {name: self.state[name] for name in self.state if name not in ("tensors", "base", "blocks")}
        joined = {name: gap.pieces[0] if len(gap.pieces) == 1 else np.concatenate(gap.pieces[::-1])
                  for name, gap in gaps.items()}  # fmt: skip
        return Contents(state, {name: ArrayRows.whole(joined[name], gap.start) for name, gap in gaps.items()})

    def check_chain(self, expect: Expect) -> list[str]:
        """The labels of this file and of all files that it needs, after a check that all rows exist; reads no array.

        Raises what `saved` raises, except for damaged arrays and blocks.
        """
        gaps, labels = self._gaps(None), []
        with closing(self._needed(gaps)) as needed:
            for reader in needed:
                labels.append(reader.label)
                for gap, section in reader._here(gaps, expect):
                    gap.reach(section.first)
                for name in reader._in_blocks(gaps):
                    gaps[name].reach(0)
        self._check_closed(gaps)
        return labels

    def _gaps(self, only: Collection[str] | None) -> dict[str, _Gap]:
        return {name: _Gap(*rows) for name, rows in self.ranges.items() if only is None or name in only}

    def _needed(self, gaps: dict[str, _Gap]) -> Generator[SnapshotReader]:
        """Readers of this file, and of its bases as long as rows are missing."""
        with closing(_chain(self)) as chain:
            for reader in chain:
                yield reader
                if not any(gap.is_open for gap in gaps.values()):
                    return

    def _check_closed(self, gaps: dict[str, _Gap]) -> None:
        for name, gap in gaps.items():
            if gap.is_open:
                raise SnapshotDamagedError(
                    f"{self.label}: rows {gap.start} to {gap.stop} of array {name} are in none of its files"
                )

    def _here(self, gaps: dict[str, _Gap], expect: Expect) -> list[tuple[_Gap, Section]]:
        """The arrays with missing rows that this file has; of the first file, all arrays, also empty ones."""
        found = []
        for name, gap in gaps.items():
            section = self.sections.get(name)
            if section is None or not (gap.is_open or not gap.begun):
                continue
            expect(section)
            ends = section.first + section.shape[0]
            if gap.stop > ends:
                raise SnapshotDamagedError(f"{self.label}: array {name} ends at row {ends}, before {gap.stop}")
            if gap.stop > section.first or not gap.begun:
                found.append((gap, section))
        return found

    def _in_blocks(self, gaps: dict[str, _Gap]) -> list[str]:
        """The arrays with missing rows that the blocks of this file have."""
        names = self.state.sub("blocks").texts("arrays") if "blocks" in self.state else []
        return [name for name in names if name in gaps and gaps[name].is_open]

    def _take(self, gaps: dict[str, _Gap], expect: Expect) -> None:
        """Fills gaps with the rows of this file and its blocks."""
        stored = self._here(gaps, expect)
        self.source.reserve(sum(section.n_stored + ALIGNMENT for _, section in stored))
        self._take_stored(stored)
        names = self._in_blocks(gaps)
        if names:
            found = read_blocks(self.source, self.state.sub("blocks"), self.sections, expect)
            for name in names:
                gaps[name].fill(0, found[name])

    def _take_stored(self, stored: list[tuple[_Gap, Section]]) -> None:
        with Hashing() as hashed:
            found = []
            for gap, section in stored:
                data = self.source.read(section.offset, section.n_stored)
                found.append((section, hashed([np.frombuffer(data, np.uint8)])))
                if section.codec != RAW:  # damaged data is not decompressed
                    self._check(section, found[-1][1]())
                gap.fill(section.first, self._values(section, data))
            for section, digest in found:
                self._check(section, digest())

    def base(self) -> SnapshotReader | None:
        """The base file, with the rows before. Raises SnapshotFileError, SnapshotDamagedError if it has changed."""
        if "base" not in self.state:
            return None
        given = self.state.sub("base")
        name, digest = given.text("file"), given.text("digest")
        if self.source.folder is None:
            raise SnapshotFormatError(
                f"{self.label}: it needs the file {name!r} beside it: give its path instead of its bytes"
            )
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise SnapshotDamagedError(f"{self.label}: {name!r} is not the name of a file beside it")
        reader = SnapshotReader(FileSource(self.source.folder / name))
        if reader.digest != digest:
            reader.source.close()
            raise SnapshotDamagedError(
                f"{self.label}: the file {name!r} that it needs is not the one that was there when it was written"
            )
        return reader


def _chain(reader: SnapshotReader) -> Generator[SnapshotReader]:
    """A file and its chain of bases. Each is closed when the next is requested."""
    yield reader
    for _ in range(MAX_CHAIN):
        before = reader.base()
        if before is None:
            return
        reader = before
        try:
            yield reader
        finally:
            reader.source.close()
    raise SnapshotDamagedError(f"{reader.label}: more than {MAX_CHAIN} files that need each other")


@contextmanager
def open_reader(place: Place) -> Iterator[SnapshotReader]:
    """A reader of a version 2 snapshot. Raises SnapshotError's children, ConfigError for a place of another type."""
    source = open_source(place)
    try:
        yield SnapshotReader(source)
    finally:
        source.close()


def check_part(section: Section, label: str) -> None:
    """Raises SnapshotDamagedError unless a section can be a snapshot in a bundle: bytes, not compressed.

    A snapshot of a bundle compresses its own sections: nothing would bound the size of a compressed snapshot.
    """
    if section.dtype != np.uint8 or len(section.shape) != 1 or section.first or section.codec != RAW:
        raise SnapshotDamagedError(f"{label}: section {section.name} is no snapshot")


def _parsed(data: bytes, label: str) -> dict[str, Any]:
    def refuse(text: str) -> float:
        raise ValueError(f"{text} is no JSON")

    try:
        state = json.loads(data.decode("utf-8", "surrogatepass"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise SnapshotDamagedError(f"{label}: section {STATE} can't be read: {error}") from None
    if not isinstance(state, dict):
        raise SnapshotDamagedError(f"{label}: section {STATE} is no JSON object")
    return state


class OpenSnapshot:
    """A snapshot of any version while it is read. Its parts are decoded when first used, and kept.

    source: its bytes. label: its name, for messages.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.label = source, source.label
        self._start = bytes(source.read(0, min(HEADER_BYTES, source.n_bytes)))

    @classmethod
    def of_version1(cls, decoded: EngineV1, label: str) -> OpenSnapshot:
        """A session in version 1 that was decoded as a part of another snapshot."""
        found = cls(MemorySource(MAGIC + b"\1", label))
        found.__dict__["version1"] = decoded
        return found

    @property
    def is_version1(self) -> bool:
        """Whether it is a session in version 1, whose version is a number of variable length."""
        return self._start[:9] == MAGIC + b"\1"

    @property
    def is_speculative_version1(self) -> bool:
        """Whether it is of a speculative engine, in version 1."""
        return self._start[:8] == SPEC_MAGIC

    @property
    def is_version2(self) -> bool:
        return self._start[:9] == MAGIC + b"\2"

    @lazy
    def version1(self) -> EngineV1:
        """The whole of a session in version 1. Raises SnapshotError's children."""
        return EngineV1.decode(self._whole(), self.label)

    @lazy
    def speculative_version1(self) -> SpeculativeV1:
        """The whole of a speculative engine in version 1. Raises SnapshotError's children."""
        return SpeculativeV1.decode(self._whole(), self.label)

    @lazy
    def reader(self) -> SnapshotReader:
        """The reader of a snapshot in version 2. Raises SnapshotError's children, also for other versions."""
        return SnapshotReader(self.source, self._start)

    @property
    def kind(self) -> str:
        """The kind of the snapshot, in any version. Raises SnapshotError's children."""
        if self.is_version1:
            return "session"
        return "speculative" if self.is_speculative_version1 else self.reader.state.text("kind")

    def _whole(self) -> bytes:
        return bytes(self.source.read(0, self.source.n_bytes))

    def close(self) -> None:
        """Closes the file."""
        self.source.close()


def open_snapshot(place: Place | OpenSnapshot) -> OpenSnapshot:
    """The snapshot at a path or in bytes; an open one is returned as it is.

    Raises SnapshotFileError if the file can't be opened or read, ConfigError for a place of another type.
    """
    if isinstance(place, OpenSnapshot):
        return place
    source = open_source(place)
    try:
        return OpenSnapshot(source)
    except BaseException:
        source.close()
        raise
