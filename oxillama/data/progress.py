"""Progress of a mapper: rows that are done, and tokens a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from oxillama._util.checks import check_flag

__all__ = ["Progress", "Rows", "check_progress"]

Progress = bool | Callable[[int, int | None], object]


def check_progress(progress: Any) -> Progress:
    """Raises ConfigError unless it is True, False (None), or a function."""
    return progress if callable(progress) else check_flag("progress", progress)


class Rows:
    """A count of rows, shown as a bar on stderr (True) or told to a function with the number of all, if it is known."""

    def __init__(self, progress: Progress, total: int | None, n_done: int = 0) -> None:
        """`n_done`: rows of them that were done before."""
        self._total = total
        self._tell = progress if callable(progress) else None
        self._n_rows, self._n_tokens = n_done, 0
        self._bar: Any = None
        if progress is True:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]  # a widget in notebooks

            self._began = time.perf_counter()
            self._bar = tqdm(total=total, initial=n_done, unit="row")

    def add(self, n_tokens: int) -> None:
        """Counts a row for which so many tokens were generated."""
        self._n_rows += 1
        self._n_tokens += n_tokens
        if self._bar is not None:
            rate = self._n_tokens / max(time.perf_counter() - self._began, 1e-9)
            self._bar.set_postfix_str(f"{rate:.0f} tokens/s", refresh=False)
            self._bar.update(1)
        if self._tell is not None:
            self._tell(self._n_rows, self._total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
