"""GGUF writer: files from values and arrays, or copied from an open file."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from oxillama.errors import ConfigError
from oxillama.gguf.arrays import GGUFArray
from oxillama.gguf.entries import Entry, make_entry, value_type
from oxillama.gguf.foreign import MAGIC, VERSIONS
from oxillama.gguf.metadata import Metadata
from oxillama.gguf.output import atomic_file
from oxillama.gguf.parse import DEFAULT_ALIGNMENT, MAX_ALIGNMENT, MAX_KEY, MAX_NAME, RawTensor
from oxillama.gguf.pending import Bytes, Pending, parts_of, pending
from oxillama.gguf.reader import GGUFFile
from oxillama.gguf.shards import SPLIT_KEYS
from oxillama.gguf.source import FileSource
from oxillama.gguf.tensors import TensorInfo
from oxillama.gguf.values import STRUCTS, ValueType, shown

__all__ = ["GGUFWriter", "copy", "write_gguf"]


class GGUFWriter:
    """Collects metadata and tensors, and writes them as one file with `write`.

    Tensors are kept by reference and written one after another, so that a file larger than memory can be written from
    mapped arrays, or from functions that return the data when they are written.

    Args:
        path: the file to write. An existing file is replaced at the end of `write`, atomically. None: only `to_bytes`
            works.
        alignment: of the tensor data; by default the value of ``general.alignment``, or 32. Any other than 32 is also
            written to that key.
        version: 2 or 3; their files differ in this number alone.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, alignment: int | None = None, version: int = 3) -> None:
        if version not in VERSIONS:
            raise ConfigError(f"version={version!r}; one of {', '.join(map(str, VERSIONS))} is needed")
        if alignment is not None:
            _check_alignment("alignment", alignment)
        self.path = None if path is None else Path(path)
        self.version = version
        self._alignment = alignment
        self._entries: dict[str, Entry] = {}
        self._tensors: dict[str, Pending] = {}
        self._sources: dict[FileSource, None] = {}

    @property
    def alignment(self) -> int:
        """Tensor data start at multiples of this many bytes."""
        entry = self._entries.get("general.alignment")
        stored = None if entry is None else int(entry.value)  # type: ignore[arg-type]
        return self._alignment or stored or DEFAULT_ALIGNMENT

    def add(self, key: str, value: object, type: ValueType | int | str | None = None) -> None:
        """Add a metadata value.

        Args:
            key: 1 to 65535 bytes of UTF-8, given once.
            value: bool, int, float, str, `GGUFArray`, or a sequence or numpy array of one kind of them.
            type: stored type of the value (of the items, for an array): a `ValueType`, its name or number. By default
                BOOL, the first of UINT32, INT32, UINT64 and INT64 that fits, FLOAT32 (FLOAT64 for values beyond its
                range), STRING, or an array's own.

        Raises:
            ConfigError: the key is bad or was given before, or the value doesn't fit the type.
        """
        _check_name("key", key, MAX_KEY, self._entries)
        self._add_entry(key, make_entry(key, value, None if type is None else value_type(type)))

    def add_metadata(self, metadata: Metadata, leave_out: Iterable[str] = ()) -> None:
        """Add the entries of another file, with their types, except some keys. ConfigError as for `add`."""
        skipped = frozenset(leave_out)
        for key in metadata:
            if key not in skipped:
                self._add_entry(key, metadata.entry(key))

    def add_tensor(
        self,
        name: str,
        data: Bytes | TensorInfo | Callable[[], Bytes | Iterator[Bytes]],
        shape: Iterable[int] | None = None,
        type: str | None = None,
    ) -> None:
        """Add a tensor.

        Args:
            name: 1 to 1024 bytes of UTF-8, given once. (Other programs allow 63.)
            data: a numpy array of a dtype that GGUF has (float16/32/64, int8/16/32/64), whose ``shape`` and ``type``
                are its own; or the tensor's bytes in format ``type``; or a function that returns them when they are
                written, whole or as an iterator over parts; or a tensor of another file.
            shape: 1 to 4 dimensions, outermost first; needed for bytes and functions.
            type: the format's name, such as ``"Q4_K"``; needed for bytes and functions.

        Raises:
            ConfigError: the name is bad or was given before, or data, shape and type don't fit one another.
            QuantError: there is no such format.
        """
        _check_name("tensor name", name, MAX_NAME, self._tensors)
        self._tensors[name] = pending(name, data, shape, type)
        if isinstance(data, TensorInfo) and data.source is not None:
            self._sources[data.source] = None

    def write(self) -> None:
        """Write the file: under another name first, flushed, then renamed, so that it exists whole or not at all.

        Raises ConfigError if there is no path, ModelFileError if a file that tensors or metadata came from has changed.
        """
        if self.path is None:
            raise ConfigError("path is None: give one to write a file, or take to_bytes()")
        with atomic_file(self.path) as f:
            self._write(f)

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        buffer = io.BytesIO()
        self._write(buffer)
        return buffer.getvalue()

    def _write(self, f: BinaryIO) -> None:
        with ExitStack() as files:  # write(2) from a page that is gone fails with an error of its own
            for source in self._sources:
                files.enter_context(source.unchanged())
            self._write_parts(f)

    def _write_parts(self, f: BinaryIO) -> None:
        if self.alignment != DEFAULT_ALIGNMENT and "general.alignment" not in self._entries:
            self.add("general.alignment", self.alignment, ValueType.UINT32)
        places, offset = {}, 0
        for t in self._tensors.values():
            places[t.name] = offset
            offset += t.nbytes + -t.nbytes % self.alignment
        header = encode_header(self.version, self._entries, self._tensors.values(), places)
        f.write(header)
        if self._tensors:
            _pad(f, len(header), self.alignment)
        for t in self._tensors.values():
            f.writelines(parts_of(t))
            _pad(f, t.nbytes, self.alignment)

    def _add_entry(self, key: str, entry: Entry) -> None:
        if key == "general.alignment":
            if entry.type is not ValueType.UINT32 or not isinstance(entry.value, int):
                raise ConfigError(f"general.alignment is {entry.described()}; UINT32 is needed")
            _check_alignment(key, entry.value)
            if self._alignment not in (None, entry.value):
                raise ConfigError(f"general.alignment is {entry.value}, the writer's alignment {self._alignment}")
        self._entries[key] = entry


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, object],
    tensors: Mapping[str, TensorInfo | NDArray[Any]],
    *,
    alignment: int | None = None,
    version: int = 3,
) -> None:
    """Write a file from metadata and tensors, one after another in their order, each padded to the alignment.

    `Metadata` keep the type of each value; values of other mappings get the types of `GGUFWriter.add`.
    """
    writer = GGUFWriter(path, alignment=alignment, version=version)
    if isinstance(metadata, Metadata):
        writer.add_metadata(metadata)
    else:
        for key, value in metadata.items():
            writer.add(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write()


def copy(file: GGUFFile, path: str | os.PathLike[str]) -> None:
    """Write an open file again, with the overrides that it was opened with.

    Without overrides the result is the same byte for byte: version, order, types, offsets and the bytes between and
    behind the tensors. A split model becomes one file, without ``split.*`` keys. Raises ModelFileError, and leaves the
    file at ``path`` alone, if the source has changed since it was opened.
    """
    if len(file.shards) > 1:
        entries = {k: file.metadata.entry(k) for k in file.metadata if k not in SPLIT_KEYS}
        write_gguf(path, Metadata(entries), file.tensors, alignment=file.alignment, version=file.version)
        return
    (shard,) = file.shards
    parsed = shard.parsed
    entries = {k: file.metadata.entry(k) for k in file.metadata}
    places = {name: t.offset for name, t in parsed.tensors.items()}
    with shard.unchanged():
        header = encode_header(parsed.version, entries, parsed.tensors.values(), places)
    with atomic_file(Path(path)) as f, shard.unchanged():
        f.write(header)
        if len(header) == parsed.header_end:
            f.write(shard.data[parsed.header_end :].data)
        elif len(shard.data) > parsed.data_start:
            _pad(f, len(header), parsed.alignment)
            f.write(shard.data[parsed.data_start :].data)


def encode_header(
    version: int, entries: Mapping[str, Entry], tensors: Iterable[RawTensor | Pending], places: Mapping[str, int]
) -> bytes:
    """Everything before the tensor data: magic, version, counts, metadata and tensor infos, without padding."""
    u32, u64 = STRUCTS[ValueType.UINT32].pack, STRUCTS[ValueType.UINT64].pack

    def string(text: str) -> bytes:
        raw = text.encode()
        return u64(len(raw)) + raw

    parts: list[bytes] = [MAGIC, u32(version), u64(len(places)), u64(len(entries))]
    for key, entry in entries.items():
        parts += [string(key), u32(entry.type), entry.raw.tobytes()]
        if isinstance(entry.value, GGUFArray):
            entry.value.check()
    for t in tensors:
        dims = b"".join(u64(d) for d in reversed(t.shape))
        parts += [string(t.name), u32(len(t.shape)), dims, u32(t.format.id), u64(places[t.name])]
    return b"".join(parts)


def _pad(f: BinaryIO, n_bytes: int, alignment: int) -> None:
    f.write(bytes(-n_bytes % alignment))


def _check_alignment(what: str, value: object) -> None:
    if not isinstance(value, int) or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise ConfigError(f"{what}={value!r}; a power of two of at most {MAX_ALIGNMENT} is needed")


def _check_name(what: str, name: object, limit: int, taken: Mapping[str, object]) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{what} {shown(name)}: a string that is not empty is needed")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as e:
        raise ConfigError(f"{what} {shown(name)} can't be written as UTF-8: {e.reason}") from None
    if size > limit:
        raise ConfigError(f"{what} {shown(name)} has {size} bytes; at most {limit} are allowed")
    if name in taken:
        raise ConfigError(f"{what} {shown(name)} was given before")
