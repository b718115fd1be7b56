"""Transfer of a file from the Hub into its local cache: resumed, checked by size and hash, put in place at once.

The Hub's own library asks for the file, sends its bytes and lays the cache out; what is kept of a transfer that was
cut, so that the next one goes on from there, is this module's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from oxillama.errors import LoadError, OxiLlamaError
from oxillama.store.places import repo_folder, shown_bytes
from oxillama.store.trouble import TRIES, check_reachable, patiently, trouble, wait_before_again

__all__ = ["RemoteFile", "Report", "check_hash", "check_room", "remote_file", "transfer"]

Report = Callable[[str, int, int], None]  # (filename, bytes that are here, bytes in all)

SUFFIX = ".oxillama.incomplete"
PART = 1 << 20
CHUNK = 1 << 16
POLL = 0.1  # seconds between looks at a lock that another process has
ROOM = 16 << 20  # bytes that stay free
TIMEOUT = 10.0  # seconds for the headers of an answer
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class RemoteFile:
    """A file of the Hub. etag: its name in the cache, which is its hash. n_bytes: its size, if the Hub says it. url:
    where its bytes are. large: whether only the Hub's own protocol (Xet) sends it."""

    repo_id: str
    filename: str
    revision: str | None
    etag: str
    n_bytes: int | None
    url: str
    large: bool = False

    @property
    def blob(self) -> str:
        """Path of its bytes in the cache."""
        return os.path.join(repo_folder(self.repo_id), "blobs", self.etag)

    @property
    def what(self) -> str:
        """Name of the file in messages."""
        at = f" at {self.revision!r}" if self.revision else ""
        return f"{self.filename!r} of {self.repo_id!r}{at}"


def remote_file(repo_id: str, filename: str, revision: str | None) -> RemoteFile:
    """Asks the Hub for a file's size and hash. Raises ModelNotFoundError, LoadError."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    what = RemoteFile(repo_id, filename, revision, "", None, "").what
    check_reachable(what)
    url = hf_hub_url(repo_id, filename, revision=revision)
    try:
        found = patiently(lambda: get_hf_file_metadata(url, timeout=TIMEOUT))
    except Exception as error:  # its releases raise the errors of different HTTP libraries
        raise trouble(what, error) from error
    etag = (found.etag or "").strip('"')
    if not re.fullmatch(r"[\w.-]{1,128}", etag) or found.commit_hash is None:
        raise LoadError(f"can't get {what} from the Hub: the answer of {urlsplit(url).netloc} is not the Hub's")
    by_xet = getattr(found, "xet_file_data", None) is not None
    is_large = by_xet and (found.size or 0) > most_by_http()
    return RemoteFile(repo_id, filename, revision, etag, found.size, url, is_large)


def most_by_http() -> int:
    """Bytes of a file above which the Hub sends it by its own protocol (Xet) alone."""
    from huggingface_hub import constants

    return int(getattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 50 * 1000**3))


def transfer(file: RemoteFile, report: Report | None = None) -> tuple[str, bool]:
    """Path of a file in the Hub's cache, where its bytes are put if they aren't there, and whether they were put there
    now. Raises LoadError, and what `report` raises; what came until then stays, and is gone on with."""
    tell = report or (lambda name, done, total: None)
    new = False
    if not os.path.exists(file.blob) and not file.large:
        with _locked(file, tell):
            if not os.path.exists(file.blob):
                _receive(file, tell)
                new = True
    if file.large and not os.path.exists(file.blob):
        check_room(os.path.dirname(file.blob), file.n_bytes or 0, file.what)
        new = True
    path = _placed(file)
    if file.large and new and not check_hash(file, path, tell):
        os.unlink(os.path.realpath(path))
        raise LoadError(f"{file.what} is not what the Hub says that it is, and was thrown away")
    tell(file.filename, file.n_bytes or 0, file.n_bytes or 0)
    return path, new


def _placed(file: RemoteFile) -> str:
    """The path under which the Hub's library has the file, for which it makes the link."""
    from huggingface_hub import hf_hub_download

    try:
        return os.fspath(patiently(lambda: hf_hub_download(file.repo_id, file.filename, revision=file.revision)))
    except Exception as error:  # its releases raise the errors of different HTTP libraries
        raise trouble(file.what, error) from error


