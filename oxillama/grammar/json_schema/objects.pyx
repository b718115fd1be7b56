# cython: boundscheck=True, wraparound=True
"""Objects: properties in the order of the schema, others in between, counted where there are limits.

The order is that of each `properties`. Where a schema is put together from several, these come one behind the other for
generating: a schema's own, those of its `$ref` and `allOf`, those of alternatives. Otherwise they may mix, unless they
are so many that those of the first come first. Properties that are only required, and those that are not named, may
stand anywhere. A key may come twice only if it is not named; of such, a reader of JSON keeps the last, and each is
valid by itself.
"""

cimport cython
from libc.stdint cimport int32_t

from operator import itemgetter

from oxillama._util.freeing import empty
from oxillama.errors import GrammarError
from oxillama.grammar.automata.dfa import matches
from oxillama.grammar.json_schema.checks import counted, mapped, names
from oxillama.grammar.json_schema.free_names import others
from oxillama.grammar.json_schema.literals import refusal
from oxillama.grammar.json_schema.object_automaton import Wanted, graph_expr, is_graph
from oxillama.grammar.json_schema.strings import Strings, pattern_parts
from oxillama.grammar.regular import pattern_units

from oxillama.grammar.json_schema.object_automaton cimport Pair, Plan
from oxillama.grammar.automata.budget cimport Budget
from oxillama.grammar.json_schema.literal cimport Literal
from oxillama.grammar.automata.rules cimport ALT, SEQ, Rules

cdef enum:
    MAX_PERMUTED = 6
    MAX_WANTED = 3
    MANY = 400      # optional properties in a row from which on their order is left open

cdef str OF_OBJECT = "the schema of an object"
cdef object NUMBER = itemgetter(0)
cdef object ANY_NAME = Strings()


@cython.final
cdef class ObjectSchema:
    """A schema about objects.

    names: whether it was written with a list of properties. opens: whether it has a demand on other properties. free:
    whether it has demands on properties that it doesn't name. required: the names that it asks for.
    """

    cdef readonly Literal literal
    cdef readonly dict properties
    cdef readonly list patterns
    cdef readonly Literal additional
    cdef object required
    cdef bint names, opens, free

    def __init__(self, Literal literal not None, Budget budget not None):
        cdef bint is_written
        schema = literal.schema
        self.literal = literal
        self.properties = {}
        self.patterns = []
        if "properties" in schema:
            self.name(mapped_at(literal, "properties"))
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

    cdef int name(self, object found) except -1:
        """Notes the named properties: of equal paths one object, since schemas may have thousands."""
        cdef tuple path = (self.literal.path, "properties")
        for name, sub in found.items():
            self.properties[name] = Literal(sub, True, self.literal.base, (path, name))
        return 0

    cdef list demands(self, object name, Budget budget):
        """Demands of the object on the value of a property."""
        cdef list found = []
        known = self.properties.get(name)
        if known is not None:
            found.append(known)
        if not self.free:
            return found
        for _, parts, literal in self.patterns:
            if is_met(parts, name, budget):
                found.append(literal)
        if not found and self.additional is not None:
            found.append(self.additional)
        return found


cdef object mapped_at(Literal literal, str keyword):
    """`mapped`: what it looks for is looked for in a loop here, since schemas may have thousands of properties."""
    found = literal.schema[keyword]
    if type(found) is not dict:
        return mapped(literal, keyword)
    for name in <dict> found:
        if type(name) is not str:
            return mapped(literal, keyword)
    return found


cdef bint is_met(object parts, object name, Budget budget) except -1:
    for part in parts:
        if not matches(part, name, budget):
            return False
    return True


@cython.final
cdef class Demands:
    """The demands of several schemas on the value of a property; of those without patterns only the ones that name it
    are visited."""

    cdef list schemas, free
    cdef dict naming
    cdef Py_ssize_t n_patterns
    cdef Budget budget

    def __init__(self, Budget budget not None, list schemas not None):
        cdef ObjectSchema schema
        cdef Py_ssize_t n_states = 0
        self.schemas, self.budget = schemas, budget
        self.free = [(i, schema) for i, schema in enumerate(schemas) if schema.free]
        self.naming = {}
        if len(schemas) > 1:
            for i, schema in enumerate(schemas):
                for name in () if schema.free else schema.properties:
                    self.naming.setdefault(name, []).append((i, schema))
        for _, schema in self.free:
            for _, parts, _ in schema.patterns:
                for part in parts:
                    self.n_patterns += 1
                    n_states += part.node.n_states
        budget.spend(2 * n_states, "the patterns of `patternProperties`")

    cdef list of(self, object name):
        cdef ObjectSchema schema
        cdef list found
        if len(self.schemas) == 1:
            schema = self.schemas[0]
            if schema.free:
                self.budget.spend(6 + 2 * self.n_patterns, OF_OBJECT)
                return schema.demands(name, self.budget)
            known = schema.properties.get(name)
            self.budget.spend(4 if known is None else 6, OF_OBJECT)
            return [] if known is None else [known]
        found = self.naming.get(name, [])
        if self.free:
            found = sorted([*self.free, *found], key=NUMBER)
        self.budget.spend(4 + 2 * len(found) + 2 * self.n_patterns, OF_OBJECT)
        if not self.free:
            return [schema.properties[name] for _, schema in found]
        return [demand for _, schema in found for demand in schema.demands(name, self.budget)]


