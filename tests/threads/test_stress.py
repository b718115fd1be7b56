"""A moment of everything at once; `python -m tests.threads` does it for long, `.ci/threads` with the sanitiser."""

import threading

import pytest

from tests.threads.stress import alone, engines, together


@pytest.fixture(scope="module")
def engine_and_calls(tmp_path_factory):
    found = engines(tmp_path_factory.mktemp("adapters"))
    _, engine, calls = next(found)
    yield engine, calls
    found.close()


def test_everything_at_once(engine_and_calls):
    _, calls = engine_and_calls
    expected = alone(calls, numbers=1)
    n, wrong = together(calls, expected, n_threads=3, rounds=1)
    assert (n, wrong) == (3 * len(expected), [])


def test_a_wrong_result_is_found():
    """A call whose threads meet in the middle, so that each sees what the other left."""
    seen, meet = [], threading.Barrier(2)

    def call(i):
        seen.append(i)
        meet.wait(60)
        return len(seen)

    n, wrong = together({"call": call}, {("call", 0): 1}, n_threads=2, rounds=1)
    assert (n, wrong) == (2, [(("call", 0), "another result")] * 2)
