"""Progress of downloads: a bar on standard error, if that is a terminal."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any, Self

__all__ = ["DownloadBar"]


class DownloadBar:
    """Bar of the file that is fetched. Call it as a `Report`; gone when the block ends."""

    def __init__(self) -> None:
        off = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() in ("1", "ON", "YES", "TRUE")
        self._shown = not off and sys.stderr is not None and sys.stderr.isatty()
        self._bar: Any = None
        self._name = ""

    def __call__(self, filename: str, done: int, total: int) -> None:
        """Shows how far a file is."""
        if not self._shown:
            return
        if self._bar is None or filename != self._name:
            self._end()
            if total and done >= total:  # it was here
                return
            from tqdm import tqdm  # type: ignore[import-untyped]

            name = filename if filename.isprintable() else repr(filename)
            self._name = filename
            self._bar = tqdm(total=total or None, initial=done, desc=name[-40:], unit="B", unit_scale=True, leave=False)
        self._bar.update(done - self._bar.n)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._end()
