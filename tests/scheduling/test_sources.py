"""Prompts that an encoder reads: computed, found, kept and lost as a whole. Ids and counts alone."""

import numpy as np
import pytest

from oxillama.scheduling.sequence import Sequence, SourceLayout
from tests.scheduling.stepping import at_most, compute, make

LAYOUT = SourceLayout(start=7, block_size=16)


def placed(prompt, n_output=1, **fields):
    tokens, fields = LAYOUT.place(prompt, {"cache_key": "k", **fields})
    return Sequence(tokens, len(tokens) + n_output - 1, **fields)


def computed(scheduler, sequence, outputs):
    """Adds it and steps until it ends: tokens that it computed in each step."""
    scheduler.add_request(sequence)
    sizes = []
    while not sequence.finished:
        plan = scheduler.step()
        sizes += [n for s, n in plan if s is sequence]
        compute(scheduler, plan, outputs)
    return sizes


@pytest.mark.parametrize(("n", "n_encoded"), [(1, 16), (15, 16), (16, 16), (17, 32), (32, 32)])
def test_a_prompt_takes_whole_blocks(n, n_encoded):
    prompt = list(range(100, 100 + n))
    tokens, fields = LAYOUT.place(prompt, {"cache_key": "k", "priority": 3})
    assert tokens == prompt + [7] * (n_encoded - n + 1)
    assert fields == {"cache_key": ("k", tuple(prompt)), "priority": 3, "n_source": n, "n_encoded": n_encoded}
    assert LAYOUT.place(prompt, {"cache_key": None})[1]["cache_key"] is None


@pytest.mark.parametrize("budget", [1, 8, 50])
def test_it_is_computed_in_one_step_whatever_the_budget(budget):
    scheduler = make(budget=budget)
    first, second = placed(list(range(70)), 3), placed(list(range(20, 90)), 3)
    outputs = {first.id: 3, second.id: 3}
    for s in (first, second):
        scheduler.add_request(s)
    assert scheduler.step() == [(first, 80)]
    compute(scheduler, [(first, 80)], outputs)
    (decoding, *others) = scheduler.step()
    assert decoding == (first, 1)
    assert others == ([(second, 80)] if budget > 1 else [])


def test_it_is_read_beside_texts_of_others():
    """Though never as much budget is left as it needs."""
    scheduler, throttle = make(budget=8), at_most(2)
    writing, waiting = placed([1], 50), placed(list(range(100)))
    outputs = {writing.id: 50, waiting.id: 1}
    scheduler.add_request(writing)
    for _ in range(3):
        compute(scheduler, scheduler.step(throttle), outputs)
    scheduler.add_request(waiting)
    assert scheduler.step(throttle) == [(writing, 1), (waiting, 112)]


def test_only_a_whole_one_is_found_again():
    scheduler = make(budget=100, n_blocks=20)
    prompt = list(range(60))
    first, again, longer = placed(prompt, 3), placed(prompt, 3), placed([*prompt, 5], 3)
    outputs = {s.id: 3 for s in (first, again, longer)}
    assert computed(scheduler, first, outputs) == [64, 1, 1, 1]
    assert computed(scheduler, again, outputs) == [1, 1, 1]
    assert again.n_cached == 64
    assert computed(scheduler, longer, outputs) == [64, 1, 1, 1]
    scheduler.prefix.evict(0, 2)  # of what was used least recently, the first prompt: the tail and the block before it
    once_more = placed(prompt, 3)
    assert computed(scheduler, once_more, {once_more.id: 3}) == [64, 1, 1, 1]
    scheduler.blocks.check_invariants([])


@pytest.mark.parametrize(("n", "left"), [(70, 70), (65, 65), (64, 64), (63, 0), (1, 0)])
def test_what_goes_back_before_its_end_is_lost_whole(n, left):
    scheduler = make()
    s = placed(list(range(60)), 20)
    scheduler.add_request(s)
    for _ in range(10):
        compute(scheduler, scheduler.step(), {s.id: 20})
    scheduler.finish(s, keep_blocks=True)
    scheduler.blocks.rewind(s, n)
    assert (s.n_computed, len(s.block_table)) == (left, -(-left // 16))
    scheduler.blocks.check_invariants([s])


def test_a_preempted_one_is_read_again_before_its_text():
    scheduler = make(n_blocks=9, budget=16)
    rng = np.random.default_rng(0)
    sequences = [placed(rng.integers(0, 9, n).tolist(), 40, cache_key=None) for n in (30, 20, 33)]
    outputs = {s.id: 40 for s in sequences}
    for s in sequences:
        scheduler.add_request(s)
    starts = {s.id: [] for s in sequences}
    while scheduler.live:
        plan = scheduler.step()
        for s, n in plan:
            assert s.n_computed >= s.n_encoded or (s.n_computed, n) == (0, s.n_encoded)
            starts[s.id] += [n] if not s.n_computed else []
        compute(scheduler, plan, outputs)
    assert scheduler.n_preempted > 0
    assert [set(starts[s.id]) for s in sequences] == [{32}, {32}, {48}]
