"""Owners share steps, running places, blocks and the queue: counts alone."""

import random

import pytest

from oxillama.errors import QueueFullError
from oxillama.scheduling.owner_shares import MAX_KEPT, STEP_WORK, OwnerShares, prompt_work
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.scheduler import Scheduler
from tests.scheduling.stepping import at_most, compute, make, sequence

ENDLESS = 10_000


def owned(owner, n_prompt, n_output=1, **options):
    made = sequence(n_prompt, n_output, **options)
    made.owner = owner
    return made


def add(scheduler, outputs, owner, n_prompt, n_output=1, **options):
    made = owned(owner, n_prompt, n_output, **options)
    outputs[made.id] = n_output
    return scheduler.add_request(made)


def flood(scheduler, outputs, draw, n=300, longest=200, output=100):
    """Requests of one owner, of all lengths, and steps until its texts fill the machine."""
    first = [0]

    def more():
        first[0] += 1000
        length = draw.choice((1, 3, 20, longest))
        add(scheduler, outputs, "a", length, draw.choice((1, output)), first=first[0])

    for _ in range(n):
        more()
    for _ in range(draw.randrange(30, 60)):
        compute(scheduler, scheduler.step(), outputs)
    return more


def until_first_token(scheduler, outputs, wanted, more=None):
    """Steps, and their work, until a sequence has its first token."""
    n_steps = work = 0
    while len(wanted.tokens) == wanted.n_prompt:
        plan = scheduler.step()
        work += STEP_WORK + sum(prompt_work(n, s.n_computed) if s.n_computed + n <= s.n_prompt else n for s, n in plan)
        n_steps += 1
        compute(scheduler, plan, outputs)
        if more:
            more()
        assert n_steps < 1000, "it never gets a token"
    return n_steps, work


def alone(n_prompt, **options):
    scheduler, outputs = make(**options), {}
    return until_first_token(scheduler, outputs, add(scheduler, outputs, "b", n_prompt, 5))


@pytest.mark.sweep(15)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n_prompt", [1, 5, 40, 300, 1500])
def test_a_first_token_takes_twice_its_work_beside_a_flood(n_prompt, seed):
    options = {"n_blocks": 10_000, "budget": 256}
    scheduler, outputs = make(**options), {}
    more = flood(scheduler, outputs, random.Random(seed))
    for _ in range(4):  # one request after another
        n_steps, work = until_first_token(scheduler, outputs, add(scheduler, outputs, "b", n_prompt, 5), more)
        own_steps, own_work = alone(n_prompt, **options)
        assert work <= 2 * own_work + scheduler.token_budget + STEP_WORK
        assert n_prompt > 100 or n_steps <= own_steps + 1
        while any(s.owner == "b" for s in scheduler.live.values()):
            compute(scheduler, scheduler.step(), outputs)


@pytest.mark.parametrize("seed", range(12))
def test_many_requests_of_an_owner_take_twice_their_work_beside_a_flood(seed):
    options = {"n_blocks": 10_000, "budget": 256, "max_running": 16}
    scheduler, outputs = make(**options), {}
    flood(scheduler, outputs, random.Random(seed))
    lone, own_outputs = make(**options), {}
    totals = []
    for one, ends in ((scheduler, outputs), (lone, own_outputs)):
        wanted = [add(one, ends, "b", 30, 2, first=500 * i) for i in range(8)]
        totals.append(max(until_first_token(one, ends, s)[0] for s in wanted))
    assert totals[0] <= 2 * totals[1] + 1


def test_the_flood_goes_on_beside_short_prompts():
    """Steps that leave decoding sequences out never come in a row."""
    scheduler, outputs = make(n_blocks=10_000, max_running=32), {}
    streams = [add(scheduler, outputs, "a", 4, ENDLESS, first=100 * i) for i in range(16)]
    while not all(len(s.tokens) > s.n_prompt for s in streams):
        compute(scheduler, scheduler.step(), outputs)
    before = sum(len(s.tokens) for s in streams)
    for i in range(50):
        add(scheduler, outputs, "b", 2, 1, first=9000 + 10 * i)
        compute(scheduler, scheduler.step(), outputs)
    assert sum(len(s.tokens) for s in streams) - before >= 25 * 16


