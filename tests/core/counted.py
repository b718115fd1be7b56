"""Tokens that the fake model computed for a call."""

import pytest

from tests.fakes import drawn, runner_of
from tests.plain_loop import plain_tokens

KINDS = pytest.mark.parametrize("blocks", [{"n_blocks": 0}, {}], ids=["recurrent", "hybrid"])


def rows(steps):
    return sum(sum(step) for step in steps)


def generate(engine, prompt, **given):
    """How many tokens of a prompt were computed; the engine must give what a fresh one gives."""
    runner_of(engine).steps.clear()
    got = engine.generate(prompt, max_tokens=3, seed=1, ignore_eos=True, **given).token_ids
    assert got == plain_tokens(prompt, drawn(seed=1), 3, ignore_eos=True)[0]
    return rows(runner_of(engine).steps) - 2  # of the prompt


def computed(engine):
    """Tokens computed since the last call."""
    steps = runner_of(engine).steps
    n = sum(sum(step) for step in steps)
    steps.clear()
    return n
