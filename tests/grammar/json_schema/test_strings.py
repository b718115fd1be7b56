"""Strings with patterns and lengths: those of many characters match what `re` and `len` say, and have few states."""

import json
import re

import pytest

from oxillama.grammar.json_schema import JsonSchemaCompiler

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
