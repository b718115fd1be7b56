"""First tokens of an owner beside a flood of another, on a clock of steps whose times follow from what is in them."""

import random
from dataclasses import dataclass
from statistics import median

import pytest

from oxillama.scheduling.prefill_throttle import PrefillThrottle
from tests.scheduling.stepping import compute, make, sequence

DEPTH = 1400  # of the attention of the clock's models
# Lengths of prompts and outputs, and how many of the requests are there at a time.
FLOODS = {
    "long answers": ((5, 20), (200, 600), 64),
    "conversations": ((400, 430), (100, 150), 64),
    "long prompts": ((6000, 6900), (2, 3), 24),
    "texts to embed": ((60, 90), (1, 2), 500),
    "of all lengths": ((3, 400), (1, 150), 100),
    "one answer": ((20, 30), (800, 900), 1),
}


@dataclass
class Clock:
    """Milliseconds of a step, of a token of a prompt in it, and of a decoding sequence."""

    step: float
    token: float
    row: float

    def seconds(self, plan):
        took = self.step
        for s, n in plan:
            own = self.token if s.n_computed + n <= s.n_prompt else self.row
            took += n * own * (1 + (s.n_computed + n / 2) / DEPTH)
        return took / 1000


CLOCKS = {
    "135M": Clock(8, 0.75, 1.5),
    "135M, deep sequences": Clock(8, 0.75, 2.5),
    "1B": Clock(44, 7.5, 8.5),
    "tiny": Clock(0.4, 0.03, 0.05),
    "weights from a disk": Clock(900, 8, 9),
}


class Served:
    """A scheduler with its throttle, driven as the engine does."""

    def __init__(self, clock, flood=None, seed=0):
        self.scheduler, self.throttle, self.clock = make(n_blocks=40_000), PrefillThrottle(512), clock
        self.scheduler.debug = False
        self.flood, self.draw, self.outputs = flood, random.Random(seed), {}
        self.now, self.longest = 0.0, 0.0

    def add(self, owner, n_prompt, n_output):
        made = sequence(n_prompt, n_output, first=10_000 * len(self.outputs))
        made.owner = owner
        self.outputs[made.id] = n_output
        return self.scheduler.add_request(made)

    def step(self):
        """Seconds of a step, in which new requests of the flood come for those that ended."""
        if self.flood:
            prompts, outputs, n = FLOODS[self.flood]
            while self.scheduler.owners.get("flood", 0) < n:
                self.add("flood", self.draw.randint(*prompts), self.draw.randint(*outputs))
        plan = self.scheduler.step(self.throttle)
        seconds, beside = self.clock.seconds(plan), bool(self.throttle.n_taken)
        n_prompt = sum(n for s, n in plan if s.n_computed + n <= s.n_prompt)
        compute(self.scheduler, plan, self.outputs)
        if beside:
            self.throttle.observe(n_prompt, seconds)
        elif plan and not n_prompt:
            self.throttle.decodes.append((len(plan), seconds))
        self.now += seconds
        return seconds

    def first_token(self, n_prompt):
        """Seconds until a request of another owner has its first token."""
        began, wanted = self.now, self.add("other", n_prompt, 5)
        while len(wanted.tokens) == wanted.n_prompt:
            self.step()
        took = self.now - began
        while not wanted.finished:
            self.step()
        return took


@pytest.mark.parametrize("n_prompt", [60, 306, 1500])
@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_first_token_takes_twice_its_time_and_a_step(clock, flood, n_prompt):
    """Of a prompt of many steps, what each step takes besides its tokens comes on top: a twelfth."""
    alone = Served(CLOCKS[clock]).first_token(n_prompt)
    served = Served(CLOCKS[clock], flood)
    for _ in range(5):  # before there was a flood
        served.flood = None
        served.first_token(n_prompt)
    served.flood = flood
    for _ in range(80 if flood == "long prompts" else 250):
        served.step()
    served.first_token(n_prompt)  # with which it is learnt what prompts cost beside others
    took, steps = [], []
    for _ in range(8):
        steps += [served.step() for _ in range(served.draw.randint(1, 8))]
        under_way = served.step()  # in which the request comes
        steps.append(under_way)
        took.append(served.draw.random() * under_way + served.first_token(n_prompt))
    most = 2.0 if n_prompt <= served.scheduler.token_budget else 2.17
    assert max(took) <= most * alone + max(steps)
    assert median(took) <= 2 * alone + max(steps)
