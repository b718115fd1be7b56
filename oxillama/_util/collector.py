"""Python's cyclic garbage collector, paused while many objects are made that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused_collector"]


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses the collector of the process, if it is on, for work of a bounded size.

    Each collection looks at all that was made so far: half the time of compiling a schema of megabytes went to them,
    and a small schema may pay for a whole process. Reference counts free memory meanwhile as ever.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
