"""Journal of a job: what is finished of it, in a file that grows by a line at a time and outlives the process."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from oxillama._util.signals import DeferredInterrupt
from oxillama.errors import ConfigError

__all__ = ["Journal", "digest_of"]

VERSION = 1
Key = int | str


def digest_of(value: Any) -> str:
    """16 hexadecimal digits by which a row's input is known again."""
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Journal:
    """A file of finished rows, each under its key; a later line of a key takes the place of an earlier one.

    Each line is written at once, whole. A line that was cut off, as of a process that was killed, is dropped when the
    file is opened again. One process at a time has it open.

    n_done: rows that it has. n_failed: those of them that failed.
    """

    def __init__(self, path: str, job: Mapping[str, Any]) -> None:
        """`job`: what the results depend on, in JSON.

        Raises ConfigError for a file that is no journal, or of another job, or open in another process; OSError.
        """
        self.path = path
        self._known: dict[Key, tuple[int, str, bool]] = {}
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (closed by close())
        self._reader = open(path, "rb")  # noqa: SIM115  (the same)
        try:
            self._lock()
            self._read(json.loads(json.dumps(job)))
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self.path} is in use: another process writes the same output") from None
        except OSError:  # a file system without locks
            return

    def _read(self, job: dict[str, Any]) -> None:
        end = 0
        for line in self._reader:
            if not line.endswith(b"\n"):
                break
            self._note(line, end, job)
            end += len(line)
        self._file.truncate(end)
        if not end:
            self._write({"oxillama_batch": VERSION, "job": job})

    def _note(self, line: bytes, offset: int, job: dict[str, Any]) -> None:
        try:
            entry = json.loads(line)
            if offset == 0:
                self._check(entry["oxillama_batch"], entry["job"], job)
            else:
                self._known[entry["key"]] = offset, entry["digest"], entry["failed"]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{self.path} is no record of a job, or damaged at byte {offset}: remove it to begin anew"
            ) from None

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
        return found is not None and found[1] in (digest, "") and not (again and found[2])

    @property
    def n_done(self) -> int:
        return len(self._known)

    @property
    def n_failed(self) -> int:
        return sum(failed for _, _, failed in self._known.values())

    def add(self, key: Key, digest: str, value: Any, *, failed: bool) -> None:
        """Writes a finished row. Raises OSError; the row is then not there."""
        with DeferredInterrupt():
            offset = self._file.seek(0, os.SEEK_END)
            self._write({"key": key, "digest": digest, "failed": failed, "value": value})
            self._known[key] = offset, digest, failed

    def _write(self, entry: Mapping[str, Any]) -> None:
        data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        start = self._file.seek(0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except BaseException:
            self._file.truncate(start)
            raise

    def value(self, key: Key) -> Any:
        """What a finished row has. Raises KeyError for one that isn't there."""
        self._reader.seek(self._known[key][0])
        return json.loads(self._reader.readline())["value"]

    def remove(self) -> None:
        """Closes and removes the file."""
        os.unlink(self.path)
        self.close()

    def close(self) -> None:
        self._file.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
