"""Budgets of work: too large parts are refused by name, long ones compile, and neither depends on the past."""

import itertools
import pickle
import random
import re
import string

import pytest

from oxillama.chat.tool_format import find_format
from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, RuleSet
from oxillama.grammar.automata import budget as budget_module
from oxillama.grammar.automata import dfa
from oxillama.grammar.automata.budget import UNITS
from oxillama.grammar.json_schema import JsonSchemaCompiler, numbers, strings
from oxillama.grammar.json_schema import json_text as texts

compiled = JsonSchemaCompiler.compile
draw = random.Random(1)
WORDS = ["".join(draw.choices(string.ascii_lowercase, k=12)) for _ in range(2000)]


def defined(definition, n, keyword="properties"):
    """A schema with n definitions that it refers to."""
    names = [f"d{i}" for i in range(n)]
    references = [{"$ref": f"#/$defs/{name}"} for name in names]
    given = dict(zip(names, references, strict=True)) if keyword == "properties" else references
    return {"$defs": {name: definition(i) for i, name in enumerate(names)}, keyword: given}


def tagged(i):
    return {"type": "object", "properties": {"t": {"const": f"n{i}"}, "v": {"type": "integer"}}, "required": ["t"]}


def follows(i):
    return {"type": "object", "properties": {"next": {"$ref": f"#/$defs/d{(i + 1) % 2000}"}, f"p{i}": {}}}


