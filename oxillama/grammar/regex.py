"""Regular expressions of ECMAScript (with its `u` flag), to a tree, and to the rules of a grammar.

Supported are literals, `.`, classes, `\\d \\w \\s` and their opposites, groups of every kind, alternation, greedy and
lazy quantifiers, `^` and `$`, escapes of characters, general categories (`\\p{Lu}`), and look-ahead. Back references,
look-behind, `\\b` and other properties are refused.

With `u` a `{`, `}` or `]` never stands for itself: where it does in a pattern, something else was meant in another
dialect (`[[:alpha:]]`, `[^]]`, `a{,3}`), which is refused. Any punctuation may be escaped, though: it means itself in
every dialect.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import MAX_CHAR, Range, character_ranges
from oxillama.grammar.characters import category_ranges
from oxillama.grammar.dialects import bracket_remedy, escape_remedy, group_remedy

__all__ = ["ANY", "MAX_NFA", "Group", "Node", "parse_regex"]

MAX_NFA = 20_000  # states of a pattern's automaton
MAX_DEPTH = 100
MAX_COUNT = 10**15
_COUNT = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_GROUP = re.compile(r"\(\?(?:(:)|<[A-Za-z_$][\w$]*>|(=)|(!)|(<[=!]))")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,8})\}|u([0-9a-fA-F]{4})")
_PROPERTY = re.compile(r"\{([A-Za-z_=]{1,60})\}")
_CLASS = re.compile(r"\[(?:[^\]\\]|\\.){0,100}+\]", re.DOTALL)  # one that is short
_LOW_HALF = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}

ANY: tuple[Range, ...] = character_ranges((), True)
DIGIT: tuple[Range, ...] = ((0x30, 0x39),)
WORD: tuple[Range, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_ENDS: tuple[Range, ...] = ((10, 10), (13, 13), (0x2028, 0x2029))
# WhiteSpace and LineTerminator of ECMA-262.
SPACE: tuple[Range, ...] = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE}


class Node:
    """One part of a pattern, which never changes and is compared by identity: trees may be deep.

    kind: set, cat, alt, repeat, ^, $, ahead (a look-ahead; `least` 0 if it must fail). n_states: approximate number of
    states of its automaton, at most one above MAX_NFA. n_ranges: ranges in the sets of characters of the whole tree.
    is_plain: it has neither anchors nor look-aheads.
    """

    n_states: int
    n_ranges: int
    is_plain: bool

    __slots__ = ("is_plain", "kind", "least", "most", "n_ranges", "n_states", "parts", "ranges")

    def __init__(
        self,
        kind: str,
        parts: "tuple[Node, ...]" = (),
        ranges: tuple[Range, ...] = (),
        least: int = 0,
        most: int | None = None,
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.ranges = ranges
        self.least = least
        self.most = most
        n_states, n_ranges = 0, len(ranges)
        is_plain = kind not in ("^", "$", "ahead")
        for part in parts:
            n_states += part.n_states
            n_ranges += part.n_ranges
            is_plain = is_plain and part.is_plain
        if kind == "repeat":
            n_states = (n_states + 1) * max(least, most or least + 1)
        self.n_states = min(n_states + 1, MAX_NFA + 1)
        self.n_ranges = n_ranges
        self.is_plain = is_plain


EMPTY = Node("cat")


def parse_regex(pattern: str, held: list[Any] | None = None) -> Node:
    """The tree of a pattern. held: gets what is made of it, also if that ends in an error.

    Raises GrammarError with the column of what is wrong or not supported.
    """
    if not isinstance(pattern, str):
        raise GrammarError(f"a pattern must be a str, not {type(pattern).__name__}")
    parser = _Parser(pattern)
    if held is not None:
        held.append(parser.groups)
    return parser.parse()


@dataclass(slots=True)
class Group:
    """An open group: its kind, its position, its alternatives so far, and the items of the last one."""

    kind: str = "group"
    at: int = 0
    choices: list[Node] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)

    def node(self) -> Node:
        choices = [*self.choices, _cat(self.items)]
        return choices[0] if len(choices) == 1 else Node("alt", tuple(choices))


def _cat(items: list[Node]) -> Node:
    return items[0] if len(items) == 1 else Node("cat", tuple(items)) if items else EMPTY


@lru_cache(maxsize=128)
def _property(name: str, negated: bool) -> tuple[Range, ...] | None:
    """Characters with a property, or without. None if it isn't known."""
    ranges = category_ranges(name)
    return None if ranges is None else character_ranges(ranges, negated)


