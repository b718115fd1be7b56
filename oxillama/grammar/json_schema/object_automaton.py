"""Object automaton: objects with mixed properties of several schemas, limits on their number, or required others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import ge

from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal, refusal
from oxillama.grammar.json_schema.strings import Strings

__all__ = ["Pair", "Plan", "Wanted", "graph_expr", "is_graph"]

MAX_NODES = 400
MAX_EDGES = 6000
Way = tuple[int, int]  # the wanted properties that it is, as bits; the expression


@dataclass(slots=True)
class Wanted:
    """Some required property. keys: its name is in one of these sets; value: the demand on its value, None for any."""

    literal: Literal
    keys: list[Strings]
    value: Literal | None

    def __contains__(self, name: str) -> bool:
        return any(name in keys for keys in self.keys)


@dataclass(slots=True)
class Pair:
    """A named property: its expressions."""

    ways: list[Way]
    required: bool

    @property
    def expr(self) -> int:
        return self.ways[0][1]


@dataclass(slots=True)
class Plan:
    """All demands on an object's properties. groups: lists of properties, each in its order; others: properties that
    are not named."""

    groups: list[list[Pair]] = field(default_factory=list)
    others: list[Way] = field(default_factory=list)
    least: int = 0
    most: int | None = None
    wanted: list[Wanted] = field(default_factory=list)

    @property
    def pairs(self) -> list[Pair]:
        return [pair for group in self.groups for pair in group]

    @property
    def other(self) -> int | None:
        return self.others[0][1] if self.others else None


def is_graph(plan: Plan) -> bool:
    if plan.least or plan.most is not None or plan.wanted:
        return True
    size = 1
    for group in plan.groups:
        size *= len(group) + 1
    return len(plan.groups) > 1 and size <= MAX_NODES and size * len(plan.pairs) <= MAX_EDGES


# Next property of each group; number of properties so far that are not required; whether there is any; for each wanted
# property whether it is present: 2 for good, 1 until a property comes that may have the same name.
State = tuple[tuple[int, ...], int, bool, tuple[int, ...]]


def graph_expr(texts: JsonText, plan: Plan, literals: Sequence[Literal]) -> int:
    """The expression of an object's properties. Each state has two nodes: before a property, and behind it, before a
    comma or the end."""
    rules = texts.rules
    n_required = sum(pair.required for pair in plan.pairs)
    top = max(plan.least - n_required, 0) if plan.most is None else plan.most - n_required
    if top < 0 or (plan.most is not None and plan.most < plan.least):
        return rules.alt(())
    _call_all(texts, plan)
    start: State = ((0,) * len(plan.groups), 0, False, (0,) * len(plan.wanted))
    ends = tuple(map(_end_of, plan.groups))
    reach = [_reach(group) for group in plan.groups]
    known, todo = {start: 0}, [start]
    edges: list[tuple[int, int, int]] = []
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


def _call_all(texts: JsonText, plan: Plan) -> None:
    """Makes rules of the named properties, which may stand in many places."""
    for pair in plan.pairs:
        for i, (bits, expr) in enumerate(pair.ways):
            rule = texts.rules.new_rule("")
            texts.rules.define(rule, expr)
            pair.ways[i] = bits, texts.rules.rule(rule)


def _end_of(group: list[Pair]) -> int:
    """The index behind the last required property: from there on, an object may end."""
    return max((i for i, pair in enumerate(group, 1) if pair.required), default=0)


def _reach(group: list[Pair]) -> list[list[tuple[int, Pair]]]:
    """By the next property of a group: what may come, to the first that is required, with the next one behind it."""
    found: list[list[tuple[int, Pair]]] = [[]]
    for at in range(len(group) - 1, -1, -1):
        own = (at + 1, group[at])
        found.append([own] if group[at].required else [own, *found[-1]])
    return found[::-1]


def _moves(plan: Plan, reach: list[list[list[tuple[int, Pair]]]], state: State, top: int) -> list[tuple[int, State]]:
    """The properties that may come next, and the states behind them. reach: of each group, by `_reach`."""
    at, count, _, seen = state
    full = plan.most is not None and count >= top
    following = min(count + 1, top)
    found: list[tuple[int, State]] = []
    for bits, expr in () if full else plan.others:
        found.append((expr, (at, following, True, _after_other(plan, seen, bits))))
    for g, of_group in enumerate(reach):
        before, behind = at[:g], at[g + 1 :]
        for k, pair in of_group[at[g]]:
            if pair.required or not full:
                here, n = (*before, k, *behind), count if pair.required else following
                for bits, expr in pair.ways:
                    now = tuple(2 if bits >> w & 1 else s for w, s in enumerate(seen)) if bits else seen
                    found.append((expr, (here, n, True, now)))
    return found


def _after_other(plan: Plan, seen: tuple[int, ...], bits: int) -> tuple[int, ...]:
    """State behind a property that is not named. Another may have the same name; JSON readers keep the last."""
    out = []
    for w, (wanted, before) in enumerate(zip(plan.wanted, seen, strict=True)):
        if bits >> w & 1:
            out.append(2 if wanted.value is None else max(before, 1))
        else:
            out.append(0 if before == 1 else before)
    return tuple(out)