def test_a_second_owner_gets_half_of_the_running_places():
    scheduler, outputs = make(n_blocks=10_000, max_running=8), {}
    for i in range(20):
        add(scheduler, outputs, "a", 4, ENDLESS, first=100 * i)
    for _ in range(5):
        compute(scheduler, scheduler.step(), outputs)
    assert [s.owner for s in scheduler.running] == ["a"] * 8
    for i in range(6):
        add(scheduler, outputs, "b", 4, ENDLESS, first=5000 + 100 * i)
    for _ in range(12):
        compute(scheduler, scheduler.step(), outputs)
    assert sorted(s.owner for s in scheduler.running) == ["a"] * 4 + ["b"] * 4
    preempted = scheduler.n_preempted
    for _ in range(50):
        compute(scheduler, scheduler.step(), outputs)
    assert scheduler.n_preempted == preempted == 4  # and nothing goes to and fro


@pytest.mark.parametrize("budget", [1, 2, 3, 600])
@pytest.mark.parametrize("whole", [False, True])
def test_prompts_beyond_a_step_come_to_their_end_beside_another_owners(budget, whole):
    """Also where each is computed in one step, of more tokens than its owner may lead by."""
    scheduler, outputs = make(n_blocks=10_000, budget=budget, whole=whole), {}
    made = [add(scheduler, outputs, "ab"[i % 2], 700, first=1000 * i) for i in range(6)]
    n = 0
    while scheduler.live:
        compute(scheduler, scheduler.step(), outputs)
        n += 1
        assert n <= 10_000, "a prompt never ends"
    assert all(len(s.tokens) == 701 for s in made)


def test_a_prompt_that_an_encoder_reads_begins_beside_another_owners():
    scheduler, outputs = make(n_blocks=10_000, budget=64), {}
    for i in range(20):
        add(scheduler, outputs, "a", 500, first=10_000 * i)
    compute(scheduler, scheduler.step(), outputs)
    wanted = owned("b", 400, first=900_000)
    wanted.n_encoded = 300
    outputs[wanted.id] = 1
    scheduler.add_request(wanted)
    assert (wanted, 300) in scheduler.step()


def test_one_owner_alone_uses_all_places_and_nothing_is_preempted():
    scheduler, outputs = make(n_blocks=10_000, max_running=8), {}
    for i in range(20):
        add(scheduler, outputs, "a", 4, 9, first=100 * i)
    while scheduler.live:
        compute(scheduler, scheduler.step(), outputs)
    assert scheduler.n_preempted == 0


