"""Spin time of OpenMP's idle threads before they sleep.

GNU OpenMP spins for milliseconds by default. Where every core is ours that is harmless; on a machine that also does
something else, a thread that waits at the end of a region burns the core on which the other would finish it, and each
of a token's hundred regions costs a scheduling quantum (measured beside one busy neighbour on two cores: prefill of a
small model 30 times slower, decode of a 1B model half as fast). A spin of some ten microseconds still covers the gap
between two regions. A longer one gains nothing that can be measured: decode of a 1B model in 80 regions a token goes to
sleep 40 times at 1000 turns and 3 times at 10,000, at the same speed within noise; beside one busy neighbour on two
cores a token takes 48, 58, 85 and 145 ms at 1000, 3000, 10,000 and 30,000 turns. The library reads the setting once,
from the environment: GNU's when it is loaded, LLVM's (of clang and macOS), whose threads spin for 200 ms by default, at
its first call. A user's own GOMP_SPINCOUNT, KMP_BLOCKTIME or OMP_WAIT_POLICY is kept.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Turns of GNU's library; milliseconds of LLVM's, which knows nothing between none and a whole one.
OURS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}


@contextmanager
def short_spins() -> Iterator[dict[str, str]]:
    """While this is open, an OpenMP library finds our setting if the environment holds none.

    Yields what the library that reads a variable finds: our value, or a user's "NAME=VALUE".
    """
    found, added = {}, []
    for name, value in OURS.items():
        theirs = [f"{n}={os.environ[n]}" for n in (name, "OMP_WAIT_POLICY") if n in os.environ]
        found[name] = theirs[0] if theirs else value
        if not theirs:
            os.environ[name] = value
            added.append(name)
    try:
        yield found
    finally:
        for name in added:
            del os.environ[name]
