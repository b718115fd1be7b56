"""Changed snapshot states, python -m tests.snapshot.states [NUMBER...]: every value of every kind; an hour.

The hashes are right each time (`tests/fuzz/targets/snapshot_states.py`). What must come of it is a typed error before
anything runs, or a session or request that goes on, twice the same. Numbers are those of seeds.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from tests.fuzz.loop import place_of
from tests.fuzz.targets import snapshot
from tests.fuzz.targets.snapshot_folders import FOLDER
from tests.fuzz.targets.snapshot_states import every

SECONDS = 20  # for one change


def changes(numbers: list[int]) -> Iterator[tuple[int, str, bytes]]:
    """(number of the seed, what is changed, the file)."""
    for number, data in enumerate(snapshot.seeds()):
        if not data.startswith(FOLDER) and (not numbers or number in numbers):
            yield from ((number, told, changed) for told, changed in every(data))


def fault(data: bytes) -> str | None:
    """What is wrong with how a file is taken, if anything is."""
    try:
        snapshot.run(data)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__} {place_of(error)}: {error!s:.100}"
    return None


def ring(*_: object) -> NoReturn:
    raise TimeoutError(f"it takes more than {SECONDS} seconds")


def main(numbers: list[int]) -> int:
    signal.signal(signal.SIGALRM, ring)
    n, faults, begun, last = 0, 0, time.monotonic(), -1
    for number, told, data in changes(numbers):
        if number != last:
            print(f"seed {number}, after {n} changes and {time.monotonic() - begun:.0f} s", flush=True)
        last, n = number, n + 1
        signal.alarm(SECONDS)
        found = fault(data)
        signal.alarm(0)
        if found:
            faults += 1
            print(f"seed {number}: {told}: {found}", flush=True)
    print(f"{n} changes, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))
