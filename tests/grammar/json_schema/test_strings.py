"""Strings with patterns and lengths: those of many characters match what `re` and `len` say, and have few states."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.grammar.automaton import MAX_CHAR, RuleSet, character_ranges
from oxillama.grammar.characters import category_ranges
from oxillama.grammar.json_schema import JsonSchemaCompiler, json_text

PIECES = ("a", "s3://", "/", ":", "é", "\n", "\u2028", "😀", '"', "\\", "\x7f", "@b.c", " ")
ANY = "[^\n\r\u2028\u2029]*"  # ECMAScript's `.*`
# A pattern, and the same for Python's `re`.
PATTERNS = (
    ("s3://.*", f"s3://{ANY}"), (r"^.*\S.*$", rf"^{ANY}\S{ANY}\Z"),
    (r"^[^\s@]+@[^\s@]+\.[^\s@]+$", r"^[^\s@]+@[^\s@]+\.[^\s@]+\Z"),
    ("^[^a]*$", r"^[^a]*\Z"), ("^a.*$", rf"^a{ANY}\Z"), (r"[^a-z]{3}|é$", r"[^a-z]{3}|é\Z"),
    (r"^[\s\S]{0,700}$", r"^[\s\S]{0,700}\Z"),
)  # fmt: skip


def texts_of(length):
    """Texts of about a length, each of a repeated piece between others."""
    for piece in PIECES:
        for first, last in (("", ""), ("s3://", ""), ("a", "é"), ("x@", ".y"), ("é", "\n")):
            body = piece * ((length - len(first + last)) // len(piece))
            text = first + body + last
            yield text
            yield text + "a"
            yield text + "\u20acb"


@pytest.mark.parametrize(("pattern", "same"), PATTERNS)
@pytest.mark.parametrize(("least", "most"), [(0, 300), (290, 700), (258, None)])
def test_long_strings_match_their_pattern_and_length(pattern, same, least, most):
    limits = {"minLength": least} if most is None else {"minLength": least, "maxLength": most}
    grammar = JsonSchemaCompiler.compile({"type": "string", "pattern": pattern, **limits})
    twin = re.compile(same)
    n_fit = 0
    for length in (1, least, most or 400):
        for text in texts_of(length):
            fits = least <= len(text) <= (most or len(text)) and twin.search(text) is not None
            n_fit += fits
            for ensure_ascii in (False, True):
                assert grammar.accepts(json.dumps(text, ensure_ascii=ensure_ascii)) == fits, (text, fits)
    assert n_fit


@pytest.mark.parametrize(("pattern", "n_kinds"), [("s3://.*", 6), (r"^.*\S.*$", 2), ("^arn:.*$", 1)])
def test_a_character_of_a_long_string_takes_few_states(pattern, n_kinds):
    """n_kinds: states of the pattern alone. Each is one before a character and one behind a backslash."""
    most = 1000
    grammar = JsonSchemaCompiler.compile({"type": "string", "pattern": pattern, "maxLength": most})
    assert grammar.automaton.n_states < 2 * n_kinds * most + 500


def sequences_of(ranges):
    """The sequences of bytes that rules hold for a set of characters: as they are, and behind a backslash."""
    texts = json_text.JsonText(RuleSet(), flexible=False)
    return tuple(texts.rules.sequences(texts._spelled(spelling)) for spelling in json_text._spellings(ranges))


@pytest.mark.parametrize("name", ["L", "P", "Cn", "Assigned"])
def test_large_sets_are_spelled_as_a_whole(name):
    """ASCII and the rest are spelled apart, the rest by compiled loops, and mean the same characters in the same
    order."""
    ranges = character_ranges((*(category_ranges(name) or ()), (0x20, 0x22), (0x7A, 0x90)))
    assert len(ranges) > json_text.FEW
    assert sequences_of(ranges) == json_text._spelled(ranges)


# Characters beside which spellings change, and any.
CODES = st.sampled_from((
    0, 0x1F, 0x22, 0x7F, 0x80, 0xBF, 0xC0, 0xFF, 0x100, 0x7FF, 0x800, 0xFFF, 0x1000, 0x9FFF, 0xA000, 0xCFFF, 0xD7FF,
    0xE000, 0xFFFF, 0x10000, 0x103FF, 0x10400, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FBFF, 0x10FC00, MAX_CHAR,
)) | st.integers(0, MAX_CHAR)  # fmt: skip


@given(st.lists(st.tuples(CODES, CODES | st.none()), min_size=1, max_size=60))
def test_any_set_is_spelled_as_a_whole(pairs):
    ranges = character_ranges(tuple((min(a, a if b is None else b), max(a, a if b is None else b)) for a, b in pairs))
    assert sequences_of(ranges) == json_text._spelled(ranges)


@pytest.mark.parametrize(
    ("low", "high"), [(0x7F, 0x90), (0x90, 0x80), (0xD7FF, 0xD800), (0xDFFF, 0xE001), (0x90, 0x110000)]
)
def test_other_numbers_are_no_characters_beyond_ascii(low, high):
    rules = RuleSet()
    with pytest.raises(IndexError, match="no range of characters"):
        rules.characters((), ((low, high),))
    with pytest.raises(IndexError, match="no set of characters"):
        rules.sequences(rules.literal(b"a"))


def test_patterns_with_the_same_letters_share_an_automaton(monkeypatch):
    monkeypatch.setattr(json_text, "_automata", {})
    patterns = [r"^[\p{L}\p{N}_]{1,300}$", r"^[\p{L}\p{N}.-]{1,300}$"]
    first, second = [JsonSchemaCompiler.compile({"type": "string", "pattern": pattern}) for pattern in patterns]
    kept = [name for name in json_text._automata if isinstance(name, tuple) and name[0] in ("raw", "escaped")]
    assert len(kept) == 2
    for text, is_one, is_other in (
        ("é_", True, False),
        ("é.", False, True),
        ("\u4e00٣", True, True),
        ("!", False, False),
    ):
        for spelled in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
            assert (first.accepts(spelled), second.accepts(spelled)) == (is_one, is_other), text
