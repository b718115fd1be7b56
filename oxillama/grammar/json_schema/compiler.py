"""Compiler of JSON schemas to grammars of exactly the texts that are their instances: `JsonSchemaCompiler`."""

import json
import pickle
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

from oxillama._util.collector import paused_collector
from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Budget, NoTextError, RuleSet
from oxillama.grammar.json_schema.arrays import array_expr
from oxillama.grammar.json_schema.branch import Branch
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.drafts import DRAFTS, draft_of
from oxillama.grammar.json_schema.json_text import LIKELY_REFUSED, JsonText
from oxillama.grammar.json_schema.keywords import SPEAKING
from oxillama.grammar.json_schema.literals import (
    ARRAY,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Literal,
    Schema,
    placed,
    pointer,
)
from oxillama.grammar.json_schema.numbers import Numbers, constant_expr, number_expr
from oxillama.grammar.json_schema.objects import Objects
from oxillama.grammar.json_schema.sharing import shared
from oxillama.grammar.json_schema.strings import Strings, pattern_parts, string_expr
from oxillama.grammar.json_schema.tableau import Tableau
from oxillama.grammar.matcher import Grammar
from oxillama.grammar.regular import PROPERTY_UNITS, pattern_units
from oxillama.sampler_config import SCHEMA_MODES, SchemaMode

__all__ = ["JsonSchemaCompiler"]

MAX_RULES = 20_000
MAX_PLACES = 5  # that an error names
WHITESPACE = ("json", "flexible")
SIMPLE = frozenset(("string", "number", "integer", "boolean"))
SCALARS = SIMPLE | {"null"}
PLAIN_OBJECT = frozenset(("type", "properties", "required", "additionalProperties"))
CONDITIONS = frozenset((
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf",
))  # fmt: skip


def _leaf_key(schema: Schema) -> frozenset[tuple[str, object]] | None:
    """Key that is equal for equivalent schemas of scalars; None for others. Values are compared as they are written:
    the float 1e23 has more instances than the integer that it is equal to."""
    if not isinstance(schema, dict):
        return None
    kinds = schema.get("type")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds) if isinstance(kinds, list) else ()
    if not kinds or not all(isinstance(kind, str) and kind in SCALARS for kind in kinds):
        return None
    found: list[tuple[str, object]] = [("type", kinds)]
    for keyword, value in schema.items():
        if keyword in CONDITIONS and type(value) in (str, int, float):
            found.append((keyword, repr(value)))
        elif keyword != "type" and keyword in SPEAKING:
            return None
    return frozenset(found)


def _size(schema: dict[str, Any]) -> int:
    """A guess at the number of states of a string: its pattern's, for each length."""
    pattern, most = schema.get("pattern"), schema.get("maxLength")
    if not isinstance(pattern, str) or pattern_units(pattern) > PROPERTY_UNITS:
        return 0
    if "(?=" in pattern or "(?!" in pattern:  # which most places in a pattern don't allow
        return LIKELY_REFUSED + 1
    with suppress(GrammarError):  # raised when the string is made
        return sum([part.node.n_states for part in pattern_parts(pattern)]) * (most if isinstance(most, int) else 1)
    return 0