def check_room(folder: str, n_bytes: int, what: str) -> None:
    """Raises LoadError unless so many bytes more fit the disk of a folder, which needn't be there yet."""
    place = folder
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    if n_bytes + ROOM > free:
        raise LoadError(
            f"{what} needs {shown_bytes(n_bytes)} more, and {folder} has room for {shown_bytes(free)}: free some, or "
            "let HF_HOME name a folder on another disk"
        )


@contextlib.contextmanager
def _locked(file: RemoteFile, tell: Report) -> Iterator[None]:
    """Holds the lock of the Hub's library for this file, which a process that dies gives back."""
    blob = file.blob
    root, repo = os.path.split(repo_folder(file.repo_id))
    place = os.path.join(root, ".locks", repo, f"{file.etag}.lock")
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.makedirs(os.path.dirname(blob), exist_ok=True)
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    except OSError as error:
        raise _unwritable(os.path.dirname(blob), error) from error
    try:
        while not _try_lock(descriptor):
            with contextlib.suppress(OSError):  # another process has it, and maybe gets the same file
                tell(file.filename, os.path.getsize(blob + SUFFIX), file.n_bytes or 0)
            time.sleep(POLL)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):  # of a file system without locks
            raise
    return True


def _unwritable(folder: str, error: OSError) -> LoadError:
    return LoadError(
        f"{folder}: the Hub's cache can't be written: {error.strerror}; HF_HOME names the folder that holds it"
    )


def _receive(file: RemoteFile, tell: Report) -> None:
    """Gets the bytes that are missing, checks all of them, and gives them their name."""
    blob, partial = file.blob, file.blob + SUFFIX
    try:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise _unwritable(os.path.dirname(blob), error) from error
    with open(descriptor, "r+b", buffering=0) as raw:
        part = _Part(raw, file, tell)
        if file.n_bytes is not None:
            check_room(os.path.dirname(blob), file.n_bytes - part.tell(), file.what)
        if file.n_bytes is None or part.tell() != file.n_bytes:
            _get(file, part)
        if part.digest() != file.etag and part.digest() is not None:
            os.unlink(partial)
            raise LoadError(
                f"{file.what} is not what the Hub says that it is: its hash is {part.digest()}, not {file.etag}; it "
                "was thrown away, and the same command gets it anew"
            )
        os.fsync(descriptor)
    os.replace(partial, blob)


def _get(file: RemoteFile, part: _Part) -> None:
    """Gets the bytes after those that are here; what is cut is gone on with, as long as something comes."""
    failures = 0
    while file.n_bytes is None or part.tell() != file.n_bytes:
        before = part.tell()
        try:
            _stream(file, part)
            if file.n_bytes is None:
                return
            if part.tell() == file.n_bytes:
                break
            raise EOFError("the connection ended")
        except OxiLlamaError:
            raise
        except Exception as error:  # the library's releases raise the errors of different HTTP libraries
            _check_written(file, part, error)
            failures = 1 if part.tell() > before else failures + 1
            wait = wait_before_again(error, failures)
            if wait is None or failures >= TRIES:
                raise _cut(file, part, error) from error
            time.sleep(wait)


def _stream(file: RemoteFile, part: _Part) -> None:
    """One request for the bytes after those that are here. Raises errors of the library's HTTP client."""
    from huggingface_hub import utils

    utils_: Any = utils
    headers = {**utils_.build_hf_headers(), "Accept-Encoding": "identity"}
    if part.tell():
        headers["Range"] = f"bytes={part.tell()}-"
    session = utils_.get_session()
    with contextlib.ExitStack() as closing:
        if hasattr(session, "stream"):  # httpx, of its releases since 1.0
            asked = session.stream("GET", file.url, headers=headers, timeout=TIMEOUT, follow_redirects=True)
            response = closing.enter_context(asked)
            utils_.hf_raise_for_status(response)
            chunks = response.iter_bytes()
        else:  # requests
            response = closing.enter_context(session.get(file.url, headers=headers, timeout=TIMEOUT, stream=True))
            utils_.hf_raise_for_status(response)
            chunks = response.iter_content(CHUNK)
        given = str(response.headers.get("Content-Range", ""))
        if part.tell() and (response.status_code != 206 or not given.startswith(f"bytes {part.tell()}-")):
            part.begin_anew()  # the server knows no ranges, and sends all of it
        for chunk in chunks:
            part.write(chunk)


