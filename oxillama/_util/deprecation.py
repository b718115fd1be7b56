"""Warnings of what is deprecated, at the line of the program that uses it."""

from __future__ import annotations

import inspect
import warnings

__all__ = ["warn_deprecated"]

PACKAGE = __name__.partition(".")[0]


def warn_deprecated(text: str) -> None:
    """Warns (DeprecationWarning) at the nearest line that isn't the package's own, which is shown by default in a
    program's main module and in tests."""
    level, frame = 1, inspect.currentframe()
    while (
        frame is not None
        and frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DeprecationWarning, stacklevel=level)
