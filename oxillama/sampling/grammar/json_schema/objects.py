"""Objects: properties in the order of the schema, others in between, counted where there are limits.

Properties that are not named in the schema may stand anywhere. Where a schema is put together from several, those of
the first come first. A key may come twice only if it is not named; of such, a reader of JSON keeps the last, and each
is valid by itself.
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
MAX_PATTERNS = 6
MAX_PERMUTED = 6
MAX_COUNTED = 4000
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
    """Everything that is asked of an object's properties, as expressions. pairs: (expression, whether required)."""

    pairs: list[tuple[int, bool]] = field(default_factory=list)
    other: int | None = None  # any property that is not named
    least: int = 0
    most: int | None = None


def object_expr(texts: Texts, literals: list[Literal], any_order: bool, value: Value, key_sets: Names) -> int:
    """The expression of objects that meet all schemas. value: gives the expression of a demand on a property's value;
    key_sets: the sets of strings that a demand leaves. Raises GrammarError for what can't be expressed."""
    rules = texts.rules
    plan = _plan(texts, literals, value, key_sets)
    if plan is None:
        return rules.alt(())
    _simplify(plan, literals)
    if any_order and len(plan.pairs) <= MAX_PERMUTED and plan.other is None:
        body = _permuted(texts, plan)
    elif plan.least == 0 and plan.most is None:
        body = _unordered(texts, plan) if _has_many(plan) else _ordered(texts, plan)
    else:
        body = _counted(texts, plan, literals)
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
    named = dict.fromkeys([n for s in speakers for n in s.properties] + list(required))
    of_names = [
        lit.sub(lit.schema["propertyNames"], "propertyNames") for lit in literals if "propertyNames" in lit.schema
    ]
    sets = key_sets(of_names) if of_names else [Strings()]
    for name in named:
        demands = [demand for speaker in speakers for demand in speaker.demands(name)]
        possible = any(name in s for s in sets) and not any(demand.schema is False for demand in demands)
        if possible:
            pair = texts.rules.seq((texts.written(name), texts.colon, value(demands)))
            plan.pairs.append((pair, name in required))
        elif name in required:
            return None
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


def _has_many(plan: _Plan) -> bool:
    return len(plan.pairs) > MANY and not any(required for _, required in plan.pairs)


def _unordered(texts: Texts, plan: _Plan) -> int:
    """So many that no order is kept, and none is required: then repeats do no harm either."""
    rules = texts.rules
    pair = rules.alt([*(pair for pair, _ in plan.pairs), *(() if plan.other is None else (plan.other,))])
    rule = rules.new_rule("property")
    rules.define(rule, pair)
    pair = rules.rule(rule)
    return rules.repeat(rules.seq((pair, rules.repeat(rules.seq((texts.comma, pair)), 0))), 0, 1)


def _ordered(texts: Texts, plan: _Plan) -> int:
    """From the last property back. rest: what may follow a property before this one; chain: this one or a later one,
    None if there is none."""
    rules = texts.rules
    between = None if plan.other is None else rules.repeat(rules.seq((texts.comma, plan.other)), 0)
    chain: int | None = None
    must = False  # one of the chain is required

    def rest() -> int:
        items = [] if between is None else [between]
        if chain is not None:
            following = rules.seq((texts.comma, chain))
            items.append(following if must else rules.repeat(following, 0, 1))
        return rules.seq(items)

    for i in range(len(plan.pairs) - 1, -1, -1):
        pair, required = plan.pairs[i]
        here = rules.seq((pair, rest()))
        chain = here if required or chain is None else rules.alt((here, chain))
        must = must or required
        if i and not plan.pairs[i - 1][1]:  # it is named twice: behind the one before, and in its place
            rule = rules.new_rule("properties")
            rules.define(rule, chain)
            chain = rules.rule(rule)
    first = [] if chain is None else [chain]
    if plan.other is not None:
        first.append(rules.seq((plan.other, rest())))
    return rules.alt(first) if must else rules.repeat(rules.alt(first), 0, 1)


def _counted(texts: Texts, plan: _Plan, literals: list[Literal]) -> int:
    """The same as a graph: nodes are (next property, others so far that are not required, whether there is any)."""
    rules = texts.rules
    n = len(plan.pairs)
    n_required = sum(required for _, required in plan.pairs)
    top = plan.least - n_required if plan.most is None else plan.most - n_required
    if plan.most is not None and (top < 0 or plan.most < plan.least):
        return rules.alt(())
    if (n + 1) ** 2 * (top + 1) > MAX_COUNTED * 8:
        raise refusal(literals[0].path, "maxProperties", "it is too large for so many properties")
    known: dict[tuple[int, int, bool], int] = {(0, 0, False): 0}
    edges, finals = [], []
    todo = [(0, 0, False)]

    def move(source: int, expr: int, to: tuple[int, int, bool], begun: bool) -> None:
        if to not in known:
            known[to] = len(known)
            todo.append(to)
        edges.append((source, rules.seq((texts.comma, expr)) if begun else expr, known[to]))

    for state in todo:
        i, count, begun = state
        ends = True
        full = plan.most is not None and count >= top
        following = count if plan.most is None and count >= top else count + 1
        if plan.other is not None and not full:
            move(known[state], plan.other, (i, following, True), begun)
        for k in range(i, n):
            pair, required = plan.pairs[k]
            if required or not full:
                move(known[state], pair, (k + 1, count if required else following, True), begun)
            if required:
                ends = False
                break
        if ends and count >= plan.least - n_required:
            finals.append(known[state])
    return rules.graph(len(known), edges, finals)


def _permuted(texts: Texts, plan: _Plan) -> int:
    """A few properties in any order; nodes are sets of those that were there."""
    rules = texts.rules
    n = len(plan.pairs)
    edges = []
    for seen in range(1 << n):
        for i, (pair, _) in enumerate(plan.pairs):
            if not seen >> i & 1:
                edges.append((seen, rules.seq((texts.comma, pair)) if seen else pair, seen | 1 << i))
    return rules.graph(1 << n, edges, [(1 << n) - 1])
