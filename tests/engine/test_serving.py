"""Options that never change what a request gives: priority, deadline, the prefix cache."""

import time

import pytest

import oxillama as ox
from oxillama.core.request import ResultQueue
from oxillama.scheduling.scheduler import Scheduler
from tests.core.counted import computed
from tests.fakes import assert_idle, core_of, drawn, factory_of, make_engine, options, runner_of
from tests.plain_loop import plain_tokens

SEED = drawn(seed=1)


# ---- the prefix cache


def test_a_second_prompt_computes_only_what_differs():
    engine = make_engine(context_size=128)
    shared = [3, 4, 5, 6] * 10
    first = engine.generate([*shared, 7], max_tokens=1, ignore_eos=True)
    assert computed(engine) == 41
    again = engine.generate([*shared, 8, 9], max_tokens=1, ignore_eos=True, seed=1)
    assert computed(engine) == 42 - 40
    assert again.token_ids == plain_tokens([*shared, 8, 9], SEED, 1, ignore_eos=True)[0]
    assert first.prompt_tokens == 41
    prefix = core_of(engine).scheduler.prefix
    assert (prefix.hit_tokens, prefix.miss_tokens, prefix.n_blocks) == (40, 41 + 2, 4)
    assert_idle(engine)


def test_the_last_token_of_a_prompt_is_always_computed():
    engine = make_engine()
    for expected in (32, 1, 1):
        engine.generate([3] * 32, max_tokens=1)
        assert computed(engine) == expected


def test_an_answer_is_a_beginning_too():
    engine = make_engine(context_size=128)
    answer = engine.generate([3] * 10, max_tokens=40, ignore_eos=True).token_ids
    computed(engine)
    engine.generate([*[3] * 10, *answer, 4], max_tokens=1)
    assert computed(engine) == 51 - 48


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cache_prompt": False}, {}),
        ({}, {"cache_prompt": False}),
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"cache_salt": "a"}, {}),
    ],
)
def test_strangers_compute_all(first, second):
    engine = make_engine()
    engine.generate([3] * 40, max_tokens=1, **first)
    computed(engine)
    engine.generate([3] * 40, max_tokens=1, **second)
    assert computed(engine) == 40


def test_switched_off():
    engine = make_engine(prefix_cache=False)
    for _ in range(2):
        engine.generate([3] * 40, max_tokens=1)
        assert computed(engine) == 40
    assert core_of(engine).pool.blocks.n_free == core_of(engine).pool.n_blocks


def test_a_batch_with_a_shared_beginning_computes_it_once():
    engine = make_engine(context_size=256, n_blocks=200)
    prompts = [[3] * 160 + [4 + i] * 5 for i in range(9)]
    got = engine.generate(prompts, max_tokens=4, seed=1, ignore_eos=True)
    for completion, prompt in zip(got, prompts, strict=True):
        assert completion.token_ids == plain_tokens(prompt, SEED, 4, ignore_eos=True)[0]
    assert computed(engine) == 160 + 9 * (5 + 3)


def test_a_dialogue_shares_its_beginning_and_writes_none_that_others_read():
    engine = make_engine(context_size=128)
    a, b = engine.conversation(), engine.conversation()
    for prompt in ([3] * 40, [3] * 25 + [4] * 9, [3] * 25 + [5] * 20):
        for talk in (a, b):
            got = [t for c in talk.stream(prompt, options(max_tokens=9, seed=1, ignore_eos=True)) for t in c.token_ids]
            assert got == plain_tokens(prompt, SEED, 9, ignore_eos=True)[0]
    other = options(max_tokens=9, seed=1, ignore_eos=True, cache_salt="x")
    got = [t for c in a.stream([3] * 30, other) for t in c.token_ids]
    assert got == plain_tokens([3] * 30, SEED, 9, ignore_eos=True)[0]
    a.close()
    b.close()
    assert_idle(engine)


