"""Weight budget: memory for weights, from what the system can spare."""

from __future__ import annotations

from oxillama.offload.pressure import MemoryReading

__all__ = ["first_budget", "next_budget"]

STALLED = 0.1  # part of the time that some process waits for memory, above which the budget shrinks
STEP = 8  # changes of less than an eighth of the budget are not worth reading weights again
GROWTH = 256 << 20  # bytes by which the budget grows at most at a time, since a step waits for their reading


def spare_bytes(reading: MemoryReading, reserve: int | None) -> int | None:
    """Available bytes beyond the reserve, by default a tenth of the total; negative if the reserve is touched."""
    if reading.available is None:
        return None
    return reading.available - (reserve if reserve is not None else (reading.total or 0) // 10)


def first_budget(reading: MemoryReading, reserve: int | None, least: int, most: int) -> int:
    """The first budget in bytes: what can be spared; `most` where the system's memory is unknown."""
    spare = spare_bytes(reading, reserve)
    return most if spare is None else max(least, min(most, spare))


def next_budget(budget: int, reading: MemoryReading, reserve: int | None, least: int, most: int) -> int:
    """The next budget in bytes. It shrinks at once if the reserve is touched or processes wait, and grows slowly."""
    spare = spare_bytes(reading, reserve)
    if reading.stalled is not None and reading.stalled >= STALLED:
        spare = min(spare or 0, -(budget // STEP))
    if spare is None:
        return budget
    if spare < 0:
        return max(least, budget + spare)
    if spare > budget // STEP or budget + spare >= most:
        return max(budget, min(most, budget + min(spare, GROWTH)))
    return budget
