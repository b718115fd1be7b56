"""Liveness: a decoding sequence gets a token in every step, beside prompt tokens that fit; and every sequence ends."""

import itertools
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.scheduling.prefill_throttle import (
    DECODE_STEPS,
    DEPTH,
    EQUAL_ROW_TOKENS,
    EQUAL_STEPS,
    LEAST_CHUNK,
    MAX_DECODE_WAIT_MS,
    MAX_ROW_WORK,
    USED_SHARE,
    PrefillThrottle,
)
from tests.fakes import N_VOCAB, core_of, make_engine, runner_of
from tests.scheduling.stepping import at_most, compute, make, sequence, step_of

WAIT = MAX_DECODE_WAIT_MS / 1000


# ---- the throttle


def test_chunks_grow_from_the_least_to_those_that_fit():
    throttle = PrefillThrottle(512)
    sizes = [step_of(throttle, 1, lambda n: 0.06 + 0.004 * n) for _ in range(7)]
    assert sizes == [0, 8, 16, 26, 26, 26, 26]  # of 160 ms that are allowed, 104 are used
    sizes = [step_of(throttle, 1, lambda n: 0.06 + 0.008 * n) for _ in range(4)]
    assert sizes == [26, 26, 26, 13], "the median of five counts"


@pytest.mark.parametrize("most", [1, 5, 8, 100])
def test_chunks_keep_to_the_budget_and_to_the_least(most):
    throttle = at_most(most)
    sizes = [step_of(throttle, 1, lambda n: 9.0) for _ in range(6)]
    assert (sizes[0], sizes[-1]) == (most, min(most, LEAST_CHUNK))


def test_steps_that_say_little_change_nothing():
    throttle = at_most(64)
    throttle.begin(1)
    throttle.take(LEAST_CHUNK - 1, 0)
    throttle.observe(LEAST_CHUNK - 1, 9.0)  # too few
    throttle.begin(1)
    throttle.take(64, 0)
    throttle.observe(0, 0.0)  # it was given up
    throttle.begin(1)
    assert throttle.fit(0) == 64


def test_the_pace_of_decoding_sequences_is_measured_again():
    """Each KEPT_TIMES of these steps tell of a machine that has become slower, and of more or fewer sequences."""
    throttle = PrefillThrottle(512)
    sizes = [step_of(throttle, 1, lambda n: 0.05 + 0.001 * n) for _ in range(20 * DECODE_STEPS)]
    assert [i for i, n in enumerate(sizes) if n == 0] == list(range(0, len(sizes), DECODE_STEPS + 1))
    assert sizes[-2] == 97
    sizes += [step_of(throttle, 1, lambda n: 0.2 + 0.001 * n) for _ in range(4 * DECODE_STEPS)]
    assert sizes[-2] == 195
    throttle.decodes.append((1, 99.0))  # slow by chance
    assert step_of(throttle, 1, lambda n: 0.2 + 0.001 * n) == 195


def test_the_end_of_a_prompt_does_not_hold_up_the_next_one():
    throttle = at_most(512)
    throttle.begin(1)
    throttle.fit(0)
    throttle.take(20, 0)
    throttle.observe(20, 0.0)
    assert [step_of(throttle, 1, lambda n: 0.001 * n) for _ in range(5)] == [512, 512, 512, 65, 65]
    sizes = [step_of(throttle, 1, lambda n: 0.0) for _ in range(6)]
    assert sizes == [65, 65, 65, 130, 260, 512], "chunks that were short for want of time grow step by step"


def test_fewer_sequences_are_quicker():
    throttle = PrefillThrottle(512)
    for n_decode in (64, 64, 8, 64, 8):
        throttle.decodes.append((n_decode, 0.8))
    for _ in range(9):
        n = step_of(throttle, 64, lambda n: 0.8 + 0.008 * n)
    assert n == 73  # in 585 ms
    assert step_of(throttle, 8, lambda n: 0.1 + 0.008 * n) == 16, "as if they took an eighth"


def test_deeper_chunks_are_smaller():
    throttle = at_most(512)

    def sizes(depth):
        return [step_of(throttle, 1, lambda n: n * 0.0002 * (1 + depth / DEPTH), depth) for _ in range(6)]

    assert sizes(0)[3:] == [325, 325, 325]
    assert sizes(9 * DEPTH) == [32] * 6, "also before it is measured there"
    assert sizes(0) == [32, 32, 32, 64, 128, 256], "nothing says that it costs less, until it is measured again"


