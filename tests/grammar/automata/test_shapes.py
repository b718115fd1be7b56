"""Walks by shape: whatever a grammar makes of letters, digits and others, masks are what Earley's parser finds.

The vocabulary has tokens of many shapes, and the classes of the grammars cut through them at every place.
"""

import itertools
import random
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oxillama.grammar import Grammar, Vocabulary
from oxillama.grammar.automata.masks import Masks
from oxillama.grammar.automata.stacks import Stacks
from oxillama.grammar.automata.trie import plain_length, shape_of
from oxillama.grammar.automaton import Automaton
from oxillama.grammar.gbnf import parse_gbnf
from tests.grammar.naive import Naive, allowed

PIECES = ["a", "z", "B", "Y", "0", "9", " ", "_", '"', "\n", "é", "ü", "☃", "😀"]
TEXTS = [
    *("".join(p).encode() for n in (1, 2) for p in itertools.product(PIECES, repeat=n)),
    *(w.encode() for w in ("abc", "zab", "aB0", "a9z", " ab", " zz", "éa0", "aé☃", "Ba_a", "aaaaaa", '"a"', "\n\n a")),
    *(b"\xc3", b"\xa9", b"\xe2\x98", b"\x98\x83", b"\x83", b"a\xc3", b"\xa9a", b"\xf0\x9f", b"\x98\x80z", b"\xff"),
]  # fmt: skip
END = len(TEXTS)
VOCABULARY = Vocabulary([*TEXTS, None], [END])

CLASSES = [
    "a-z", "A-Z", "0-9", "a-y", "a", "b-z", "0-8", "9", " ", "_", "\\n", '"', "a-zA-Z0-9_", "a-f0-9", "é",
    "\\x80-\\U0010ffff", "à-ÿ", "\\u0800-\\uffff", "☃-\\U0010ffff", " -~", "a-zé", "z-é",
]  # fmt: skip


def characters(cls, negated):
    """What a class has of the characters that tokens are made of, and of others that begin like them."""
    pattern = re.compile(f"[{'^' if negated else ''}{cls}]")
    return [
        c
        for c in sorted({*PIECES, *"bcBaz0À☀Ã☩😃", *"\U0001f0c3\U0001f0e9\U0001fa43\U0001fa69"})
        if pattern.fullmatch(c)
    ]


def expression(draw_from):
    cls, negated = draw_from
    return ("class", characters(cls, negated)), f"[{'^' if negated else ''}{cls}]"


PARTS = st.tuples(st.sampled_from(CLASSES), st.booleans()).map(expression)
COUNTS = st.sampled_from([(1, 1, ""), (0, 1, "?"), (0, None, "*"), (1, None, "+"), (0, 2, "{0,2}"), (2, 3, "{2,3}")])
SEQUENCES = st.lists(st.tuples(PARTS, COUNTS), min_size=1, max_size=3)


def build(alternatives, called):
    """A grammar as data and as text; `called`: its parts are rules of their own, between others."""
    options, written = [], []
    for sequence in alternatives:
        options.append(("seq", [("rep", x, least, most) for (x, _), (least, most, _) in sequence]))
        written.append(" ".join(text + mark for (_, text), (_, _, mark) in sequence))
    body, text = ("alt", options), " | ".join(written)
    if not called:
        return [body], f"root ::= {text}"
    # A rule that leads back to itself is called, not copied: then its end is a place where masks are put together.
    rules = [
        ("alt", [("seq", [("rule", 1), ("text", b"a"), ("rule", 0)]), ("rule", 1)]),
        ("alt", [body, ("seq", [("text", b"_"), ("rule", 0), ("text", b"_")])]),
    ]
    return rules, f'root ::= part "a" root | part\npart ::= {text} | "_" root "_"'


def follow(rules, text, seed):
    naive = Naive(rules)
    if not naive.matches_something:
        return
    draw = random.Random(seed)
    state = Grammar.parse(text).state(VOCABULARY)
    chart = naive.start()
    for _ in range(3):
        expected = [t for t, bytes_ in enumerate(TEXTS) if naive.step(chart, t, bytes_)]
        assert allowed(state) == expected + [END] * naive.is_complete(chart)
        if not expected:
            break
        token = draw.choice(expected)
        state.advance(token)
        chart = naive.step(chart, token, TEXTS[token])


@pytest.mark.long
@settings(max_examples=60)
@given(st.lists(SEQUENCES, min_size=1, max_size=2), st.booleans(), st.integers(0, 1000))
@example([[(expression(("a-z", False)), (0, None, "*"))]], True, 0)
@example([[(expression(("a-f0-9", False)), (1, None, "+")), (expression(("a", True)), (0, None, "*"))]], True, 1)
@example([[(expression(('"', True)), (0, 2, "{0,2}"))], [(expression(("a-y", False)), (2, 3, "{2,3}"))]], True, 2)
@example([[(expression(("\\x80-\\U0010ffff", False)), (1, None, "+"))]], False, 3)
@example([[(expression(("à-ÿ", True)), (1, None, "+"))]], True, 4)
def test_masks_of_classes_that_cut_through_shapes(alternatives, called, seed):
    follow(*build(alternatives, called), seed)


def test_characters_that_a_shape_distinguishes():
    assert shape_of(b"aZ3 _") == shape_of(b"xB0 _") == b"aA0 _"
    assert shape_of("é☃😀".encode()) == b"\x80\x80\x80"
    assert shape_of(b'"\n\x7f') == b'"\n\x7f'
    assert shape_of(b"a\xc3") is None
    assert shape_of(b"\xed\xa0\x80") is None


@given(st.text(max_size=40))
def test_plain_texts(text):
    plain = 0 < len(text) <= 32 and not any(c < " " or c in '"\\\x7f' for c in text)
    assert plain_length(text.encode("utf-8", "replace")) == len(text) * plain


@pytest.mark.parametrize("table", [1, 7, 1 << 20])
def test_tables_of_any_size_give_the_same(table):
    """Rows of the table of steps leave while a walk goes on."""
    source = 'root ::= w (" " w)* | "_" root "_" "a"\nw ::= [a-z]{1,3} | [^a-z \\n"]{2,5} | [é-☃]+ "😀"'
    expected = Grammar.parse(source).state(VOCABULARY)
    stacks = Stacks(Automaton(*parse_gbnf(source)), max_table=table)
    masks = Masks(stacks, Vocabulary([*TEXTS, None], [END]), limit=0)
    node, out = stacks.root, np.empty(masks.trie.n_words, np.uint32)
    for step in (b"_", b"a", b"z", b" ", "é☃".encode(), "😀".encode()):
        masks.mask(node, out)
        assert [t for t in range(END + 1) if out[t >> 5] >> np.uint32(t & 31) & np.uint32(1)] == allowed(expected)
        node = stacks.step_bytes(node, step)
        expected.advance(step)