class JsonSchemaCompiler:
    """Compiles JSON schemas, of draft 2020-12, 7 or 4."""

    @staticmethod
    def compile(
        schema: "dict[str, Any] | bool | str",
        *,
        mode: SchemaMode = "full",
        whitespace: str = "json",
        draft: int | None = None,
        budget: int | None = None,
    ) -> Grammar:
        """The grammar of a schema's instances.

        schema: the result of `json.loads`, or its text. mode: "full" for all instances, "generate" for the subset that
        a model should write (below). whitespace: "json" as `json.dumps` writes by default, "flexible" for any that JSON
        allows. draft: 4, 7 or 2020, by default the one that `$schema` names; without either, the assertions of all
        drafts apply. In draft 4 an integer is written without a point.

        Properties come in the order of `properties`, each once, and those of several schemas in a row to generate (a
        schema's own, those of its `$ref` and `allOf`, those of alternatives), else mixed. Others may stand anywhere,
        and come twice: a reader keeps the last, and each is valid by itself. (Without an order, past 400 optional ones
        in a row, any may.) Strings and numbers are spelled as `json.dumps` does, with or without `ensure_ascii`; where
        little is asked of them, in any way. Numbers are compared as the decimals that they are. Formats assert. Unknown
        keywords and formats say nothing.

        To generate, integers are digits without point or exponent, and those of 64 bits unless bounds or divisors ask
        for greater ones; other numbers have about 17 significant digits and exponents up to 37, unless bounds leave no
        such number, and are finite floats. Names and values that the schema lists are spelled as `json.dumps(...,
        ensure_ascii=False)` does, with the keys of an object in their order. An object with `properties`, of which no
        schema says what others it may have (`additionalProperties`, `unevaluatedProperties`), has only those that are
        named, are required, or meet one of `patternProperties`; unless `minProperties` asks for more. "flexible"
        whitespace is a space behind a comma or a colon, or none.

        budget: limit of the work, as in `Grammar.parse`.

        Raises GrammarError that names keyword and place for a schema that can't be honoured, or is too large.
        """
        if whitespace not in WHITESPACE:
            raise GrammarError(f"whitespace must be one of {', '.join(WHITESPACE)}, not {whitespace!r}")
        narrow = _is_narrow(mode)
        if draft is not None and draft not in DRAFTS:
            raise GrammarError(f"draft must be {', '.join(map(str, DRAFTS))} or None, not {draft!r}")
        with paused_collector():
            made = _outcome(schema, draft, Budget(budget), whitespace == "flexible", narrow)
        if isinstance(made, GrammarError):
            raise made
        with suppress(pickle.PicklingError, TypeError, AttributeError, RecursionError):  # not JSON, or too deep
            # A pickle of a dict now, not its text: the text would repeat shared parts again and again.
            source = schema if isinstance(schema, str) else pickle.dumps(schema)
            made.made_by(_from_source, source, mode, whitespace, draft, budget)
        return made

    @staticmethod
    def add_to(
        rules: RuleSet, schema: "dict[str, Any] | bool | str", *, mode: SchemaMode = "full", whitespace: str = "json"
    ) -> int:
        """Adds the rules of a schema's instances, as `compile` makes them, to others. Returns the rule's id."""
        if whitespace not in WHITESPACE:
            raise GrammarError(f"whitespace must be one of {', '.join(WHITESPACE)}, not {whitespace!r}")
        texts = JsonText(rules, whitespace == "flexible", narrow=_is_narrow(mode))
        schema = shared(_read(schema))
        return _Compilation(Documents(schema, draft_of(schema)), texts).root()


def _is_narrow(mode: str) -> bool:
    if mode not in SCHEMA_MODES:
        raise GrammarError(f"mode must be one of {', '.join(SCHEMA_MODES)}, not {mode!r}")
    return mode == "generate"


def _outcome(schema: Any, draft: int | None, budget: Budget, flexible: bool, narrow: bool) -> Grammar | GrammarError:
    """The grammar, or why there is none.

    Reference counts have freed all else on return. What a traceback's frames hold would be alive when the collector
    goes on, and be looked at then: a third of the time of large schemas that are refused.
    """
    try:
        schema = _read(schema)
        return _compiled(Documents(shared(schema), draft or draft_of(schema)), budget, flexible, narrow)
    except GrammarError as error:
        error.__context__ = None
        return error.with_traceback(None)


def _compiled(documents: Documents, budget: Budget, flexible: bool, narrow: bool) -> Grammar:
    texts = JsonText(RuleSet(budget=budget), flexible, narrow=narrow)
    try:
        return _Compilation(documents, texts).grammar()
    except GrammarError:
        texts.drop_postponed()
        if not texts.counted_on_names:
            raise
    texts = JsonText(RuleSet(budget=budget), flexible, narrow=narrow)
    texts.counts_on_names = False
    try:
        return _Compilation(documents, texts).grammar()
    finally:
        texts.drop_postponed()


def _from_source(
    schema: str | bytes, mode: SchemaMode, whitespace: str, draft: int | None, budget: int | None
) -> Grammar:
    """The grammar of a schema's text, or pickle, and options."""
    return JsonSchemaCompiler.compile(
        schema if isinstance(schema, str) else pickle.loads(schema),
        mode=mode, whitespace=whitespace, draft=draft, budget=budget,
    )  # fmt: skip


def _read(schema: Any) -> Schema:
    if isinstance(schema, str | bytes):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is no JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"a schema is an object or a boolean, not {type(schema).__name__}")
    return schema


