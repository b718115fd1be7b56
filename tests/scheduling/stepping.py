"""A scheduler whose plans are carried out without an engine."""

from oxillama.scheduling.pools import SequencePool
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
