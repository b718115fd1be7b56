"""Text that people and editors write into files: UTF-8, which some begin with a byte order mark."""

import os
from pathlib import Path

__all__ = ["read_text", "without_mark"]

MARK = "\ufeff"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file in UTF-8, without the byte order mark that it may begin with.

    Raises OSError, and UnicodeDecodeError for other bytes, whose reason names UTF-16, as PowerShell's ``>`` writes it.
    """
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.object[:2] in _UTF16 and error.start == 0:
            raise UnicodeDecodeError(
                error.encoding, error.object[:2], 0, 2, "the file is in UTF-16, save it in UTF-8"
            ) from None
        raise


def without_mark(text: str) -> str:
    """A text of a file that was read with its byte order mark, without it."""
    return text.removeprefix(MARK)
