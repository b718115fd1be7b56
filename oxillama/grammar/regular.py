"""Regular languages: patterns and lists of texts to rules.

Rules are made directly from the tree of a pattern wherever that is enough: a `Dfa` has a state for every set of its
states, and for every length.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oxillama._util.collector import paused_collector
from oxillama._util.freeing import empty, free
from oxillama.errors import GrammarError
from oxillama.grammar.automata.dfa import MAX_WORK, WORK_UNITS, Dfa, Part
from oxillama.grammar.automaton import Budget, Range, RuleSet, utf8_sequences
from oxillama.grammar.regex import ANY, EMPTY, Group, Node, parse_regex

__all__ = [
    "PROPERTY_UNITS",
    "Chars",
    "choices_rules",
    "conditions",
    "lower",
    "lower_parts",
    "pattern_units",
    "regex_rules",
    "unanchored",
]

Chars = Callable[[tuple[Range, ...]], int]


LONG = 1 << 12  # characters of a pattern whose tree takes a while to be freed
# Of the budget: for a character of a pattern, and for a property, such as \p{L}, which may be 700 ranges of them.
PATTERN_UNITS, PROPERTY_UNITS = 6, 1500
MANY_COPIES = 4096  # of ranges of characters
UTF8_RANGES = 12  # that a set of characters beyond ASCII has in UTF-8 beside its own, about
MAX_SHARED = 64  # characters that alternatives have in common


def pattern_units(pattern: str) -> int:
    """Units of the budget that reading a pattern takes."""
    return PATTERN_UNITS * len(pattern) + PROPERTY_UNITS * (pattern.count("\\p") + pattern.count("\\P"))


def regex_rules(pattern: str, budget: int | None = None) -> tuple[RuleSet, int]:
    """Rules for the texts that a pattern matches from their first to their last character, and the root's id."""
    rules = RuleSet(budget=Budget(budget))
    root = rules.new_rule("root")
    if not isinstance(pattern, str) or len(pattern) < LONG:
        _define_pattern(rules, root, pattern, [])
        return rules, root
    held: list[Any] = []
    with paused_collector():  # which would look at hundreds of thousands of nodes again and again
        fault = _fault_of_pattern(rules, root, pattern, held)
        _free_trees(held)
    if fault is not None:
        raise fault
    return rules, root


def _free_trees(held: list[Any]) -> None:
    """Empties a list of open groups and conditions, whose trees are freed node by node, the outer ones first."""
    nodes: list[Node] = []
    while held:
        for one in held.pop():
            if isinstance(one, Group):
                nodes += (*one.items, *one.choices)
                empty(one.items, one.choices)
            else:
                nodes.append(one.node)
    for node in nodes:  # it grows meanwhile
        nodes += node.parts
    free(nodes)


def _fault_of_pattern(rules: RuleSet, root: int, pattern: str, held: list[Any]) -> GrammarError | None:
    """Defines a rule by a pattern. Returns why that can't be, without the frames that held its tree."""
    try:
        _define_pattern(rules, root, pattern, held)
    except GrammarError as error:
        error.__context__ = None
        return error.with_traceback(None)
    return None


def _define_pattern(rules: RuleSet, root: int, pattern: str, held: list[Any]) -> None:
    """Defines a rule by a pattern. held: gets the trees that are made."""

    def chars(ranges: tuple[Range, ...]) -> int:
        return rules.chars(utf8_sequences(ranges))

    if isinstance(pattern, str):
        rules.budget.spend(pattern_units(pattern), f"a pattern of {len(pattern)} characters")
    parts = conditions(parse_regex(pattern, held), whole=True)
    held.append(parts)
    try:
        plain = len(parts) == 1 and parts[0].node.is_plain
        rules.define(root, lower(rules, parts[0].node, chars) if plain else lower_parts(rules, parts, chars))
    except GrammarError as error:
        raise GrammarError(f"pattern {_short(pattern)}: {error}") from None


def choices_rules(choices: Iterable[str], budget: int | None = None) -> tuple[RuleSet, int]:
    """Rules for any of these texts, and the root's id. Raises GrammarError if there are none, or one is no text."""
    if isinstance(choices, str):
        raise GrammarError(f"choices must be a list of str, not the one str {_short(choices)}")
    texts = list(choices)
    if not texts:
        raise GrammarError("choices must name at least one text")
    rules = RuleSet(budget=Budget(budget))
    if len(texts) > rules.budget.limit:
        rules.budget.spend(len(texts), "a list of so many choices")
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
    """Conditions on a text for a pattern to be found in it (`whole`: to match it). Look-ahead at the beginning is a
    condition of its own."""
    parts = list(node.parts) if node.kind == "cat" else [node]
    begin = 0
    while begin < len(parts) and (parts[begin].kind == "^" or (parts[begin].kind == "ahead" and (whole or begin))):
        begin += 1
    ahead = [part for part in parts[:begin] if part.kind == "ahead"]
    rest = [Node("^"), *parts[begin:]] if ahead else parts
    found = [Part(unanchored(Node("cat", tuple(rest)), whole))]
    found += [Part(Node("cat", (part.parts[0], ANYTHING)), negated=not part.least) for part in ahead]
    return found


