"""Patterns of other dialects: refused with what to write, where ECMAScript with its `u` flag refuses them."""

import json
from pathlib import Path

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.regex import parse_regex

RECORDED = json.loads((Path(__file__).parents[1] / "data/patterns_recorded.json").read_text(encoding="utf-8"))

# Of each pattern the column of what is wrong, and part of what is said.
REFUSED = [
    ("[[:alpha:]]+", 11, "write their ranges, as [A-Za-z]"),
    ("[[:alpha:][:digit:]_]", 21, "write their ranges"),
    ("^[[:^space:]x-z]$", 16, "write their ranges"),
    ("[[=e=]]", 7, "write their ranges"),
    ("[[.hyphen.]]", 12, "write their ranges"),
    ("[a-z[:digit:]]", 14, "write their ranges"),
    ("[^]]+", 4, r"write [^\]...] for one with ] in it"),
    ("[]a]", 4, r"write [\]...] for one with ] in it"),
    ("[^]a-z]", 7, r"write [^\]...]"),
    ("[a-z-[aeiou]]", 13, "a class can't stand within a class"),
    ("[[a-z]&&[^aeiou]]", 17, "a class can't stand within a class"),
    ("[[a-z]--[aeiou]]", 16, "a class can't stand within a class"),
    ("a]", 2, r"write \] for the character itself"),
    ("a}", 2, r"write \} for the character itself"),
    ("x{a}", 2, r"write \{ for the character itself"),
    ("^{", 2, r"write \{ for the character itself"),
    ("${name}", 2, r"write \{ for the character itself"),
    ("a{,3}", 2, r"write {0,3}, or \{"),
    ("a{ , 3 }", 2, "write {0,3}"),
    ("a{,}", 2, "begins no count"),
    ("a{ 1, 3}", 2, r"write {1,3}, or \{"),
    ("a{1, 3}", 2, "write {1,3}"),
    ("a{1 ,}", 2, "write {1,}"),
    ("a{ 2 }", 2, "write {2}"),
    ("a{1\t,2}", 2, "write {1,2}"),
    ("a{-1}", 2, "begins no count"),
    ("a{1,2,3}", 2, "begins no count"),
    ("a{\u0661}", 2, "begins no count"),
    ("a{1", 2, "begins no count"),
    ("a++", 3, "possessive"),
    ("a{2}+", 5, "possessive"),
    ("a?+b", 3, "possessive"),
    ("a{1}{2}", 5, "can't follow"),
    (r"\Aa", 1, "write ^"),
    (r"a\z", 2, "write $"),
    (r"a\Z", 2, "write $"),
    (r"\h+", 1, r"write [ \t]"),
    (r"\H", 1, r"write [^ \t]"),
    (r"a\R", 2, r"write (?:\r\n|"),
    (r"a\Kb", 2, "place in a text"),
    (r"\Ga", 1, "place in a text"),
    (r"\Qa.b\E", 1, "before each character"),
    (r"\X", 1, "write ."),
    (r"\N", 1, r"write [^\n]"),
    (r"\x{41}", 1, r"\u{H...}"),
    (r"\U0001F600", 1, r"\u{H...}"),
    (r"\u12", 1, "four digits"),
    (r"\012", 1, r"\xHH"),
    (r"\12", 1, r"\xHH"),
    (r"[\h]", 2, r"write [ \t]"),
    (r"[a\Z]", 3, "write $"),
    (r"[\1]", 2, "unknown escape"),
    (r"\i\c*", 1, "name's first character"),
    ("(?i)abc", 1, "write both cases of a letter"),
    ("(?i:abc)", 1, "write both cases of a letter"),
    ("a(?-s)", 2, "flags are not known"),
    ("(?^x:a)", 1, "flags are not known"),
    ("(?P<year>a)", 1, "write (?<name>"),
    ("(?'year'a)", 1, "write (?<name>"),
    ("(?P=year)", 1, "back references"),
    ("a(?#what it is)b", 2, "leave it out"),
    ("(?>a*)b", 1, "write (?:"),
    ("(?|a|b)", 1, "write (?:"),
    ("(a)?(?(1)b|c)", 5, "write an alternative for each case"),
    ("(?(<n>)b|c)", 1, "write an alternative for each case"),
    ("(a(?R)?b)", 3, "write a grammar"),
    ("(a(?1)?b)", 3, "write a grammar"),
    ("(?&name)", 1, "write a grammar"),
    ("(*UTF8)a", 2, "nothing before"),
    (r"\pL", 1, "general categories"),
    (r"\p{IsGreek}", 1, "general categories"),
    (r"\p{^Lu}", 1, "general categories"),
]
# As they are read with the `u` flag, although other dialects mean something else.
TAKEN = [
    ("[[:alpha:]", ["[", ":", "a", "h"], ["b", "]"]),
    ("[:alpha:]+", ["alpha:"], ["b"]),
    ("[a&&b]", ["a", "&", "b"], ["ab"]),
    (r"[\]\[{}()]", ["]", "[", "{", ")"], ["\\"]),
    (r"\{a\}|\]|x\{,3\}|\/|\_", ["{a}", "]", "x{,3}", "/", "_"], ["x", "xxx"]),
    (r"[^\]]+", ["ab"], ["a]", ""]),
    ("[^][^]", ["]]", "\na"], ["a"]),
    ("a{0,3}", ["", "aaa"], ["aaaa"]),
    ("a{2}?b{1,}?", ["aab", "aabb"], ["ab"]),
    ("\\0\u0663", ["\0\u0663"], ["\u0663"]),
]


