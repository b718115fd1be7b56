"""Parts of grammars of answers: marks as text or control tokens, texts up to a mark, spaces."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from oxillama.chat.patterns import MARK, Hole, Pattern
from oxillama.chat.values import place_of
from oxillama.errors import GrammarError
from oxillama.grammar.automaton import NoTextError, RuleSet, utf8_sequences
from oxillama.grammar.matcher import Grammar
from oxillama.grammar.regex import parse_regex

__all__ = ["END", "ControlToken", "Parts"]

ControlToken = Callable[[str], int | None]
Sized = Callable[[int, int | None], int | None]
_MARK = re.compile(f"({MARK.pattern})")
END = -1  # a token that ends the text, which may come where the text may end
MAX_SPACES = 4
MAX_ID = 64
MAX_LENGTH = 10_000
WORD = ((0x2D, 0x2E), (0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))


class Parts:
    """Expressions of one set of rules."""

    def __init__(self, token: ControlToken | None, rules: RuleSet | None = None) -> None:
        """token: returns the id of the control token with a text, END for one that ends the text, or None; without it,
        there are none.

        rules: those to add to.
        """
        self.rules = RuleSet() if rules is None else rules
        self.has_tokens, self.token = token is not None, token or (lambda text: None)
        self._gaps: dict[int, int] = {}

    def text(self, text: str) -> int:
        return self.rules.literal(text.encode())

    def maybe(self, expr: int) -> int:
        return self.rules.alt((expr, self.rules.seq(())))

    def gap(self, most: int = MAX_SPACES) -> int:
        """Spaces and line breaks, or none."""
        return self.rules.repeat(self.rules.alt((self.text(" "), self.text("\n"))), 0, most)

    def shared(self, expr: int) -> int:
        """A rule's call: what is used in several places is compiled once."""
        rule = self.rules.new_rule("")
        self.rules.define(rule, expr)
        return self.rules.rule(rule)

    def mark(self, text: str) -> int:
        """A mark, whose control tokens are these; spaces at its ends may be others."""
        if not text.strip():
            return self._around(text)
        inner = [self._word(part) for part in _MARK.split(text.strip()) if part]
        before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        return self.rules.seq([self._around(before), *inner, self._around(after)])

    def pieces(self, text: str) -> list[tuple[str, int | None]]:
        """The marks of a text with their control tokens, and what stands between them."""
        return [(part, self.token(part) if _MARK.fullmatch(part) else None) for part in _MARK.split(text) if part]

    def _around(self, spaces: str) -> int:
        """Expression for these spaces, or some others."""
        return self.gap(len(spaces) + MAX_SPACES) if spaces else self.rules.seq(())

    def _word(self, part: str) -> int:
        token = self.token(part) if _MARK.fullmatch(part) else None
        if token == END:
            return self.rules.seq(())
        return self.text(part) if token is None else self.rules.token(token)

    def pattern(self, pattern: Pattern, holes: "dict[str, int]") -> int:
        """A pattern. holes: expressions of what stands in holes of a kind."""
        items = []
        for part in pattern:
            if isinstance(part, Hole):
                items.append(holes[part.kind] if part.kind in holes else self.hole(part.kind))
            else:
                items.append(self.mark(part))
        return self.rules.seq(items)

    def hole(self, kind: str) -> int:
        if kind == "number":
            return self.rules.repeat(self.rules.range(0x30, 0x39), 1, 4)
        word = self.rules.alt([self.rules.range(low, high) for low, high in WORD])
        return self.rules.repeat(word, 1, MAX_ID)

    def until(self, mark: str, *, special: bool = False) -> int:
        """Any text up to the first occurrence of a mark, and the mark. special: the text may hold control tokens."""
        first = _MARK.match(mark)
        token = self.token(first.group()) if first else None
        if token is not None and token != END:
            any_text = self.rules.token(token, True) if special else self.any_byte()
            return self.rules.seq((self.rules.repeat(any_text, 0), self.mark(mark)))
        return self._without(mark.encode(), with_mark=True)

    def without(self, mark: str) -> int:
        """Any text without a mark."""
        first = _MARK.match(mark)
        token = self.token(first.group()) if first else None
        if token is not None and token != END:
            return self.rules.repeat(self.rules.token(token, True), 0)
        return self._without(mark.encode(), with_mark=False)

    def any_byte(self) -> int:
        return self.rules.range(0, 255)

    def constrained(
        self, schema: Mapping[str, Any], root: Any, without: tuple[str, ...] = (), sized: Sized | None = None
    ) -> int | None:
        """A plain text that meets `pattern`, `minLength` and `maxLength` of a schema; None if it has none of these.

        Of both, the pattern alone holds. One that has alternatives that may begin or end anywhere doesn't. without:
        patterns that look ahead for what such a text must not have, of which the first one holds that takes few enough
        states; sized: the text without it that has so many characters, or None where that takes too many. Raises
        GrammarError for a pattern that can't be compiled, with its place in `root`.
        """
        pattern, least, most = schema.get("pattern"), schema.get("minLength"), schema.get("maxLength")
        if isinstance(pattern, str):
            anchored = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
            if "|" in pattern and not all(anchored):
                return None
            whole = ("" if anchored[0] else "[^]*") + pattern + ("" if anchored[1] else "[^]*")
            try:
                found = self._matching(whole)
                return next((held for other in without if (held := self._if_it_fits(whole, other)) is not None), found)
            except GrammarError as error:
                place = place_of(schema, root)
                reason = str(error).replace(repr(whole), repr(pattern))
                raise GrammarError(f"pattern at {place}: {reason}" if place else reason) from None
        if least is None and most is None:
            return None
        if not all(n is None or (type(n) is int and 0 <= n <= MAX_LENGTH) for n in (least, most)):
            return None
        held = sized(least or 0, most) if sized is not None else None
        return self.rules.repeat(self.characters((), True), least or 0, most) if held is None else held

    def _if_it_fits(self, pattern: str, without: str) -> int | None:
        """The texts that a pattern matches whole without something; None if that takes too many states."""
        try:
            return self._matching(pattern, without)
        except GrammarError:
            return None

    def _matching(self, pattern: str, without: str = "") -> int:
        """The texts that an ECMAScript pattern matches whole, without what another one looks ahead for."""
        # A group would hide what a pattern looks ahead for, which is supported at its beginning alone.
        filled = f"(?:{pattern})" if parse_regex(pattern).kind == "alt" else pattern
        automaton = Grammar.from_regex(without + filled if without else pattern).automaton
        if not automaton.nullable:
            return self.rules.rule(self.rules.linked("", automaton))
        try:  # what is linked takes a byte at least
            automaton = Grammar.from_regex(f"(?=[^]){without}{filled}").automaton
        except NoTextError:
            return self.rules.seq(())
        return self.maybe(self.rules.rule(self.rules.linked("", automaton)))

    def characters(self, ranges: tuple[tuple[int, int], ...], negated: bool = False) -> int:
        return self.rules.chars(utf8_sequences(ranges, negated))

    def _without(self, mark: bytes, with_mark: bool) -> int:
        """The automaton of Knuth, Morris and Pratt (1977) for a mark."""
        n = len(mark)
        edges = []
        for state in range(n):
            targets: dict[int, int] = {}
            for byte in set(mark):
                text = mark[:state] + bytes((byte,))
                targets[byte] = next(k for k in range(min(len(text), n), -1, -1) if text.endswith(mark[:k]))
            for low, high in _others(set(mark)):
                edges.append((state, self.rules.range(low, high), 0))
            for byte, target in targets.items():
                if target < n or with_mark:
                    edges.append((state, self.rules.range(byte, byte), target))
        if with_mark:
            return self.rules.graph(n + 1, edges, [n])
        return self.rules.graph(n, edges, list(range(n)))


def _others(values: set[int]) -> list[tuple[int, int]]:
    found, low = [], 0
    for value in sorted(values):
        if low < value:
            found.append((low, value - 1))
        low = value + 1
    return [*found, (low, 255)] if low <= 255 else found
