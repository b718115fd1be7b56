# cython: boundscheck=True, wraparound=True
"""Compilation of one schema: demands on values with rules, and those whose rules are still to be defined."""

from functools import partial
from heapq import heappop, heappush

from oxillama._util.freeing import empty
from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Automaton, NoTextError
from oxillama.grammar.json_schema.arrays import array_expr
from oxillama.grammar.json_schema.checks import check_demands
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.json_text import LIKELY_REFUSED
from oxillama.grammar.json_schema.keywords import SPEAKING
from oxillama.grammar.json_schema.literals import ARRAY, FALSE, NUMBER, OBJECT, STRING, TRUE, TYPES, placed, pointer
from oxillama.grammar.json_schema.numbers import Numbers, constant_expr, number_expr
from oxillama.grammar.json_schema.objects import Objects
from oxillama.grammar.json_schema.strings import pattern_parts, string_expr
from oxillama.grammar.json_schema.tableau import Tableau
from oxillama.grammar.regular import PROPERTY_UNITS, pattern_units

from oxillama.grammar.json_schema.branch cimport Branch
from oxillama.grammar.json_schema.literal cimport Literal
from oxillama.grammar.automata.rules cimport Rules

cdef enum:
    MAX_PLACES = 5              # that an error names

cdef frozenset SIMPLE = frozenset(("string", "number", "integer", "boolean"))
cdef frozenset SCALARS = SIMPLE | {"null"}
cdef frozenset PLAIN_OBJECT = frozenset(("type", "properties", "required", "additionalProperties"))
cdef frozenset CONDITIONS = frozenset((
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf",
))
cdef frozenset WORDS = frozenset(SPEAKING)
cdef object ANY_NUMBER = Numbers()
cdef object ANY_INTEGER = Numbers(integer=True)
# The bits of types, as numbers of C.
cdef int NULLS = TYPES["null"]
cdef int TRUES = TRUE
cdef int FALSES = FALSE
cdef int NUMBERS = NUMBER
cdef int STRINGS = STRING
cdef int ARRAYS = ARRAY
cdef int OBJECTS = OBJECT


cdef frozenset leaf_key(object schema):
    """Key that is equal for equivalent schemas of scalars; None for others. Values are compared as they are written:
    the float 1e23 has more instances than the integer that it is equal to."""
    cdef list found
    if not isinstance(schema, dict):
        return None
    kinds = (<dict> schema).get("type")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds) if isinstance(kinds, list) else ()
    if not kinds:
        return None
    for kind in kinds:
        if not isinstance(kind, str) or kind not in SCALARS:
            return None
    found = [("type", kinds)]
    for keyword, value in (<dict> schema).items():
        if keyword in CONDITIONS and (type(value) is str or type(value) is int or type(value) is float):
            found.append((keyword, repr(value)))
        elif keyword != "type" and keyword in WORDS:
            return None
    return frozenset(found)


cdef object size_of(dict schema):
    """A guess at the number of states of a string: its pattern's, for each length."""
    pattern, most = schema.get("pattern"), schema.get("maxLength")
    if not isinstance(pattern, str) or pattern_units(pattern) > PROPERTY_UNITS:
        return 0
    if "(?=" in pattern or "(?!" in pattern:  # which most places in a pattern don't allow
        return LIKELY_REFUSED + 1
    try:
        return sum([part.node.n_states for part in pattern_parts(pattern)]) * (most if isinstance(most, int) else 1)
    except GrammarError:  # raised when the string is made
        return 0


def _leaf_expr(Literal literal not None, draft, own):
    """The expression of a schema by itself, in rules of its own."""
    return Compilation(Documents(literal.schema, draft), own).expression([literal])


