"""Objects: properties in the order of the schema, others in between, counted where there are limits.

The order is that of each `properties`. Where a schema is put together from several, these come one behind the other for
generating: a schema's own, those of its `$ref` and `allOf`, those of alternatives. Otherwise they may mix, unless they
are so many that those of the first come first. Properties that are only required, and those that are not named, may
stand anywhere. A key may come twice only if it is not named; of such, a reader of JSON keeps the last, and each is
valid by itself.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Budget
from oxillama.grammar.dfa import WORK_UNITS, Part, is_empty, matches
from oxillama.grammar.json_schema.branch import Key
from oxillama.grammar.json_schema.checks import counted, mapped, names
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal, refusal
from oxillama.grammar.json_schema.object_automaton import Pair, Plan, Wanted, Way, graph_expr, is_graph
from oxillama.grammar.json_schema.strings import Strings, pattern_parts, string_expr
from oxillama.grammar.regular import pattern_units

__all__ = ["Objects"]

Value = Callable[[Sequence[Literal]], int]
Names = Callable[[Sequence[Literal]], list[Strings]]
Parts = tuple[Part, ...]
_NUMBER = itemgetter(0)
FEW_CELLS = 4  # choices of patterns up to which impossible ones are not looked for
MAX_CELLS = 32
MAX_CELL_WORK = 50_000
MAX_PERMUTED = 6
MAX_WANTED = 3
MANY = 400  # optional properties in a row from which on their order is left open


class _ObjectSchema:
    """A schema about objects.

    names: whether it was written with a list of properties. opens: whether it has a demand on other properties. free:
    whether it has demands on properties that it doesn't name. required: the names that it asks for.
    """

    __slots__ = ("additional", "free", "literal", "names", "opens", "patterns", "properties", "required")

    def __init__(self, literal: Literal, budget: Budget) -> None:
        schema = literal.schema
        self.literal = literal
        self.properties: dict[str, Literal] = {}
        self.patterns: list[tuple[str, Parts, Literal]] = []
        self.additional: Literal | None = None
        if "properties" in schema:
            self.properties = {n: literal.sub(s, "properties", n) for n, s in mapped(literal, "properties").items()}
        for pattern, sub in mapped(literal, "patternProperties").items() if "patternProperties" in schema else ():
            budget.spend(pattern_units(pattern), f"a pattern of {len(pattern)} characters")
            try:
                parts = pattern_parts(pattern)
            except GrammarError as error:
                raise refusal(literal.path, "patternProperties", str(error)) from None
            self.patterns.append((pattern, parts, literal.sub(sub, "patternProperties", pattern)))
        if schema.get("additionalProperties", True) is not True:
            self.additional = literal.sub(schema["additionalProperties"], "additionalProperties")
        self.required = names(literal, "required") if "required" in schema else []
        is_written = "\0types" not in schema
        self.names = is_written and "properties" in schema
        self.opens = is_written and (
            "additionalProperties" in schema or schema.get("unevaluatedProperties", False) is not False
        )
        self.free = bool(self.patterns) or self.additional is not None

    def demands(self, name: str, budget: Budget) -> list[Literal]:
        """Its demands on the value of a property."""
        found = [self.properties[name]] if name in self.properties else []
        if not self.free:
            return found
        found += [lit for _, parts, lit in self.patterns if all(matches(part, name, budget) for part in parts)]
        return found or ([] if self.additional is None else [self.additional])


class Objects:
    """Expressions of objects for one set of rules.

    The branches of a schema combine the same literals again and again: what was made of a literal, of a property under
    the same demands, and of the same literals together is kept, by the keys of literals.
    """

    def __init__(self, texts: JsonText) -> None:
        self.texts = texts
        self._schemas: dict[Key, _ObjectSchema] = {}
        self._pairs: dict[tuple[object, ...], int] = {}
        self._exprs: dict[tuple[object, ...], int] = {}

    def expr(self, literals: Sequence[Literal], any_order: bool, value: Value, key_sets: Names) -> int:
        """The expression of objects that meet all schemas. value: returns the expression of a demand on a property's
        value; key_sets: the sets of strings that meet a demand. Both are the same functions each time. Raises
        GrammarError for demands that can't be expressed."""
        key = (any_order, *[literal.key for literal in literals])
        found = self._exprs.get(key)
        if found is None:
            schemas = list(map(self.schema_of, literals))
            found = self._exprs[key] = self._expr(literals, schemas, any_order, value, key_sets)
        return found

    def schema_of(self, literal: Literal) -> _ObjectSchema:
        key = literal.key
        found = self._schemas.get(key)
        if found is None:
            found = self._schemas[key] = _ObjectSchema(literal, self.texts.budget)
        return found

    def named(self, name: str, demands: list[Literal], value: Value) -> int:
        """The expression of a property with its name."""
        key = (name, demands[0].key) if len(demands) == 1 else (name, *[demand.key for demand in demands])
        found = self._pairs.get(key)
        if found is None:
            found = self._pairs[key] = self.texts.rules.seq((self.texts.key(name), value(demands)))
        return found

    def _expr(
        self,
        literals: Sequence[Literal],
        schemas: Sequence[_ObjectSchema],
        any_order: bool,
        value: Value,
        key_sets: Names,
    ) -> int:
        texts, rules = self.texts, self.texts.rules
        plan = _plan(self, literals, schemas, value, key_sets)
        if plan is None:
            return rules.alt(())
        if plan.wanted and any(not any(bits >> w & 1 for bits, _ in _ways(plan)) for w in range(len(plan.wanted))):
            return rules.alt(())
        _simplify(plan, literals)
        if any_order and not texts.narrow and len(plan.pairs) <= MAX_PERMUTED and plan.other is None:
            plan.groups = [[pair] for pair in plan.pairs]
        if is_graph(plan):
            body = graph_expr(texts, plan, literals)
        else:
            body = _unordered(texts, plan, literals) if len(plan.pairs) > MANY else _ordered(texts, plan)
        return rules.seq((texts.open_object, body, texts.close_object))


