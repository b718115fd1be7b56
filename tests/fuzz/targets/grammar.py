"""A text as a grammar: it is refused, or followed with masks that tell the truth, forwards, backwards and from a file.

What the masks must be is told twice more: by steps of the automaton byte for byte, and for small grammars of the common
notation by Earley's parser over a reading of the text that shares no line with the package's (`gbnf_reader`).
"""

import re
import zlib
from random import Random

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarState
from tests.fuzz.mutate import TEXT, with_word
from tests.fuzz.target import Target, told
from tests.fuzz.targets.gbnf_reader import Unreadable, read
from tests.grammar.cases import CORPUS, FRAGMENTS, TEXTS, VOCABULARY
from tests.grammar.naive import Naive, allowed

END = len(TEXTS)
TOKENS = {"<think>": 4, "<x>": 0}
MAX_NAIVE = 60  # expressions of a grammar that Earley's parser is asked about


def run(data):
    text = data.decode("utf-8", "surrogateescape")
    try:
        grammar = Grammar.parse(text, token_id=TOKENS.get)
    except GrammarError as error:
        if "no text at all" in str(error):
            assert not chart_of(text), "a grammar with texts is said to have none"
        return [told(error)]
    chart = chart_of(text)
    try:
        return walked(grammar, Random(zlib.crc32(data)), chart)
    except GrammarError as error:
        if "too ambiguous" not in str(error) and "refers to token" not in str(error):
            raise
        return [told(error)]


def chart_of(text):
    """Earley's parser and its chart; None if it finds that nothing matches, () if it isn't asked."""
    try:
        rules, n = read(text, TOKENS)
    except Unreadable:
        return ()
    if n > MAX_NAIVE:
        return ()
    naive = Naive(rules)
    return (naive, naive.start()) if naive.matches_something else None


def walked(grammar, draw, chart):
    """Random steps, with everything compared before each."""
    assert chart is not None, "a grammar without any text was compiled"
    state, seen = grammar.state(VOCABULARY), []
    for n_steps in range(6):
        possible = allowed(state)
        compare(state, possible, draw, chart)
        seen.append(f"possible {len(possible)}, {state.is_complete}")
        forked(state, draw, grammar)
        forced = state.forced_bytes(8)
        if forced and draw.random() < 0.4:
            state.advance(forced)
            chart = chart and stepped(chart, None, forced)
        elif tokens := [t for t in possible if t != END]:
            token = draw.choice(tokens)
            state.advance(token)
            chart = chart and stepped(chart, token, TEXTS[token] if token < END else None)
        else:
            return [*seen, f"ended after {n_steps}"]
    return seen


def stepped(chart, token, text):
    naive, columns = chart
    columns = naive.step(columns, token, text)
    assert columns is not None, "the naive parser can't follow"
    return naive, columns


def compare(state, possible, draw, chart):
    """The mask against single steps, and against the naive parser."""
    assert (END in possible) == state.is_complete
    for token in range(END + 2):
        try:
            state.advance(token)
        except GrammarError:
            assert token not in possible, token
        else:
            assert token in possible, token
            state.rollback(1)
    if chart:
        naive, columns = chart
        assert state.is_complete == naive.is_complete(columns)
        wanted = [t for t in range(END) if naive.step(columns, t, TEXTS[t])]
        # The last token has no text: it may come where the grammar names it.
        wanted += [t for t in (END + 1,) if naive.step(columns, t, None)]
        assert [t for t in possible if t != END] == wanted


def forked(state, draw, grammar):
    """A fork, a state that went through a file and one that went back are where this one is."""
    here = allowed(state)
    twin, again = state.fork(), GrammarState.from_state(state.state(), grammar, VOCABULARY)
    assert allowed(twin) == allowed(again) == here
    for _ in range(draw.randrange(3)):
        tokens = allowed(twin)
        if tokens:
            twin.advance(draw.choice(tokens))
    n = len(twin.state()) - len(state.state())
    twin.rollback(n)
    assert twin.state() == state.state()
    assert allowed(twin) == allowed(state) == here


WORDS = [fragment.encode("utf-8", "surrogatepass") for fragment in FRAGMENTS]
WORDS += [
    b"::=",
    b"\nroot ::= ",
    b" | ",
    b"{1,2}",
    b"{3}",
    b"[^a-b]",
    b"<[0]>",
    b"!<[3]>",
    b"\\n",
    b"# x\n",
    b'"a"',
    b'""',
]
PIECES = re.compile(
    rb'"(?:[^"\\]|\\.)*"|\[(?:[^]\\]|\\.)*\]|\{[^}]*\}|!?<[^>]*>|[\w-]+\s*::=|[\w-]+|\n|[ \t]+|.', re.DOTALL
)
LEAVES = (b'"a"', b'"b"', b'"ab"', b'""', '"é"'.encode(), "[aé]".encode(), b"[^a]", b".", b"<[4]>", b"!<[0]>", b"[ab]")


def expression(draw, names, depth=0):
    """A random one that is well formed."""
    kind = draw.randrange(8 if depth < 3 else 3)
    if kind < 2 or not names:
        return draw.choice(LEAVES)
    if kind == 2:
        return draw.choice(names)
    parts = [expression(draw, names, depth + 1) for _ in range(draw.choice((1, 2, 2, 3)))]
    if kind < 5:
        return b"(" + b" | ".join(parts) + b")"
    inner = b"(" + b" ".join(parts) + b")"
    return inner + draw.choice((b"", b"*", b"+", b"?", b"{2}", b"{0,2}", b"{1,}", b"{3,5}", b"{0}", b"{40}", b"{0,70}"))


def in_pieces(change):
    """A mutator of text from one of its pieces: change(draw, pieces, pieces of another, names of rules)."""

    def mutate(draw, data, other):
        pieces = PIECES.findall(data)
        names = [piece.removesuffix(b"::=").strip() for piece in pieces if piece.endswith(b"::=")]
        if pieces:
            change(draw, pieces, PIECES.findall(other) or pieces, names)
        return b"".join(pieces)

    return mutate


def in_place(pieces):
    return [i for i, piece in enumerate(pieces) if piece.strip() and not piece.endswith(b"::=")] or [0]


def grow(draw, pieces, others, names):
    i = draw.choice(in_place(pieces))
    pieces[i : i + draw.randrange(2)] = [b" ", expression(draw, names), b" "]


def repeat(draw, pieces, others, names):
    pieces.insert(draw.choice(in_place(pieces)) + 1, draw.choice((b"*", b"+", b"?", b"{2}", b"{0,3}", b"{2,}", b" | ")))


def drop(draw, pieces, others, names):
    del pieces[draw.choice(in_place(pieces))]


def swap(draw, pieces, others, names):
    pieces[draw.choice(in_place(pieces))] = others[draw.choice(in_place(others))]


def call(draw, pieces, others, names):
    """A rule in the place of something, or a new rule."""
    name = draw.choice(names) if names and draw.random() < 0.8 else b"r%d" % draw.randrange(3)
    pieces[draw.choice(in_place(pieces))] = name
    if name not in names:
        pieces += [b"\n", name, b" ::= ", expression(draw, names)]


TARGET = Target(
    "grammar",
    run,
    lambda: [text.encode("utf-8", "surrogatepass")[:4000] for text in CORPUS],
    (*TEXT, with_word(WORDS), with_word(WORDS), *(in_pieces(f) for f in 3 * (grow, repeat, drop, swap, call))),
    words=WORDS,
    max_bytes=1500,
    memory=(64 << 20, 20_000),
)
