"""Patterns and lists of texts to rules.

Rules are made straight from the tree of a pattern wherever that is enough: a `Dfa` costs Python time for every state.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from oxillama.errors import GrammarError
from oxillama.sampling.grammar.automaton import Range, RuleSet, utf8_sequences
from oxillama.sampling.grammar.dfa import Dfa, Part
from oxillama.sampling.grammar.regex import ANY, EMPTY, Node, parse_regex

__all__ = ["Chars", "choices_rules", "conditions", "is_plain", "lower", "lower_dfa", "regex_rules", "unanchored"]

Chars = Callable[[tuple[Range, ...]], int]


def regex_rules(pattern: str) -> tuple[RuleSet, int]:
    """Rules for the texts that a pattern matches from their first to their last character, and the root's id."""
    rules = RuleSet()

    def chars(ranges: tuple[Range, ...]) -> int:
        return rules.chars(utf8_sequences(ranges))

    parts = conditions(parse_regex(pattern), whole=True)
    root = rules.new_rule("root")
    try:
        plain = len(parts) == 1 and is_plain(parts[0].node)
        rules.define(root, lower(rules, parts[0].node, chars) if plain else lower_dfa(rules, Dfa(parts), chars))
    except GrammarError as error:
        raise GrammarError(f"pattern {_short(pattern)}: {error}") from None
    return rules, root


def choices_rules(choices: Iterable[str]) -> tuple[RuleSet, int]:
    """Rules for any of these texts, and the root's id. Raises GrammarError if there are none, or one is no text."""
    if isinstance(choices, str):
        raise GrammarError(f"choices must be a list of str, not the one str {_short(choices)}")
    texts = list(choices)
    if not texts:
        raise GrammarError("choices must name at least one text")
    rules = RuleSet()
    items = []
    for text in texts:
        if not isinstance(text, str):
            raise GrammarError(f"choices must be str, not {type(text).__name__}")
        try:
            items.append(rules.literal(text.encode()))
        except UnicodeEncodeError:
            raise GrammarError(
                f"the choice {_short(text)} has half of a surrogate pair, which is no character"
            ) from None
    root = rules.new_rule("root")
    rules.define(root, rules.alt(items))
    return rules, root


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


# ---- trees to rules


def conditions(node: Node, whole: bool = False) -> list[Part]:
    """What a text must meet for a pattern to be found in it (`whole`: to match it). Looking ahead at the beginning is
    a condition of its own."""
    parts = list(node.parts) if node.kind == "cat" else [node]
    begin = 0
    while begin < len(parts) and (parts[begin].kind == "^" or (parts[begin].kind == "ahead" and (whole or begin))):
        begin += 1
    ahead = [part for part in parts[:begin] if part.kind == "ahead"]
    rest = [Node("^"), *parts[begin:]] if ahead else parts
    found = [Part(unanchored(Node("cat", tuple(rest)), whole))]
    for part in ahead:
        found.append(Part(Node("cat", (part.parts[0], ANYTHING)), negated=not part.least))
    return found


def unanchored(node: Node, whole: bool = False) -> Node:
    """The tree of all texts in which a pattern is found (`whole`: that it matches), without the anchors at its ends.

    `^` and `$` go from the ends of the alternatives; what has them elsewhere keeps them, and needs a `Dfa`.
    """
    choices = [_strip(part, whole) for part in _choices(node)]
    return choices[0] if len(choices) == 1 else Node("alt", tuple(choices))


def _choices(node: Node) -> Sequence[Node]:
    while node.kind in ("alt", "cat") and len(node.parts) == 1:
        node = node.parts[0]
    return node.parts if node.kind == "alt" else (node,)


ANYTHING = Node("repeat", (Node("set", ranges=ANY),))


def _strip(node: Node, whole: bool) -> Node:
    parts = list(node.parts if node.kind == "cat" else (node,))
    first = last = whole
    while parts and parts[0].kind == "^":
        first = bool(parts.pop(0))
    while parts and parts[-1].kind == "$":
        last = bool(parts.pop())
    if not parts and first and last:
        return EMPTY
    return Node("cat", (*((ANYTHING,) if not first else ()), *parts, *((ANYTHING,) if not last else ())))


@lru_cache(maxsize=4096)
def is_plain(node: Node) -> bool:
    """Whether a tree has neither anchors nor look-aheads."""
    return node.kind not in ("^", "$", "ahead") and all(is_plain(part) for part in node.parts)


def lower(rules: RuleSet, node: Node, chars: Chars) -> int:
    """The expression of a plain tree. chars: gives that of a set of characters."""
    if node.kind == "set":
        return chars(node.ranges)
    if node.kind == "repeat":
        return rules.repeat(lower(rules, node.parts[0], chars), node.least, node.most)
    parts = [lower(rules, part, chars) for part in node.parts]
    return rules.alt(parts) if node.kind == "alt" else rules.seq(parts)


def lower_dfa(rules: RuleSet, dfa: Dfa, chars: Chars) -> int:
    """The expression of an automaton."""
    sets = {}
    edges = []
    for source, row in enumerate(dfa.rows):
        targets: dict[int, list[int]] = {}
        for symbol, target in enumerate(row):
            if target in dfa.live:
                targets.setdefault(target, []).append(symbol)
        for target, symbols in targets.items():
            key = tuple(symbols)
            if key not in sets:
                sets[key] = chars(tuple(r for symbol in symbols for r in dfa.alphabet[symbol]))
            edges.append((source, sets[key], target))
    return rules.graph(len(dfa.rows), edges, sorted(dfa.finals))
