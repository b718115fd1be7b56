"""Patterns and choices: against Python's `re` where the two languages agree, by hand where they don't."""

import itertools
import re
import unicodedata

import pytest
from hypothesis import given, settings

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar
from oxillama.grammar.characters import category_ranges
from tests.grammar.pattern_strategies import patterns

TEXTS = ["".join(t) for n in range(5) for t in itertools.product("ab1-", repeat=n)]
PATTERNS = patterns("a", "b", "1", "-", ".", "[^a]", "[a-b1]", r"\d", r"\W", "(?:)", r"\x61", r"\-", "^", "$")


def check(pattern):
    try:
        grammar = Grammar.from_regex(pattern)
    except GrammarError:  # no text matches
        assert not any(re.fullmatch(pattern, text) for text in TEXTS)
        return
    for text in TEXTS:
        # Without MULTILINE and line ends, $ of Python and of ECMAScript are the same.
        assert grammar.accepts(text) == bool(re.fullmatch(pattern, text)), text


@settings(max_examples=150)
@given(PATTERNS)
def test_patterns_agree_with_pythons_re(pattern):
    check(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "", "^$", "^a|b$", "(^|a)b(1|$)", "(^a)*b", "a$|^b", "$a", "a^", "(a|$)*", "^^a$$", "((a*)*b)*", "(^)*",
        "(?:(^)){2}a($)+", "(?=a).*", "(?!a).*",
        "^(?=.*a)(?!.*b$)[ab1]{2,3}$", "(?!.*aa)(?!.*bb)[ab]*", "(?!a|b1)..",
    ],
)  # fmt: skip
def test_anchors_and_looking_ahead(pattern):
    check(pattern)


@pytest.mark.parametrize(
    ("pattern", "passing", "failing"),
    [
        ("(?<n>a)b?", ["a", "ab"], ["b"]),
        (r"\d", ["0", "9"], ["٣", "a"]),
        (r"\w+", ["aZ_9"], ["é", "-"]),
        (r"\s", [" ", "\t", "\u00a0", "\ufeff", "\u2028", "\u3000"], ["\u200b", "\x85"]),
        (r"\S", ["\u200b", "a"], ["\u00a0"]),
        (".", ["a", "é", "😀", "\x85"], ["\n", "\r", "\u2028", "ab", ""]),
        (r"[^]", ["\n", "a", "😀"], [""]),
        (r"\u00e9\u{1F600}\ud83d\ude00\cA\0\v[\b]", ["é😀😀\x01\0\x0b\b"], ["é"]),
        (r"[\u{1F600}-\u{1F64F}]", ["😀", "🙏"], ["🚀", "\ud83d"]),
        (r"\{a\}|\]|x\{,3\}|\/|\_", ["{a}", "]", "x{,3}", "/", "_"], ["x", "xxx"]),
        (r"[-a]|[b-]|[\]\\^]", ["-", "a", "b", "]", "\\", "^"], ["c"]),
        ("a{1000}", ["a" * 1000], ["a" * 999]),
        ("a{0,1000000000}", ["", "a" * 5000], ["b"]),
        ("(a+)+b", ["a" * 5000 + "b"], ["a" * 5000]),
        ("(a|a)*(a|a)*", ["a" * 1000], ["b"]),
    ],
)
def test_patterns_agree_with_ecmascript(pattern, passing, failing):
    grammar = Grammar.from_regex(pattern)
    for text in passing:
        assert grammar.accepts(text), text
    for text in failing:
        assert not grammar.accepts(text), text


def test_characters_of_all_categories():
    """Every character is in its category's set, those of the planes that aren't looked at, too."""
    categories = [unicodedata.category(chr(code)) for code in range(0x110000)]
    found = [""] * 0x110000
    for name in set(categories) - {"Cs"}:
        for low, high in category_ranges(name) or ():
            assert not any(found[low : high + 1])
            found[low : high + 1] = [name] * (high + 1 - low)
    assert found == ["" if name == "Cs" else name for name in categories]


@pytest.mark.parametrize("category", sorted({unicodedata.category(chr(code)) for code in range(0x3000)}))
def test_general_categories(category):
    """Against the table that they are made from, character by character; single letters are of all that begin so."""
    chars = [chr(code) for code in range(0x1800)]
    for name, negated in ((category, False), (category[0], False), (category, True)):
        ranges = Grammar.from_regex(f"[\\{'P' if negated else 'p'}{{{name}}}]")
        for c in chars[:: 1 if name == category and not negated else 7]:
            assert ranges.accepts(c) == (unicodedata.category(c).startswith(name) != negated), (name, c)


def test_names_of_categories():
    assert Grammar.from_regex(r"\p{Uppercase_Letter}[\p{gc=Nd}_]\p{General_Category=Other_Letter}").accepts("É٣ش")
    for pattern, passing, failing in (
        (r"\p{Any}", "a\n😀", []),
        (r"\p{ASCII}", "a\x7f", "é"),
        (r"\p{LC}", "aAǅ", "ش1"),
        (r"\p{Assigned}", "a\n", "\u0378"),
    ):
        grammar = Grammar.from_regex(pattern)
        assert all(grammar.accepts(c) for c in passing)
        assert not any(grammar.accepts(c) for c in failing)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "never closed"), ("a)", "no group"), ("[a", "never closed"), ("*", "nothing before"), ("a**", "follow"),
        ("^*", "nothing before"), ("a{2,1}", "backwards"), ("[b-a]", "backwards"), ("[\\d-z]", "one end"),
        ("\\", "nothing after"), ("\\1", "back references"), ("\\k<a>", "back references"), ("\\b", "not supported"),
        ("\\p{Script=Greek}", "general categories"), ("\\pL", "general categories"), ("\\P{}", "general categories"),
        ("(?<=a)b", "looking behind"), ("(?<!a)b", "looking behind"), ("(?i)a", "expected"),
        ("\\a", "unknown escape"), ("\\u{110000}", "last one"), ("\\ud800", "surrogate"), ("a(?=b)", "beginning"),
        ("a{1000000000000000000000}", "15 digits"), ("(" * 60000 + ")" * 60000, "nested deeper"),
        ("[]", "no text at all"), ("(?!a{100000})a", "repeats too much"),
    ],
)  # fmt: skip
def test_unsupported_patterns_are_refused(pattern, message):
    with pytest.raises(GrammarError, match=message):
        Grammar.from_regex(pattern)


def test_errors_point_at_the_column():
    with pytest.raises(GrammarError, match="column 3: ") as caught:
        Grammar.from_regex("ab[x")
    _, shown, caret = str(caught.value).split("\n")
    assert shown[caret.index("^")] == "["


@pytest.mark.parametrize("value", [None, 3, b"a"])
def test_a_pattern_is_text(value):
    with pytest.raises(GrammarError, match="must be a str"):
        Grammar.from_regex(value)


def test_choices():
    grammar = Grammar.from_choices(["yes", "no", "née", 'a"b', ""])
    assert all(grammar.accepts(text) for text in ("yes", "no", "née", 'a"b', ""))
    assert not any(grammar.accepts(text) for text in ("ye", "yesno", "ne"))


@pytest.mark.parametrize(
    ("choices", "message"),
    [([], "at least one"), ("yes", "list of str"), ([1], "must be str"), (["\ud800"], "surrogate")],
)
def test_invalid_choices_are_refused(choices, message):
    with pytest.raises(GrammarError, match=message):
        Grammar.from_choices(choices)
