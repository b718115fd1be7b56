"""Rejection sampling gone wrong in several ways, and the exact probabilities that show it."""

from fractions import Fraction as F

import numpy as np

from oxillama.sampling import Distribution, rejection
from oxillama.sampling.rejection import chosen, keeping, residual


def dist(weights):
    """Of weights by token; those of zero are left out."""
    ids = np.array([i for i, w in enumerate(weights) if w], np.int32)
    values = np.array([w for w in weights if w], np.float64)
    return Distribution(ids, values / values.sum())


class Tables:
    """Weights of what comes after each token, of the model and of a draft, in so many parts."""

    def __init__(self, parts, model, draft):
        self.parts, self.model, self.draft = parts, model, draft

    def of(self, table, text):
        return dist(table[text[-1] if text else None])

    def true_law(self, n):
        """Of texts of n tokens of the model alone."""
        law = {(): F(1)}
        for _ in range(n):
            law = {
                (*text, i): mass * F(w, self.parts)
                for text, mass in law.items()
                for i, w in enumerate(self.model[text[-1] if text else None])
                if w
            }
        return law

    def a_round(self, script, n_guesses):
        """Up to `n_guesses` tokens by the draft, and what the model makes of them, then as many as are missing."""
        guesses, probs = [], []
        for _ in range(n_guesses):
            probs.append(self.of(self.draft, guesses))
            guesses.append(probs[-1].draw(script.uniform()))
        text = []
        for i in range(n_guesses + 1):
            guess, q = (guesses[i], probs[i]) if i < n_guesses else (None, None)
            text.append(rejection.chosen(self.of(self.model, text), guess, q, script.uniform))
            if text[-1] != guess:
                break
        while len(text) < n_guesses + 1:
            text.append(self.of(self.model, text).draw(script.uniform()))
        return tuple(text)


class Stale:
    """Takes the distribution of the place before."""

    def __init__(self):
        self.before = None

    def __call__(self, p, guess, q, uniform):
        before, self.before = self.before, q
        return chosen(p, guess, before if before and q else q, uniform)


class FromTheDraft(Stale):
    """Draws the token after the last draft token as the draft drew that."""

    def __call__(self, p, guess, q, uniform):
        before, self.before = self.before, q
        return before.draw(uniform()) if before and q is None else chosen(p, guess, q, uniform)


def same_number(p, guess, q, uniform):
    """Uses the number that said no once more."""
    u = uniform()
    if guess is None:
        return p.draw(u)
    return guess if u < keeping(p, q, guess) else residual(p, q).draw(u)


def sampled_first(p, guess, q, uniform):
    """Accepts a draft token that a sample would have been too, as if it were not random."""
    token = p.draw(uniform())
    return token if guess is None or token == guess else residual(p, q).draw(uniform())


MUTANTS = {
    "keeps everything": ("keeping", lambda p, q, x: 1.0),
    "keeps nothing": ("keeping", lambda p, q, x: 0.0),
    "the ratio upside down": ("keeping", lambda p, q, x: min(1.0, q.probability(x) / (p.probability(x) or 1e-9))),
    "keeps by p alone": ("keeping", lambda p, q, x: p.probability(x)),
    "no residual": ("residual", lambda p, q: p),
    "the residual of the draft": ("residual", lambda p, q: residual(q, p)),
    "the draft in place of the residual": ("residual", lambda p, q: q),
    "a stale distribution": ("chosen", Stale()),
    "one number for two": ("chosen", same_number),
    "the last token from the draft": ("chosen", FromTheDraft()),
    "sampled first": ("chosen", sampled_first),
}


def ids(*values):
    return np.array(values, np.int32)
