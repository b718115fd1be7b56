"""Objects: properties in the order of the schema, others in between, counted where there are limits.

The order is that of each `properties`: where a schema is put together from several, these may mix, unless they are so
many that those of the first come first. Properties that are only required, and those that are not named, may stand
anywhere. A key may come twice only if it is not named; of such, a reader of JSON keeps the last, and each is valid by
itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from oxillama.errors import GrammarError
from oxillama.sampling.grammar.dfa import Part, matches
from oxillama.sampling.grammar.json_schema.checks import counted, mapped, names
from oxillama.sampling.grammar.json_schema.literals import Literal, refusal
from oxillama.sampling.grammar.json_schema.strings import Strings, pattern_parts, string_expr
from oxillama.sampling.grammar.json_schema.texts import Texts

__all__ = ["object_expr"]

Value = Callable[[Sequence[Literal]], int]
Names = Callable[[Sequence[Literal]], list[Strings]]
MAX_PATTERNS = 4
MAX_PERMUTED = 6
MAX_NODES = 400
MAX_EDGES = 6000
MANY = 400  # optional properties in a row, from which on their order is left open


@dataclass(slots=True)
class _Speaker:
    """A schema that speaks of objects."""

    literal: Literal
    properties: dict[str, Literal]
    patterns: list[tuple[str, tuple[Part, ...], Literal]]
    additional: Literal | None

    def demands(self, name: str) -> list[Literal]:
        """What it asks of the value of a property."""
        found = [self.properties[name]] if name in self.properties else []
        found += [lit for _, parts, lit in self.patterns if all(matches(part, name) for part in parts)]
        return found or ([] if self.additional is None else [self.additional])


@dataclass(slots=True)
class _Plan:
    """Everything that is asked of an object's properties, as expressions. groups: lists of (expression, whether it is
    required), each in its order."""

    groups: list[list[tuple[int, bool]]] = field(default_factory=list)
    other: int | None = None  # any property that is not named
    least: int = 0
    most: int | None = None

    @property
    def pairs(self) -> list[tuple[int, bool]]:
        return [pair for group in self.groups for pair in group]


def object_expr(texts: Texts, literals: list[Literal], any_order: bool, value: Value, key_sets: Names) -> int:
    """The expression of objects that meet all schemas. value: gives the expression of a demand on a property's value;
    key_sets: the sets of strings that a demand leaves. Raises GrammarError for what can't be expressed."""
    rules = texts.rules
    plan = _plan(texts, literals, value, key_sets)
    if plan is None:
        return rules.alt(())
    _simplify(plan, literals)
    if any_order and len(plan.pairs) <= MAX_PERMUTED and plan.other is None:
        plan.groups = [[pair] for pair in plan.pairs]
    if _is_graph(plan):
        body = _graph(texts, plan, literals)
    else:
        body = _unordered(texts, plan, literals) if len(plan.pairs) > MANY else _ordered(texts, plan)
    return rules.seq((texts.open_object, body, texts.close_object))


# ---- what is asked


def _speaker(literal: Literal) -> _Speaker:
    schema = literal.schema
    properties, patterns, additional = {}, [], None
    if "properties" in schema:
        properties = {n: literal.sub(s, "properties", n) for n, s in mapped(literal, "properties").items()}
    for pattern, sub in mapped(literal, "patternProperties").items() if "patternProperties" in schema else ():
        try:
            parts = pattern_parts(pattern)
        except GrammarError as error:
            raise refusal(literal.path, "patternProperties", str(error)) from None
        patterns.append((pattern, parts, literal.sub(sub, "patternProperties", pattern)))
    if schema.get("additionalProperties", True) is not True:
        additional = literal.sub(schema["additionalProperties"], "additionalProperties")
    return _Speaker(literal, properties, patterns, additional)