def _check_written(file: RemoteFile, part: _Part, error: BaseException) -> None:
    """Raises LoadError for an error of the disk."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS):
        came = shown_bytes(part.tell())
        raise LoadError(f"{file.what} could not be written after {came}: {error.strerror}; what came stays") from error


def _cut(file: RemoteFile, part: _Part, error: BaseException) -> OxiLlamaError:
    found = trouble(file.what, error)
    n_bytes = part.tell()
    if not n_bytes or type(found) is not LoadError:
        return found
    whole = f" of {shown_bytes(file.n_bytes)}" if file.n_bytes else ""
    return LoadError(f"{found}; {shown_bytes(n_bytes)}{whole} are here, and the same command goes on from there")


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def _new_hash(etag: str, n_bytes: int | None) -> _Hash | None:
    """A hash of the kind that an etag is: SHA-256, or git's of a small file; None of another kind."""
    if _SHA256.fullmatch(etag):
        return hashlib.sha256()
    if _SHA1.fullmatch(etag) and n_bytes is not None:
        return hashlib.sha1(b"blob %d\0" % n_bytes, usedforsecurity=False)
    return None


class _Part:
    """The part of a file that is here, whose hash is known at its end: what a transfer writes to.

    Raises LoadError for more bytes than the file has.
    """

    def __init__(self, raw: BinaryIO | Any, file: RemoteFile, tell: Report) -> None:
        self._raw, self._file, self._tell = raw, file, tell
        self._begin()
        size = os.fstat(raw.fileno()).st_size
        if file.n_bytes is None or size > file.n_bytes:
            raw.truncate(0)
            return
        while data := raw.read(PART):
            self._count(data)

    def _begin(self) -> None:
        self._hash = _new_hash(self._file.etag, self._file.n_bytes)
        self._n = 0

    def _count(self, data: bytes) -> None:
        if self._hash is not None:
            self._hash.update(data)
        self._n += len(data)
        self._tell(self._file.filename, self._n, self._file.n_bytes or 0)

    def write(self, data: bytes) -> int:
        """Writes and counts bytes."""
        if self._file.n_bytes is not None and self._n + len(data) > self._file.n_bytes:
            raise LoadError(
                f"{self._file.what} has more than the {self._file.n_bytes} bytes that the Hub says: stopped"
            )
        view = memoryview(data)
        while view:
            view = view[self._raw.write(view) :]
        self._count(data)
        return len(data)

    def tell(self) -> int:
        """Number of bytes that are here."""
        return self._n

    def begin_anew(self) -> None:
        """Throws away what is here."""
        self._raw.seek(0)
        self._raw.truncate(0)
        self._begin()

    def digest(self) -> str | None:
        """The hash of what is here, of the kind that the file's is; None of another kind."""
        return None if self._hash is None else self._hash.hexdigest()


def check_hash(file: RemoteFile, path: str, tell: Report | None = None) -> bool:
    """Whether a file of the cache has the size and the hash that the Hub says; True where it says none."""
    found = _new_hash(file.etag, file.n_bytes)
    if file.n_bytes is not None and os.path.getsize(path) != file.n_bytes:
        return False
    if found is None:
        return True
    done = 0
    with open(path, "rb") as raw:
        while data := raw.read(PART):
            found.update(data)
            done += len(data)
            if tell is not None:
                tell(file.filename, done, file.n_bytes or 0)
    return found.hexdigest() == file.etag
