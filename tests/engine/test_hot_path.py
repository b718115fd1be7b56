"""Python functions on the hot path: no more than what they have come down to."""

import oxillama as ox
from tests.engine.hot_path import MODEL, one_call, steady_step


def test_a_steady_decode_step_enters_few_functions():
    with ox.load(num_threads=1) as engine:
        found = steady_step(engine)
    assert len(found.calls) <= 27, found.functions
    assert len(found.files) <= 9, found.files


def test_a_call_enters_few_functions():
    with ox.load(num_threads=1) as engine:
        found = one_call(engine).without(*MODEL)
    assert len(found.calls) <= 130, found.functions
    assert len(found.files) <= 25, found.files


def test_a_call_enters_nothing_that_it_did_not_ask_for():
    with ox.load(num_threads=1) as engine:
        found = one_call(engine)
    folders = {file.split("/")[0] for file in found.files}
    assert not folders & {"drafts", "grammar", "lora", "offload", "snapshot", "speculative", "tools"}
    modules = {file.removeprefix("core/") for file in found.files}
    assert not modules & {"draft_options.py", "logprobs.py", "session.py", "answer_options.py", "beam_search.py"}