def test_prompts_of_a_step_share_its_time():
    throttle = PrefillThrottle(512)
    for _ in range(9):
        step_of(throttle, 1, lambda n: 0.1 + 0.0095 * n)
    throttle.begin(1)
    sizes = []
    for depth, wanted in ((0, 5), (2 * DEPTH, 2), (0, 5)):  # 13.7 in all; the deeper ones count three times
        assert throttle.fit(depth) >= min(wanted, 1)
        sizes.append(min(wanted, throttle.fit(depth)))
        throttle.take(sizes[-1], depth)
    assert sizes == [5, 2, 2]
    assert throttle.fit(0) == 0


@given(
    decode=st.floats(1e-5, 2.0),
    per_token=st.floats(1e-6, 0.1),
    slope=st.floats(0.0, 1.0),
    n_streams=st.integers(1, 8),
    n_prompt=st.integers(2, 4000),
    n_cached=st.integers(0, 200),
)
def test_no_decoding_sequence_waits_longer_than_allowed(decode, per_token, slope, n_streams, n_prompt, n_cached):
    """On a machine where a prompt token takes `per_token`, and more by its depth, up to twice as much at DEPTH.

    A second prompt comes behind the first, which may be in the prefix cache.
    """
    scheduler, throttle = make(n_blocks=1000), PrefillThrottle(512)
    scheduler.debug = False

    def cost(depth, n):
        return n * per_token * (1 + slope * (depth + n / 2) / DEPTH)

    streams = [scheduler.add_request(sequence(1, 4000, first=9000 + i)) for i in range(n_streams)]
    outputs = {s.id: 4000 for s in streams}
    compute(scheduler, scheduler.step(throttle), outputs)
    first = scheduler.add_request(sequence(n_prompt, cache_key="k"))
    second = None
    sizes = []
    while not (second and second.finished):
        plan = scheduler.step(throttle)
        assert plan[:n_streams] == [(s, 1) for s in streams], "a decoding sequence was left out"
        prompts = [(s.n_computed, n) for s, n in plan[n_streams:]]
        n = sum(n for _, n in prompts)
        waited = decode + sum(cost(*prompt) for prompt in prompts)
        least = decode + sum(cost(depth, min(n, LEAST_CHUNK)) for depth, n in prompts)
        assert waited <= max(2 * decode + WAIT, least)
        sizes.append(n)
        compute(scheduler, plan, outputs)
        if n:
            throttle.observe(n, waited)
        else:
            throttle.decodes.append((n_streams, waited))
        if first.finished and second is None:
            second = scheduler.add_request(sequence(16 * n_cached + 300, cache_key="k"))
    assert sizes[0] == 0
    assert sizes[1] == min(n_prompt, LEAST_CHUNK)
    assert len(streams[0].tokens) == 2 + len(sizes)


# ---- in an engine