# ---- demands


def _demands(texts: JsonText, schemas: Sequence[_ObjectSchema]) -> Callable[[str], list[Literal]]:
    """A function that returns the demands of all schemas on the value of a property; it visits only those that have
    some."""
    free = [pair for pair in enumerate(schemas) if pair[1].free]
    naming: dict[str, list[tuple[int, _ObjectSchema]]] = {}
    for pair in () if len(free) == len(schemas) else enumerate(schemas):
        for name in () if pair[1].free else pair[1].properties:
            naming.setdefault(name, []).append(pair)
    patterns = [part for _, schema in free for _, parts, _ in schema.patterns for part in parts]
    texts.budget.spend(2 * sum([part.node.n_states for part in patterns]), "the patterns of `patternProperties`")

    spend = texts.budget.spend
    if len(schemas) == 1 and not free:
        properties = schemas[0].properties

        def of_one(name: str) -> list[Literal]:
            found = [properties[name]] if name in properties else []
            spend(4 + 2 * len(found), "the schema of an object")
            return found

        return of_one

    def of(name: str) -> list[Literal]:
        found = naming.get(name, [])
        if free:
            found = sorted([*free, *found], key=_NUMBER)
        spend(4 + 2 * len(found) + 2 * len(patterns), "the schema of an object")
        if not free:
            return [schema.properties[name] for _, schema in found]
        return [demand for _, schema in found for demand in schema.demands(name, texts.budget)]

    return of


def _plan(
    objects: Objects, literals: Sequence[Literal], schemas: Sequence[_ObjectSchema], value: Value, key_sets: Names
) -> Plan | None:
    texts = objects.texts
    demands_on = _demands(texts, schemas)
    plan = Plan(wanted=_wanted(literals, key_sets))
    required: dict[str, None] = {}
    for schema in schemas:
        required.update(dict.fromkeys(schema.required))
    _count(plan, literals)
    of_names = [
        lit.sub(lit.schema["propertyNames"], "propertyNames") for lit in literals if "propertyNames" in lit.schema
    ]
    sets = key_sets(of_names) if of_names else [Strings()]
    named: set[str] = set()
    in_order = [list(schema.properties) for schema in schemas]
    if texts.narrow:
        in_order = [[name for one in in_order for name in one]]
    for names_of_group in [*in_order, *([name] for name in required)]:
        group = []
        for name in names_of_group:
            if name in named:
                continue
            named.add(name)
            demands = demands_on(name)
            if (not of_names or any(s.has(name, texts.budget) for s in sets)) and _can_be_met(demands):
                if plan.wanted:
                    ways = _named(objects, plan.wanted, name, demands, value)
                else:
                    ways = [(0, objects.named(name, demands, value))]
                group.append(Pair(ways, name in required))
            elif name in required:
                return None
        if group:
            plan.groups.append(group)
    closed = _is_closed(texts, schemas, plan)
    for chosen in range(1 << len(plan.wanted)):
        choice = _narrowed(plan.wanted, chosen, sets)
        other = _others(objects, schemas, named, *choice, value, closed)
        if closed and other is None and plan.least > sum(pair.required for pair in plan.pairs):
            if len(plan.pairs) < plan.least or not texts.counts_on_names:
                other = _others(objects, schemas, named, *choice, value, False)
            else:
                texts.counted_on_names = True
        if other is not None:
            plan.others.append((chosen, other))
    return plan


