"""Python functions on the hot path: no more than what they have come down to."""

import oxillama as ox
from tests.engine.hot_path import one_call, steady_step


def test_a_steady_decode_step_enters_few_functions():
    with ox.load(num_threads=1) as engine:
        found = steady_step(engine)
    assert len(found.calls) <= 34, found.functions
    assert len(found.files) <= 12, found.files


def test_a_call_enters_few_functions():
    with ox.load(num_threads=1) as engine:
        found = one_call(engine)
    assert len(found.calls) <= 198, found.functions
    assert len(found.files) <= 35, found.files
