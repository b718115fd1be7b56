"""A scheduler whose plans are carried out without an engine."""

from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.prefill_throttle import PrefillThrottle
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence


def make(n_blocks=100, block_size=16, budget=512, **options):
    scheduler = Scheduler(SequencePool(n_blocks), block_size, budget, **options)
    scheduler.debug = True
    return scheduler


def compute(scheduler, plan, n_outputs=None):
    """What the engine does with a plan: counts go up, a token is added at the end of what is known."""
    for s, n in plan:
        scheduler.advance(s, n)
        if s.n_computed == len(s.tokens):
            s.tokens.append(0)
            if len(s.tokens) - s.n_prompt >= (n_outputs or {}).get(s.id, 1):
                scheduler.finish(s)


def sequence(n_prompt, n_output=1, first=0, **options):
    return Sequence(range(first, first + n_prompt), n_prompt + n_output - 1, **options)


def run(scheduler, outputs, limit=10_000):
    """Steps until nothing is left: the sequences of each step."""
    steps = []
    while scheduler.running or len(scheduler.waiting):
        plan = scheduler.step()
        assert plan or scheduler.preempting
        assert not plan or sum(n for _, n in plan) <= scheduler.token_budget
        steps.append([s for s, _ in plan])
        compute(scheduler, plan, outputs)
        assert len(steps) < limit, "a sequence never ends"
    return steps


def step_of(throttle, n_decode, seconds, depth=0):
    """A step of decoding sequences and one long prompt, which takes seconds(n): the n that it had."""
    throttle.begin(n_decode)
    n = throttle.fit(depth)
    if n:
        throttle.take(n, depth)
        throttle.observe(n, seconds(n))
    else:
        throttle.decodes.append((n_decode, seconds(0)))
    return n


def at_most(n):
    """A throttle that lets n prompt tokens into each step, since steps take no time."""
    throttle = PrefillThrottle(n)
    while step_of(throttle, 1, lambda _: 0.0) < n:
        pass
    return throttle
