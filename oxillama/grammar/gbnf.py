"""GBNF parser: llama.cpp's notation for grammars to a `RuleSet`.

    # comments, and rules over characters
    root  ::= "[" item ("," item)* "]"
    item  ::= [a-zA-Z_] [^,\\x00-\\x1F\\]]{0,15} | number
    number ::= "-"? ([0-9] | [1-9] [0-9]+)

Literals and classes know the escapes \\x41 \\u00e9 \\U0001f600 \\t \\r \\n \\\\ \\" \\[ \\] and \\-; `.` is any
character. `* + ? {m} {m,} {m,n} {,n}` follow what they repeat. A rule ends with its line, except in parentheses and
after `::=` and `|`. `<[7]>` is the token with id 7, `<think>` the token of that name with its brackets, and
`!` before them any other token.

Left recursion is allowed. Mistakes that llama.cpp accepts are errors here: a rule that is defined twice, an empty
class, a range or a count that runs backwards, half of a surrogate pair.
"""

import re
from array import array
from collections.abc import Callable

from oxillama._util.text_files import without_mark
from oxillama.errors import GrammarError
from oxillama.grammar.automaton import MAX_CHAR, Budget, Range, RuleSet, utf8_sequences

__all__ = ["parse_gbnf"]

TokenId = Callable[[str], int | None]

# Possessive: nothing is remembered of what they have passed. Those with a count are for `end_of`: other threads have
# their turns after a thousand comments or escapes.
_BLANK = re.compile(r"(?:[ \t]++|#[^\r\n]*+){1,1000}+")
_SPACE = re.compile(r"(?:[ \t\r\n]++|#[^\r\n]*+){1,1000}+")
_BEGIN_SPACE = frozenset(" \t\r\n#")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LITERAL = re.compile(r'(?:[^"\\]++|\\.){1,1000}+', re.DOTALL)
_CLASS = re.compile(r"(?:[^\]\\]++|\\.){1,1000}+", re.DOTALL)
_CHAR = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([trn\\\"\[\]-]))|([^\\])", re.DOTALL)
_COUNT = re.compile(r"\{[ \t]*(\d*)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}")
_TOKEN = re.compile(r"(!?)(?:<\[(\d+)\]>|(<[^>\r\n]*>))")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}
_POSTFIX = {"*": (0, None), "+": (1, None), "?": (0, 1)}
MAX_DIGITS = 18
CLASS_UNITS = 3  # of the budget, for a character of a class


def parse_gbnf(text: str, token_id: TokenId | None = None, budget: int | None = None) -> tuple[RuleSet, int]:
    """The rules of a grammar, and the id of `root`.

    token_id: gives the id of the token with a text such as "<think>", or None. budget: as `Grammar.parse` has it.
    Raises GrammarError with line, column and a caret.
    """
    parser = _Parser(without_mark(text), token_id, budget)
    parser.parse()
    return parser.rules, parser.ids["root"]


