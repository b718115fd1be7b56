"""Pieces of patterns in other dialects (Python, PCRE, POSIX, Java, .NET, Ruby), and how ECMAScript writes them."""

import re

__all__ = ["bracket_remedy", "escape_remedy", "group_remedy"]

_LINE_END = r"(?:\r\n|[\n\v\f\r\u0085\u2028\u2029])"
_NO_FLAGS = "flags are not known: write both cases of a letter, as [aA], and [^] for a . that is any character"
_NO_POSITION = "a place in a text is not known in a pattern, which holds the whole text"
_ESCAPES = {
    "A": "write ^",
    "z": "write $",
    "Z": "write $",
    "a": r"write \x07",
    "e": r"write \x1b",
    "h": r"write [ \t] for a space within a line, or [0-9a-fA-F] for a digit of a number to the base 16",
    "H": r"write [^ \t], or [^0-9a-fA-F]",
    "R": f"write {_LINE_END}",
    "N": r"write [^\n], or \u{...} for a character by its number",
    "X": "write . for a character",
    "Q": r"write a \ before each character that stands for itself",
    "E": r"write a \ before each character that stands for itself",
    "K": _NO_POSITION,
    "G": _NO_POSITION,
    "i": "write the ranges of a name's first character, as [A-Z_a-z]",
    "c": r"write \cJ with a letter, or the ranges of a name's characters",
    "C": r"write [^]",
    "x": r"write \xHH with two digits, or \u{H...}",
    "u": r"write \uHHHH with four digits, or \u{H...}",
    "U": r"write \u{H...}",
    "o": r"write \xHH",
    "0": r"write \xHH for a character by its number",
    "l": "write [a-z]",
    "L": "write [^a-z]",
}
_GROUPS = (
    ("(?P<", "write (?<name>"),
    ("(?P=", "back references are not supported"),
    ("(?'", "write (?<name>"),
    ("(?#", "comments are not known: leave it out"),
    ("(?>", "groups that don't give back are not known: write (?:"),
    ("(?|", "write (?:"),
    ("(?(", "conditions are not known: write an alternative for each case"),
    ("(?P>", "calls of groups are not known: write a grammar (grammar=)"),
    ("(?R", "calls of groups are not known: write a grammar (grammar=)"),
    ("(?&", "calls of groups are not known: write a grammar (grammar=)"),
)
_CALL = re.compile(r"\(\?[+-]?[0-9]")
_FLAGS = re.compile(r"\(\?\^?[a-zA-Z-]*[:)]")
# A class whose last characters were meant as one within it: [[:alpha:], [a[=e=], [[.hyphen.].
_POSIX = re.compile(r"\[([:=.])[^\]]*\1\]$")
_NO_LEAST = re.compile(r"\{\s{0,9},\s{0,9}([0-9]{1,15})\s{0,9}\}")
_SPACED = re.compile(r"\{\s{0,9}([0-9]{1,15})\s{0,9}(?:(,)\s{0,9}([0-9]{0,15})\s{0,9})?\}")


def escape_remedy(letter: str) -> str:
    """Remedy for an escape that there isn't, what to write in its place: "" or ": " and a sentence."""
    return f": {_ESCAPES[letter]}" if letter in _ESCAPES else ""


def group_remedy(text: str, at: int) -> str:
    """Remedy for the group that begins at ``(?``, what to write in its place: "" or ". " and a sentence."""
    for start, remedy in _GROUPS:
        if text.startswith(start, at):
            return f"; {remedy}"
    if _CALL.match(text, at):
        return "; calls of groups are not known: write a grammar (grammar=)"
    return f"; {_NO_FLAGS}" if _FLAGS.match(text, at) else ""


def bracket_remedy(text: str, at: int, last_class: str) -> str:
    r"""Fault of the ``{``, ``}`` or ``]`` at a place where it can't be, and what to write.

    last_class: the text of the last class before it with a bracket in it, or with nothing; "" if there is none.
    """
    c = text[at]
    itself = f"write \\{c} for the character itself"
    if c == "{":
        if found := _NO_LEAST.match(text, at):
            return f"a count begins with its least number: write {{0,{found[1]}}}, or \\{{ for the character itself"
        if found := _SPACED.match(text, at):
            count = f"{{{found[1]}{found[2] or ''}{found[3] or ''}}}"
            return f"a count has no spaces: write {count}, or \\{{ for the character itself"
        return f"this {{ begins no count: {itself}"
    if c == "}":
        return f"this }} ends no count: {itself}"
    if _POSIX.search(last_class[-40:]):
        return "classes like [:alpha:] are not known within a class: write their ranges, as [A-Za-z]"
    if last_class in ("[]", "[^]"):
        what = "no character" if last_class == "[]" else "any character"
        return f"{last_class} is a whole class, of {what}: write {last_class[:-1]}\\]...] for one with ] in it"
    if last_class:
        return f"a class can't stand within a class: write all ranges in one, or {itself.removeprefix('write ')}"
    return f"this ] closes no class: {itself}"
