"""Strings with patterns and lengths: those of many characters match what `re` and `len` say, and have few states."""

import json
import re
from collections import OrderedDict

import pytest

from oxillama.grammar.automaton import character_ranges
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


@pytest.mark.parametrize("name", ["L", "P", "Cn", "Assigned"])
def test_large_sets_are_spelled_as_a_whole(name):
    """ASCII and the rest are spelled apart, and mean the same characters in the same order."""
    ranges = character_ranges((*(category_ranges(name) or ()), (0x20, 0x22), (0x7A, 0x90)))
    assert len(ranges) > json_text.FEW
    assert json_text._spellings(ranges) == json_text._spelled(ranges)


def test_patterns_with_the_same_letters_share_an_automaton(monkeypatch):
    monkeypatch.setattr(json_text, "_automata", OrderedDict())
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