class _Parser:
    def __init__(self, text: str, token_id: TokenId | None, budget: int | None) -> None:
        self.text = text
        self.token_id = token_id
        self.at = 0
        self.budget = Budget(budget)
        self.rules = RuleSet(budget=self.budget)
        self.name = f"a grammar of {len(text)} characters"
        self.ids: dict[str, int] = {}
        self.used: dict[str, int] = {}  # name -> position of its first use
        self.defined: set[str] = set()
        self.classes: dict[str, int] = {}

    def error(self, message: str, at: int | None = None) -> GrammarError:
        """An error at a position of the text, or here."""
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        shown = self.text[start : len(self.text) if end < 0 else end].rstrip("\r")
        column = at - start
        left = max(0, column - 60)
        excerpt = shown[left : left + 100].replace("\t", " ")
        return GrammarError(f"line {line}, column {column + 1}: {message}\n  {excerpt}\n  {' ' * (column - left)}^")

    def skip(self, space: re.Pattern[str]) -> None:
        if self.text[self.at : self.at + 1] in _BEGIN_SPACE:
            self.at = self.end_of(space, self.at)

    def end_of(self, part: re.Pattern[str], at: int) -> int:
        """The place behind all parts of a kind that follow each other from a place on."""
        while found := part.match(self.text, at):
            at = found.end()
        return at

    def rule_id(self, name: str) -> int:
        if name not in self.ids:
            self.ids[name] = self.rules.new_rule(name)
        return self.ids[name]

    def parse(self) -> None:
        self.skip(_SPACE)
        while self.at < len(self.text):
            self.parse_rule()
            self.skip(_SPACE)
        for name, at in self.used.items():
            if name not in self.defined:
                raise self.error(f"the rule {name!r} is not defined", at)
        if "root" not in self.defined:
            raise self.error("there is no rule 'root': it defines the whole text", len(self.text))

    def parse_rule(self) -> None:
        found = _NAME.match(self.text, self.at)
        if not found:
            raise self.error("expected the name of a rule (letters, digits, - and _)")
        name = found.group()
        self.budget.spend(6, self.name)
        if name in self.defined:
            raise self.error(f"the rule {name!r} is defined twice")
        self.at = found.end()
        self.skip(_BLANK)
        if not self.text.startswith("::=", self.at):
            raise self.error(f"expected ::= after the name {name!r}")
        self.at += 3
        self.skip(_SPACE)
        self.defined.add(name)
        rule = self.rule_id(name)
        self.rules.define(rule, self.parse_body())
        if self.at < len(self.text) and self.text[self.at] not in "\r\n":
            raise self.error("expected an item, | or the end of the line")

    def parse_body(self) -> int:
        """Alternatives up to the end of the rule. Groups are kept in arrays: they may nest to any depth, and the
        collector of garbage has nothing to look at."""
        groups = array("q")  # of each open group: where those around it have their alternatives and items, its place
        choices, items = array("i"), array("i")  # of all groups that are open, one behind the other
        choice = item = 0  # where those of the innermost one begin
        while self.at < len(self.text):
            self.budget.spend(2, self.name)
            c = self.text[self.at]
            if c == "(":
                groups.extend((choice, item, self.at))
                choice, item = len(choices), len(items)
            elif c == "|" or (c == ")" and groups):
                choices.append(self.rules.seq(items[item:]))
                del items[item:]
                if c == ")":
                    items.append(self.rules.alt(choices[choice:]))
                    del choices[choice:]
                    choice, item = groups[-3], groups[-2]
                    del groups[-3:]
            elif not self.parse_item(c, items, item):
                break
            self.at += c in "(|)"
            self.skip(_SPACE if groups or c == "|" else _BLANK)
        if groups:
            raise self.error("this group is never closed: expected )", groups[-1])
        choices.append(self.rules.seq(items))
        return self.rules.alt(choices)

    def parse_item(self, c: str, items: "array[int]", first: int) -> bool:
        """One more item, or a repeat of the last one, if there is one from `first` on. False if there is neither."""
        if c == '"':
            items.append(self.parse_literal())
        elif c == "[":
            items.append(self.parse_class())
        elif c == ".":
            items.append(self.rules.chars(utf8_sequences((), True)))
            self.at += 1
        elif c in "<!":
            items.append(self.parse_token())
        elif c in "*+?{":
            self.parse_repeat(c, items, first)
        elif found := _NAME.match(self.text, self.at):
            self.used.setdefault(found.group(), self.at)
            items.append(self.rules.rule(self.rule_id(found.group())))
            self.at = found.end()
        else:
            return False
        return True

    # ---- items

    def parse_literal(self) -> int:
        start, end = self.at + 1, self.end_of(_LITERAL, self.at + 1)
        if not self.text.startswith('"', end):
            raise self.error('this string is never closed: expected "')
        body = self.text[start:end]
        if "\\" in body:
            self.budget.spend(2 * body.count("\\"), self.name)
            body = self.unescaped(start, end)
        if surrogate := _SURROGATE.search(body):
            raise self.error(f"U+{ord(surrogate.group()):04X} is half of a surrogate pair: write the character itself")
        self.at = end + 1
        return self.rules.literal(body.encode())

    def parse_class(self) -> int:
        negated = self.text.startswith("^", self.at + 1)
        start = self.at + 1 + negated
        end = self.end_of(_CLASS, start)
        if not self.text.startswith("]", end):
            raise self.error("this class of characters is never closed: expected ]")
        source = self.text[self.at : end + 1]
        if source not in self.classes:
            self.budget.spend(CLASS_UNITS * len(source), self.name)
            ranges = self.parse_ranges(start, end)
            if not ranges:
                raise self.error("this class of characters is empty: write . for any character")
            self.classes[source] = self.rules.chars(utf8_sequences(tuple(ranges), negated))
        self.at = end + 1
        return self.classes[source]

    def parse_ranges(self, start: int, end: int) -> list[Range]:
        found = self.characters(start, end)
        ranges: list[Range] = []
        i = 0
        while i < len(found):
            low = high = found[i][0]
            # A minus sign between two characters makes a range; escaped, first or last it is a character itself.
            if i + 2 < len(found) and self.text[found[i + 1][1]] == "-":
                high = found[i + 2][0]
                if high < low:
                    raise self.error("this range of characters runs backwards", found[i][1])
                i += 2
            ranges.append((low, high))
            i += 1
        return ranges

    def unescaped(self, start: int, end: int) -> str:
        """A part of the text with its escapes resolved."""
        parts = []
        while (at := self.text.find("\\", start, end)) >= 0:
            code, after = self.character(at, end)
            parts += [self.text[start:at], chr(code)]
            start = after
        return "".join([*parts, self.text[start:end]])

    def characters(self, start: int, end: int) -> list[tuple[int, int]]:
        """(code point, position) of each character of a class."""
        out = []
        while start < end:
            code, after = self.character(start, end)
            out.append((code, start))
            start = after
        return out

    def character(self, at: int, end: int) -> tuple[int, int]:
        """The code point of a character of a literal or class, escaped or not, and the position of the next one."""
        found = _CHAR.match(self.text, at)
        if not found or found.end() > end:
            raise self.error(
                'unknown escape: there are \\xHH \\uHHHH \\UHHHHHHHH \\t \\r \\n \\\\ \\" \\[ \\] and \\-', at
            )
        two, four, eight, escaped, plain = found.groups()
        if plain or escaped:
            return ord(plain or _ESCAPES.get(escaped, escaped)), found.end()
        code = int(two or four or eight, 16)
        if code > MAX_CHAR:
            raise self.error(f"there is no character U+{code:X}: the last one is U+10FFFF", at)
        return code, found.end()

    def parse_token(self) -> int:
        found = _TOKEN.match(self.text, self.at)
        if not found:
            raise self.error("expected a token, as <[id]> or <name>")
        negated, number, name = found.groups()
        if number is None:
            token = self.named_token(name)
        elif len(number) > 9:
            raise self.error(f"token {number} is outside any vocabulary")
        else:
            token = int(number)
        self.at = found.end()
        return self.rules.token(token, bool(negated))

    def named_token(self, name: str) -> int:
        if self.token_id is None:
            raise self.error(f"the token {name} needs a vocabulary to be looked up in: write <[id]>, or give token_id=")
        token = self.token_id(name)
        if token is None:
            raise self.error(f"the vocabulary has no token {name}")
        return token

    def parse_repeat(self, c: str, items: "array[int]", first: int) -> None:
        if len(items) == first:
            raise self.error(f"there is nothing before {c} that it could repeat")
        if c == "{":
            least, most, end = self.parse_count()
        else:
            (least, most), end = _POSTFIX[c], self.at + 1
        try:
            items[-1] = self.rules.repeat(items[-1], least, most)
        except GrammarError as error:
            raise self.error(str(error)) from None
        self.at = end

    def parse_count(self) -> tuple[int, int | None, int]:
        found = _COUNT.match(self.text, self.at)
        if not found or not (found.group(1) or found.group(3)):
            raise self.error("expected a count, as {3}, {3,} or {3,5}")
        if max(len(found.group(1)), len(found.group(3) or "")) > MAX_DIGITS:
            raise self.error(f"counts have at most {MAX_DIGITS} digits")
        least = int(found.group(1) or 0)
        most = least if not found.group(2) else int(found.group(3)) if found.group(3) else None
        if most is not None and most < least:
            raise self.error("this count runs backwards")
        return least, most, found.end()