LONG = {
    "a pattern of 2000 alternatives": lambda **b: Grammar.from_regex("|".join(WORDS), **b),
    "the same anywhere": lambda **b: Grammar.from_regex(rf"[\s\S]*(?:{'|'.join(WORDS)})[\s\S]*", **b),
    "in a schema": lambda **b: compiled({"type": "string", "pattern": "|".join(WORDS)}, **b),
    "2000 choices": lambda **b: Grammar.from_choices(WORDS, **b),
    "2000 words in GBNF": lambda **b: Grammar.parse("root ::= " + " | ".join(map('"{}"'.format, WORDS)), **b),
    "an enum": lambda **b: compiled({"enum": WORDS}, **b),
    "3000 references to one": lambda **b: compiled(
        {"$defs": {"a": tagged(1)}, "properties": {f"p{i}": {"$ref": "#/$defs/a"} for i in range(3000)}}, **b
    ),
    "2000 definitions": lambda **b: compiled(defined(tagged, 2000), **b),
    "2000 in a circle": lambda **b: compiled(defined(follows, 2000), **b),
    "2000 together": lambda **b: compiled(defined(lambda i: {"properties": {f"p{i}": {}}}, 2000, "allOf"), **b),
    "one of 2000 with a tag": lambda **b: compiled(defined(tagged, 2000, "oneOf"), **b),
    "one of 2000 values": lambda **b: compiled(defined(lambda i: {"const": i, "title": "x"}, 2000, "oneOf"), **b),
    "any of 2000": lambda **b: compiled(defined(tagged, 2000, "anyOf"), **b),
}  # fmt: skip


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", LONG)
def test_long_grammars_compile_well_within_the_budget(name):
    LONG[name](budget=UNITS // 2)


def test_long_unions_match_their_members():
    pattern = Grammar.from_regex(rf"[\s\S]*(?:{'|'.join(WORDS[:300])})[\s\S]*")
    assert pattern.accepts(f"ab {WORDS[7]} c")
    assert pattern.accepts(WORDS[299])
    assert not pattern.accepts(WORDS[7][:-1])
    in_schema = compiled({"pattern": "|".join(WORDS[:300])})
    assert in_schema.accepts(f'"é{WORDS[3]}\\n"')
    assert not in_schema.accepts(f'"{WORDS[3][1:]}"')
    union = LONG["one of 2000 with a tag"]()
    assert union.accepts('{"t": "n1999", "v": 3}')
    assert not union.accepts('{"t": "n2000", "v": 3}')
    values = LONG["one of 2000 values"]()
    assert values.accepts("1999")
    assert not values.accepts("2000")


def test_values_twice_in_a_one_of_match_neither():
    schema = {"oneOf": [{"const": 1}, {"enum": [1, 2]}, {"const": 3}, {"const": "1"}]}
    for text, valid in (("1", False), ("2", True), ("3", True), ('"1"', True), ("4", False)):
        assert compiled(schema).accepts(text) == valid
    tags = {"oneOf": [tagged(1), tagged(2), tagged(1)]}
    assert compiled(tags).accepts('{"t": "n2"}')
    assert not compiled(tags).accepts('{"t": "n1"}')


def nested(i):
    """Each leads to two others: a number of ways that grows like Fibonacci's numbers."""
    return {"anyOf": [{"$ref": f"#/$defs/d{j}"} for j in (i + 1, i + 2)]} if i < 60 else {"const": i}


LARGE = {
    "one of 2000 strings": (
        compiled, lambda: defined(lambda i: {"type": "string", "pattern": f"^x{i}"}, 2000, "oneOf"),
    ),
    "ways in ways": (compiled, lambda: defined(nested, 63)),
    "ways, many times": (compiled, lambda: {"properties": {
        f"p{k}": {"oneOf": [{"properties": {f"n{i}": {}, f"k{k}": {}}, "required": [f"n{i}"]} for i in range(11)]}
        for k in range(400)
    }}),
    "patterns and their opposites": (
        compiled, lambda: {"allOf": [{"not": {"pattern": f"a{i}.*b"}} for i in range(12)]},
    ),
    "patterns of names": (compiled, lambda: {
        "patternProperties": {f"(.*a){{{900 + i}}}": {} for i in range(30)}, "properties": {"a" * 200: {}}
    }),
    "lengths of patterns": (compiled, lambda: {"properties": {
        f"p{i}": {"pattern": "[a-z]+x|y[0-9]*z", "maxLength": 200 + i} for i in range(100)
    }}),
    "divisors": (compiled, lambda: {"properties": {f"p{i}": {"multipleOf": 301 + 2 * i} for i in range(40)}}),
    "lists, in all combinations": (compiled, lambda: {"allOf": [
        {"enum": list(range(20_000))}, *({"anyOf": [{"minLength": i}, {"maximum": i}]} for i in range(11))
    ]}),
    "a pattern of 10,000 alternatives": (Grammar.from_regex, lambda: "|".join(w * 5 for w in WORDS * 5)),
    "100,000 long choices": (Grammar.from_choices, lambda: [f"{i}{w}{w}{w}" for i in range(50) for w in WORDS]),
    "what may be left out": (Grammar.parse, lambda: "root ::= " + "[a-z]? " * 20_000),
    "rules that begin with each other": (Grammar.parse, lambda: "\n".join([
        "root ::= " + " ".join(f'"x" r{i}' for i in range(300)),
        *(f"r{i} ::= " + " | ".join(f'r{j} "{j % 10}"' for j in range(300)) + ' | "a"' for i in range(300)),
    ])),
    "letters of all languages": (Grammar.from_regex, lambda: r"(?:\p{L}|a\p{N})*" * 300),
    "sets of them": (Grammar.from_regex, lambda: "".join(f"[\\p{{L}}{chr(0xE000 + i)}]" for i in range(2000))),
    "a set of them": (Grammar.from_regex, lambda: "[" + r"\p{L}" * 20_000 + "]"),
    "sets of them, all met": (compiled, lambda: {"allOf": [
        {"pattern": f"[\\p{{L}}{chr(0xE000 + i)}]a{i}"} for i in range(40)
    ]}),
    "a constant that is no ASCII": (compiled, lambda: {"const": "é" * 400_000}),
    "a name that others have not": (compiled, lambda: {"required": ["a" * 100_000], "additionalProperties": {}}),
    "choices without end": (Grammar.from_choices, lambda: map(str, itertools.count())),
    "rules without end": (
        Grammar.parse, lambda: "root ::= r0\n" + "\n".join(f"r{i} ::= [a-z]" for i in range(100_000)),
    ),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", LARGE)
def test_too_large_grammars_are_refused(name):
    """By a tenth of the budget, to be quick; with ten times as much it takes no longer than that."""
    compiler, source = LARGE[name]
    with pytest.raises(GrammarError, match=r"too large|too many|more than") as e:
        compiler(source(), budget=UNITS // 10)
    assert len(str(e.value)) < 1500


def test_sets_of_characters_that_patterns_have_in_common_are_told_apart():
    pattern = Grammar.from_regex(r"(?=.*\p{Lu})(?=.*\p{Nd})(?!.*[\p{Lu}\p{P}]$).*")
    for text, valid in (("aÉ7ß", True), ("É7", True), ("7É", False), ("é7", False), ("Éé", False), ("É7!", False)):
        assert pattern.accepts(text) == valid


def test_space_and_comments_of_any_length_may_be_between_rules():
    blank = " \t\n# é\r\n\n" * 20_000
    grammar = Grammar.parse(f'{blank}root ::= {"  #x".ljust(50_000)}\n "a" b{blank}b ::= "c"{blank}')
    assert grammar.accepts("ac")


def test_there_is_a_budget_by_default():
    compiler, source = LARGE["a pattern of 10,000 alternatives"]
    with pytest.raises(GrammarError, match=f"takes more than the budget of {UNITS} units of work"):
        compiler(source())
    schema = {"properties": {"a": {"pattern": "b" * 500_000}}}
    tools = [{"name": f"t{k}", "parameters": schema} for k in range(3)]
    said = r"the parameters of the tool 't0': pattern at #/properties/a: a pattern of 500000 characters is too large"
    with pytest.raises(GrammarError, match=said):
        find_format("hermes").grammar(tools, "required")


def test_errors_name_the_too_large_part():
    for make, said in (
        (lambda: Grammar.from_regex("a" * 1000, budget=500), "a pattern of 1000 characters is too large to compile"),
        (lambda: Grammar.parse("root ::= " + '"a" ' * 400, budget=500), "a grammar of .* is too large to compile"),
        (lambda: Grammar.from_choices(map(str, range(900)), budget=500), "a list of so many choices is too large"),
        (lambda: compiled({"pattern": "b" * 999}, budget=500), "pattern of 999 characters is too large to compile"),
        (lambda: compiled({"oneOf": [{"minLength": i} for i in range(99)]}, budget=500), "all pairs of its altern"),
    ):
        with pytest.raises(GrammarError, match=said) as e:
            make()
        assert "it takes more than the budget of 500 units of work" in str(e.value)


@pytest.mark.parametrize("budget", [0, -1, 1.5, True, "1", 1 << 70])
def test_invalid_budgets_are_refused(budget):
    for make in (
        lambda: Grammar.parse('root ::= "a"', budget=budget),
        lambda: Grammar.from_regex("a", budget=budget),
        lambda: Grammar.from_choices(["a"], budget=budget),
        lambda: compiled({}, budget=budget),
    ):
        with pytest.raises(GrammarError, match=re.escape(f"budget must be 1 to {1 << 40} units of work or None, not ")):
            make()


def cost_of(make):
    """The least budget that is enough."""
    low, high = 0, UNITS
    while high - low > 1:
        middle = (low + high) // 2
        try:
            make(budget=middle)
            high = middle
        except GrammarError:
            low = middle
    return high


COSTS = {
    "number": {"type": "number", "multipleOf": 7, "minimum": -3},
    "strings": {"properties": {"a": {"pattern": "^[a-z]+x|y$", "maxLength": 20}, "b": {"format": "email"}}},
    "union": {"oneOf": [{"type": "string", "minLength": 2}, {"pattern": "^a"}, {"type": "array"}]},
    "names": {"patternProperties": {"^a.*b": {}, "b$": {"type": "integer"}}, "properties": {"ab": {}, "c": {}}},
}


@pytest.mark.parametrize("mode", ["full", "generate"])
@pytest.mark.parametrize("name", COSTS)
def test_the_cost_does_not_depend_on_what_was_compiled_before(name, mode):
    def make(budget):
        return compiled(COSTS[name], mode=mode, budget=budget)

    make(None)
    warm = cost_of(make)
    texts._automata.clear()
    for cached in (
        numbers._automaton,
        strings._small_parts,
        strings.format_parts,
        dfa.is_empty,
        dfa._small_nfa,
        dfa._large_nfa,
        dfa._kept_basis,
    ):
        cached.cache_clear()
    with pytest.raises(GrammarError):
        make(warm - 1)
    make(warm)
    assert cost_of(make) == warm
    assert 50 < warm < UNITS // 10


def test_rules_made_by_hand_have_the_same_budget():
    rules = RuleSet()
    assert rules.budget.left == rules.budget.limit == UNITS
    expr = rules.range(97, 122)
    for _ in range(10):
        rules.seq((expr, expr))
    assert rules.budget.spent == 11
    with pytest.raises(GrammarError, match="too large to compile"):
        rules.budget.spend(UNITS, "it")
    rule = rules.new_rule("root")
    rules.define(rule, expr)
    with pytest.raises(GrammarError, match="too large to compile"):
        Grammar.from_rules(rules, rule)


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (Grammar.parse, 'root ::= "a" "b" [c-e] "f"'),
        (Grammar.from_regex, "ab[c-e]f|gh"),
        (Grammar.from_choices, ["abcdf", "gh"] * 20),
        (compiled, {"enum": ["abcdf", "gh"]}),
    ],
)
def test_a_budget_travels_with_the_grammar(make, source, monkeypatch):
    own, default = make(source, budget=UNITS), make(source)
    monkeypatch.setattr(budget_module, "UNITS", 5)
    with pytest.raises(GrammarError, match="budget of 5 units"):
        pickle.loads(pickle.dumps(default))
    assert pickle.loads(pickle.dumps(own)).automaton.n_states == own.automaton.n_states
