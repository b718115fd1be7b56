"""Exact distribution of the results of random code: every number that it could draw is tried."""

from collections import Counter
from fractions import Fraction


class Script:
    """A generator whose numbers are the middles of `parts` equal parts of [0, 1), given by their places.

    state: how many were taken; to set it back is to rewind. asked: the highest it has been.
    """

    def __init__(self, places, parts):
        self.places, self.parts = places, parts
        self.state = self.asked = 0

    def uniform(self):
        place = self.places[self.state] if self.state < len(self.places) else 0
        self.state += 1
        self.asked = max(self.asked, self.state)
        return (place + 0.5) / self.parts


def exact_law(run, parts):
    """{outcome: probability} of run(script), as Fractions.

    It is exact where each bound that a number is compared with is a multiple of 1 / parts.
    """
    law, todo = Counter(), [()]
    while todo:
        places = todo.pop()
        script = Script(places, parts)
        outcome = run(script)
        if script.asked <= len(places):
            law[outcome] += Fraction(1, parts ** len(places))
        else:
            todo += [(*places, place) for place in range(parts)]
    return law
