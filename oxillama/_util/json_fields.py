"""Typed fields of JSON objects from files: each is checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from oxillama.errors import SnapshotDamagedError

__all__ = [
    "Fields",
]

BIG = 1 << 62


def is_finite(value: float) -> bool:
    """Whether a number is finite as a float; JSON's integers may be longer than a float can hold."""
    return abs(value) < BIG if isinstance(value, int) else math.isfinite(value)


class Fields(Mapping[str, Any]):
    """A JSON object. Each method returns one value, or raises SnapshotDamagedError, which names it."""

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        self._values, self._label = values, label

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def wrong(self, name: str, wanted: str) -> SnapshotDamagedError:
        """The error for a value that is not of the wanted kind."""
        return SnapshotDamagedError(f"{self._label}: {name} must be {wanted}, not {self._values.get(name)!r:.60}")

    def integer(self, name: str, least: int = 0, most: int = BIG) -> int:
        value = self._values.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"an integer from {least} to {most}")
        return value

    def integers(self, name: str, n: int) -> list[int]:
        """n integers that are not negative."""
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) != n or any(type(v) is not int or not 0 <= v < BIG for v in value):
            raise self.wrong(name, f"{n} integers")
        return value

    def number(self, name: str) -> float:
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value):
            raise self.wrong(name, "a number")
        return float(value)

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "text")
        return value

    def maybe_text(self, name: str) -> str | None:
        return None if self._values.get(name) is None else self.text(name)

    def maybe_integer(self, name: str, least: int = 0, most: int = BIG) -> int | None:
        return None if self._values.get(name) is None else self.integer(name, least, most)

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def items_of(self, name: str) -> list[Any]:
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def texts(self, name: str) -> list[str]:
        values = self.items_of(name)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(name, "a list of texts")
        return values

    def scaled(self, name: str) -> list[tuple[str, float]]:
        """[text, number] pairs."""
        values = self.items_of(name)
        for value in values:
            if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
                raise self.wrong(name, "pairs of a text and a number")
            Fields({"scale": value[1]}, f"{self._label}: {name}").number("scale")
        return [(value[0], float(value[1])) for value in values]

    def sub(self, name: str) -> Fields:
        value = self._values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self._label}: {name}")

    def maybe_sub(self, name: str) -> Fields | None:
        return None if self._values.get(name) is None else self.sub(name)