@pytest.mark.parametrize(("pattern", "column", "remedy"), REFUSED)
def test_what_another_dialect_means_is_refused_with_what_to_write(pattern, column, remedy):
    with pytest.raises(GrammarError) as caught:
        Grammar.from_regex(pattern)
    first = str(caught.value).split("\n")[0]
    assert first.startswith(f"pattern, column {column}: ")
    assert remedy in first


@pytest.mark.parametrize("pattern", [pattern for pattern, _, _ in REFUSED])
def test_schemas_read_patterns_alike(pattern):
    for schema in (
        {"type": "string", "pattern": pattern},
        {"type": "object", "patternProperties": {pattern: {}}},
        {"type": "array", "items": {"type": ["string", "null"], "pattern": pattern}},
    ):
        with pytest.raises(GrammarError, match="pattern, column"):
            JsonSchemaCompiler.compile(schema)


@pytest.mark.parametrize(("pattern", "passing", "failing"), TAKEN)
def test_what_ecmascript_takes_is_taken(pattern, passing, failing):
    grammar = Grammar.from_regex(pattern)
    assert all(grammar.accepts(text) for text in passing)
    assert not any(grammar.accepts(text) for text in failing)


def test_patterns_are_taken_and_refused_as_by_v8():
    for pattern in RECORDED["refused"]:
        with pytest.raises(GrammarError):
            parse_regex(pattern)
    for pattern in RECORDED["taken"]:
        try:
            parse_regex(pattern)
        except GrammarError as error:
            assert "not supported" in str(error) or "general categories" in str(error), pattern  # noqa: PT017


@pytest.mark.parametrize("c", "!\"#%&',-:;<=>@_`~ é")
def test_punctuation_may_be_escaped(c):
    for pattern in (f"^a\\{c}b$", f"^a[x\\{c}]b$"):
        grammar = Grammar.from_regex(pattern)
        assert grammar.accepts(f"a{c}b")
        assert not grammar.accepts("ab")


@pytest.mark.parametrize(
    "hostile",
    [
        "[" + "[:a" * 100_000 + "]]",
        "a{1," + " " * 100_000 + "x",
        "a{" + "1" * 100_000 + ",",
        "[]" + "a" * 100_000 + "]",
    ],
)
def test_a_remedy_is_found_in_linear_time(hostile):
    with pytest.raises(GrammarError) as caught:
        parse_regex(hostile)
    assert len(str(caught.value)) < 1000
