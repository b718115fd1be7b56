"""Text that people and editors write into files: UTF-8, which some begin with a byte order mark."""

import errno
import os
import stat
from pathlib import Path

__all__ = ["read_setting", "read_text", "without_mark"]

MARK = "\ufeff"
MOST = 64 << 20  # bytes of a pipe or a device, which may have no end
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file in UTF-8, without the byte order mark that it may begin with.

    Raises OSError, and UnicodeDecodeError for other bytes, whose reason names UTF-16, as PowerShell's ``>`` writes it.
    """
    return _decoded(Path(path).read_bytes())


def read_setting(path: str | os.PathLike[str]) -> str:
    """`read_text` of a file that is part of the settings of a program: it waits for no pipe's writer, as it would for
    ever where there is none, and takes no text without an end. Raises OSError for these, too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _decoded(file.read())
        data = file.read(MOST)
        if data == b"" and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENODATA, "this is a pipe that nothing is written to", str(path))
        os.set_blocking(descriptor, True)
        found = bytearray(data or b"")
        while part := file.read(1 << 16):
            found += part
            if len(found) > MOST:
                raise OSError(errno.EFBIG, "this is no file, and has no end", str(path))
        return _decoded(bytes(found))


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")  # as files of text are read
    except UnicodeDecodeError as error:
        if error.object[:2] in _UTF16 and error.start == 0:
            raise UnicodeDecodeError(
                error.encoding, error.object[:2], 0, 2, "the file is in UTF-16, save it in UTF-8"
            ) from None
        raise


def without_mark(text: str) -> str:
    """A text of a file that was read with its byte order mark, without it."""
    return text.removeprefix(MARK)
