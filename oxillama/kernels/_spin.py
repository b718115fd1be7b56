"""Spin time of OpenMP's idle threads before they sleep.

GNU OpenMP spins for milliseconds by default. Where every core is ours that is harmless; on a machine that also does
something else, a thread that waits at the end of a region burns the core on which the other would finish it, and each
of a token's hundred regions costs a scheduling quantum (measured beside one busy neighbour on two cores: prefill of a
small model 30 times slower, decode of a 1B model half as fast). A spin of some ten microseconds still covers the gap
between two regions. A longer one gains nothing that can be measured: decode of a 1B model in 80 regions a token goes to
sleep 40 times at 1000 turns and 3 times at 10,000, at the same speed within noise; beside one busy neighbour on two
cores a token takes 48, 58, 85 and 145 ms at 1000, 3000, 10,000 and 30,000 turns. The library reads the setting once,
from the environment, when it is loaded; a user's own GOMP_SPINCOUNT or OMP_WAIT_POLICY is kept.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SPIN_COUNT = "1000"


@contextmanager
def short_spins() -> Iterator[str]:
    """While this is open, the OpenMP library finds our setting if the environment holds none. Yields what it finds."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        if name in os.environ:
            yield f"{name}={os.environ[name]}"
            return
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    try:
        yield SPIN_COUNT
    finally:
        del os.environ["GOMP_SPINCOUNT"]
