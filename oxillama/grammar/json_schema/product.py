"""Products of independent forks: too many combinations are found by their number, without making them.

The forks of a branch are independent if no way of one changes another: its combinations are all tuples of ways then.
Each way is settled once by itself, and what all ways of the other forks could add together bounds what a combination
adds: literals and known properties only grow, so a check with the same answer under that bound has it in each.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from oxillama.grammar.json_schema.branch import Branch, Fork, KnownProperties, PropertyFacts, Way
from oxillama.grammar.json_schema.literals import OBJECT, Key, Literal

__all__ = ["Examined", "first_too_many"]

# Forks that are compared with each other; more have too many combinations at once, which the search finds.
MAX_FORKS = 64

# A fork that was held against a branch, the ways that were left, and what the branch said of properties then.
Examined = tuple[Fork, list[Way], tuple[PropertyFacts, ...]]
Settle = Callable[[Branch, list[Literal]], list[Examined]]


@dataclass(frozen=True, slots=True)
class _Added:
    """Additions of a way to a branch, and the forks that were looked at meanwhile."""

    seen: set[Key]
    facts: tuple[PropertyFacts, ...]
    examined: list[Examined]


def first_too_many(branch: Branch, n_known: int, limit: int, settle: Settle) -> tuple[Fork, int] | None:
    """The fork at which depth-first search from a settled branch exceeds the limit, and the number of literals that are
    added until then, or more; None if the search ends before, or the forks aren't known to be independent.

    n_known: branches that are done or open elsewhere. settle: adds literals to a branch.
    """
    if len(branch.forks) > MAX_FORKS or prod(fork.n for fork in branch.forks) + n_known <= limit:
        return None
    added = []
    for fork in branch.forks:
        ways = _added(branch, fork, settle)
        if ways is None:
            return None
        added.append(ways)
    # How many forks add each literal.
    n_adding = Counter(key for ways in added for key in set().union(*[way.seen for way in ways]))
    known = [KnownProperties(tuple(one for way in ways for one in way.facts)) for ways in added]
    before, behind = _running(known), _running(known[::-1])[::-1]
    for i, fork in enumerate(branch.forks):
        held = branch.held.both(before[i]).both(behind[i])
        if not _is_independent(branch, fork, added[i], n_adding, held):
            return None
    n_most = max(len(way.seen) for ways in added for way in ways)
    return _searched(sorted(branch.forks, key=lambda fork: fork.n), n_known, limit, n_most)


def _running(known: list[KnownProperties]) -> list[KnownProperties]:
    """Conjunctions of all before each of them."""
    found = [KnownProperties(())]
    for one in known[:-1]:
        found.append(found[-1].both(one))
    return found


def _added(branch: Branch, fork: Fork, settle: Settle) -> list[_Added] | None:
    """Additions of each way of a fork; None if one of them changes the types or other forks."""
    rest = [other for other in branch.forks if other is not fork]
    open_elsewhere = set(map(id, rest))
    found = []
    for way in fork.ways:
        after = branch.copy()
        after.forks = rest
        examined = settle(after, way.literals[:])
        if after.types != branch.types or len(after.forks) != len(rest):
            return None
        if any(one is not other for one, other in zip(after.forks, rest, strict=True)):
            return None
        examined = [one for one in examined if id(one[0]) not in open_elsewhere]
        found.append(_Added(after.seen - branch.seen, after.facts[len(branch.facts) :], examined))
    return found


def _is_independent(
    branch: Branch, fork: Fork, own: list[_Added], n_adding: Counter[Key], held: KnownProperties
) -> bool:
    """Whether the checks of a fork, and of those that its ways lead to, have the same answers whatever the ways of the
    other forks add. n_adding: by literal the number of forks that add it; held: what the branch and the others say."""
    mine = set().union(*[way.seen for way in own])
    added = {key for way in fork.ways for key in way.keys if n_adding[key] > (key in mine)}
    if not _is_same(branch, fork, fork.ways, added, branch.seen, held):
        return False
    for way in own:
        known = branch.seen | way.seen
        for examined, left, then in way.examined:
            added = {key for one in examined.ways for key in one.keys if n_adding[key] > (key in mine)}
            so_far = held.both(KnownProperties(then[len(branch.facts) :]))
            if not _is_same(branch, examined, left, added, known, so_far):
                return False
    return True


def _is_same(
    branch: Branch, fork: Fork, left: list[Way], added: set[Key], known: set[Key], held: KnownProperties
) -> bool:
    """Whether a check that left some ways of a fork leaves the same with more literals, and these properties."""
    for way in fork.ways:
        if not way.keys.isdisjoint(added) and all(key in known or key in added for key in way.keys):
            return False
        if branch.types == OBJECT and way.absent is not None and held.lacks(way.absent):
            return False
    return not any(held.contradicts(way) or any(map(held.excludes, way.claims)) for way in left)


def _searched(forks: list[Fork], n_known: int, limit: int, n_most: int) -> tuple[Fork, int]:
    """Depth-first search by numbers alone. n_most: literals that a way adds at most."""
    todo = [0]  # the depths of open branches
    n_done = n_literals = 0
    while True:
        depth = todo.pop()
        n_literals += n_most
        if depth == len(forks):
            n_done += 1
            continue
        fork = forks[depth]
        if n_known + n_done + len(todo) + fork.n > limit:
            return fork, n_literals
        todo += [depth + 1] * fork.n