class _Compilation:
    """One run of the compiler: demands with rules, and those whose rules are still to be defined."""

    def __init__(self, documents: Documents, texts: JsonText) -> None:
        self.documents = documents
        self.rules = texts.rules
        self.texts = texts
        self.tableau = Tableau(documents, texts.budget, texts.narrow)
        self.objects = Objects(texts)
        self.known: dict[tuple[tuple[int, bool, str], ...], int] = {}
        self.alone: dict[tuple[int, bool, str], int] = {}  # expressions of single schemas
        self.todo: list[tuple[int, int, int, Sequence[Literal]]] = []

    def grammar(self) -> Grammar:
        """The grammar of the schema's values.

        Raises GrammarError; for a schema that has none with the places of strings and numbers that have none, which may
        be why.
        """
        root = self.root()
        try:
            return Grammar.from_rules(self.rules, root)
        except NoTextError as error:
            places = list(dict.fromkeys(map(pointer, self.texts.unmet)))
            if not places:
                raise
            listed = ", ".join(places[:MAX_PLACES]) + ", …" * (len(places) > MAX_PLACES)
            raise NoTextError(f"{error}; no value meets the schema at {listed}, either") from None

    def root(self) -> int:
        root = self.rules.new_rule("root")
        base = self.documents.root_base
        self.later(root, [Literal(self.documents.root, True, base, None)])
        while self.todo:
            _, _, rule, literals = heappop(self.todo)
            self.rules.define(rule, self.expression(literals))
            if len(self.known) > MAX_RULES:
                raise GrammarError(f"the schema leads to more than {MAX_RULES} different demands on values")
        self.texts.finish()
        return root

    def later(self, rule: int, literals: Sequence[Literal]) -> None:
        """Remembers a rule to define. Those with few combinations come first, so that most of what can't be honoured is
        found before much work is done."""
        heappush(self.todo, (self.tableau.combinations(literals), -len(self.known), rule, literals))

    def value(self, literals: Sequence[Literal]) -> int:
        """The expression of a demand on a value: a call of its rule."""
        if not literals:
            return self.texts.shared("value")
        if len(literals) == 1:
            known = self.alone.get(literals[0].key)
            if known is None:
                known = self.alone[literals[0].key] = self.of_one(self.behind(literals[0]))
            return known
        return self.of_all(literals)

    def of_one(self, literal: Literal) -> int:
        """The expression of a schema: of many kinds it needs no rule of its own."""
        simple = self.simple(literal)
        if simple is None:
            simple = self.leaf(literal)
        return self.of_all((literal,)) if simple is None else simple

    def of_all(self, literals: Sequence[Literal]) -> int:
        key = tuple(dict.fromkeys([literal.key for literal in literals]))
        if key not in self.known:
            self.known[key] = self.rules.new_rule("")
            self.later(self.known[key], literals)
        return self.rules.rule(self.known[key])

    def behind(self, literal: Literal) -> Literal:
        """The schema that one with nothing but a reference stands for, as most references do: one rule for all."""
        while literal.positive and isinstance(literal.schema, dict) and "$ref" in literal.schema:
            if not self.documents.early:
                schema = literal.schema
                if self.documents.id_key in schema or any(key != "$ref" and key in SPEAKING for key in schema):
                    break
            literal = self.documents.resolve(literal, "$ref")
        return literal

    def simple(self, literal: Literal) -> int | None:
        """The expression of a schema with only a type, or nothing, as most are; None for others."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict):
            return self.texts.shared("value") if schema is literal.positive is True else None
        for keyword in schema:
            if keyword != "type" and keyword in SPEAKING:
                return None
        if "type" not in schema:
            return self.texts.shared("value")
        kind = schema["type"]
        if kind == "integer" and self.documents.draft == 4:
            return None
        return self.texts.shared(kind) if isinstance(kind, str) and kind in SIMPLE else None

    def leaf(self, literal: Literal) -> int | None:
        """The expression of strings and numbers with conditions, which recur in many schemas: compiled once."""
        key = _leaf_key(literal.schema) if literal.positive and not self.texts.inner else None
        if key is None:
            return None
        draft = self.documents.draft

        def make(own: JsonText) -> int:
            return _Compilation(Documents(literal.schema, draft), own).expression([literal])

        outer, self.texts.place = self.texts.place, literal.path
        found = self.texts.kept((draft, self.texts.narrow, key), make, _size(literal.schema))
        self.texts.place = outer
        return found

    def expression(self, literals: Sequence[Literal]) -> int:
        is_object = len(literals) == 1 and self.is_object(literals[0])
        branches = [] if is_object else self.tableau.branches(literals)
        self.texts.place = place = literals[0].path
        try:
            if is_object:
                return self.objects.expr(literals, False, self.value, self.key_sets)
            return self.rules.alt(dict.fromkeys([expr for branch in branches for expr in self.of_branch(branch)]))
        except GrammarError as error:
            raise placed(place, error) from None

    def is_object(self, literal: Literal) -> bool:
        """Whether a schema has only what most of objects have: it is its only branch then."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict) or schema.get("type") != "object":
            return False
        if "properties" not in schema or self.documents.id_key in schema:
            return False
        if any(key in SPEAKING and key not in PLAIN_OBJECT for key in schema):
            return False
        self.tableau.spend(schema)
        return True

    def of_branch(self, branch: Branch) -> list[int]:
        """One expression for each allowed type."""
        texts, types = self.texts, branch.types
        found = []
        if types & NULL:
            found.append(self.rules.literal(b"null"))
        if types & (TRUE | FALSE) == TRUE | FALSE:
            found.append(texts.shared("boolean"))
        elif types & (TRUE | FALSE):
            found.append(self.rules.literal(b"true" if types & TRUE else b"false"))
        if types & NUMBER:
            found += self.of_numbers(branch)
        if types & STRING:
            found.append(string_expr(texts, branch.strings))
        if types & ARRAY:
            found.append(
                array_expr(texts, branch.arrays, self.value, self.values) if branch.arrays else texts.shared("array")
            )
        if types & OBJECT:
            found.append(
                self.objects.expr(branch.objects, branch.any_order, self.value, self.key_sets)
                if branch.objects
                else texts.shared("object")
            )
        return found

    def of_numbers(self, branch: Branch) -> list[int]:
        n, texts = branch.numbers, self.texts
        if branch.values is not None:
            texts.budget.spend(4 * len(branch.values), "a list of numbers")
            return [self.constant(branch, v) for v in sorted(branch.values - branch.without) if v in n]
        if n == Numbers() and not branch.without:
            return [texts.shared("number")]
        if n == Numbers(integer=True) and not branch.without:
            return [texts.shared("integer")]
        found = []
        for hole in sorted(branch.without):
            if hole in n:
                found.append(self.between(n.below(hole, True)))
                n = n.above(hole, True)
        return [*found, self.between(n)]

    def constant(self, branch: Branch, value: Fraction) -> int:
        """One number; in mode "generate" as the schema writes it, an integer without a point where one is demanded."""
        if not self.texts.narrow:
            return constant_expr(self.rules, value, branch.numbers.plain)
        text = str(value) if branch.numbers.integer else branch.written[value]
        return self.rules.literal(text.encode())

    def between(self, numbers: Numbers) -> int:
        if self.texts.narrow:
            numbers = numbers.for_generating()
        return self.texts.postponed(numbers, lambda: number_expr(self.rules, numbers))

    def key_sets(self, literals: Sequence[Literal]) -> list[Strings]:
        """The sets of strings that meet a demand on the names of properties."""
        return [branch.strings for branch in self.tableau.branches(literals) if branch.types & STRING]

    def values(self, literals: Sequence[Literal]) -> list[int] | None:
        """The expressions of all single values that meet a demand; None if there may be many."""
        scalars: set[int] = set()
        texts: set[str] = set()
        numbers: dict[Fraction, int] = {}
        for branch in self.tableau.branches(literals):
            if branch.types & (ARRAY | OBJECT):
                return None
            scalars |= {bit for bit in (NULL, TRUE, FALSE) if branch.types & bit}
            if branch.types & NUMBER:
                if branch.values is None:
                    return None
                self.texts.budget.spend(4 * len(branch.values), "a list of numbers")
                for v in branch.values - branch.without:
                    if v in branch.numbers:
                        numbers.setdefault(v, self.constant(branch, v))
            if branch.types & STRING:
                if branch.strings.allowed is None:
                    return None
                texts |= {text for text in branch.strings.allowed if branch.strings.has(text, self.texts.budget)}
        words = {NULL: b"null", TRUE: b"true", FALSE: b"false"}
        return [
            *(self.rules.literal(words[bit]) for bit in sorted(scalars)),
            *(numbers[v] for v in sorted(numbers)),
            *(self.texts.written(text) for text in sorted(texts)),
        ]