def _can_be_met(demands: list[Literal]) -> bool:
    return all(demand.schema is not False for demand in demands)


def _count(plan: Plan, literals: Sequence[Literal]) -> None:
    """The limits on the number of properties."""
    for literal in literals:
        if "minProperties" in literal.schema:
            plan.least = max(plan.least, counted(literal, "minProperties"))
        if "maxProperties" in literal.schema:
            count = counted(literal, "maxProperties")
            plan.most = count if plan.most is None else min(plan.most, count)


def _is_closed(texts: JsonText, schemas: Sequence[_ObjectSchema], plan: Plan) -> bool:
    """Whether an object in mode "generate" has only the properties that any schema names, and those that are required
    or match a pattern: some schema names properties, and none has a demand on others."""
    return texts.narrow and not plan.wanted and any(s.names for s in schemas) and not any(s.opens for s in schemas)


def _wanted(literals: Sequence[Literal], key_sets: Names) -> list[Wanted]:
    """The required properties without a given name."""
    found = []
    for literal in literals:
        if "\0property" in literal.schema:
            key, sub, _ = literal.schema["\0property"]
            found.append(Wanted(literal, key_sets([literal.sub(key)]), None if sub is True else literal.sub(sub)))
    if sum(w.value is not None for w in found) > MAX_WANTED or len(found) > 2 * MAX_WANTED:
        raise refusal(found[0].literal.path, "schema", f"more than {MAX_WANTED} properties without a name are required")
    return found


def _named(objects: Objects, wanted: list[Wanted], name: str, demands: list[Literal], value: Value) -> list[Way]:
    """A property with its name: once for each choice of the wanted properties that it is."""
    texts = objects.texts
    key = texts.key(name)
    may = [i for i, w in enumerate(wanted) if name in w]
    must = sum(1 << i for i in may if wanted[i].value is None)
    ways = []
    for chosen in range(1 << len(wanted)):
        if chosen & must == must and all(i in may for i in range(len(wanted)) if chosen >> i & 1):
            values = [w.value for i, w in enumerate(wanted) if chosen >> i & 1 and w.value is not None]
            ways.append((chosen, texts.rules.seq((key, value([*demands, *values])))))
    return ways


def _narrowed(wanted: list[Wanted], chosen: int, sets: list[Strings]) -> tuple[list[Strings], list[Literal]]:
    """Names and values of the properties that are the chosen wanted ones, and no others."""
    values = []
    for i, w in enumerate(wanted):
        if chosen >> i & 1:
            sets = [a.both(b) for a in sets for b in w.keys]
            values += [] if w.value is None else [w.value]
    return sets, values


def _ways(plan: Plan) -> list[Way]:
    return [*plan.others, *(way for pair in plan.pairs for way in pair.ways)]


def _others(
    objects: Objects,
    schemas: Sequence[_ObjectSchema],
    named: set[str],
    sets: list[Strings],
    values: list[Literal],
    value: Value,
    closed: bool,
) -> int | None:
    """A property that is not named: for each choice of patterns that its name matches, their demands on its value.
    values: other demands on it; closed: its name matches at least one."""
    patterns = {pattern: parts for schema in schemas for pattern, parts, _ in schema.patterns}
    if closed and not patterns:
        return None
    texts, rules = objects.texts, objects.texts.rules
    cells = _cells(texts, patterns, schemas[0].literal)
    pairs = []
    for met, choices in cells.items():
        texts.budget.spend(2 * len(schemas), "the schema of an object")
        demands = [*values, *(demand for schema in schemas for demand in _of_choice(schema, met))]
        if not _can_be_met(demands) or (closed and not met):
            continue
        keys = []
        for s in (s.having(*parts) for s in sets for parts in choices):
            keys.append(string_expr(texts, s.without(frozenset(n for n in named if s.has(n, texts.budget)))))
        pairs.append(rules.seq((rules.alt(keys), texts.colon, value(demands))))
    if not pairs:
        return None
    rule = rules.new_rule("other")
    rules.define(rule, rules.alt(pairs))
    return rules.rule(rule)


