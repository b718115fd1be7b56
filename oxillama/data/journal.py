"""Journal of a job: what is finished of it, in a file that grows by a line at a time and outlives the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oxillama._util.signals import DeferredInterrupt
from oxillama.chat.calls import read_json
from oxillama.data.key_table import KeyTable
from oxillama.data.same_file import kind_of
from oxillama.errors import ConfigError

__all__ = ["Journal", "digest_of", "json_bytes"]

VERSION = 1
MAGIC = b'{"oxillama_batch"'
Key = int | str
_KNOWN = struct.Struct("<QQ8s")  # offset of the line; twice its length, and 1 if the row failed; of its input


def digest_of(value: Any) -> str:
    """16 hexadecimal digits by which a row's input is known again."""
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def json_bytes(value: Any) -> bytes:
    """A value as JSON in UTF-8; in ASCII if a text has half of a surrogate pair, which UTF-8 can't hold."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True).encode()


def _key_bytes(key: Key) -> bytes:
    return json.dumps(key).encode()


def _digest_bytes(digest: str) -> bytes:
    return hashlib.blake2b(json.dumps(digest).encode(), digest_size=8).digest()


class Journal:
    """A file of finished rows, each under its key; a later line of a key takes the place of an earlier one.

    Each line is written at once, whole. A line that was cut off, as of a process that was killed, is dropped when the
    file is opened again. One process at a time has it open.

    n_done: rows that it has. n_failed: those of them that failed. Its memory doesn't grow with them.
    """

    def __init__(
        self, path: str, job: Mapping[str, Any], *, check: Callable[[Any], object] = lambda value: None
    ) -> None:
        """`job`: what the results depend on, in JSON. `check`: raises ConfigError for a value that no row has.

        Raises ConfigError for a file that is no journal, which stays as it is, for anything but a file, for a journal
        of another job, or open in another process; OSError.
        """
        self.path = path
        self._check_value = check
        self._n_failed = 0
        self._file = _opened(path)
        try:
            self._known = KeyTable(os.path.dirname(os.path.abspath(path)), _KNOWN.size)
        except BaseException:
            self._file.close()
            raise
        try:
            self._read(json.loads(json.dumps(job)))
        except BaseException:
            self.close()
            raise

    def _read(self, job: dict[str, Any]) -> None:
        """Reads what is there. Only a journal is cut to its whole lines."""
        end = 0
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            start = reader.read(len(MAGIC))
            if start and start != MAGIC:
                raise self._foreign(0)
            reader.seek(0)
            for line in reader:
                if not line.endswith(b"\n"):
                    break
                self._note(line, end, job)
                end += len(line)
        self._file.truncate(end)
        if not end:
            self._write({"oxillama_batch": VERSION, "job": job})

    def _foreign(self, offset: int) -> ConfigError:
        return ConfigError(f"{self.path} is no record of a job, or damaged at byte {offset}: remove it to begin anew")

    def _note(self, line: bytes, offset: int, job: dict[str, Any]) -> None:
        try:
            entry = read_json(line.decode(), halves=True, any_number=True)
            if offset == 0:
                self._check(entry["oxillama_batch"], entry["job"], job)
                return
            key, digest, failed, value = (entry[name] for name in ("key", "digest", "failed", "value"))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise self._foreign(offset) from None
        if type(key) not in (int, str) or not isinstance(failed, bool) or not isinstance(digest, str):
            raise self._foreign(offset)
        try:
            self._check_value(value)
        except ConfigError as error:
            raise ConfigError(f"{self._foreign(offset)}: {error}") from None
        self._know(key, offset, len(line), digest, failed)

    def _know(self, key: Key, offset: int, length: int, digest: str, failed: bool) -> None:
        known = _KNOWN.pack(offset, length << 1 | failed, _digest_bytes(digest))
        before = self._known.put(_key_bytes(key), known)
        self._n_failed += failed - (before is not None and _KNOWN.unpack(before)[1] & 1)

    def _check(self, version: Any, found: Any, job: Mapping[str, Any]) -> None:
        """Raises TypeError for what is of no job, ConfigError for another job's."""
        if type(version) is not int or not isinstance(found, dict):
            raise TypeError
        if version != VERSION:
            raise ConfigError(f"{self.path} is of version {version}, and this is {VERSION}: remove it to begin anew")
        differ = [name for name in dict.fromkeys((*found, *job)) if found.get(name) != job.get(name)]
        if differ:
            raise ConfigError(
                f"{self.path} is of a job with another {', '.join(differ):.200}: give what that had, to go on with it, "
                "another output, or remove the file"
            )

    def _found(self, key: Key) -> tuple[int, int, bytes, bool] | None:
        """Offset and length of the line of a key, bytes of its row's digest, and whether that failed."""
        known = self._known.get(_key_bytes(key))
        if known is None:
            return None
        offset, length, digest = _KNOWN.unpack(known)
        return offset, length >> 1, digest, bool(length & 1)

    def has(self, key: Key, digest: str, *, again: bool = False) -> bool:
        """Whether a row of this input is finished. again: one that failed is not."""
        found = self._found(key)
        return found is not None and found[2] == _digest_bytes(digest) and not (again and found[3])

    @property
    def n_done(self) -> int:
        return len(self._known)

    @property
    def n_failed(self) -> int:
        return self._n_failed

    def add(self, key: Key, digest: str, value: Any, *, failed: bool) -> None:
        """Writes a finished row. Raises OSError with the file's name; the row is then not there."""
        with DeferredInterrupt():
            place = self._write({"key": key, "digest": digest, "failed": failed, "value": value})
            self._know(key, *place, digest, failed)

    def _write(self, entry: Mapping[str, Any]) -> tuple[int, int]:
        """The offset and the length of the line that was written."""
        data = json_bytes(entry) + b"\n"
        start = self._file.seek(0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except BaseException as error:
            self._file.truncate(start)
            if isinstance(error, OSError) and error.errno is not None:  # writing tells no name
                raise OSError(error.errno, error.strerror, self.path) from error
            raise
        return start, len(data)

    def value(self, key: Key) -> Any:
        """Value of a finished row. Raises KeyError for one that isn't there, ConfigError if the file was changed."""
        found = self._found(key)
        if found is None:
            raise KeyError(key)
        offset, length, *_ = found
        try:
            value = json.loads(os.pread(self._file.fileno(), length, offset))["value"]
            self._check_value(value)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"{self.path} changed at byte {offset} while it was read: remove it") from None
        return value

    def remove(self) -> None:
        """Closes and removes the file."""
        Path(self.path).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        self._file.close()
        self._known.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _opened(path: str) -> FileIO:
    """A file that is open and locked, and still has its name: a process that just finished has removed it otherwise."""
    while True:
        file = FileIO(_descriptor(path), "rb+")
        try:
            _check_owner(file, path)
            _lock(file, path)
            if os.fstat(file.fileno()).st_nlink:
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _descriptor(path: str) -> int:
    """Descriptor of a regular file, which is made if there is none. Raises ConfigError for anything else, which isn't
    opened."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        _check_file(path, os.lstat(path))
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        _check_file(path, os.lstat(path))  # another one meanwhile
        raise
    try:
        _check_file(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_file(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is {kind_of(found)}, and no record of a job: remove it to begin anew")


def _check_owner(file: FileIO, path: str) -> None:
    """Raises ConfigError for a record that another user wrote: its rows would be taken for answers."""
    owner = os.fstat(file.fileno()).st_uid
    if owner not in (os.geteuid(), 0):
        raise ConfigError(f"{path} belongs to another user (uid {owner}): remove it to begin anew")


def _lock(file: FileIO, path: str) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path} is in use: another process writes the same output") from None
    except OSError:  # a file system without locks
        return