@pytest.mark.parametrize("per_token", [WAIT / 40, WAIT / 200, WAIT / 5000], ids=["slow", "medium", "fast"])
def test_a_step_with_a_decoding_sequence_is_short(monkeypatch, per_token):
    """Each token of a step takes a fixed time on the engine's clock."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    steps = []

    def forward(spans, poll):
        steps.append([len(s.tokens) for s in spans])
        clock.now += per_token * sum(steps[-1])
        rows = np.zeros((sum(s.want != "none" for s in spans), N_VOCAB), np.float32)
        rows[:, 3] = 9.0
        return rows

    engine = make_engine(context_size=33_000, n_blocks=4200)
    core_of(engine).scheduler.debug = False  # it looks at all of the long table in each step
    runner_of(engine).forward = forward
    stream = engine.stream([4], max_tokens=3000, ignore_eos=True, temperature=0)
    next(stream)
    long = engine.stream([3] * 32_000, max_tokens=1, ignore_eos=True)
    next(long)  # its first token: by then all of its prompt is computed
    del steps[0]
    prompts = [step[1] if len(step) == 2 else 0 for step in steps]
    assert sum(prompts) == 32_000
    assert all(step[0] == 1 for step in steps), "the decoding sequence was left out"
    assert max(sum(step) for step in steps) <= 512
    assert prompts[:2] == [0, LEAST_CHUNK]
    assert per_token * max(sum(step) for step in steps) <= 2 * per_token + WAIT
    fitting = min(511, int(USED_SHARE * (per_token + WAIT) / per_token))
    assert fitting - 1 <= max(prompts) <= fitting
    few = [n for n in prompts if n < 0.8 * fitting]  # while it grows, when the pace is measured, and at the end
    assert len(few) <= 8 + len(prompts) / DECODE_STEPS, "less than it might be"
    assert sum(len(c.token_ids) for c in itertools.islice(stream, len(steps))) == len(steps)


def timed_engine(monkeypatch, failing=0):
    """An engine on a clock of its own, and the sizes of its passes over texts to embed, of which each token takes 2 ms.

    Its other passes take 20 ms, and `failing` is the number of the one that fails.
    """
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    engine = make_engine(context_size=2048)
    runner, sizes, numbers = runner_of(engine), [], itertools.count(1)
    forward, hidden = runner.forward, runner.hidden

    def slow_forward(spans, poll):
        clock.now += 0.02
        if next(numbers) == failing:
            raise MemoryError("no memory for this step")
        return forward(spans, poll)

    def slow_hidden(spans, poll):
        sizes.append(sum(len(s.tokens) for s in spans))
        clock.now += 0.002 * sizes[-1]
        return hidden(spans, poll)

    runner.forward, runner.hidden = slow_forward, slow_hidden
    return engine, sizes


def test_texts_to_embed_are_in_the_same_step(monkeypatch):
    """Their forward pass is one of its own, behind that of the decoding sequences."""
    engine, sizes = timed_engine(monkeypatch)
    stream = engine.stream([4], max_tokens=500, ignore_eos=True, temperature=0)
    next(stream)
    engine.embed([[3] * 1000])
    assert sizes[:3] == [8, 16, 32]
    assert 30 < min(sizes[3:-1]) <= max(sizes) <= 39  # in 78 ms, as decoding takes 20


def test_a_step_whose_decoding_failed_says_nothing_of_the_cost_of_prompts(monkeypatch):
    """Its seconds are those of the texts alone: less the time of decoding, they would seem to cost nothing."""
    engine, sizes = timed_engine(monkeypatch, failing=3)  # the passes before: of the prompt, and of a token alone
    options = {"max_tokens": 500, "ignore_eos": True, "temperature": 0}
    stream = engine.stream([4], **options)
    next(stream)
    engine.embed([[3] * 100])
    assert sizes == [LEAST_CHUNK, 100 - LEAST_CHUNK], "the second pass had nothing beside it"
    with pytest.raises(MemoryError, match="for this step"):
        list(stream)
    stream = engine.stream([4], **options)
    next(stream)
    engine.embed([[3] * 1000])
    assert sizes[2:5] == [8, 16, 32], "as if it were the first"


def test_alone_a_prompt_is_computed_in_whole_chunks():
    engine = make_engine(context_size=2048)
    engine.generate([3] * 1500, max_tokens=1)
    assert runner_of(engine).steps == [[512], [512], [476]]


def test_the_bound_holds_for_all_prompts_of_a_step_together():
    scheduler = make(n_blocks=300, budget=100)
    a, b, c = sequence(4, 50), sequence(90, 1, first=500), sequence(90, 1, first=900)
    scheduler.add_request(a)
    compute(scheduler, scheduler.step(), {a.id: 50})
    scheduler.add_request(b)
    scheduler.add_request(c)
    sizes, throttle = [], at_most(40)
    while not c.finished:
        plan = scheduler.step(throttle)
        assert plan[0] == (a, 1)
        assert sum(n for _, n in plan[1:]) <= 40
        sizes.append([n for _, n in plan])
        compute(scheduler, plan, {a.id: 50})
    assert sizes == [[1, 40], [1, 40], [1, 10, 30], [1, 40], [1, 20]]


# ---- every sequence ends

JOBS = st.tuples(
    st.integers(1, 100), st.integers(1, 40), st.integers(0, 3), st.integers(0, 60), st.sampled_from([None, "k"])
)


@given(
    n_blocks=st.integers(9, 30),
    budget=st.integers(1, 80),
    beside=st.none() | st.integers(1, 80),
    max_running=st.integers(1, 8),
    jobs=st.lists(JOBS, min_size=1, max_size=16),
    cancelled=st.sets(st.integers(0, 15)),
)
def test_every_sequence_ends_in_a_bounded_number_of_steps(n_blocks, budget, beside, max_running, jobs, cancelled):
    """The first running sequence gains a token in each step and loses none, until it ends or one of a better rank
    starts; the first in the queue starts at the latest when all running ones have ended: a loose bound."""
    scheduler = make(n_blocks, 16, budget, max_running=max_running)
    coming = sorted(enumerate(jobs), key=lambda job: job[1][3])
    n_tokens = sum(n_prompt + n_output for n_prompt, n_output, *_ in jobs)
    outputs, added = {}, []
    throttle = None if beside is None else at_most(beside)
    for step in itertools.count():
        while coming and coming[0][1][3] <= step:
            i, (n_prompt, n_output, priority, _, key) = coming.pop(0)
            s = scheduler.add_request(sequence(n_prompt, n_output, priority=priority, cache_key=key))
            outputs[s.id] = n_output
            added.append((i, s))
        for i, s in added:
            if i in cancelled and s.is_scheduled and step % 7 == i % 7:
                scheduler.cancel(s)
        if not scheduler.live and not coming:
            break
        first = scheduler.running[0] if scheduler.running else None
        before = first.n_computed if first else 0
        plan = scheduler.step(throttle)
        assert plan or scheduler.preempting or not scheduler.live
        compute(scheduler, plan, outputs)
        assert first is None or first.finished or first.n_computed > before, "the first did not go on"
        assert step <= (1 + len(jobs)) * n_tokens + 60, "a sequence never ends"
    assert all(s.finished and (s.cancelled or len(s.tokens) == s.n_prompt + outputs[s.id]) for _, s in added)
    assert {s.id for s in scheduler.drain_finished()} == set(outputs)


def test_a_thousand_requests_in_a_storm():
    """As many steps as their tokens need, and some; in a pool in which many of those that run must go back again."""
    scheduler = make(n_blocks=80, budget=256, max_running=32)
    scheduler.debug = False
    outputs, n_tokens, throttle = {}, 0, at_most(128)
    for i in range(1000):
        n_prompt, n_output = 1 + 37 * i % 20, 80 + 13 * i % 20
        s = sequence(n_prompt, n_output, priority=i % 4, first=i % 50, cache_key=(None, "k")[i % 2])
        outputs[scheduler.add_request(s).id] = n_output
        n_tokens += n_prompt + n_output - 1
    steps = 0
    while scheduler.live:
        compute(scheduler, scheduler.step(throttle), outputs)
        steps += 1
        assert steps < 10 * n_tokens / 32, "a sequence never ends"
    ended = scheduler.drain_finished()
    assert len(ended) == len({s.id for s in ended}) == 1000
    assert all(len(s.tokens) == s.n_prompt + outputs[s.id] for s in ended)
    assert scheduler.n_preempted > 100
    decoding = sum(outputs.values()) - 1000
    assert steps >= math.ceil(decoding / 32)
    scheduler.prefix.clear()
    assert scheduler.pool.blocks.n_free == 80


# ---- prompts of one token, which cost what the next token of a decoding sequence does


def n_given(scheduler, throttle, prompt, streams, n_steps, before):
    """Tokens that a prompt gets in so many steps, of 50 ms and 12 ms for each token of a chunk."""
    given = 0
    for _ in range(n_steps):
        before()
        plan = scheduler.step(throttle)
        n_prompt = sum(n for s, n in plan if s not in streams or n > 1)
        given += sum(n for s, n in plan if s is prompt)
        compute(scheduler, plan, {s.id: 4000 for s in streams})
        if throttle.n_taken:
            throttle.observe(n_prompt, 0.05 + 0.012 * n_prompt)
        elif plan and not n_prompt:
            throttle.decodes.append((1, 0.05))
    return given


def test_sequences_that_come_back_with_a_token_each_dont_hold_up_a_prompt():
    scheduler, throttle = make(n_blocks=400), PrefillThrottle(512)
    stream, prompt = sequence(1, 4000, first=9000), sequence(500, first=50_000)
    others = [sequence(20, 3000, first=100 * i) for i in range(8)]
    for s in (stream, *others):
        scheduler.add_request(s)

    def come_back():
        for s in others:
            if s.running and s.n_computed == len(s.tokens) - 1:
                scheduler.pause(s)
                scheduler.add_request(s, accepted=True, beside=others[0])

    n_given(scheduler, throttle, prompt, [stream, *others], 60, come_back)
    scheduler.add_request(prompt)
    assert n_given(scheduler, throttle, prompt, [stream, *others], 200, come_back) == 500


def test_prompts_of_one_token_in_every_step_dont_hold_up_a_longer_one():
    scheduler, throttle = make(n_blocks=400), PrefillThrottle(512)
    stream, prompt = sequence(300, 4000, first=9000), sequence(1000, first=20_000)
    for s in (stream, prompt):
        scheduler.add_request(s)
    assert n_given(scheduler, throttle, prompt, [stream], 400, lambda: scheduler.add_request(sequence(1))) == 1000


def test_prompts_of_another_owner_have_as_much_time_as_decoding_sequences():
    """And don't wait for a step without prompts that is measured, but once in many."""
    throttle = PrefillThrottle(512)
    throttle.decodes.append((4, 2.0))
    steps = []
    for _ in range(3 * EQUAL_STEPS):
        throttle.begin(4, equal=True)
        n = throttle.fit(0)
        steps.append(n)
        if n:
            throttle.take(n, 0)
            throttle.observe(n, 2.0 + n * 0.01)
        else:
            throttle.decodes.append((4, 2.0))
    assert steps.count(0) == 2
    assert max(steps) == int((2.0 + MAX_DECODE_WAIT_MS / 1000) / 0.01)


