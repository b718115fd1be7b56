"""Plans run on the fake model: spans, block copies, and steps that are given up."""

from types import SimpleNamespace

import numpy as np
import pytest

from oxillama.core.runner import StepAbandoned, execute_plan, next_plan
from oxillama.lora.registry import NO_LORAS
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence
from tests.fakes import FakeRunner, hidden_of, logits_of


def work_on(tokens, want="last", **kwargs):
    sequence = Sequence(list(tokens), len(tokens) + 4, **kwargs)
    return SimpleNamespace(sequence=sequence, want=want, loras=NO_LORAS)


def plan_of(runner, scheduler, works):
    by_id = {work.sequence.id: work for work in works}
    return [(by_id[sequence.id], n) for sequence, n in next_plan(runner, scheduler)]


def test_rows_come_in_the_order_of_the_plan():
    runner, scheduler = FakeRunner(8, 4), Scheduler(SequencePool(8), 4, 6)
    works = [work_on([3, 4, 5]), work_on([6, 7], "all"), work_on([8, 9, 10])]
    for work in works:
        scheduler.add_request(work.sequence)
    plan = plan_of(runner, scheduler, works)
    assert [n for _, n in plan] == [3, 2, 1]
    rows = execute_plan(runner, plan, None)
    assert [own if own is None else len(own) for own in rows] == [1, 2, None]
    assert np.array_equal(rows[0], [logits_of([3, 4, 5])])
    assert np.array_equal(rows[1], [logits_of([6]), logits_of([6, 7])])
    (own,) = execute_plan(runner, plan[1:2], None, hidden=True)
    assert np.array_equal(own, [hidden_of([6]), hidden_of([6, 7])])


@pytest.mark.parametrize("hidden", [False, True])
def test_a_step_that_is_given_up_changes_nothing(hidden):
    def poll():
        raise StepAbandoned

    runner, scheduler = FakeRunner(8, 4), Scheduler(SequencePool(8), 4)
    work = work_on([3, 4, 5], "all")
    scheduler.add_request(work.sequence)
    plan = plan_of(runner, scheduler, [work])
    assert execute_plan(runner, plan, poll, hidden=hidden) is None
    assert work.sequence.n_computed == 0
    (own,) = execute_plan(runner, plan, None, hidden=hidden)
    assert len(own) == 3
    scheduler.advance(work.sequence, 3)
    assert work.sequence.n_computed == 3


def test_shared_blocks_are_copied_before_a_plan_is_computed():
    """The fake model refuses to write to a block that another sequence reads."""
    runner, scheduler = FakeRunner(8, 4), Scheduler(SequencePool(8), 4)
    first, second = work_on([3, 4, 5, 6, 7, 8]), work_on([3, 4, 5, 6, 7, 9])
    scheduler.add_request(first.sequence)
    plan = plan_of(runner, scheduler, [first])
    execute_plan(runner, plan, None)
    scheduler.advance(first.sequence, 6)
    first.sequence.tokens.append(10)
    scheduler.blocks.fork(first.sequence, second.sequence)
    scheduler.add_request(second.sequence)
    plan = plan_of(runner, scheduler, [first, second])
    assert scheduler.blocks.copies == []
    rows = execute_plan(runner, plan, None)
    assert np.array_equal(rows, [[logits_of([3, 4, 5, 6, 7, 8, 10])], [logits_of([3, 4, 5, 6, 7, 9])]])