cdef class Compilation:
    """One run of the compiler."""

    cdef object documents, texts, tableau, objects
    cdef Rules rules
    cdef dict known             # rules of demands
    cdef dict alone             # expressions of single schemas
    cdef list todo

    def __init__(self, documents, texts):
        self.documents, self.texts = documents, texts
        self.rules = texts.rules
        self.tableau = Tableau(documents, texts.budget, texts.narrow)
        self.objects = Objects(texts)
        self.known, self.alone, self.todo = {}, {}, []

    def automaton(self):
        """The automaton of the schema's values.

        Raises GrammarError; for a schema that has none with the places of strings and numbers that have none, which may
        be why.
        """
        try:
            return self.compiled(self.root())
        finally:
            self.objects.drop()
            self.tableau.drop()
            empty(self.known, self.alone, self.todo)

    cdef object compiled(self, int root):
        try:
            return Automaton(self.rules, root)
        except NoTextError as error:
            places = list(dict.fromkeys(map(pointer, self.texts.unmet)))
            if not places:
                raise
            listed = ", ".join(places[:MAX_PLACES]) + ", …" * (len(places) > MAX_PLACES)
            raise NoTextError(f"{error}; no value meets the schema at {listed}, either") from None

    def root(self):
        """The rule of the schema's values."""
        root = self.rules.new_rule("root")
        self.later(root, [Literal(self.documents.root, True, self.documents.root_base, None)])
        while self.todo:
            _, _, rule, literals = heappop(self.todo)
            self.rules.define(rule, self.expression(literals))
            check_demands(len(self.known))
        self.texts.finish()
        return root

    cdef int later(self, int rule, object literals) except -1:
        """Remembers a rule to define. Those with few combinations come first, so that most of what can't be honoured is
        found before much work is done."""
        heappush(self.todo, (self.tableau.combinations(literals), -len(self.known), rule, literals))
        return 0

    def value(self, literals):
        """The expression of a demand on a value: a call of its rule."""
        cdef Literal literal
        if len(literals) != 1:
            return self.of_all(literals) if literals else self.texts.shared("value")
        literal = literals[0]
        found = self.alone.get(literal.its_key())
        if found is None:
            found = self.alone[literal.its_key()] = self.of_one(self.behind(literal))
        return found

    cdef object of_one(self, Literal literal):
        """The expression of a schema: of many kinds it needs no rule of its own."""
        found = self.simple(literal)
        if found is None:
            found = self.leaf(literal)
        return self.of_all((literal,)) if found is None else found

    cdef object of_all(self, object literals):
        cdef tuple key = tuple(dict.fromkeys([(<Literal> literal).its_key() for literal in literals]))
        rule = self.known.get(key)
        if rule is None:
            rule = self.known[key] = self.rules.new_rule("")
            self.later(rule, literals)
        return self.rules.rule(rule)

    cdef Literal behind(self, Literal literal):
        """The schema that one with nothing but a reference stands for, as most references do: one rule for all."""
        while literal.positive and isinstance(literal.schema, dict) and "$ref" in <dict> literal.schema:
            if not self.documents.early:
                if self.documents.id_key in <dict> literal.schema:
                    break
                if speaks_beside(literal.schema, "$ref"):
                    break
            literal = self.documents.resolve(literal, "$ref")
        return literal

    cdef object simple(self, Literal literal):
        """The expression of a schema with only a type, or nothing, as most are; None for others."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict):
            return self.texts.shared("value") if schema is True and literal.positive else None
        if speaks_beside(schema, "type"):
            return None
        if "type" not in <dict> schema:
            return self.texts.shared("value")
        kind = (<dict> schema)["type"]
        if not isinstance(kind, str) or kind not in SIMPLE or (kind == "integer" and self.documents.draft == 4):
            return None
        return self.texts.shared(kind)

    cdef object leaf(self, Literal literal):
        """The expression of strings and numbers with conditions, which recur in many schemas: compiled once."""
        cdef frozenset key = leaf_key(literal.schema) if literal.positive and not self.texts.inner else None
        if key is None:
            return None
        draft = self.documents.draft
        make = partial(_leaf_expr, literal, draft)
        outer, self.texts.place = self.texts.place, literal.path
        found = self.texts.kept((draft, self.texts.narrow, key), make, size_of(<dict> literal.schema))
        self.texts.place = outer
        return found

    def expression(self, literals):
        """The expression of a demand on a value."""
        cdef Literal first = literals[0]
        cdef bint is_object = len(literals) == 1 and self.is_object(first)
        branches = [] if is_object else self.tableau.branches(literals)
        self.texts.place = place = first.path
        try:
            if is_object:
                return self.objects.expr(literals, False, self.value, self.key_sets)
            return self.rules.alt(dict.fromkeys([expr for branch in branches for expr in self.of_branch(branch)]))
        except GrammarError as error:
            raise placed(place, error) from None

    cdef bint is_object(self, Literal literal) except -1:
        """Whether a schema has only what most of objects have: it is its only branch then."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict) or (<dict> schema).get("type") != "object":
            return False
        if "properties" not in <dict> schema or self.documents.id_key in <dict> schema:
            return False
        for keyword in <dict> schema:
            if keyword in WORDS and keyword not in PLAIN_OBJECT:
                return False
        self.tableau.spend(schema)
        return True

    cdef list of_branch(self, Branch branch):
        """One expression for each allowed type."""
        cdef int types = branch.types
        cdef list found = []
        texts = self.texts
        if types & NULLS:
            found.append(self.rules.literal(b"null"))
        if types & TRUES and types & FALSES:
            found.append(texts.shared("boolean"))
        elif types & (TRUES | FALSES):
            found.append(self.rules.literal(b"true" if types & TRUES else b"false"))
        if types & NUMBERS:
            found += self.of_numbers(branch)
        if types & STRINGS:
            found.append(string_expr(texts, branch.strings))
        if types & ARRAYS:
            found.append(
                array_expr(texts, branch.arrays, self.value, self.values) if branch.arrays else texts.shared("array")
            )
        if types & OBJECTS:
            found.append(
                self.objects.expr(branch.objects, branch.any_order, self.value, self.key_sets)
                if branch.objects
                else texts.shared("object")
            )
        return found

    cdef list of_numbers(self, Branch branch):
        n, texts = branch.numbers, self.texts
        if branch.values is not None:
            self.spend_values(branch)
            return [self.constant(branch, v) for v in sorted(branch.values - branch.without) if v in n]
        if not branch.without and n == ANY_NUMBER:
            return [texts.shared("number")]
        if not branch.without and n == ANY_INTEGER:
            return [texts.shared("integer")]
        found = []
        for hole in sorted(branch.without):
            if hole in n:
                found.append(self.between(n.below(hole, True)))
                n = n.above(hole, True)
        return [*found, self.between(n)]

    cdef int spend_values(self, Branch branch) except -1:
        """Takes off the budget what holding listed numbers against the others' bounds and divisors costs."""
        n = branch.numbers
        self.texts.budget.spend(
            4 * len(branch.values) * (1 + len(n.multiples) + len(n.others)), "a list of numbers"
        )
        return 0

    cdef object constant(self, Branch branch, object value):
        """One number; in mode "generate" as the schema writes it, an integer without a point where one is demanded."""
        if not self.texts.narrow:
            return constant_expr(self.rules, value, branch.numbers.plain)
        text = str(value) if branch.numbers.integer else branch.written[value]
        return self.rules.literal(text.encode())

    cdef object between(self, object numbers):
        if self.texts.narrow:
            numbers = numbers.for_generating()
        return self.texts.postponed(numbers, partial(number_expr, self.rules, numbers))

    def key_sets(self, literals):
        """The sets of strings that meet a demand on the names of properties."""
        return [branch.strings for branch in self.tableau.branches(literals) if branch.types & STRINGS]

    def values(self, literals):
        """The expressions of all single values that meet a demand; None if there may be many."""
        cdef Branch branch
        scalars, texts, numbers = set(), set(), {}
        for branch in self.tableau.branches(literals):
            if branch.types & (ARRAYS | OBJECTS):
                return None
            scalars |= {bit for bit in (NULLS, TRUES, FALSES) if branch.types & bit}
            if branch.types & NUMBERS:
                if branch.values is None:
                    return None
                self.spend_values(branch)
                for v in branch.values - branch.without:
                    if v in branch.numbers:
                        numbers.setdefault(v, self.constant(branch, v))
            if branch.types & STRINGS:
                if branch.strings.allowed is None:
                    return None
                listed = sorted(branch.strings.allowed)
                texts |= {text for text in listed if branch.strings.has(text, self.texts.budget)}
        words = {NULLS: b"null", TRUES: b"true", FALSES: b"false"}
        return [
            *[self.rules.literal(words[bit]) for bit in sorted(scalars)],
            *[numbers[v] for v in sorted(numbers)],
            *[self.texts.written(text) for text in sorted(texts)],
        ]


cdef bint speaks_beside(object schema, str keyword) except -1:
    """Whether a schema has other keywords that say something about instances."""
    for key in <dict> schema:
        if key in WORDS and key != keyword:
            return True
    return False