def test_time_of_a_decoding_sequence_in_tokens_of_a_prompt():
    throttle = PrefillThrottle(512)
    assert throttle.row_work(4) == 1.0
    throttle.begin(4)
    throttle.decodes.append((4, 0.4))
    assert throttle.row_work(4) == 1.0
    for seconds, work in ((0.02, 5.0), (0.2, 1.0), (1e-6, MAX_ROW_WORK)):
        throttle.begin(0)
        throttle._costs.clear()
        throttle.take(16, 0)
        throttle._decode_seconds = 0.0
        throttle.observe(16, 16 * seconds)
        assert throttle.row_work(4) == pytest.approx(work)


@pytest.mark.parametrize("n", [1, 2, 5, 16, 64])
def test_what_a_step_takes_besides_its_sequences_is_known_from_steps_of_several_numbers(n):
    throttle = PrefillThrottle(512)
    for measured in (1, 3, 8, 3, 16):
        throttle.decodes.append((measured, 0.9 + 0.012 * measured))
    throttle.beside(n)
    assert throttle._decode_seconds == pytest.approx(0.9 + 0.012 * n)


def test_as_long_as_one_number_is_measured_a_step_takes_some_sequences_more():
    throttle = PrefillThrottle(512)
    throttle.decodes.extend([(8, 0.7)] * 3)
    for n, seconds in ((8, 0.7), (1, 0.35), (22, 1.4)):
        throttle.beside(n)
        assert throttle._decode_seconds == pytest.approx(seconds)
    throttle.decodes.append((9, 0.01))  # quick by chance: no sequence takes less than nothing
    throttle.beside(1000)
    assert throttle._decode_seconds >= 0.7


def test_prompts_beside_many_sequences_have_as_many_tokens():
    """A throttle that has taken a prompt's tokens for dear lets so many through, and learns that they are not."""
    throttle = PrefillThrottle(512)
    throttle.decodes.append((1, 0.01))
    for _ in range(5):
        throttle._costs.append((9.0, 0))
    throttle.begin(64)
    assert throttle.fit(0) == 64
    assert throttle.fit(DEPTH) == 32
    throttle.begin(64, equal=True)
    assert throttle.fit(0) == LEAST_CHUNK + 64 * EQUAL_ROW_TOKENS
    assert throttle.fit(1000 * DEPTH) == LEAST_CHUNK


def test_the_last_tokens_of_another_owners_prompt_wait_for_no_further_step():
    throttle = PrefillThrottle(512)
    throttle.decodes.append((4, 0.1))
    throttle._costs.append((0.002, 0))
    throttle._limit = 512
    for equal, sizes in ((True, [99, 100, 101, 112, 100]), (False, [65, 65, 65, 65, 65])):
        found = []
        for n in (99, 100, 101, 112, 113):
            throttle.begin(4, equal=equal)
            found.append(min(n, throttle.fit(0, n)))
        assert found == sizes
