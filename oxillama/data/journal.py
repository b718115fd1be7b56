"""Journal of a job: what is finished of it, in a file that grows by a line at a time and outlives the process."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oxillama._util.signals import DeferredInterrupt
from oxillama.errors import ConfigError

__all__ = ["Journal", "digest_of", "json_bytes"]

VERSION = 1
MAGIC = b'{"oxillama_batch"'
Key = int | str


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


class Journal:
    """A file of finished rows, each under its key; a later line of a key takes the place of an earlier one.

    Each line is written at once, whole. A line that was cut off, as of a process that was killed, is dropped when the
    file is opened again. One process at a time has it open.

    n_done: rows that it has. n_failed: those of them that failed.
    """

    def __init__(self, path: str, job: Mapping[str, Any]) -> None:
        """`job`: what the results depend on, in JSON.

        Raises ConfigError for a file that is no journal, which stays as it is, a symbolic link, or a journal of another
        job, or open in another process; OSError.
        """
        self.path = path
        self._known: dict[Key, tuple[int, int, str, bool]] = {}  # offset and length of the line, digest, failed
        self._file = _opened(path)
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
            entry = json.loads(line)
            if offset == 0:
                self._check(entry["oxillama_batch"], entry["job"], job)
            else:
                self._known[entry["key"]] = offset, len(line), entry["digest"], entry["failed"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise self._foreign(offset) from None

    def _check(self, version: int, found: Mapping[str, Any], job: Mapping[str, Any]) -> None:
        if version != VERSION:
            raise ConfigError(f"{self.path} is of version {version}, and this is {VERSION}: remove it to begin anew")
        differ = [name for name in dict.fromkeys((*found, *job)) if found.get(name) != job.get(name)]
        if differ:
            raise ConfigError(
                f"{self.path} is of a job with another {', '.join(differ)}: give what that had, to go on with it, "
                "another output, or remove the file"
            )

    def has(self, key: Key, digest: str, *, again: bool = False) -> bool:
        """Whether a row of this input is finished. again: one that failed is not."""
        found = self._known.get(key)
        return found is not None and found[2] == digest and not (again and found[3])

    @property
    def n_done(self) -> int:
        return len(self._known)

    @property
    def n_failed(self) -> int:
        return sum(failed for *_, failed in self._known.values())

    def add(self, key: Key, digest: str, value: Any, *, failed: bool) -> None:
        """Writes a finished row. Raises OSError; the row is then not there."""
        with DeferredInterrupt():
            place = self._write({"key": key, "digest": digest, "failed": failed, "value": value})
            self._known[key] = *place, digest, failed

    def _write(self, entry: Mapping[str, Any]) -> tuple[int, int]:
        """The offset and the length of the line that was written."""
        data = json_bytes(entry) + b"\n"
        start = self._file.seek(0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except BaseException:
            self._file.truncate(start)
            raise
        return start, len(data)

    def value(self, key: Key) -> Any:
        """What a finished row has. Raises KeyError for one that isn't there."""
        offset, length, *_ = self._known[key]
        return json.loads(os.pread(self._file.fileno(), length, offset))["value"]

    def remove(self) -> None:
        """Closes and removes the file."""
        Path(self.path).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        self._file.close()

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
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(f"{path} is a symbolic link, and no record of a job: remove it to begin anew") from None


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
