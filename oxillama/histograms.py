"""Counts of values by size, and the buckets of an engine's; those of vLLM's metrics."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from oxillama.errors import ConfigError

__all__ = [
    "FIRST_TOKEN_BUCKETS",
    "INTER_TOKEN_BUCKETS",
    "ITERATION_BUCKETS",
    "REQUEST_BUCKETS",
    "Histogram",
    "HistogramSnapshot",
]

# Upper bounds: the first three in seconds, the last in tokens.
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
ITERATION_BUCKETS = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Observed values by size.

    bounds: upper bounds of the buckets, each included, rising. counts: values in each bucket alone, and last those
    above all bounds. sum: of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Of all values; 0 if there were none."""
        return self.sum / self.count if self.count else 0.0


class Histogram:
    """Counts values by size. For one writer at a time."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Iterable[float]) -> None:
        """Raises ConfigError unless the bounds rise."""
        self.bounds = tuple(bounds)
        if any(a >= b for a, b in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ConfigError(f"bounds of a histogram must rise: {self.bounds}")
        self._counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, n: int = 1) -> None:
        """Counts a value n times."""
        self._counts[bisect_left(self.bounds, value)] += n
        self.sum += value * n

    def values(self) -> tuple[tuple[float, ...], tuple[int, ...], float]:
        """What makes a `HistogramSnapshot` of now."""
        return self.bounds, tuple(self._counts), self.sum