def _cells(texts: JsonText, patterns: dict[str, Parts], literal: Literal) -> dict[frozenset[str], list[Parts]]:
    """All choices of patterns that a name may match: for each, conditions of which the name meets one."""
    cells: list[tuple[frozenset[str], Parts]] = [(frozenset(), ())]
    work = 0
    for pattern, parts in patterns.items():
        split = []
        for met, known in cells:
            split.append((met | {pattern}, (*known, *parts)))
            for i, part in enumerate(parts):  # the name meets the conditions before this one, and not this one
                split.append((met, (*known, *parts[:i], Part(part.node, not part.negated))))
        cells = split
        if len(split) > FEW_CELLS:
            answers = [is_empty(parts) for _, parts in split]
            cells = [cell for cell, (empty, _) in zip(split, answers, strict=True) if not empty]
            work += sum(cost for _, cost in answers)
            texts.budget.spend(WORK_UNITS * sum(cost for _, cost in answers), "all choices of `patternProperties`")
        if len(cells) > MAX_CELLS or work > MAX_CELL_WORK:
            raise refusal(literal.path, "patternProperties", "there are too many choices of them that a name may meet")
    found: dict[frozenset[str], list[Parts]] = {}
    for met, known in cells:
        found.setdefault(met, []).append(known)
    return found


def _of_choice(schema: _ObjectSchema, met: frozenset[str]) -> list[Literal]:
    found = [literal for pattern, _, literal in schema.patterns if pattern in met]
    return found or ([] if schema.additional is None else [schema.additional])


def _simplify(plan: Plan, literals: Sequence[Literal]) -> None:
    """Drops limits without effect, and refuses those for which keys would have to be compared."""
    n_required = sum(pair.required for pair in plan.pairs)
    if plan.other is None and plan.most is not None and plan.most >= len(plan.pairs):
        plan.most = None
    if plan.least <= n_required:
        plan.least = 0
    elif plan.other is not None and plan.least > n_required + 1:
        path = next(lit.path for lit in literals if "minProperties" in lit.schema)
        raise refusal(path, "minProperties", "two properties that the schema doesn't name might have one name")


# ---- in order


def _unordered(texts: JsonText, plan: Plan, literals: Sequence[Literal]) -> int:
    """Properties in any order, if there are many and none is required: repeats do no harm then either."""
    rules = texts.rules
    run = longest = 0
    for pair in plan.pairs:
        run = 0 if pair.required else run + 1
        longest = max(longest, run)
    if longest <= MANY:
        return _ordered(texts, plan)
    if any(pair.required for pair in plan.pairs):
        raise refusal(literals[0].path, "properties", f"more than {MANY} in a row are optional, and others required")
    rule = rules.new_rule("property")
    rules.define(rule, rules.alt([*(pair.expr for pair in plan.pairs), *(() if plan.other is None else (plan.other,))]))
    one = rules.rule(rule)
    return texts.maybe(rules.seq((one, rules.repeat(rules.seq((texts.comma, one)), 0))))


def _ordered(texts: JsonText, plan: Plan) -> int:
    """Properties in order, built from the last one back. rest: what may follow a property before this one; chain: this
    one or a later one, None if there is none."""
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
        pair = pairs[i]
        here = rules.seq((pair.expr, rest()))
        chain = here if pair.required or chain is None else rules.alt((here, chain))
        must = must or pair.required
        if i and not pairs[i - 1].required:  # used twice: behind the property before, and in place of it
            rule = rules.new_rule("properties")
            rules.define(rule, chain)
            chain = rules.rule(rule)
    first = [] if chain is None else [chain]
    if plan.other is not None:
        first.append(rules.seq((plan.other, rest())))
    return rules.alt(first) if must else texts.maybe(rules.alt(first))
