"""Values that are computed when they are first wanted: once, and in forked children whatever the parent was doing."""

import threading
from pathlib import Path

import oxillama
from oxillama._util.lazy import lazy
from tests.processes import fork, in_child


class Slow:
    def __init__(self, wait=bool):
        self.wait, self.n = wait, 0

    @lazy
    def value(self):
        """Says so."""
        self.wait()
        self.n += 1
        return [self.n]


def test_computed_once():
    one, other = Slow(), Slow()
    assert one.value is one.value
    assert (one.n, other.n) == (1, 0)
    assert Slow.value.__doc__ == "Says so."


@fork
def test_a_child_that_is_forked_in_the_middle():
    begun, go_on = threading.Event(), threading.Event()

    def wait():
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go_on.wait(60)

    slow = Slow(wait)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert begun.wait(60)
    assert in_child(lambda: slow.value == [1]) == 0
    go_on.set()
    thread.join()
    assert slow.value == [1]


def test_no_value_of_the_package_is_cached_under_a_lock():
    """A child forked while another thread computes one would wait for that lock for ever."""
    package = Path(oxillama.__file__).parent
    found = [p.name for p in package.rglob("*.py") if "cached_property" in p.read_text() and p.name != "lazy.py"]
    assert found == []
