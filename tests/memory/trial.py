"""An operation that is denied its first allocation, then its second, until it is denied none."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operation:
    """`use(fresh())` gives what is compared with ==; `fresh` is never denied anything. end: of what `fresh` made.

    again: `use` may be called twice on one object, and must give the same then.
    """

    fresh: Callable[[], Any]
    use: Callable[[Any], Any]
    end: Callable[[Any], object] = lambda made: None
    again: bool = True


def is_about_memory(error):
    """A MemoryError, or one of ours that says what was missing."""
    while error is not None:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            return True
        if "error return without exception set" in str(error):  # CPython's compiler, out of memory in its arena
            return True
        error = error.__cause__
    return False


@dataclass
class Outcome:
    result: Any = None
    error: Exception | None = None
    asked: int = 0  # allocations of the first use
    second: Any = None


def run(operation, source, n=0):
    """Two uses of one object, the first of which is denied its n-th allocation."""
    made = operation.fresh()
    found, before = Outcome(), source.made()
    source.refuse(n)
    try:
        found.result = operation.use(made)
    except Exception as error:
        found.error = error.with_traceback(None)  # whose frames hold what the operation made
        error.__context__ = None
    finally:
        source.refuse(0)
        found.asked = source.made() - before
    try:
        found.second = operation.use(made) if operation.again else None
    finally:
        operation.end(made)
    return found


def live(source):
    gc.collect()
    return source.live()


def exhaust(operation, source, few=0):
    """(allocations, how many of them failed the operation when they were denied). few: as many of them alone; 0: all.

    AssertionError where the outcome is neither a MemoryError nor the right result, where the object gives something
    else afterwards, or where memory is held that wasn't before.
    """
    run(operation, source)  # what is made once, such as caches of functions, is there from now on
    plain = run(operation, source)
    assert plain.error is None, plain.error
    assert plain.second == plain.result or not operation.again, "it doesn't give the same twice"
    before = live(source)
    run(operation, source)
    assert live(source) == before, "it holds memory even if nothing fails"
    failed = 0
    for n in range(1, plain.asked + 1, max(plain.asked // few, 1) if few else 1):
        found = run(operation, source, n)
        assert found.error is None or is_about_memory(found.error), f"allocation {n}: {found.error!r}"
        assert found.error is not None or found.result == plain.result, f"allocation {n}: another result"
        assert not operation.again or found.second == plain.result, f"allocation {n}: another result afterwards"
        failed += found.error is not None
        del found
        held = source.live()
        if held != before:
            held = live(source)
        assert held == before, f"allocation {n}: {held - before} allocations are still held"
    return plain.asked, failed