@cython.final
cdef class Objects:
    """Expressions of objects for one set of rules.

    The branches of a schema combine the same literals again and again: what was made of a literal, of a property under
    the same demands, and of the same literals together is kept, by the keys of literals.
    """

    cdef object texts, value, key_sets
    cdef Rules rules
    cdef dict schemas, pairs, exprs, keys
    cdef int32_t comma, colon

    def __init__(self, texts):
        self.texts = texts
        self.rules, self.keys = texts.rules, texts.keys
        self.comma, self.colon = texts.comma, texts.colon
        self.schemas, self.pairs, self.exprs = {}, {}, {}

    def expr(self, literals, bint any_order, value, key_sets):
        """The expression of objects that meet all schemas. value: returns the expression of a demand on a property's
        value; key_sets: the sets of strings that meet a demand. Both are the same functions each time. Raises
        GrammarError for demands that can't be expressed."""
        cdef tuple key = (any_order, *[(<Literal> literal).its_key() for literal in literals])
        found = self.exprs.get(key)
        if found is None:
            self.value, self.key_sets = value, key_sets
            try:
                found = self.made(literals, [self.schema_of(literal) for literal in literals], any_order)
            finally:
                self.value = self.key_sets = None  # they are their owner's, which would be held in a circle
            self.exprs[key] = found
        return found

    def drop(self):
        """Frees what was kept, piece by piece."""
        cdef ObjectSchema schema
        for schema in self.schemas.values():
            empty(schema.properties)
        empty(self.pairs, self.exprs, self.keys, self.schemas)

    cdef ObjectSchema schema_of(self, Literal literal):
        cdef tuple key = literal.its_key()
        found = self.schemas.get(key)
        if found is None:
            found = self.schemas[key] = ObjectSchema(literal, self.texts.budget)
        return <ObjectSchema> found

    cdef object named(self, object name, list demands):
        """The expression of a property with its name."""
        cdef tuple key
        if len(demands) == 1:
            key = (name, (<Literal> demands[0]).its_key())
        else:
            key = (name, *[(<Literal> demand).its_key() for demand in demands])
        found = self.pairs.get(key)
        if found is None:
            expr = self.key(name)
            found = self.pairs[key] = self.rules.two(SEQ, expr, self.value(demands))
        return found

    cdef object key(self, object name):
        """The name of a property with the colon behind it: `JsonText.key`, of which the names that have one spelling
        are made here."""
        found = self.keys.get(name)
        if found is None:
            if type(name) is not str or not is_plain(name):
                return self.texts.key(name)
            expr = self.rules.literal(f'"{name}"'.encode())
            found = self.keys[name] = self.rules.two(SEQ, expr, self.colon)
        return found

    cdef object made(self, literals, list schemas, bint any_order):
        cdef Rules rules = self.rules
        cdef Plan plan = self.plan(literals, schemas)
        if plan is None or (plan.wanted and not can_be_met(plan)):
            return rules.alt(())
        try:
            return self.planned(plan, literals, any_order)
        finally:
            empty(*plan.groups, plan.groups)

    cdef object planned(self, Plan plan, literals, bint any_order):
        cdef Rules rules = self.rules
        simplify(plan, literals)
        if any_order and not self.texts.narrow and len(plan.pairs()) <= MAX_PERMUTED and not plan.others:
            plan.groups = [[pair] for pair in plan.pairs()]
        if is_graph(plan):
            body = graph_expr(self.texts, plan, literals)
        else:
            body = self.unordered(plan, literals) if len(plan.pairs()) > MANY else self.ordered(plan)
        return rules.seq((self.texts.open_object, body, self.texts.close_object))

    # ---- demands

    cdef Plan plan(self, literals, list schemas):
        """All demands on an object; None if there is none that meets them."""
        cdef ObjectSchema schema
        cdef Demands demands = Demands(self.texts.budget, schemas)
        cdef Plan plan = Plan(self.wanted(literals))
        cdef dict required = {}
        cdef set named = set()
        for schema in schemas:
            for name in schema.required:
                required[name] = None
        count(plan, literals)
        of_names = [
            (<Literal> lit).sub((<Literal> lit).schema["propertyNames"], "propertyNames")
            for lit in literals
            if "propertyNames" in (<Literal> lit).schema
        ]
        sets = self.key_sets(of_names) if of_names else [ANY_NAME]
        in_order = [list(schema.properties) for schema in schemas]
        if self.texts.narrow:
            in_order = [[name for one in in_order for name in one]]
        for names_of_group in [*in_order, *[[name] for name in required]]:
            if not self.group(plan, names_of_group, named, required, demands, sets if of_names else None):
                return None
        self.free_ways(plan, schemas, named, sets)
        return plan

    cdef bint group(self, Plan plan, list in_order, set named, dict required, Demands demands, object sets) except -1:
        """Adds a list of properties in their order; False if one is required that can't be there. sets: of the allowed
        names, None for any."""
        cdef list found = []
        cdef list demanded
        for name in in_order:
            if name in named:
                continue
            named.add(name)
            demanded = demands.of(name)
            if (sets is None or is_in(name, sets, self.texts.budget)) and not is_false(demanded):
                if plan.wanted:
                    found.append(Pair(0, name in required, self.ways(plan.wanted, name, demanded)))
                else:
                    found.append(Pair(self.named(name, demanded), name in required))
            elif name in required:
                return False
        if found:
            plan.groups.append(found)
        return True

    cdef int free_ways(self, Plan plan, list schemas, set named, list sets) except -1:
        """Adds the properties that are not named."""
        cdef bint closed = self.is_closed(schemas, plan)
        cdef Pair pair
        if closed and not plan.least and not has_patterns(schemas):
            return 0
        for chosen in range(1 << len(plan.wanted)):
            found, values = narrowed(plan.wanted, chosen, sets)
            other = others(self.texts, schemas, named, found, values, self.value, closed)
            if closed and other is None and plan.least > sum([pair.required for pair in plan.pairs()]):
                if len(plan.pairs()) < plan.least or not self.texts.counts_on_names:
                    other = others(self.texts, schemas, named, found, values, self.value, False)
                else:
                    self.texts.counted_on_names = True
            if other is not None:
                plan.others.append((chosen, other))
        return 0

    cdef bint is_closed(self, list schemas, Plan plan) except -1:
        """Whether an object in mode "generate" has only the properties that any schema names, and those that are
        required or match a pattern: some schema names properties, and none has a demand on others."""
        cdef ObjectSchema schema
        cdef bint any_names = False
        if not self.texts.narrow or plan.wanted:
            return False
        for schema in schemas:
            if schema.opens:
                return False
            any_names = any_names or schema.names
        return any_names

    cdef list wanted(self, literals):
        """The required properties without a given name."""
        cdef Literal literal
        found = []
        for literal in literals:
            if "\0property" in literal.schema:
                key, sub, _ = literal.schema["\0property"]
                sets = self.key_sets([literal.sub(key)])
                found.append(Wanted(literal, sets, None if sub is True else literal.sub(sub)))
        if found and (sum([w.value is not None for w in found]) > MAX_WANTED or len(found) > 2 * MAX_WANTED):
            raise refusal(
                found[0].literal.path, "schema", f"more than {MAX_WANTED} properties without a name are required"
            )
        return found

    cdef list ways(self, list wanted, object name, list demands):
        """A property with its name: once for each choice of the wanted properties that it is."""
        key = self.key(name)
        may = [i for i, w in enumerate(wanted) if name in w]
        must = sum([1 << i for i in may if wanted[i].value is None])
        ways = []
        for chosen in range(1 << len(wanted)):
            if chosen & must == must and all([i in may for i in range(len(wanted)) if chosen >> i & 1]):
                values = [w.value for i, w in enumerate(wanted) if chosen >> i & 1 and w.value is not None]
                ways.append((chosen, self.rules.seq((key, self.value([*demands, *values])))))
        return ways

    # ---- in order

    cdef object unordered(self, Plan plan, literals):
        """Properties in any order, if there are many and none is required: repeats do no harm then either."""
        cdef Rules rules = self.rules
        cdef Pair pair
        run = longest = 0
        for pair in plan.pairs():
            run = 0 if pair.required else run + 1
            longest = max(longest, run)
        if longest <= MANY:
            return self.ordered(plan)
        if any([pair.required for pair in plan.pairs()]):
            raise refusal(
                literals[0].path, "properties", f"more than {MANY} in a row are optional, and others required"
            )
        rule = rules.new_rule("property")
        exprs = [pair.expr() for pair in plan.pairs()]
        rules.define(rule, rules.alt([*exprs, *[other for _, other in plan.others[:1]]]))
        one = rules.rule(rule)
        return self.texts.maybe(rules.seq((one, rules.repeat(rules.seq((self.comma, one)), 0))))

    cdef int32_t ordered(self, Plan plan) except -1:
        """Properties in order, built from the last one back. chain: this property or a later one, -1 if there is none;
        must: one of the chain is required."""
        cdef Rules rules = self.rules
        cdef list pairs = plan.pairs()
        cdef Py_ssize_t i
        cdef Pair pair
        cdef int32_t between = -1, chain = -1, here, rule
        cdef bint must = False
        if plan.others:
            between = rules.repeat(rules.two(SEQ, self.comma, plan.others[0][1]), 0)
        for i in range(len(pairs) - 1, -1, -1):
            pair = pairs[i]
            here = rules.two(SEQ, pair.expr(), self.rest(between, chain, must))
            chain = here if pair.required or chain < 0 else rules.two(ALT, here, chain)
            must = must or pair.required
            if i and not (<Pair> pairs[i - 1]).required:  # used twice: behind the property before, and in place of it
                rule = rules.new_rule("properties")
                rules.define(rule, chain)
                chain = rules.rule(rule)
        first = [] if chain < 0 else [chain]
        if plan.others:
            first.append(rules.two(SEQ, plan.others[0][1], self.rest(between, chain, must)))
        here = rules.alt(first)
        return here if must else self.maybe(here)

    cdef int32_t rest(self, int32_t between, int32_t chain, bint must) except -1:
        """Expression of what may follow a property before a chain."""
        cdef Rules rules = self.rules
        cdef int32_t following
        if chain < 0:
            return rules.seq(()) if between < 0 else between
        following = rules.two(SEQ, self.comma, chain)
        if not must:
            following = self.maybe(following)
        return following if between < 0 else rules.two(SEQ, between, following)

    cdef int32_t maybe(self, int32_t expr) except -1:
        return self.rules.two(ALT, expr, self.rules.seq(()))