@pytest.mark.parametrize("n_prompt", [16, 200, 600])
def test_blocks_that_are_full_of_one_owner_make_room_for_another(n_prompt):
    scheduler, outputs = make(n_blocks=100), {}
    for i in range(40):
        add(scheduler, outputs, "a", 100, 400, first=1000 * i)
    while scheduler.pool.blocks.n_free > 2:
        compute(scheduler, scheduler.step(), outputs)
    wanted = add(scheduler, outputs, "b", n_prompt, 3, first=900_000)
    n_steps, _ = until_first_token(scheduler, outputs, wanted)
    assert n_steps <= 2 * -(-n_prompt // scheduler.token_budget) + 2


def test_a_sequence_that_fills_the_blocks_yields_once_and_then_ends():
    """Beside an owner that always has another short text, a long one comes to its end."""
    scheduler, outputs = make(n_blocks=20), {}
    long = add(scheduler, outputs, "a", 260, 40)
    for i in range(400):
        if sum(s.owner == "b" for s in scheduler.live.values()) < 3:
            add(scheduler, outputs, "b", 40, 6, first=1000 * (i + 1))
        compute(scheduler, scheduler.step(), outputs)
        if long.finished:
            break
    assert long.finished
    assert len(long.tokens) == 300


@pytest.mark.sweep(10)
@pytest.mark.parametrize("seed", range(30))
def test_all_sequences_of_all_owners_end(seed):
    draw = random.Random(seed)
    scheduler, outputs = make(n_blocks=draw.choice((24, 60, 400)), budget=draw.choice((16, 64, 256)),
                              max_running=draw.choice((1, 2, 5, 12))), {}  # fmt: skip
    made = []
    for i in range(60):
        owner = draw.choice(("a", "a", "a", "b", "c", None))
        made.append(add(scheduler, outputs, owner, draw.choice((1, 9, 70, 200)), draw.choice((1, 8, 100)),
                        first=1000 * i, priority=draw.choice((0, 0, 3))))  # fmt: skip
    n = 0
    while scheduler.live:
        plan = scheduler.step(draw.choice((None, 5, at_most(16))))
        assert len({s.id for s, _ in plan}) == len(plan)
        assert all(s.running for s, _ in plan)
        compute(scheduler, plan, outputs)
        n += 1
        assert n < 30_000, "a sequence never ends"
    assert all(len(s.tokens) == s.n_prompt + outputs[s.id] for s in made)
    assert not scheduler.owners
    assert scheduler.waiting.counts == {}


def test_owners_that_always_have_prompts_get_as_many_tokens():
    scheduler, outputs = make(n_blocks=10_000, budget=64), {}
    done = {"a": 0, "b": 0}
    for i in range(400):
        for owner, n_prompt in (("a", 200), ("b", 7)):
            while scheduler.waiting.counts.get(owner, 0) < 30:
                add(scheduler, outputs, owner, n_prompt, 1, first=random.Random(i).randrange(1 << 40))
        plan = scheduler.step()
        for s, n in plan:
            done[s.owner] += prompt_work(n, s.n_computed)
        compute(scheduler, plan, outputs)
    assert abs(done["a"] - done["b"]) <= 4 * 64


def test_an_owner_that_was_idle_saved_no_more_up_than_its_lag():
    live = {}
    shares = OwnerShares(live, 150)

    def enter(owner):
        live[owner] = 1
        if len(live) > 1:
            shares.enter(owner, 0, 0)

    for owner in ("a", "b", "c"):
        enter(owner)
    shares.charge("a", 500)
    shares.charge("b", 700)
    del live["c"]
    enter("c")
    assert shares.work("c") == 500, "no further behind than others are"
    shares.charge("c", 300)
    del live["c"]
    enter("c")
    assert shares.work("c") == 800, "nor does it forget what it had"
    shares.charge("a", 500)
    shares.charge("b", 500)
    del live["c"]
    enter("c")
    assert shares.work("c") == 1000
    del live["a"]
    enter("d")
    assert shares.work("d") == 1000


def test_who_asks_for_nothing_more_saves_up_half_of_its_lag():
    shares = OwnerShares({"a": 1, "b": 1, "c": 1}, 100)
    shares.charge("b", 500)
    shares.catch_up("b", ["c"])
    assert [shares.work(owner) for owner in "abc"] == [450, 500, 0]
    assert shares.is_any_due("b", {"a"})
    assert not shares.is_any_due("b", {"a", "c"})
    assert shares.is_any_due("bc", {"a", "c"})
    assert not shares.is_any_due("b", {"b"}), "beside its own sequences a prompt is due no more than others"
    assert shares.lead("c", ["b"]) == 600
    assert shares.lead("b", ["a", "c"]) == -400
    assert shares.lead("a", []) > 1 << 60


def test_owners_that_have_gone_are_forgotten_where_they_are_many():
    live = {"a": 1, "b": 1}
    shares = OwnerShares(live, 10)
    for i in range(3 * MAX_KEPT):
        live[i] = 1
        shares.enter(i, 0, 0)
        shares.charge(i, 1 + i)
        del live[i]
    assert len(shares.done) <= MAX_KEPT + 3


def test_what_an_owner_has_alone_is_only_counted_when_another_comes():
    scheduler, outputs = make(n_blocks=10_000), {}
    streams = [add(scheduler, outputs, "a", 3, ENDLESS, first=100 * i) for i in range(4)]
    for _ in range(10):
        compute(scheduler, scheduler.step(), outputs)
    assert scheduler.shares.work("a") == 0
    other = add(scheduler, outputs, "b", 3, ENDLESS, first=9000)
    assert scheduler.shares.work("a") == 10 * (STEP_WORK + 4)
    assert scheduler.shares.work("b") == 0
    for s in streams:
        scheduler.cancel(s)
    scheduler.cancel(other)
    assert (scheduler.owners, scheduler.shares.work("a")) == ({}, 0)


def test_the_queue_has_room_for_each_owner():
    scheduler = Scheduler(SequencePool(100), 16, 512, max_running=1, max_waiting=10)
    for _ in range(10):
        scheduler.add_request(owned("a", 3))
    with pytest.raises(QueueFullError):
        scheduler.add_request(owned("a", 3))
    for _ in range(5):
        scheduler.add_request(owned("b", 3))
    for owner in ("a", "b"):
        with pytest.raises(QueueFullError):
            scheduler.add_request(owned(owner, 3))
    scheduler.check_queue(3, "c")
    with pytest.raises(QueueFullError):
        scheduler.check_queue(2, "c", {"c": 2})
