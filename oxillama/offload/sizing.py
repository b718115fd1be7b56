"""How much memory weights may take, from what the system can spare."""

from __future__ import annotations

from oxillama.offload.pressure import MemoryReading

__all__ = ["first_budget", "next_budget"]

STALLED = 0.1  # part of the time that some process waits for memory, from which on we give some back
STEP = 8  # changes of less than this part of the budget are not worth reading weights again
GROWTH = 256 << 20  # bytes at most that are read at once, since a step waits meanwhile


def spare_bytes(reading: MemoryReading, reserve: int | None) -> int | None:
    """What is available beyond the reserve, by default a tenth of what there is; negative if that is touched."""
    if reading.available is None:
        return None
    return reading.available - (reserve if reserve is not None else (reading.total or 0) // 10)


def first_budget(reading: MemoryReading, reserve: int | None, least: int, most: int) -> int:
    """Bytes to begin with: what can be spared. All that is wanted, where nothing tells."""
    spare = spare_bytes(reading, reserve)
    return most if spare is None else max(least, min(most, spare))


def next_budget(budget: int, reading: MemoryReading, reserve: int | None, least: int, most: int) -> int:
    """Bytes from now on: less at once when the reserve is touched or processes wait, more bit by bit."""
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