cdef bint is_in(object name, list sets, Budget budget) except -1:
    for s in sets:
        if s.has(name, budget):
            return True
    return False


cdef bint is_plain(str text) except -1:
    """Whether the text stands for itself in JSON, and has no other spelling: `JsonText.written`."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


cdef bint has_patterns(list schemas) except -1:
    cdef ObjectSchema schema
    for schema in schemas:
        if schema.patterns:
            return True
    return False


cdef bint is_false(list demands) except -1:
    """Whether no value meets these demands, plainly."""
    cdef Literal demand
    for demand in demands:
        if demand.schema is False:
            return True
    return False


cdef int count(Plan plan, literals) except -1:
    """Notes the limits on the number of properties."""
    cdef Literal literal
    for literal in literals:
        if "minProperties" in literal.schema:
            plan.least = max(plan.least, counted(literal, "minProperties"))
        if "maxProperties" in literal.schema:
            most = counted(literal, "maxProperties")
            plan.most = most if plan.most is None else min(plan.most, most)
    return 0


cdef tuple narrowed(list wanted, int chosen, list sets):
    """Names and values of the properties that are the chosen wanted ones, and no others."""
    values = []
    for i, w in enumerate(wanted):
        if chosen >> i & 1:
            sets = [a.both(b) for a in sets for b in w.keys]
            values += [] if w.value is None else [w.value]
    return sets, values


cdef bint can_be_met(Plan plan) except -1:
    """Whether each wanted property may be there."""
    cdef int found = 0
    cdef Pair pair
    for bits, _ in plan.others:
        found |= <int> bits
    for pair in plan.pairs():
        for bits, _ in pair.ways:
            found |= <int> bits
    return found == (1 << len(plan.wanted)) - 1


cdef int simplify(Plan plan, literals) except -1:
    """Drops limits without effect, and refuses those for which keys would have to be compared."""
    cdef Pair pair
    if plan.most is not None and not plan.others and plan.most >= len(plan.pairs()):
        plan.most = None
    if not plan.least:
        return 0
    n_required = sum([pair.required for pair in plan.pairs()])
    if plan.least <= n_required:
        plan.least = 0
    elif plan.others and plan.least > n_required + 1:
        path = [lit.path for lit in literals if "minProperties" in lit.schema][0]
        raise refusal(
            path, "minProperties",
            "two properties that the schema doesn't name might have one name, and names can't be compared: name more "
            f"in `properties`, or ask for at most {n_required + 1}",
        )
    return 0