def unanchored(node: Node, whole: bool = False) -> Node:
    """The tree of all texts in which a pattern is found (`whole`: that it matches), without the anchors at its ends.

    `^` and `$` are removed from the ends of the alternatives; a tree with others keeps them, and needs a `Dfa`.
    """
    groups: dict[tuple[bool, bool], list[list[Node]]] = {}
    for part in _choices(node):
        first, last, parts = _strip(part, whole)
        groups.setdefault((first, last), []).append(parts)
    choices = [_free(first, last, found) for (first, last), found in groups.items()]
    return choices[0] if len(choices) == 1 else Node("alt", tuple(choices))


def _free(first: bool, last: bool, choices: list[list[Node]]) -> Node:
    """Alternatives with the same free ends, which get one "any text" together: with one each, there would be a state
    for every set of alternatives matched so far."""
    cut = [_cut(choice, not first, not last) for choice in choices]
    parts = cut[0] if len(cut) == 1 else [Node("alt", tuple(Node("cat", tuple(c)) for c in cut))]
    if first and last and len(parts) < 2:
        return parts[0] if parts else EMPTY
    return Node("cat", (*((ANYTHING,) if not first else ()), *parts, *((ANYTHING,) if not last else ())))


def _cut(parts: list[Node], first: bool, last: bool) -> list[Node]:
    """A sequence without what any text beside it makes needless: a{2,9} is found where a{2} is, and a* is anywhere.
    first, last: whether any text may come before it, and behind."""
    if not all(part.is_plain for part in parts):
        return parts
    parts = parts[:]
    kept: list[Node] = []
    while last and parts and not kept:
        kept = _least(parts.pop(), 1)
    parts += kept
    kept = []
    while first and parts and not kept:
        kept = _least(parts.pop(0), 0)
    return [*kept, *parts]


def _least(node: Node, last: int) -> list[Node]:
    """The parts of a tree next to any text: the fewest that must be there. last: 1 if the text comes behind."""
    if node.kind == "set":
        return [node]
    if node.kind == "cat":
        return _cut(list(node.parts), not last, bool(last))
    if node.kind == "alt":
        choices = [_least(part, last) for part in node.parts]
        return [Node("alt", tuple(Node("cat", tuple(c)) for c in choices))] if all(choices) else []
    if node.least == 0:
        return []
    if node.least == 1:
        return _least(node.parts[0], last)
    # As a whole: what it repeats, cut behind the rest of it, would double with each level of nested repeats.
    return [Node("repeat", node.parts, least=node.least, most=node.least)]


def _choices(node: Node) -> Sequence[Node]:
    while node.kind in ("alt", "cat") and len(node.parts) == 1:
        node = node.parts[0]
    return node.parts if node.kind == "alt" else (node,)


ANYTHING = Node("repeat", (Node("set", ranges=ANY),))


def _strip(node: Node, whole: bool) -> tuple[bool, bool, list[Node]]:
    """Whether a tree is anchored at the start, whether at the end, and its parts without these anchors."""
    parts = list(node.parts if node.kind == "cat" else (node,))
    first = last = whole
    while parts and parts[0].kind == "^":
        first = bool(parts.pop(0))
    while parts and parts[-1].kind == "$":
        last = bool(parts.pop())
    return first, last, parts


def lower(rules: RuleSet, node: Node, chars: Chars, called: Chars | None = None) -> int:
    """The expression of a plain tree. chars: returns that of a set of characters; called: the same for the sets of
    which there are many copies, None for no other."""
    if node.kind == "set":
        rules.budget.spend(len(node.ranges) >> 2, "a pattern with large sets of characters")
        return chars(node.ranges)
    if node.kind == "repeat":
        if called is not None and max(node.least, node.most or 0) * (UTF8_RANGES + node.n_ranges) > MANY_COPIES:
            chars = called
        return rules.repeat(lower(rules, node.parts[0], chars, called), node.least, node.most)
    if node.kind == "alt":
        choices = [list(part.parts if part.kind == "cat" else (part,)) for part in node.parts]
        return _lower_choices(rules, choices, chars, called)
    return rules.seq([lower(rules, part, chars, called) for part in node.parts])


def _lower_choices(
    rules: RuleSet, choices: list[list[Node]], chars: Chars, called: Chars | None, depth: int = 0
) -> int:
    """Alternatives, each a list of parts. Common prefixes are factored out, since every state of the automaton has all
    the starts where an alternative may start anywhere."""
    groups: dict[object, list[list[Node]]] = {}
    for parts in choices:
        shared = depth < MAX_SHARED and parts and parts[0].kind == "set"
        groups.setdefault(parts[0].ranges if shared else id(parts), []).append(parts)
    exprs = []
    for found in groups.values():
        if len(found) == 1:
            exprs.append(rules.seq([lower(rules, part, chars, called) for part in found[0]]))
        else:
            rest = _lower_choices(rules, [parts[1:] for parts in found], chars, called, depth + 1)
            exprs.append(rules.seq((chars(found[0][0].ranges), rest)))
    return rules.alt(exprs)


def lower_parts(
    rules: RuleSet,
    parts: Sequence[Part],
    chars: Chars,
    least: int = 0,
    most: int | None = None,
    called: Chars | None = None,
) -> int:
    """The expression of the texts that meet all conditions, with `least` to `most` characters. chars and called: as
    `lower` has them."""
    work = limit = min(MAX_WORK, rules.budget.left // WORK_UNITS + 1)
    try:
        dfa = Dfa(parts, least, most, limit)
        work = dfa.work
    finally:
        rules.budget.spend(WORK_UNITS * work, "an automaton for patterns and lengths")
    size = dfa.table.n_states * (UTF8_RANGES + dfa.basis.n_ranges)
    return dfa.expr(rules, chars if called is None or size <= MANY_COPIES else called)
