"""A text as a pattern: it is refused, or compiled to a grammar of the texts that it matches.

Where Python's `re` reads a pattern as ECMAScript does, both must agree, on texts that the grammar makes and on all
short ones.
"""

import itertools
import re
import zlib
from random import Random

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar
from tests.fuzz.mutate import TEXT, with_word
from tests.fuzz.target import Target, told
from tests.fuzz.targets.walks import text_of

SHORT = ["".join(text) for n in range(4) for text in itertools.product("ab1-", repeat=n)]
# What both read alike: no flags, no names, no look behind, no escapes but a few; counts that are small.
UNIT = (
    r"[a-z0-9 _,;:=!é]|\.|\\[dwDWtn.*+?()\[\]{}|^$\\/]|\[\^?(?:[a-z0-9_é]|a-z|0-9|\\d|\\w)+\]|\(\?[:=!]|\(|\)|\||\^|\$"
)
ALIKE = re.compile(rf"(?:(?:{UNIT})(?:[*+?]\??|\{{[0-3](?:,[3-6]?)?\}}\??)?)*")
MAX_ALIKE = 40
# Line ends and digits outside of ASCII are where the two differ.
SAME = re.compile(r"[\x20-\x7eé\t]*", re.ASCII)


def run(data):
    pattern = data.decode("utf-8", "surrogateescape")
    expected = alike(pattern)
    try:
        grammar = Grammar.from_regex(pattern)
    except GrammarError as error:
        if "no text" in str(error) and expected:
            assert not any(map(expected.fullmatch, SHORT))
        return [told(error)]
    try:
        return [*checked(grammar, expected, Random(zlib.crc32(data)))]
    except GrammarError as error:
        if "too ambiguous" not in str(error):
            raise
        return [told(error)]


def alike(pattern):
    """Python's reading of it, or None where that may be another, or take long."""
    if len(pattern) > MAX_ALIKE or not ALIKE.fullmatch(pattern) or re.search(r"[*+}]\??\)+[*+{]", pattern):
        return None
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, RecursionError, OverflowError):
        return None


def checked(grammar, expected, draw):
    yield f"compared {expected is not None}"
    for _ in range(3):
        raw = text_of(grammar, draw, 24)
        text = None if raw is None else raw.decode()
        if text is not None and expected is not None and SAME.fullmatch(text) and len(text) < 24:
            assert expected.fullmatch(text), text
        yield f"found {text is not None}"
    if expected is not None:
        for text in SHORT:
            assert grammar.accepts(text) == bool(expected.fullmatch(text)), text


SEEDS = [
    "", "^$", "^a|b$", "(^|a)b(1|$)", "(^a)*b", "a$|^b", "(?=a).*", "(?!a).*", "^(?=.*a)(?!.*b$)[ab1]{2,3}$",
    "(?<n>a)b?", r"\d\D\w\W\s\S", r"\u00e9\u{1F600}\ud83d\ude00\cA\0\v[\b]", r"[\u{1F600}-\u{1F64F}]",
    r"{a}|]|x{,3}|\/|\_", r"[-a]|[b-]|[\]\\^]", "a{1000}", "a{0,1000000000}", "(a+)+b", "(a|a)*(a|a)*",
    r"\p{Lu}+\P{L}", r"[\p{Nd}_]\p{gc=Lo}", "[^a-c\\d]{2,}?x", "(?:a*)*", "[^]", "([ab]*a[ab]{8})",
    "(?=a{3})(?!b)a*", "a??b*?c+?", r"\x41\.", "()|(?:|a)", r"(?<=a)b", r"\b", r"(a)\1", "[]", "((((a))))",
]  # fmt: skip
WORDS = [
    b"(?:", b"(?=", b"(?!", b"(?<", b"(?<a>", b"[^", b"]", b")", b"|", b"*", b"+", b"?", b"{2}", b"{1,}", b"{0,3}",
    b"{9999}", b"\\d", b"\\w", b"\\s", b"\\p{Lu}", b"\\P{", b"\\u0041", b"\\u{1F600}", b"\\ud83d\\ude00", b"\\x41",
    b"\\cA", b"[a-z]", b"[^\\d]", b"^", b"$", b".", b"\\\\",
]  # fmt: skip


def tree(draw, depth=0):
    """A random pattern that is well formed."""
    kind = draw.randrange(7 if depth < 4 else 2)
    if kind < 2:
        return draw.choice(("a", "b", "1", "-", ".", "[^a]", "[ab1]", r"\d", r"\W", "^", "$", "é", "(?:)", "[^ab]"))
    if kind == 2:
        inner = f"(?:{tree(draw, depth + 1)})"
        return inner + draw.choice(("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0}", "??"))
    if kind == 3:
        return draw.choice(("(?=", "(?!", "(?:^")) + tree(draw, depth + 1) + ")"
    parts = [tree(draw, depth + 1) for _ in range(draw.choice((2, 2, 3)))]
    return "".join(parts) if kind < 6 else f"({'|'.join(parts)})"


def grow(draw, data, other):
    """Another pattern somewhere, before a character or in its place."""
    text = data.decode("utf-8", "ignore")
    at = draw.randrange(len(text) + 1)
    return (text[:at] + tree(draw, 2) + text[at + draw.randrange(2) :]).encode()


def fresh(draw, data, other):
    return tree(draw).encode()


TARGET = Target(
    "regex",
    run,
    lambda: [text.encode() for text in SEEDS],
    (*TEXT, with_word(WORDS), with_word(WORDS), with_word(WORDS), grow, grow, grow, grow, fresh),
    max_bytes=300,
    work=(4_000_000, 4000),
    memory=(256 << 20, 100_000),
)