def _plan(texts: Texts, literals: list[Literal], value: Value, key_sets: Names) -> _Plan | None:
    speakers = [_speaker(literal) for literal in literals]
    plan = _Plan()
    required: dict[str, None] = {}
    for literal in literals:
        if "required" in literal.schema:
            required.update(dict.fromkeys(names(literal, "required")))
        if "minProperties" in literal.schema:
            plan.least = max(plan.least, counted(literal, "minProperties"))
        if "maxProperties" in literal.schema:
            count = counted(literal, "maxProperties")
            plan.most = count if plan.most is None else min(plan.most, count)
    of_names = [
        lit.sub(lit.schema["propertyNames"], "propertyNames") for lit in literals if "propertyNames" in lit.schema
    ]
    sets = key_sets(of_names) if of_names else [Strings()]
    named: set[str] = set()
    for names_of_group in [*(list(speaker.properties) for speaker in speakers), *([name] for name in required)]:
        group = []
        for name in names_of_group:
            if name in named:
                continue
            named.add(name)
            demands = [demand for speaker in speakers for demand in speaker.demands(name)]
            if any(name in s for s in sets) and not any(demand.schema is False for demand in demands):
                group.append((texts.rules.seq((texts.written(name), texts.colon, value(demands))), name in required))
            elif name in required:
                return None
        if group:
            plan.groups.append(group)
    plan.other = _others(texts, speakers, frozenset(named), sets, value)
    return plan


def _others(
    texts: Texts, speakers: list[_Speaker], named: frozenset[str], sets: list[Strings], value: Value
) -> int | None:
    """A property that is not named: for each choice of patterns that its name meets, what these ask of its value."""
    rules = texts.rules
    patterns = {pattern: parts for speaker in speakers for pattern, parts, _ in speaker.patterns}
    if len(patterns) > MAX_PATTERNS:
        raise refusal(speakers[0].literal.path, "patternProperties", f"there are more than {MAX_PATTERNS} of them")
    pairs = []
    for choice in product((False, True), repeat=len(patterns)):
        met = {pattern for pattern, yes in zip(patterns, choice, strict=True) if yes}
        demands = [demand for speaker in speakers for demand in _of_choice(speaker, met)]
        if any(demand.schema is False for demand in demands):
            continue
        keys = []
        for s in sets:
            for pattern, parts in patterns.items():
                if pattern not in met and len(parts) > 1:
                    path = speakers[0].literal.path
                    raise refusal(path, "patternProperties", "a pattern that looks ahead can't be told from the others")
                s = s.having(*(Part(part.node, part.negated != (pattern not in met)) for part in parts))
            keys.append(string_expr(texts, s.without(frozenset(n for n in named if n in s))))
        pairs.append(rules.seq((rules.alt(keys), texts.colon, value(demands))))
    if not pairs:
        return None
    rule = rules.new_rule("other")
    rules.define(rule, rules.alt(pairs))
    return rules.rule(rule)


def _of_choice(speaker: _Speaker, met: set[str]) -> list[Literal]:
    found = [literal for pattern, _, literal in speaker.patterns if pattern in met]
    return found or ([] if speaker.additional is None else [speaker.additional])


def _simplify(plan: _Plan, literals: list[Literal]) -> None:
    """Drops limits that say nothing, and refuses those that would need keys to be told apart."""
    n_required = sum(required for _, required in plan.pairs)
    if plan.other is None and plan.most is not None and plan.most >= len(plan.pairs):
        plan.most = None
    if plan.least <= n_required:
        plan.least = 0
    elif plan.other is not None and plan.least > n_required + 1:
        path = next(lit.path for lit in literals if "minProperties" in lit.schema)
        raise refusal(path, "minProperties", "two properties that the schema doesn't name might have one name")


# ---- in order


def _is_graph(plan: _Plan) -> bool:
    if plan.least or plan.most is not None:
        return True
    size = 1
    for group in plan.groups:
        size *= len(group) + 1
    return len(plan.groups) > 1 and size <= MAX_NODES and size * len(plan.pairs) <= MAX_EDGES


