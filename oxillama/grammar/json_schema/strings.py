"""Strings: lengths, patterns, formats and lists of texts to one expression."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from oxillama.grammar.automata.dfa import Part, matches
from oxillama.grammar.automaton import Budget, in_order
from oxillama.grammar.json_schema.formats import FORMATS, NARROW_FORMATS
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.string_complement import complement_expr, is_plain_text
from oxillama.grammar.regex import Node, parse_regex
from oxillama.grammar.regular import conditions, lower, lower_parts, pattern_units

__all__ = ["Strings", "format_parts", "pattern_parts", "string_expr"]

SMALL = 5000  # units of the budget, for a pattern that is kept


def pattern_parts(pattern: str) -> tuple[Part, ...]:
    """Conditions that a string must meet for a pattern to be found in it."""
    small = isinstance(pattern, str) and pattern_units(pattern) <= SMALL
    return _small_parts(pattern) if small else _parts(pattern)


def _parts(pattern: str) -> tuple[Part, ...]:
    return tuple(conditions(parse_regex(pattern)))


_small_parts = lru_cache(maxsize=256)(_parts)


@lru_cache(maxsize=64)
def format_parts(name: str, narrow: bool = False) -> tuple[Part, ...]:
    """Conditions on a string of a format. narrow: with bounded numbers of digits, for mode "generate"."""
    pattern = NARROW_FORMATS.get(name) if narrow else None
    return tuple(conditions(parse_regex(pattern or FORMATS[name]), whole=True))


class Strings(NamedTuple):
    """A set of strings, a tuple since it names rules. Lengths are in characters (code points); `most`, `allowed`: None
    for no limit."""

    least: int = 0
    most: int | None = None
    parts: tuple[Part, ...] = ()
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    def longer(self, least: int) -> "Strings":
        return self._replace(least=least) if least > self.least else self

    def shorter(self, most: int) -> "Strings":
        return self._replace(most=most) if self.most is None or most < self.most else self

    def having(self, *parts: Part) -> "Strings":
        if not parts:
            return self
        found = tuple(dict.fromkeys((*self.parts, *parts)))
        return Strings(self.least, self.most, found, self.allowed, self.excluded)

    def among(self, texts: frozenset[str]) -> "Strings":
        allowed = texts if self.allowed is None else self.allowed & texts
        return Strings(self.least, self.most, self.parts, allowed, self.excluded)

    def both(self, other: "Strings") -> "Strings":
        """The intersection with another set."""
        s = self.longer(other.least).having(*other.parts).without(other.excluded)
        s = s if other.most is None else s.shorter(other.most)
        return s if other.allowed is None else s.among(other.allowed)

    def without(self, texts: frozenset[str]) -> "Strings":
        if not texts:
            return self
        return Strings(self.least, self.most, self.parts, self.allowed, self.excluded | texts)

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.has(text)

    def has(self, text: str, budget: Budget | None = None) -> bool:
        """Whether a text is in the set. budget: the work is subtracted from it."""
        return (
            (self.allowed is None or text in self.allowed)
            and text not in self.excluded
            and len(text) >= self.least
            and (self.most is None or len(text) <= self.most)
            and all(matches(part, text, budget) for part in self.parts)
        )

    def those(self, texts: Iterable[str], budget: Budget) -> list[str]:
        """The texts that are in the set. budget: the work is subtracted from it."""
        if not self.parts and not self.excluded and not self.least and self.most is None:  # as of most lists
            return [text for text in texts if self.allowed is None or text in self.allowed]
        return [text for text in texts if self.has(text, budget)]


def string_expr(texts: JsonText, s: Strings) -> int:
    """The expression of a set of strings."""
    rules = texts.rules
    if s.allowed is not None:
        return texts.again(s, lambda: _listed(texts, s))
    if s.most is not None and s.most < s.least:
        return rules.alt(())
    if s == _ANY:
        return texts.shared("string")
    size = sum([part.node.n_states for part in s.parts]) * (s.most or 1)
    if s.excluded:  # the names of one schema; a rule is called, since masks are shared between grammars by rule
        return texts.postponed(s, lambda: _string_expr(texts, s), size, calls=2)
    return texts.kept(s, lambda own: _string_expr(own, s), size)


def _listed(texts: JsonText, s: Strings) -> int:
    assert s.allowed is not None
    texts.budget.spend(len(s.allowed) + 2 * sum([part.node.n_states for part in s.parts]), "a list of texts")
    return texts.rules.alt([texts.written(text) for text in s.those(in_order(s.allowed), texts.budget)])


_ANY = Strings()


def _string_expr(texts: JsonText, s: Strings) -> int:
    rules = texts.rules
    if not s.parts and not s.excluded:
        return texts.string(s.least, s.most)
    if s.excluded and not s.parts and s.least == 0 and s.most is None and all(map(is_plain_text, s.excluded)):
        return complement_expr(texts, s.excluded)
    if len(s.parts) == 1 and not s.excluded and not s.parts[0].negated and s.parts[0].node.is_plain:
        node = _fitted(s.parts[0].node, s.least, s.most)
        if node is not None:
            return rules.seq((texts.quote, lower(rules, node, texts.chars, texts.called_chars), texts.quote))
    parts = [*s.parts, *([Part(_texts_node(s.excluded), True)] if s.excluded else ())]
    body = lower_parts(rules, parts, texts.chars, s.least, s.most, texts.called_chars)
    return rules.seq((texts.quote, body, texts.quote))


def _texts_node(texts: frozenset[str]) -> Node:
    return Node("alt", tuple(
        Node("cat", tuple(Node("set", ranges=((ord(c), ord(c)),)) for c in text)) for text in sorted(texts)
    ))  # fmt: skip


# ---- lengths of patterns


def _lengths(node: Node) -> tuple[int, int | None]:
    """Least and greatest length of the texts of a plain tree; None for no limit."""
    if node.kind == "set":
        return 1, 1
    inner = [_lengths(part) for part in node.parts]
    if node.kind == "repeat":
        low, high = inner[0]
        return low * node.least, 0 if high == 0 else None if high is None or node.most is None else high * node.most
    highs = [high for _, high in inner]
    if node.kind == "alt":
        return min(low for low, _ in inner), None if None in highs else max(h or 0 for h in highs)
    return sum(low for low, _ in inner), None if None in highs else sum(h or 0 for h in highs)


def _fitted(node: Node, least: int, most: int | None) -> Node | None:
    """A tree for the texts of another one with limited lengths, if changing one count is enough; None otherwise."""
    low, high = _lengths(node)
    if least <= low and (most is None or (high is not None and high <= most)):
        return node
    parts = list(node.parts) if node.kind == "cat" else [node]
    while len(parts) == 1 and parts[0].kind in ("cat", "alt") and len(parts[0].parts) == 1:
        parts = list(parts[0].parts)
    if len(parts) == 1 and parts[0].kind == "cat":
        parts = list(parts[0].parts)
    sizes = [_lengths(part) for part in parts]
    loose = [i for i, (a, b) in enumerate(sizes) if a != b]
    if len(loose) != 1 or parts[loose[0]].kind != "repeat" or _lengths(parts[loose[0]].parts[0]) != (1, 1):
        return None
    part = parts[loose[0]]
    fixed = sum(a for i, (a, _) in enumerate(sizes) if i != loose[0])
    part_least = max(part.least, least - fixed)
    tops = [t for t in (part.most, None if most is None else most - fixed) if t is not None]
    part_most = min(tops) if tops else None
    if part_most is not None and part_most < part_least:
        return Node("alt")
    parts[loose[0]] = Node("repeat", part.parts, least=part_least, most=part_most)
    return Node("cat", tuple(parts))
