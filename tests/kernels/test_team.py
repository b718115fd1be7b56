"""How many threads a region gets, with a clock of our own and machines that behave as told."""

import itertools
import math
import random

import pytest

from oxillama.kernels._team import Team

US, MS = 1_000, 1_000_000


class Machine:
    """Runs regions of a team: `one` ns with one thread; with n, a share of that, what waking takes, and `stalled`."""

    def __init__(self, n=2, waking=5 * US, asleep=5 * US, stalled=lambda now: 0):
        self.team, self.n, self.waking, self.asleep, self.stalled = Team(n), n, waking, asleep, stalled
        self.now, self.idle_since = 1 << 40, 0

    def run(self, one, *, kind=1, per_unit=100):
        """One region: (threads, ns)."""
        n = self.team.decide(kind, one * per_unit, self.now)
        took = one
        if n > 1:
            slept = self.now - self.idle_since > 10 * US
            took = one // n + (self.asleep if slept else self.waking) + self.stalled(self.now)
        self.team.record(took)
        self.now += took
        if n > 1:
            self.idle_since = self.now
        return n, took

    def settle(self, one, times=2000, **fields):
        for _ in range(times):
            self.run(one, **fields)

    def spent(self, ones, duration):
        """(ns taken, ns that one thread would have taken) for regions in turn, for at least so long."""
        taken = alone = 0
        for one in itertools.cycle(ones):
            if taken >= duration:
                return taken, alone
            taken += self.run(one)[1]
            alone += one
        return None


@pytest.mark.parametrize("n", [2, 4, 64])
@pytest.mark.parametrize("waking", [2 * US, 20 * US, 200 * US])
@pytest.mark.parametrize("one", [5 * US, 20 * US, 100 * US, 1 * MS, 20 * MS])
def test_regions_go_to_the_team_exactly_where_that_pays(n, waking, one):
    machine = Machine(n, waking, waking)
    machine.settle(one)
    shared = [machine.run(one)[0] > 1 for _ in range(500)]
    if one / n + waking < 0.8 * one:
        assert sum(shared) >= 490
    if one / n + waking > 1.2 * one:
        assert sum(shared) <= 80  # trials


@pytest.mark.parametrize("waking", [0, 50 * US, 1 * MS])
def test_trials_take_a_percent_of_the_time(waking):
    machine = Machine(2, waking, waking)
    machine.settle(30 * US, 200)
    taken, alone = machine.spent([30 * US, 10 * US, 400 * US], 2000 * MS)
    best = sum(min(one, one / 2 + waking) for one in (30 * US, 10 * US, 400 * US)) / (440 * US) * alone
    assert taken <= 1.03 * best + 4 * MS


def test_teams_that_only_pay_while_they_stay_awake_are_found():
    """A single region would wake the team for itself, and judge it by that."""
    machine = Machine(2, waking=2 * US, asleep=60 * US)
    machine.settle(40 * US, 4000)
    assert sum(machine.run(40 * US)[0] for _ in range(200)) > 390


@pytest.mark.parametrize("quantum", [1 * MS, 3 * MS, 10 * MS, 50 * MS])
@pytest.mark.parametrize("ones", [[20 * US, 60 * US], [200 * US] * 3, [2 * MS, 30 * US], [12 * MS], [12 * MS, 25 * US]])
@pytest.mark.parametrize("free", [2, 4])
@pytest.mark.parametrize("known", [True, False])
def test_a_busy_neighbour_costs_at_most_three_tenths_of_one_thread(quantum, ones, free, known):
    """It has one of the team's cores for all but one of so many quanta; regions that it meets wait for their rest."""
    there = not known

    def stalled(now):
        return quantum - now % quantum if there and now // quantum % free else 0

    machine = Machine(2, 2 * US, 30 * US, stalled)
    machine.spent(ones, 500 * MS)
    there = True
    taken, alone = machine.spent(ones, max(1000 * MS, 100 * quantum))
    assert taken <= 1.3 * alone


@pytest.mark.parametrize("one", [100 * US, 1 * MS, 12 * MS, 50 * MS])
@pytest.mark.parametrize("worse", [1.5, 3])
def test_a_team_that_becomes_slower_for_good_is_left(one, worse):
    machine = Machine(2, 2 * US, 30 * US)
    machine.settle(one, 300)
    machine.stalled = lambda now: int(one * (worse - 0.5))
    machine.spent([one], 4000 * MS)
    taken, alone = machine.spent([one], 4000 * MS)
    assert taken <= 1.1 * alone