def _unordered(texts: Texts, plan: _Plan, literals: list[Literal]) -> int:
    """So many that no order is kept, if none is required: then repeats do no harm either."""
    rules = texts.rules
    run = longest = 0
    for _, required in plan.pairs:
        run = 0 if required else run + 1
        longest = max(longest, run)
    if longest <= MANY:
        return _ordered(texts, plan)
    if any(required for _, required in plan.pairs):
        raise refusal(literals[0].path, "properties", f"more than {MANY} in a row are optional, and others required")
    pair = rules.alt([*(pair for pair, _ in plan.pairs), *(() if plan.other is None else (plan.other,))])
    rule = rules.new_rule("property")
    rules.define(rule, pair)
    pair = rules.rule(rule)
    return texts.maybe(rules.seq((pair, rules.repeat(rules.seq((texts.comma, pair)), 0))))


def _ordered(texts: Texts, plan: _Plan) -> int:
    """From the last property back. rest: what may follow a property before this one; chain: this one or a later one,
    None if there is none."""
    rules = texts.rules
    pairs = plan.pairs
    between = None if plan.other is None else rules.repeat(rules.seq((texts.comma, plan.other)), 0)
    chain: int | None = None
    must = False  # one of the chain is required

    def rest() -> int:
        items = [] if between is None else [between]
        if chain is not None:
            following = rules.seq((texts.comma, chain))
            items.append(following if must else texts.maybe(following))
        return rules.seq(items)

    for i in range(len(pairs) - 1, -1, -1):
        pair, required = pairs[i]
        here = rules.seq((pair, rest()))
        chain = here if required or chain is None else rules.alt((here, chain))
        must = must or required
        if i and not pairs[i - 1][1]:  # it is named twice: behind the one before, and in its place
            rule = rules.new_rule("properties")
            rules.define(rule, chain)
            chain = rules.rule(rule)
    first = [] if chain is None else [chain]
    if plan.other is not None:
        first.append(rules.seq((plan.other, rest())))
    return rules.alt(first) if must else texts.maybe(rules.alt(first))


State = tuple[tuple[int, ...], int, bool]  # next of each group, how many so far that are not required, whether any


def _graph(texts: Texts, plan: _Plan, literals: list[Literal]) -> int:
    """Groups that mix, and limits on the number of properties. There are two nodes for each state: where a property
    may come, and behind it, where a comma or the end may."""
    rules = texts.rules
    n_required = sum(required for _, required in plan.pairs)
    top = max(plan.least - n_required, 0) if plan.most is None else plan.most - n_required
    if top < 0 or (plan.most is not None and plan.most < plan.least):
        return rules.alt(())
    groups = [[(_called(texts, pair), required) for pair, required in group] for group in plan.groups]
    start: State = ((0,) * len(groups), 0, False)
    known, todo = {start: 0}, [start]
    edges: list[tuple[int, int, int]] = []
    finals = []
    for state in todo:
        if _may_end(groups, state) and state[1] >= plan.least - n_required:
            finals.append(known[state] + state[2])
        for expr, following in _moves(groups, plan, state, top):
            if following not in known:
                known[following] = 2 * len(known)
                todo.append(following)
                edges.append((known[following] + 1, texts.comma, known[following]))
            edges.append((known[state], expr, known[following] + 1))
        if len(edges) > 4 * MAX_EDGES:
            raise refusal(literals[0].path, "maxProperties", "it has too many states together with the properties")
    return rules.graph(2 * len(known), edges, finals)


def _called(texts: Texts, expr: int) -> int:
    rule = texts.rules.new_rule("")
    texts.rules.define(rule, expr)
    return texts.rules.rule(rule)


def _may_end(groups: list[list[tuple[int, bool]]], state: State) -> bool:
    return not any(required for group, at in zip(groups, state[0], strict=True) for _, required in group[at:])


def _moves(groups: list[list[tuple[int, bool]]], plan: _Plan, state: State, top: int) -> list[tuple[int, State]]:
    """What may come next, and the states behind it."""
    at, count, _ = state
    full = plan.most is not None and count >= top
    following = min(count + 1, top)
    found: list[tuple[int, State]] = []
    if plan.other is not None and not full:
        found.append((plan.other, (at, following, True)))
    for g, group in enumerate(groups):
        for k in range(at[g], len(group)):
            expr, required = group[k]
            if required or not full:
                here = (*at[:g], k + 1, *at[g + 1 :])
                found.append((expr, (here, count if required else following, True)))
            if required:
                break
    return found
