"""The scheduler on its own: requests in, ended requests out, and every misuse by its caller."""

import pytest

import oxillama as ox
from oxillama.errors import ConfigError, GenerateError, KvCacheFullError, QueueFullError
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.sequence import Sequence, SequenceState
from oxillama.text_settings import MAX_PRIORITY
from tests.scheduling.stepping import compute, make, run, sequence


class Sums:
    """A driver's own model: the next token is the sum of all before, read back from blocks, modulo 1000."""

    def __init__(self, n_blocks, block_size):
        self.block_size = block_size
        self.blocks = [[None] * block_size for _ in range(n_blocks)]

    def copy(self, source, target):
        self.blocks[target] = list(self.blocks[source])

    def compute(self, sequence, n):
        place = [(sequence.block_table[i // self.block_size], i % self.block_size) for i in range(len(sequence.tokens))]
        for i in range(sequence.n_computed, sequence.n_computed + n):
            block, offset = place[i]
            self.blocks[block][offset] = sequence.tokens[i]
        return sum(self.blocks[b][o] for b, o in place[: sequence.n_computed + n]) % 1000


def alone(prompt, n):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(sum(tokens) % 1000)
    return tokens[len(prompt) :]


def test_a_driver_with_its_own_model():
    scheduler = ox.Scheduler(ox.SequencePool(24), block_size=4, token_budget=10)
    scheduler.debug = True
    model = Sums(24, 4)
    wanted = {}
    for i in range(30):
        prompt = [7 * (i % 3)] * (3 + i % 11) + [i]
        handle = scheduler.add_request(
            ox.Sequence(prompt, len(prompt) + 19, priority=i % 2, cache_key="all", handle=f"request {i}")
        )
        assert (handle.state, handle.handle) == (ox.SequenceState.WAITING, f"request {i}")
        wanted[handle.id] = alone(prompt, 20)
    got = {}
    while scheduler.live:
        plan = scheduler.step()
        for _, source, target in scheduler.copies:
            model.copy(source, target)
        scheduler.copies.clear()
        for s, n in plan:
            token = model.compute(s, n)
            scheduler.advance(s, n)
            if s.n_computed == len(s.tokens):
                s.tokens.append(token)
                if len(s.tokens) == s.n_reserve + 1:
                    scheduler.finish(s)
        for s in scheduler.drain_finished():
            assert s.state is ox.SequenceState.FINISHED
            assert not s.cancelled
            got[s.id] = s.tokens[s.n_prompt :]
    assert got == wanted
    assert scheduler.n_preempted > 0
    assert scheduler.prefix.hit_tokens > 0
    assert scheduler.drain_finished() == []


# ---- ends


@pytest.mark.parametrize("by", ["handle", "id"])
def test_cancel_frees_everything(by):
    scheduler = make(max_running=1)
    runs, waits, stays = (scheduler.add_request(sequence(40, 5)) for _ in range(3))
    compute(scheduler, scheduler.step(), {runs.id: 5})
    for s in (waits, runs):
        scheduler.cancel(s if by == "handle" else s.id)
        assert (s.state, s.cancelled, s.block_table) == (SequenceState.FINISHED, True, [])
    assert scheduler.pool.blocks.n_free == 100
    assert list(scheduler.live) == [stays.id]
    run(scheduler, {})
    assert scheduler.drain_finished() == [waits, runs, stays]
    assert not stays.cancelled


def test_cancelling_twice_raises():
    scheduler = make()
    s = scheduler.add_request(sequence(3))
    scheduler.cancel(s)
    for handle in (s, s.id):
        with pytest.raises(GenerateError, match=f"sequence {s.id} is finished already"):
            scheduler.cancel(handle)
    scheduler.drain_finished()
    with pytest.raises(GenerateError, match="is finished already"):
        scheduler.cancel(s)
    with pytest.raises(ConfigError, match=f"sequence {s.id} is not known here: .* was drained"):
        scheduler.cancel(s.id)


@pytest.mark.parametrize("handle", [-1, 10**9, None, "a"])
def test_cancelling_an_unknown_sequence_raises(handle):
    with pytest.raises(ConfigError, match="is not known here: it was never added"):
        make().cancel(handle)


def test_cancelling_or_finishing_a_sequence_never_added_raises():
    with pytest.raises(ConfigError, match="never added"):
        make().cancel(sequence(3))
    with pytest.raises(GenerateError, match="neither waits nor runs"):
        make().finish(sequence(3))


def test_a_cancelled_sequence_can_be_added_again():
    scheduler = make()
    s = sequence(5)
    scheduler.cancel(scheduler.add_request(s))
    scheduler.add_request(s)
    assert (s.state, s.cancelled) == (SequenceState.WAITING, False)
    run(scheduler, {})
    assert scheduler.drain_finished() == [s, s]
    assert not s.cancelled


# ---- refusals


@pytest.mark.parametrize("priority", [-1, MAX_PRIORITY + 1, 0.5, "1", True, None])
def test_a_bad_priority_is_refused(priority):
    with pytest.raises(ConfigError, match=f"priority must be .*from 0 to {MAX_PRIORITY}"):
        Sequence([1], 1, priority=priority)


def test_an_invalid_deadline_is_refused():
    with pytest.raises(ConfigError, match=r"deadline must be .* not nan"):
        Sequence([1], 1, deadline=float("nan"))


@pytest.mark.parametrize("name", ["block_size", "token_budget", "max_running", "max_waiting"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_limits_below_one_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be .*from 1"):
        ox.Scheduler(SequencePool(4), **{name: value})


def test_an_empty_pool_is_refused():
    with pytest.raises(ConfigError, match="0 KV blocks and 0 recurrent slots: nothing can run"):
        ox.Scheduler(SequencePool(0))
    with pytest.raises(ConfigError, match="at least 0 KV blocks, not -1"):
        SequencePool(-1)


def test_a_sequence_without_tokens_is_refused():
    scheduler = make()
    with pytest.raises(ConfigError, match="no token to compute"):
        scheduler.add_request(Sequence([], 5))
    s = scheduler.add_request(sequence(5, 9))
    scheduler.advance(*scheduler.step()[0])
    scheduler.finish(s, keep_blocks=True)
    with pytest.raises(ConfigError, match="no token to compute"):
        scheduler.add_request(s)
    assert not s.is_scheduled


def test_a_refused_request_leaves_nothing():
    scheduler = make(n_blocks=2, max_waiting=1)
    for error, bad in ((KvCacheFullError, sequence(33)), (QueueFullError, sequence(3))):
        with pytest.raises(error):
            scheduler.add_request(bad)
        assert not bad.is_scheduled
        assert bad.id not in scheduler.live
        if error is KvCacheFullError:
            scheduler.add_request(sequence(3))
    run(scheduler, {})
    assert len(scheduler.drain_finished()) == 1


@pytest.mark.parametrize("n", [0, -1, 6])
def test_advancing_beyond_the_tokens_raises(n):
    scheduler = make()
    s = scheduler.add_request(sequence(5))
    scheduler.step()
    with pytest.raises(ConfigError, match=f"can't advance by {n} tokens: 5 are not computed"):
        scheduler.advance(s, n)
    assert s.n_computed == 0


def test_a_running_sequence_without_tokens_to_compute_is_skipped():
    scheduler = make()
    a, b = (scheduler.add_request(sequence(5, 3)) for _ in range(2))
    for s, n in scheduler.step():
        scheduler.advance(s, n)
    assert scheduler.step() == []
    a.tokens.append(0)
    assert scheduler.step() == [(a, 1)]
    assert len(b.block_table) == 1


@pytest.mark.parametrize("n_running", [1, 2])
def test_a_sequence_beyond_its_reserve_raises(n_running):
    scheduler = make(n_blocks=4)
    for _ in range(n_running):
        scheduler.add_request(sequence(20, 3))

    def go_on():
        for _ in range(1000):
            compute(scheduler, scheduler.step(), dict.fromkeys(scheduler.live, 99))

    with pytest.raises(
        KvCacheFullError, match=r"has 65 tokens to compute, more than its n_reserve of 22 and than the KV"
    ):
        go_on()
