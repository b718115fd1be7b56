"""Prompts of a batch, good and bad, and what each gives alone."""

import threading

import oxillama as ox
from oxillama.errors import ConfigError, TokenizerError
from tests.fakes import drawn
from tests.plain_loop import plain_tokens

SEED = drawn(seed=1)
PROMPTS = [[3 + i % 7, 4 + i % 3] * (1 + i % 4) for i in range(50)]
BAD = [[3], [99], "", [4], [[3]], 7, [3] * 80, [5]]
KINDS = {1: TokenizerError, 2: ConfigError, 4: ConfigError, 5: ConfigError, 6: ox.ContextOverflowError}


def alone(ids, n=12):
    return plain_tokens(ids, SEED, n)[0]


class Source:
    """A generator's prompts, counted as they are taken."""

    def __init__(self, prompts):
        self.prompts, self.taken, self.threads = iter(prompts), 0, set()

    def __iter__(self):
        return self

    def __next__(self):
        prompt = next(self.prompts)
        self.taken += 1
        self.threads.add(threading.get_ident())
        return prompt