def test_a_dialogue_goes_on_in_a_cache_of_one_block():
    engine = make_engine(context_size=16, n_blocks=1)
    talk = engine.conversation()
    for prompt in ([3] * 14, [3] * 9 + [4] * 5, [3] * 15):
        got = [t for c in talk.stream(prompt, options(max_tokens=2, seed=1, ignore_eos=True)) for t in c.token_ids]
        assert got == plain_tokens(prompt, SEED, len(got), ignore_eos=True)[0]
    talk.close()
    assert_idle(engine)


def test_a_dialogue_goes_on_where_what_was_found_has_no_room():
    """Its own second block is half full; the cache has a full one, but not room for both and the rest."""
    engine = make_engine(context_size=64, n_blocks=4)
    talk = engine.conversation()
    list(talk.stream([3] * 20, options(max_tokens=1)))
    engine.generate([3] * 32, max_tokens=1)
    got = [t for c in talk.stream([3] * 60, options(max_tokens=2, seed=1, ignore_eos=True)) for t in c.token_ids]
    assert got == plain_tokens([3] * 60, SEED, 2, ignore_eos=True)[0]
    talk.close()
    assert_idle(engine)


# ---- deadlines


def test_what_there_is_by_the_deadline_is_returned():
    def slow(runner, spans, poll):
        time.sleep(0.01)

    engine = make_engine(hook=slow)
    got = engine.generate([3] * 5, max_tokens=50, seed=1, ignore_eos=True, deadline=0.1)
    assert got.finish_reason == "deadline"
    assert got.token_ids == plain_tokens([3] * 5, SEED, 50, ignore_eos=True)[0][: len(got.token_ids)]
    assert_idle(engine)


def test_a_deadline_ends_what_waits_and_what_is_inside_a_step():
    def late(runner, spans, poll):
        time.sleep(0.02)
        poll()

    engine = make_engine(hook=late, n_blocks=4)
    assert engine.generate([3] * 9, deadline=0.001).token_ids == []
    assert runner_of(engine).steps == []
    assert_idle(engine)


# ---- refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"priority": -1}, "priority must be from 0 to 100, not -1"),
        ({"priority": 101}, "priority must be from 0 to 100, not 101"),
        ({"priority": 1.5}, "priority must be an integer"),
        ({"deadline": 0}, "deadline must be a finite number above 0, not 0"),
        ({"deadline": -1.0}, "deadline must be a finite number above 0"),
        ({"deadline": float("inf")}, "deadline must be a finite number"),
        ({"cache_prompt": 1}, "cache_prompt must be True or False, not 1"),
        ({"cache_salt": 3}, "cache_salt must be a str or None, not 3"),
    ],
)
def test_out_of_range(given, message):
    engine = make_engine()
    for call in (engine.generate, engine.stream):
        with pytest.raises(ox.ConfigError, match=message):
            call([3], **given)
    with pytest.raises(ox.ConfigError, match="max_queue_size must be from 1"):
        make_engine(max_queue_size=0)


def test_a_full_queue_refuses_the_whole_list():
    engine = make_engine(max_queue_size=3)
    stream = engine.stream([3], ignore_eos=True)
    next(stream)
    with pytest.raises(ox.QueueFullError, match="0 requests are waiting, and 4 more") as error:
        engine.generate([[3]] * 4)
    assert isinstance(error.value, ox.GenerateError)
    assert len(engine.generate([[3]] * 3, max_tokens=2)) == 3
    stream.close()
    assert_idle(engine)


def test_priority_goes_first():
    engine = make_engine(prefill_chunk_size=1)  # one at a time
    scheduler, order = core_of(engine).scheduler, []

    def finish(sequence, **given):
        order.append(sequence.priority)
        Scheduler.finish(scheduler, sequence, **given)

    scheduler.finish = finish
    outbox, maker = ResultQueue(3), factory_of(engine)
    requests = [maker.request([3], options(max_tokens=2, priority=p), outbox) for p in (0, 1, 5)]
    core_of(engine).run(requests, outbox)
    assert order == [5, 1, 0]
