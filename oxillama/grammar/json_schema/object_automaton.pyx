# cython: boundscheck=True, wraparound=True
"""Object automaton: objects with mixed properties of several schemas, limits on their number, or required others."""

cimport cython
from libc.stdint cimport int32_t

from operator import ge

from oxillama.grammar.json_schema.literals import refusal

MAX_NODES = 400
MAX_EDGES = 6000


class Wanted:
    """Some required property. keys: its name is in one of these sets; value: the demand on its value, None for any."""

    __slots__ = ("keys", "literal", "value")

    def __init__(self, literal, keys, value):
        self.literal, self.keys, self.value = literal, keys, value

    def __contains__(self, name):
        for keys in self.keys:
            if name in keys:
                return True
        return False


@cython.final
cdef class Pair:
    """A named property, with one expression, or with ways: each the wanted properties that it is, as bits, and the
    expression."""

    def __init__(self, int32_t one, bint required, list ways=None):
        self.one, self.required, self.ways = one, required, ways

    cdef int32_t expr(self):
        return self.one if self.ways is None else self.ways[0][1]


@cython.final
cdef class Plan:
    """All demands on an object's properties. groups: lists of properties, each in its order; others: ways of properties
    that are not named; least, most: how many there are; wanted: those that are required without a name."""

    def __init__(self, list wanted not None):
        self.groups, self.others, self.wanted = [], [], wanted
        self.least, self.most = 0, None

    cdef list pairs(self):
        return self.groups[0] if len(self.groups) == 1 else [pair for group in self.groups for pair in group]


def is_graph(Plan plan not None):
    if plan.least or plan.most is not None or plan.wanted:
        return True
    size = 1
    for group in plan.groups:
        size *= len(group) + 1
        if size > MAX_NODES:
            return False
    return len(plan.groups) > 1 and size <= MAX_NODES and size * len(plan.pairs()) <= MAX_EDGES


def graph_expr(texts, Plan plan not None, literals):
    """The expression of an object's properties. Each state has two nodes: before a property, and behind it, before a
    comma or the end.

    A state is the next property of each group; the number of properties so far that are not required; whether there is
    any; and for each wanted property whether it is present: 2 for good, 1 until a property comes that may have the same
    name.
    """
    rules = texts.rules
    n_required = sum([pair.required for pair in plan.pairs()])
    top = max(plan.least - n_required, 0) if plan.most is None else plan.most - n_required
    if top < 0 or (plan.most is not None and plan.most < plan.least):
        return rules.alt(())
    call_all(texts, plan)
    start = ((0,) * len(plan.groups), 0, False, (0,) * len(plan.wanted))
    ends = tuple(map(_end_of, plan.groups))
    reach = [_reach(group) for group in plan.groups]
    known, todo = {start: 0}, [start]
    edges = []
    finals = []
    for state in todo:
        here = known[state]
        if state[1] >= plan.least - n_required and all(state[3]) and all(map(ge, state[0], ends)):
            finals.append(here + state[2])
        for expr, following in _moves(plan, reach, state, top):
            node = known.get(following)
            if node is None:
                known[following] = node = 2 * len(known)
                todo.append(following)
                edges.append((node + 1, texts.comma, node))
            edges.append((here, expr, node + 1))
        if len(edges) > 4 * MAX_EDGES:
            keyword = "additionalProperties" if plan.wanted else "maxProperties"
            raise refusal(literals[0].path, keyword, "it has too many states together with the properties")
    return rules.graph(2 * len(known), edges, finals)


cdef int call_all(texts, Plan plan) except -1:
    """Makes rules of the named properties, which may stand in many places."""
    cdef Pair pair
    for pair in plan.pairs():
        ways = [(0, pair.one)] if pair.ways is None else pair.ways
        pair.ways = []
        for bits, expr in ways:
            rule = texts.rules.new_rule("")
            texts.rules.define(rule, expr)
            pair.ways.append((bits, texts.rules.rule(rule)))
    return 0


def _end_of(group):
    """The index behind the last required property: from there on, an object may end."""
    return max([i for i, pair in enumerate(group, 1) if pair.required], default=0)


def _reach(group):
    """Table by the next property of a group: what may come, to the first that is required, with the next one behind
    it."""
    found = [[]]
    for at in range(len(group) - 1, -1, -1):
        own = (at + 1, group[at])
        found.append([own] if group[at].required else [own, *found[len(found) - 1]])
    return found[::-1]


def _moves(Plan plan, reach, state, top):
    """The properties that may come next, and the states behind them. reach: of each group, by `_reach`."""
    at, count, _, seen = state
    full = plan.most is not None and count >= top
    following = min(count + 1, top)
    found = []
    for bits, expr in () if full else plan.others:
        found.append((expr, (at, following, True, _after_other(plan, seen, bits))))
    for g, of_group in enumerate(reach):
        before, behind = at[:g], at[g + 1 :]
        for k, pair in of_group[at[g]]:
            if pair.required or not full:
                here, n = (*before, k, *behind), count if pair.required else following
                for bits, expr in pair.ways:
                    now = tuple([2 if bits >> w & 1 else s for w, s in enumerate(seen)]) if bits else seen
                    found.append((expr, (here, n, True, now)))
    return found


def _after_other(Plan plan, seen, bits):
    """State behind a property that is not named. Another may have the same name; JSON readers keep the last."""
    out = []
    for w, (wanted, before) in enumerate(zip(plan.wanted, seen, strict=True)):
        if bits >> w & 1:
            out.append(2 if wanted.value is None else max(before, 1))
        else:
            out.append(0 if before == 1 else before)
    return tuple(out)