def test_the_team_is_back_soon_after_the_neighbour_left():
    there = True
    machine = Machine(2, 2 * US, 30 * US, lambda now: 3 * MS if there else 0)
    machine.spent([300 * US], 3000 * MS)
    there = False
    machine.spent([300 * US], 1500 * MS)
    taken, alone = machine.spent([300 * US], 500 * MS)
    assert not machine.team.is_crowded
    assert taken <= 0.6 * alone


def test_large_regions_are_shared_out_beside_a_neighbour():
    """Where half of the work takes longer than the neighbour's quantum, the team is faster all the same."""
    machine = Machine(2, 2 * US, 30 * US, lambda now: 3 * MS)
    machine.spent([300 * US, 40 * MS], 2000 * MS)
    n_threads = {one: [machine.run(one)[0] for _ in range(50)] for one in (300 * US, 40 * MS)}
    assert sum(n_threads[300 * US]) <= 55
    assert n_threads[40 * MS] == [2] * 50


def test_a_rare_stall_does_not_end_the_team():
    """Some daemon that wants a core for two milliseconds, five times a second."""
    machine = Machine(2, 2 * US, 30 * US, lambda now: 2 * MS if now % (200 * MS) < 300 * US else 0)
    machine.spent([300 * US], 500 * MS)
    taken, alone = machine.spent([300 * US], 4000 * MS)
    assert taken <= 0.7 * alone


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tau", [2 * MS, 50 * MS, 1000 * MS])
def test_the_team_stays_where_memory_slows_down_both_choices(tau, seed):
    """One token of a model of a billion parameters: the team saves 15 %, and the memory's speed, which other machines
    of the host share, wanders by as much within `tau`."""
    chance, team, now, speed, shared = random.Random(seed), Team(2), 1 << 40, 0.0, []
    for one in [*[150 * US, 80 * US, 400 * US, 200 * US] * 16, 8 * MS] * 200:
        n = team.decide(one // US, one * 100, now)
        took = one * (0.85 if n == 2 else 1) * math.exp(0.13 * speed + 0.1 * chance.gauss(0, 1)) + (n - 1) * 3 * US
        kept = math.exp(-took / tau)
        speed = speed * kept + math.sqrt(1 - kept * kept) * chance.gauss(0, 1)
        team.record(int(took))
        now += int(took)
        shared.append(one * (n - 1))
    last = shared[len(shared) // 2 :]
    assert sum(last) >= 0.75 * sum([150 * US, 80 * US, 400 * US, 200 * US] * 16 + [8 * MS]) * 100


@pytest.mark.parametrize("n_others", [0, 150, 400])
def test_many_kinds_keep_what_is_known_of_them(n_others):
    """Kinds are addresses of functions: two that shared a place would drive each other out in every token."""
    machine, kinds = Machine(2, 150 * US, 150 * US), random.Random(1).sample(range(1 << 40), 100)
    for i in range(n_others):
        machine.run(200 * US, kind=(1 << 41) + i)
    tokens = [sum(machine.run(200 * US, kind=kind)[0] > 1 for kind in kinds) for _ in range(100)]
    assert tokens[60:].count(0) >= 25  # trials are in the others


def test_kinds_and_sizes_are_told_apart():
    machine = Machine(2, 30 * US, 30 * US)
    for _ in range(2000):
        machine.run(20 * US, kind=1)
        machine.run(200 * US, kind=1)
        machine.run(200 * US, kind=2, per_unit=1)
        machine.run(20 * US, kind=3, per_unit=1000)  # as much work as the second, of a cheaper kind
    for one, kind, per_unit in [(20 * US, 1, 100), (200 * US, 1, 100), (200 * US, 2, 1), (20 * US, 3, 1000)]:
        n_threads = sum(machine.run(one, kind=kind, per_unit=per_unit)[0] for _ in range(100))
        assert (n_threads > 190) == (one == 200 * US)
        assert (n_threads < 130) == (one == 20 * US)


def test_the_first_regions_of_a_large_size_are_shared_out_at_once():
    """A prompt is computed once: nothing can be learnt from it."""
    machine = Machine(4)
    assert [machine.run(30 * MS)[0] for _ in range(20)] == [4] * 20


def test_one_thread_is_one_thread():
    machine = Machine(1)
    assert {machine.run(one)[0] for one in (US, MS, 100 * MS) for _ in range(100)} == {1}
