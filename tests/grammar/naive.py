"""Grammars as plain Python data, and a parser that works as differently as can be: Earley's, over a chart of sets.

Expressions: ("text", bytes), ("class", characters), ("seq", [...]), ("alt", [...]), ("rep", x, least, most or None),
("rule", i), ("token", id, negated). A grammar is a list of expressions, one per rule; rule 0 is the root.
"""

import itertools

import numpy as np

END = "end"


def to_gbnf(rules):
    def name(i):
        return "root" if i == 0 else f"r{i}"

    def write(x):
        kind = x[0]
        if kind == "text":
            return '"' + x[1].decode().replace("\\", "\\\\").replace('"', '\\"') + '"'
        if kind == "class":
            return "[" + "".join(x[1]) + "]"
        if kind == "seq":
            return "(" + " ".join(map(write, x[1])) + ")"
        if kind == "alt":
            return "(" + " | ".join(map(write, x[1])) + ")"
        if kind == "rep":
            most = "" if x[3] is None else x[3]
            return write(x[1]) + f"{{{x[2]},{most}}}"
        if kind == "rule":
            return name(x[1])
        return ("!" if x[2] else "") + f"<[{x[1]}]>"

    return "\n".join(f"{name(i)} ::= {write(x)}" for i, x in enumerate(rules))


class Naive:
    """Productions: symbol -> tuples of symbols. Terminals are ints (bytes) and ("token", id, negated)."""

    def __init__(self, rules):
        self.productions = {}
        self.fresh = itertools.count()
        for i, x in enumerate(rules):
            self.add(("rule", i), x)
        self.prune()
        self.nullable = self.fixpoint(lambda symbols, known: all(s in known for s in symbols))

    def add(self, symbol, x):
        self.productions[symbol] = options = []
        kind = x[0]
        if kind == "text":
            options.append(tuple(x[1]))
        elif kind == "class":
            options.extend(tuple(c.encode()) for c in x[1])
        elif kind == "seq":
            options.append(tuple(self.new(y) for y in x[1]))
        elif kind == "alt":
            options.extend((self.new(y),) for y in x[1])
        elif kind == "rep":
            item = self.new(x[1])
            if x[3] is None:
                options.extend([(item,) * x[2], (symbol, item)])
            else:
                options.extend((item,) * n for n in range(x[2], x[3] + 1))
        elif kind == "rule":
            options.append((("rule", x[1]),))
        else:
            options.append((x,))

    def new(self, x):
        symbol = ("x", next(self.fresh))
        self.add(symbol, x)
        return symbol

    def is_terminal(self, symbol):
        return isinstance(symbol, int) or symbol[0] == "token"

    def fixpoint(self, test):
        known, before = set(), -1
        while len(known) != before:
            before = len(known)
            known |= {s for s, options in self.productions.items() if any(test(o, known) for o in options)}
        return known

    def prune(self):
        """Leaves out productions that can't be completed."""
        alive = self.fixpoint(lambda symbols, known: all(self.is_terminal(s) or s in known for s in symbols))
        self.productions = {
            s: [o for o in options if all(self.is_terminal(x) or x in alive for x in o)]
            for s, options in self.productions.items()
        }
        self.matches_something = ("rule", 0) in alive

    # ---- Earley: a chart is a list of sets of (symbol, production, dot, origin)

    def start(self):
        return [self.close([], {(("rule", 0), o, 0, 0) for o in self.productions["rule", 0]})]

    def close(self, earlier, items):
        here, column, todo = len(earlier), set(), list(items)
        while todo:
            item = todo.pop()
            if item in column:
                continue
            column.add(item)
            symbol, symbols, dot, origin = item
            if dot == len(symbols):
                source = column if origin == here else earlier[origin]
                todo += [(s, o, d + 1, g) for s, o, d, g in list(source) if d < len(o) and o[d] == symbol]
            elif not self.is_terminal(symbols[dot]):
                todo += [(symbols[dot], o, 0, here) for o in self.productions[symbols[dot]]]
                if symbols[dot] in self.nullable:
                    todo.append((symbol, symbols, dot + 1, origin))
        return column

    def scan(self, column, matches):
        return {(s, o, d + 1, g) for s, o, d, g in column if d < len(o) and self.is_terminal(o[d]) and matches(o[d])}

    def step(self, chart, token, text):
        """The chart after a token (None: bytes of no token), or None if nothing can follow."""
        start = chart[len(chart) - 1]
        grown = list(chart)
        whole = self.scan(start, lambda t: isinstance(t, tuple) and token is not None and (t[1] == token) != t[2])
        items = set()
        for i, byte in enumerate(text or b""):
            items = self.scan(grown[-1], lambda t, byte=byte: t == byte)
            if i + 1 < len(text):
                grown.append(self.close(grown, items))
        grown.append(self.close(grown, items | whole))
        return grown if grown[-1] else None

    def is_complete(self, chart):
        return any(s == ("rule", 0) and d == len(o) and g == 0 for s, o, d, g in chart[-1]) or (
            len(chart) == 1 and ("rule", 0) in self.nullable
        )


def allowed(state):
    out = np.full(state.vocabulary.n_words, 0xFFFFFFFF, np.uint32)
    n = state.mask(out)
    found = [t for t in range(32 * len(out)) if out[t >> 5] >> np.uint32(t & 31) & np.uint32(1)]
    assert n == len(found)
    return found
