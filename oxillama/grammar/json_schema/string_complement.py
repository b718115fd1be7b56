"""Complement of a set of strings: names of properties that a schema doesn't name."""

from functools import lru_cache

from oxillama._util.freeing import free
from oxillama.grammar.automaton import Range
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.regex import ANY

__all__ = ["complement_expr", "is_plain_text"]

PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))  # ASCII that may be written as itself
NAME_UNITS = 3  # of the budget, for a character of a name
# UTF-8 of more than one byte (RFC 3629): first and last lead byte, then the bytes that follow.
_TAIL = (0x80, 0xBF)
_LEADS: tuple[tuple[Range, tuple[Range, ...]], ...] = (
    ((0xC2, 0xDF), (_TAIL,)), ((0xE0, 0xE0), ((0xA0, 0xBF), _TAIL)), ((0xE1, 0xEC), (_TAIL, _TAIL)),
    ((0xED, 0xED), ((0x80, 0x9F), _TAIL)), ((0xEE, 0xEF), (_TAIL, _TAIL)), ((0xF0, 0xF0), ((0x90, 0xBF), _TAIL, _TAIL)),
    ((0xF1, 0xF3), (_TAIL, _TAIL, _TAIL)), ((0xF4, 0xF4), ((0x80, 0x8F), _TAIL, _TAIL)),
)  # fmt: skip


def is_plain_text(text: str) -> bool:
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def complement_expr(texts: JsonText, names: frozenset[str]) -> int:
    """All strings but these plain ones, quotes included.

    Nodes 0.. are those of the names' trie; a text that has left it is unconstrained. The nodes take the first byte of
    any character themselves: masks are quick to build where any character may follow.
    """
    rules = texts.rules
    texts.budget.spend(NAME_UNITS * sum(map(len, names)), "a list of names")
    children: list[dict[str, int]] = [{}]
    ends = set()
    for name in sorted(names):  # so that what it takes is the same in every process
        at = 0
        for c in name:
            if c not in children[at]:
                children[at][c] = len(children)
                children.append({})
            at = children[at][c]
        ends.add(at)
    n = len(children)
    rest, end, *leads = range(n, n + 2 + len(_LEADS))
    escape = rules.seq((rules.literal(b"\\"), texts.kept("escaped rest", _escaped)))
    edges = [(rest, texts.kept("rest", _rest), end)]
    starts = [(escape, end)]
    for (first, following), lead in zip(_LEADS, leads, strict=True):
        starts.append((rules.range(*first), lead))
        edges.append((lead, rules.seq([rules.range(*bounds) for bounds in following]), rest))
    letters = {c: rules.literal(c.encode()) for c in sorted(set().union(*names))}
    plain: dict[tuple[str, ...], int] = {}
    for at, branches in enumerate(children):
        without = tuple(branches)
        if without not in plain:
            plain[without] = rules.alt([rules.range(*gap) for gap in _gaps(without)])
        edges.append((at, plain[without], rest))
        edges += [(at, letters[c], to) for c, to in branches.items()]
        if at not in ends:
            edges.append((at, texts.quote, end))
    try:
        return rules.seq((texts.quote, rules.graph(n + 2 + len(_LEADS), edges, [end], starts, n)))
    finally:
        free(edges)
        free(children)


def _escaped(texts: JsonText) -> int:
    """The rest of a string after a backslash, to the quote at the end."""
    return texts.rules.seq((texts.special(ANY), texts.kept("rest", _rest)))


def _rest(texts: JsonText) -> int:
    return texts.rules.seq((texts.rules.repeat(texts.chars(ANY), 0), texts.quote))


@lru_cache(maxsize=1024)
def _gaps(without: tuple[str, ...]) -> list[tuple[int, int]]:
    """Ranges of plain characters without these."""
    codes = sorted(map(ord, without))
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
