"""Open snapshots: source, version, and a header that is read, checked and hashed once."""

from __future__ import annotations

from oxillama._util.lazy import lazy
from oxillama._util.places import Place
from oxillama.snapshot.format.layout import HEADER_BYTES, MAGIC
from oxillama.snapshot.format.reader import SnapshotReader
from oxillama.snapshot.format.source import MemorySource, Source, open_source
from oxillama.snapshot.format.v1 import SPEC_MAGIC, EngineV1, SpeculativeV1

__all__ = ["OpenSnapshot", "open_snapshot"]


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