@lru_cache(maxsize=64)
def _class(text: str) -> tuple[Range, ...]:
    """A class in brackets, which may be that of many patterns. Raises GrammarError, with a column of the class."""
    return _Parser(text).parse_class()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.groups = [Group()]
        self.last_class = ""

    def error(self, message: str, at: int | None = None) -> GrammarError:
        at = self.at if at is None else at
        left = max(0, at - 60)
        return GrammarError(
            f"pattern, column {at + 1}: {message}\n  {self.text[left : left + 100]!r}\n  {' ' * (at - left + 1)}^"
        )

    def parse(self) -> Node:
        while self.at < len(self.text):
            self.parse_item(self.text[self.at])
        if len(self.groups) > 1:
            raise self.error("this group is never closed: expected )", self.groups[-1].at)
        return self.groups[0].node()

    def parse_item(self, c: str) -> None:
        group = self.groups[-1]
        if c == "(":
            return self.open_group()
        if c in "*+?{" and self.parse_repeat(c, group):
            return None
        if c == "[":
            start = self.at
            group.items.append(Node("set", ranges=self.find_class()))
            found = self.text[start : self.at]
            if found in ("[]", "[^]") or "[" in found[1:].replace("\\[", ""):
                self.last_class = found  # which a ] after it may have been meant to close
            return None
        if c in "{}]":
            raise self.error(bracket_remedy(self.text, self.at, self.last_class))
        if c == "\\":
            group.items.append(self.parse_escape())
            return None
        self.at += 1
        if c == "|":
            group.choices.append(_cat(group.items))
            group.items = []
        elif c == ")":
            self.close_group()
        elif c in "^$":
            group.items.append(Node(c))
        elif c == ".":
            group.items.append(Node("set", ranges=character_ranges(LINE_ENDS, True)))
        else:
            group.items.append(self.character(ord(c)))
        return None

    def character(self, code: int) -> Node:
        if 0xD800 <= code <= 0xDFFF:
            raise self.error(f"U+{code:04X} is half of a surrogate pair, and no character", self.at - 1)
        return Node("set", ranges=((code, code),))

    # ---- groups and repeats

    def open_group(self) -> None:
        kind, start = "group", self.at
        self.at += 1
        if self.text.startswith("?", self.at):
            found = _GROUP.match(self.text, start)
            if not found:
                raise self.error(f"expected (?: (?= (?! or (?<name>{group_remedy(self.text, start)}", start)
            if found.group(4):
                raise self.error("looking behind is not supported", start)
            kind = "ahead" if found.group(2) else "not ahead" if found.group(3) else "group"
            self.at = found.end()
        if len(self.groups) > MAX_DEPTH:
            raise self.error(f"groups are nested deeper than {MAX_DEPTH}", start)
        self.groups.append(Group(kind, start))

    def close_group(self) -> None:
        if len(self.groups) == 1:
            raise self.error("there is no group to close", self.at - 1)
        group = self.groups.pop()
        node = group.node()
        if group.kind != "group":
            node = Node("ahead", (node,), least=int(group.kind == "ahead"))
        elif node.kind == "cat" and node.parts:
            node = Node("alt", (node,))  # a group is one item of its parent
        self.groups[-1].items.append(node)

    def parse_repeat(self, c: str, group: Group) -> bool:
        """Parses a quantifier. False for a brace that begins no count, which is an error."""
        least, most = {"+": (1, None), "?": (0, 1)}.get(c, (0, None))
        end = self.at + 1
        if c == "{":
            found = _COUNT.match(self.text, self.at)
            if not found:
                return False
            if len(found.group()) > 40:
                raise self.error("counts have at most 15 digits")
            least = int(found.group(1))
            most = least if not found.group(2) else int(found.group(3)) if found.group(3) else None
            end = found.end()
        # A group around an anchor is the same node, but may be repeated.
        last = group.items[-1].kind if group.items else "ahead"
        if last == "ahead" or (last in ("^", "$") and self.text[self.at - 1] == last):
            raise self.error(f"there is nothing before {c} that it could repeat")
        if max(least, most or 0) > MAX_COUNT:
            raise self.error("counts have at most 15 digits")
        if most is not None and most < least:
            raise self.error("this count runs backwards")
        # A lazy quantifier finds another match, not another text.
        self.at = end + self.text.startswith("?", end)
        if self.at < len(self.text) and (self.text[self.at] in "*+?" or _COUNT.match(self.text, self.at)):
            possessive = " (possessive ones are not known)" * (self.text[self.at] == "+")
            raise self.error(f"a quantifier can't follow a quantifier{possessive}")
        group.items[-1] = Node("repeat", (group.items[-1],), least=least, most=most)
        return True

    # ---- characters

    def parse_escape(self) -> Node:
        c = self.text[self.at + 1 : self.at + 2]
        if c in ("b", "B"):
            raise self.error(f"\\{c} is not supported")
        if c == "k" or (c and c in "123456789"):
            raise self.error("back references are not supported; \\xHH is a character by its number")
        code, ranges = self.parse_character_escape()
        return Node("set", ranges=ranges) if code < 0 else self.character(code)

    def parse_character_escape(self) -> tuple[int, tuple[Range, ...]]:
        """The escape at a backslash, in a class or not: a character, or -1 and a set."""
        c = self.text[self.at + 1 : self.at + 2]
        if not c:
            raise self.error("there is nothing after this backslash")
        if c in "pP":
            return -1, self.parse_property(c)
        if c.lower() in _CLASSES:
            self.at += 2
            return -1, character_ranges(_CLASSES[c.lower()], c.isupper())
        if found := _HEX.match(self.text, self.at + 1):
            return self.parse_hex(found), ()
        if c == "c" and re.match("[a-zA-Z]", self.text[self.at + 2 : self.at + 3]):
            self.at += 3
            return ord(self.text[self.at - 1]) % 32, ()
        if c == "0" and not re.match("[0-9]", self.text[self.at + 2 : self.at + 3]):
            self.at += 2
            return 0, ()
        if c.isascii() and c.isalnum() and c not in _CONTROLS:
            raise self.error(f"unknown escape \\{c}{escape_remedy(c)}")
        self.at += 2
        return _CONTROLS.get(c, ord(c)), ()

    def parse_property(self, c: str) -> tuple[Range, ...]:
        found = _PROPERTY.match(self.text, self.at + 2)
        ranges = _property(found.group(1), c == "P") if found else None
        if found is None or ranges is None:
            raise self.error(f"\\{c} has general categories only, such as \\{c}{{Lu}}: write the ranges of others")
        self.at = found.end()
        return ranges

    def parse_hex(self, found: re.Match[str]) -> int:
        code = int(found.group(1) or found.group(2) or found.group(3), 16)
        if code > MAX_CHAR:
            raise self.error(f"there is no character U+{code:X}: the last one is U+10FFFF")
        self.at = found.end()
        low = _LOW_HALF.match(self.text, self.at)
        if found.group(3) and 0xD800 <= code < 0xDC00 and low:
            self.at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + int(low.group(1), 16) - 0xDC00
        return code

    def find_class(self) -> tuple[Range, ...]:
        """`parse_class`, or what it gave for the same text."""
        found = _CLASS.match(self.text, self.at)
        if found:
            with suppress(GrammarError):  # which is raised again, with the column in this pattern
                ranges = _class(found.group())
                self.at = found.end()
                return ranges
        return self.parse_class()

    def parse_class(self) -> tuple[Range, ...]:
        """A class in brackets. [^] is any character, [] none."""
        start = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        ranges: list[Range] = []
        while not self.text.startswith("]", self.at):
            low = self.parse_class_item(start)
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.parse_class_item(start)
                if low[0] < 0 or high[0] < 0:
                    raise self.error("a class can't be one end of a range")
                if high[0] < low[0]:
                    raise self.error("this range of characters runs backwards")
                ranges.append((low[0], high[0]))
            else:
                ranges += low[1] if low[0] < 0 else [(low[0], low[0])]
        self.at += 1
        return character_ranges(tuple(ranges), negated)

    def parse_class_item(self, start: int) -> tuple[int, tuple[Range, ...]]:
        c = self.text[self.at : self.at + 1]
        if not c:
            raise self.error("this class of characters is never closed: expected ]", start)
        if c != "\\":
            self.at += 1
            return ord(c), ()
        following = self.text[self.at + 1 : self.at + 2]
        if following == "b":
            self.at += 2
            return 8, ()
        return self.parse_character_escape()
