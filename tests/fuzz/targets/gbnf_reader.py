"""A second reader of GBNF, for grammars of the usual kind: rules as `tests.grammar.naive` takes them.

It reads what llama.cpp's description of the notation says, refuses what is rare, and knows characters only as far as
the tokens of the tests can spell or begin them.
"""

import re

from tests.grammar.cases import TEXTS

# Characters of the tokens, and those of two bytes, which tokens of half a character may begin.
ALPHABET = sorted({c for text in TEXTS for c in text.decode("utf-8", "ignore")} | {chr(i) for i in range(0x80, 0x100)})
MAX_REPEAT = 6

ESCAPED = r"""\\[nrt"\\\[\]]|\\x[0-9a-fA-F]{2}"""
KINDS = {
    "blank": r"[ \t]+|#[^\n]*",
    "line": r"\n",
    "define": r"[a-zA-Z][a-zA-Z0-9-]*[ \t]*::=",
    "name": r"[a-zA-Z][a-zA-Z0-9-]*",
    "text": rf'"(?:[^"\\\n]|{ESCAPED})*"',
    "class": rf"\[\^?(?:[^]\\\n]|{ESCAPED})+\]",
    "count": r"\{\d{1,2}(?:,\d{0,2})?\}",
    "token": r"!?<\[\d{1,3}\]>",
    "sign": r"[()|*+?.]",
}
TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in KINDS.items()))
UNIT = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)|(.)", re.DOTALL)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class Unreadable(Exception):
    """The text is not of the kind that is read here; it may be a right one all the same."""


def read(text, tokens):
    """(rules, number of expressions), the root first."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable from None
    reader = _Reader(_lexed(text))
    bodies = reader.rules()
    if "root" not in bodies or set(reader.called) - set(bodies):
        raise Unreadable
    names = ["root", *(name for name in bodies if name != "root")]
    return [_numbered(bodies[name], names) for name in names], reader.n


def _lexed(text):
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise Unreadable
        if match.lastgroup != "blank":
            found.append((match.lastgroup, match[0]))
        at = match.end()
    return [*found, ("end", "")]


def _numbered(x, names):
    if x[0] == "rule":
        return ("rule", names.index(x[1]))
    if x[0] in ("seq", "alt"):
        return (x[0], [_numbered(y, names) for y in x[1]])
    return ("rep", _numbered(x[1], names), *x[2:]) if x[0] == "rep" else x


def _chars(raw):
    return [chr(int(m[1], 16)) if m[1] else ESCAPES.get(m[2], m[2]) if m[2] else m[3] for m in UNIT.finditer(raw)]


def _class(raw):
    negated, units = raw[0] == "^" and len(raw) > 1, [*UNIT.finditer(raw)]
    plain = _chars(raw)[negated:]
    dashes = [m[3] == "-" for m in units][negated:]
    chosen, i = set(), 0
    while i < len(plain):
        if i + 2 < len(plain) and dashes[i + 1]:
            if not plain[i] <= plain[i + 2] <= "\xff":
                raise Unreadable
            chosen |= {c for c in ALPHABET if plain[i] <= c <= plain[i + 2]} | {plain[i], plain[i + 2]}
            i += 3
        else:
            chosen.add(plain[i])
            i += 1
    return ("class", [c for c in ALPHABET if c not in chosen] if negated else sorted(chosen))


class _Reader:
    def __init__(self, lexed):
        self.lexed, self.at, self.n, self.called = lexed, 0, 0, []

    @property
    def kind(self):
        return self.lexed[self.at][0]

    def take(self):
        self.at += 1
        return self.lexed[self.at - 1][1]

    def sign(self, text):
        if self.lexed[self.at] == ("sign", text):
            self.at += 1
            return True
        return False

    def lines(self):
        while self.kind == "line":
            self.at += 1

    def rules(self):
        bodies = {}
        self.lines()
        while self.kind != "end":
            if self.kind != "define":
                raise Unreadable
            name = self.take().removesuffix("::=").strip(" \t")
            if name in bodies:
                raise Unreadable
            self.lines()
            bodies[name] = self.choice(0)
            if self.kind not in ("line", "end"):
                raise Unreadable
            self.lines()
        return bodies

    def choice(self, depth):
        if depth > 20:
            raise Unreadable
        options = [self.sequence(depth)]
        while self.sign("|"):
            self.lines()
            options.append(self.sequence(depth))
        return ("alt", options)

    def sequence(self, depth):
        items = []
        while (item := self.item(depth)) is not None:
            items.append(self.repeated(item))
            if depth:
                self.lines()
        return ("seq", items)

    def item(self, depth):
        self.n += 1
        if self.kind == "name":
            self.called.append(self.lexed[self.at][1])
            return ("rule", self.take())
        if self.kind == "text":
            return ("text", "".join(_chars(self.take()[1:-1])).encode())
        if self.kind == "class":
            return _class(self.take()[1:-1])
        if self.kind == "token":
            raw = self.take()
            return ("token", int(raw.strip("!<>[]")), raw[0] == "!")
        if self.sign("."):
            return ("class", ALPHABET)
        if not self.sign("("):
            return None
        self.lines()
        inner = self.choice(depth + 1)
        if not self.sign(")"):
            raise Unreadable
        return inner

    def repeated(self, x):
        for text, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.sign(text):
                return self.once(("rep", x, least, most))
        if self.kind != "count":
            return x
        low, comma, high = self.take()[1:-1].partition(",")
        least, most = int(low), int(high) if high else None if comma else int(low)
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            raise Unreadable
        self.n += least + (most or 0)
        return self.once(("rep", x, least, most))

    def once(self, x):
        """A repeat of a repeat isn't read."""
        if self.kind == "count" or self.lexed[self.at] in (("sign", "*"), ("sign", "+"), ("sign", "?")):
            raise Unreadable
        return x
