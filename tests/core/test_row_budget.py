"""Rows of logits: a step hands over no more of them than its budget, however many requests want all of theirs."""

import numpy as np
import pytest

import oxillama as ox
from oxillama.core import loading

MOST = 64


@pytest.fixture
def counted(monkeypatch):
    """An engine with a budget of 64 rows, and how many rows each step gave."""
    monkeypatch.setattr(loading, "ROW_BYTES", 1)
    with ox.load() as engine:
        runner, steps = engine.context.core.runner, []
        forward = runner.forward

        def count(spans, poll=None):
            rows = forward(spans, poll)
            steps.append(len(rows))
            return rows

        monkeypatch.setattr(runner, "forward", count)
        yield engine, steps


IDS = [7 + i * 37 % 1000 for i in range(500)]


@pytest.fixture(scope="module")
def logits():
    with ox.load() as engine:
        assert loading.row_budget(engine.n_vocab) > len(IDS)
        return engine.forward_logits(IDS)


def test_logits_of_every_position(counted, logits):
    engine, steps = counted
    assert np.array_equal(engine.forward_logits(IDS), logits)
    assert (max(steps), sum(steps)) == (MOST, len(IDS))


def test_logits_of_a_session(counted, logits):
    engine, steps = counted
    with engine.session() as session:
        assert np.array_equal(session.forward_logits(IDS, 0), logits)
    assert max(steps) == MOST


def test_prompts_together_stay_within_it(counted, logits):
    engine, steps = counted
    alone = [engine.generate(IDS[i:], max_tokens=2, prompt_logprobs=1, temperature=0.0) for i in range(3)]
    found = engine.generate([IDS[i:] for i in range(3)], max_tokens=2, prompt_logprobs=1, temperature=0.0)
    assert [(one.token_ids, one.prompt_logprobs) for one in found] == [(a.token_ids, a.prompt_logprobs) for a in alone]
    assert max(steps) <= MOST + 2  # texts that are written beside have a row each


def test_prompts_whose_last_row_alone_is_wanted_take_no_more_steps(counted):
    engine, steps = counted
    engine.generate(IDS, max_tokens=1, temperature=0.0)
    assert len(steps) <= -(-len(IDS) // engine.config.prefill_chunk_size)


def test_the_budget_of_a_vocabulary():
    assert loading.row_budget(1 << 18) == MOST
    assert loading.row_budget(1 << 15) == 256
