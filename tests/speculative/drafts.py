"""Drafts for tests: with known answers, and with any rate of errors."""

from oxillama.drafts.draft import Proposal
from tests.fakes import N_VOCAB


class Oracle:
    """Knows the whole texts, and errs at every place p with (p + salt) % every == 0; never with 0.

    `stops`: it has nothing to say at each place p with p % stops == 0; never with 0.
    """

    def __init__(self, texts, every=0, salt=0, n_vocab=N_VOCAB, stops=0):
        self.texts = [list(text) for text in texts]
        self.every, self.salt, self.n_vocab, self.stops = every, salt, n_vocab, stops
        self.bound, self.forgotten, self.calls = [], [], []

    def bind(self, target):
        self.bound.append(target)

    def guess(self, place, token):
        wrong = self.every and (place + self.salt) % self.every == 0
        return (token + 1) % self.n_vocab if wrong else token

    def propose(self, tasks):
        self.calls.append([(task.key, len(task.tokens), task.n) for task in tasks])
        return [Proposal(self.continued(task)) for task in tasks]

    def continued(self, task):
        n = len(task.tokens)
        if self.stops and n % self.stops == 0:
            return []
        for text in self.texts:
            if text[:n] == task.tokens:
                return [self.guess(n + i, token) for i, token in enumerate(text[n : n + task.n])]
        return []

    def forget(self, key):
        self.forgotten.append(key)
