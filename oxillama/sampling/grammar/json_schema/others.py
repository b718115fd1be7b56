"""All strings but a few: names of properties that a schema doesn't name."""

from oxillama.sampling.grammar.automaton import character_ranges
from oxillama.sampling.grammar.json_schema.texts import Texts
from oxillama.sampling.grammar.regex import ANY

__all__ = ["is_plain_text", "others_expr"]

PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))  # written as themselves alone
SPECIAL = character_ranges(PLAIN, True)


def is_plain_text(text: str) -> bool:
    return all(0x20 <= ord(c) < 0x7F and c not in '"\\' for c in text)


def others_expr(texts: Texts, names: frozenset[str]) -> int:
    """All strings but these plain ones, quotes included.

    Nodes are those of the names' trie, and the end. What follows where a text leaves the trie is compiled once per
    process where it can be, and then has its masks in common with other schemas.
    """
    rules = texts.rules
    children: list[dict[str, int]] = [{}]
    ends = set()
    for name in names:
        at = 0
        for c in name:
            if c not in children[at]:
                children[at][c] = len(children)
                children.append({})
            at = children[at][c]
        ends.add(at)
    end = len(children)
    edges = []
    for at, branches in enumerate(children):
        edges.append((at, _leaving(texts, "".join(sorted(branches))), end))
        edges += [(at, rules.literal(c.encode()), to) for c, to in branches.items()]
        if at not in ends:
            edges.append((at, texts.quote, end))
    return rules.seq((texts.quote, rules.graph(end + 1, edges, [end])))


def _leaving(texts: Texts, without: str) -> int:
    """The rest of a string that goes on, but with none of these characters, and the quote behind it."""
    if len(without) <= 1:
        return texts.kept(("leaving", without), lambda own: _another(own, without))
    return texts.helper(("leaving", without), lambda: _another(texts, without))


def _another(texts: Texts, without: str) -> int:
    rules = texts.rules
    plain = rules.alt([rules.range(*gap) for gap in _gaps(list(map(ord, without)))])
    return rules.alt((rules.seq((plain, texts.kept("rest", _rest))), texts.kept("special rest", _special)))


def _special(texts: Texts) -> int:
    return texts.rules.seq((texts.chars(SPECIAL), texts.kept("rest", _rest)))


def _rest(texts: Texts) -> int:
    return texts.rules.seq((texts.rules.repeat(texts.chars(ANY), 0), texts.quote))


def _gaps(codes: list[int]) -> list[tuple[int, int]]:
    """Ranges of plain characters without these, which are in order."""
    out = []
    for low, high in PLAIN:
        for code in codes:
            if low <= code <= high:
                if low < code:
                    out.append((low, code - 1))
                low = code + 1
        if low <= high:
            out.append((low, high))
    return out
