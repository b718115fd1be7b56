"""Masks are exactly the tokens that keep a text on the way to one of the grammar, as Earley's parser finds them."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarState, Vocabulary
from oxillama.grammar.automata.masks import Masks
from oxillama.grammar.automata.stacks import Stacks
from oxillama.grammar.automaton import Automaton
from oxillama.grammar.gbnf import parse_gbnf
from tests.grammar.naive import Naive, allowed, to_gbnf

CHARS = ["a", "b", "é", "☃"]
N_RULES = 4
# Ids 0 and 1 end a text, 2 is a special token, 3 has no text, 4 and 5 have the same.
TEXTS = [b"", b"</s>", None, b"", b"a", b"a", b"b", b"ab", b"aa", b"ba", b"abab", "é".encode(), "é".encode()[:1],
         "é".encode()[1:], "☃".encode(), "☃".encode()[:2], "☃".encode()[2:] + b"a", "aé".encode(), b"\xff"]  # fmt: skip
END_IDS = (0, 1)


def expressions(tokens):
    leaves = [
        st.sampled_from([("text", t) for t in (b"", b"a", b"b", b"ab", b"ba", "é".encode(), "☃a".encode())]),
        st.lists(st.sampled_from(CHARS), min_size=1, max_size=3, unique=True).map(lambda c: ("class", c)),
        st.integers(0, N_RULES - 1).map(lambda i: ("rule", i)),
    ]
    if tokens:
        leaves.append(st.tuples(st.just("token"), st.sampled_from([2, 3, 4, 7]), st.booleans()))
    counts = st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 1, 2]))
    return st.recursive(
        st.one_of(leaves),
        lambda x: st.one_of(
            st.lists(x, min_size=1, max_size=3).map(lambda items: ("seq", items)),
            st.lists(x, min_size=1, max_size=3).map(lambda items: ("alt", items)),
            st.tuples(x, counts).map(lambda p: ("rep", p[0], p[1][0], None if p[1][1] is None else sum(p[1]))),
        ),
        max_leaves=6,
    )


def grammars(tokens=False):
    return st.lists(expressions(tokens), min_size=N_RULES, max_size=N_RULES)


def expected(naive, chart):
    found = [t for t in range(len(TEXTS)) if t not in END_IDS and naive.step(chart, t, TEXTS[t] if t != 2 else None)]
    return sorted(found + (list(END_IDS) if naive.is_complete(chart) else []))


def follow(rules, seed, n_steps=7):
    """Walks at random along what is allowed, and compares all masks on the way."""
    naive = Naive(rules)
    if not naive.matches_something:
        with pytest.raises(GrammarError, match="no text at all"):
            Grammar.parse(to_gbnf(rules))
        return
    draw = random.Random(seed)
    state = Grammar.parse(to_gbnf(rules)).state(Vocabulary(TEXTS, END_IDS))
    chart = naive.start()
    for _ in range(n_steps):
        assert state.is_complete == naive.is_complete(chart)
        tokens = allowed(state)
        assert tokens == expected(naive, chart)
        tokens = [t for t in tokens if t not in END_IDS]
        if not tokens:
            break
        token = draw.choice(tokens)
        state.advance(token)
        chart = naive.step(chart, token, TEXTS[token] if token != 2 else None)


@settings(max_examples=300)
@given(grammars(), st.integers(0, 1000))
def test_masks_of_random_grammars(rules, seed):
    follow(rules, seed)


@settings(max_examples=200)
@given(grammars(tokens=True), st.integers(0, 1000))
def test_masks_of_random_grammars_with_tokens(rules, seed):
    follow(rules, seed)


@settings(max_examples=100)
@given(grammars(tokens=True), st.integers(0, 1000))
def test_going_back_forking_and_saving_are_exact(rules, seed):
    """A random walk with steps back, forks and states that went through a file; each mask is Earley's."""
    naive = Naive(rules)
    if not naive.matches_something:
        return
    draw = random.Random(seed)
    grammar, vocabulary = Grammar.parse(to_gbnf(rules)), Vocabulary(TEXTS, END_IDS)
    live = [(grammar.state(vocabulary), [naive.start()])]
    for _ in range(14):
        state, charts = draw.choice(live)
        assert allowed(state) == expected(naive, charts[-1])
        action = draw.random()
        tokens = [t for t in allowed(state) if t not in END_IDS]
        if action < 0.5 and tokens:
            token = draw.choice(tokens)
            state.advance(token)
            charts.append(naive.step(charts[-1], token, TEXTS[token] if token != 2 else None))
        elif action < 0.7:
            n = draw.randint(0, len(charts) - 1)
            state.rollback(n)
            del charts[len(charts) - n :]
        elif action < 0.85:
            live.append((state.fork(), charts[:]))
        else:
            saved = json.loads(json.dumps(state.state()))
            if draw.random() < 0.5:  # as another process would
                grammar, vocabulary = Grammar.parse(to_gbnf(rules)), Vocabulary(TEXTS, END_IDS)
            live.append((GrammarState.from_state(saved, grammar, vocabulary), charts[:]))
    for state, charts in live:
        assert allowed(state) == expected(naive, charts[-1])


A, B, EMPTY = ("text", b"a"), ("text", b"b"), ("text", b"")
R0, R1 = ("rule", 0), ("rule", 1)
LEFT_RECURSIVE = {
    "direct": [("alt", [("seq", [R0, A]), B])],
    "both sides": [("alt", [("seq", [R0, R0]), A, B])],
    "indirect": [
        ("seq", [R1, A]),
        ("alt", [("seq", [R0, B]), ("seq", [R1, ("text", "é".encode())]), A]),
    ],
    "hidden": [
        ("alt", [("seq", [R1, R0, B]), A]),
        ("rep", B, 0, 1),
    ],
    "hidden behind a call": [
        ("alt", [("seq", [R1, R0, B]), A]),
        ("alt", [("seq", [A, R0, B]), EMPTY]),
    ],
    "hidden behind a call of nothing": [
        ("alt", [B, ("seq", [R1, R0, A])]),
        ("rep", ("seq", [B, R0, A]), 0, 0),
    ],
    "hidden behind itself": [("alt", [("seq", [R0, R0, B]), EMPTY, A])],
    "unit circle": [("alt", [R1, A]), ("alt", [R0, ("seq", [R0, B])])],
    "under a repeat": [("alt", [("seq", [("rep", R0, 0, None), A]), B])],
    "never begins": [("seq", [R0, A])],
}  # fmt: skip


@pytest.mark.parametrize("rules", LEFT_RECURSIVE.values(), ids=LEFT_RECURSIVE)
def test_masks_of_left_recursive_grammars(rules):
    for seed in range(10):
        follow(rules, seed)


# ---- nothing depends on what is in a cache


def walk(masks, stacks, tokens):
    """The masks along a walk, by the machine's own parts."""
    node, found = stacks.root, []
    out = np.empty(masks.trie.n_words, np.uint32)
    for token in [*tokens, None]:
        masks.mask(node, out)
        found.append(out.tobytes())
        if token is not None:
            node = stacks.step_bytes(node, masks.trie.text(token))
    return found


@settings(max_examples=100)
@given(grammars(), st.integers(0, 1000))
def test_cold_warm_and_evicted_caches_give_equal_masks(rules, seed):
    if not Naive(rules).matches_something:
        return
    automaton = Automaton(*parse_gbnf(to_gbnf(rules)))
    vocabulary = Vocabulary(TEXTS, END_IDS)
    draw = random.Random(seed)
    state = Grammar(automaton).state(vocabulary)
    tokens = []
    for _ in range(6):
        possible = [t for t in allowed(state) if t not in END_IDS]
        if not possible:
            break
        tokens.append(draw.choice(possible))
        state.advance(tokens[-1])
    stacks = Stacks(automaton)
    cold = Masks(stacks, Vocabulary(TEXTS, END_IDS))
    truth = walk(cold, stacks, tokens)
    assert walk(cold, stacks, tokens) == truth
    assert walk(Masks(stacks, vocabulary), stacks, tokens) == truth  # entries shared with another grammar
    small = Stacks(automaton, max_table=1)
    assert walk(Masks(small, vocabulary, limit=0), small, tokens) == truth


@settings(max_examples=60)
@given(grammars(), st.integers(0, 1000))
def test_compaction_keeps_what_states_need(rules, seed):
    if not Naive(rules).matches_something:
        return
    grammar = Grammar.parse(to_gbnf(rules))
    draw = random.Random(seed)
    state = grammar.state(Vocabulary(TEXTS, END_IDS))
    twin = Grammar.parse(to_gbnf(rules)).state(state.vocabulary)
    for _ in range(8):
        tokens = allowed(state)
        assert tokens == allowed(twin)
        if not tokens:
            break
        token = draw.choice(tokens)
        state.advance(token)
        twin.advance(token)
        grammar._stacks.compact([s._nodes for s in grammar._states])
        for masks in grammar._masks.values():
            masks.forget()
    while state.state():
        state.rollback(1)
        twin.rollback(1)
        assert allowed(state) == allowed(twin)


# ---- plain text, for which there are ready sets

WORDS = [w.encode() for w in ("a", "zz", "the", "né", "naïve", "日本", "x" * 31, "x" * 32, "x" * 33, "😀😀", "~ !")]
OTHERS = [
    b'"',
    b'a"',
    b'a",',
    b"\n",
    b"a\n",
    b"\\",
    b"\\n",
    b"\xe6",
    b"\x97\xa5",
    b"\x7f",
    b"}",
    b'"}',
    b"b" * 40 + b'"',
]
STRINGS = {
    "any": 'root ::= "\\"" [^"\\\\\\x7F\\x00-\\x1F]* "\\"" "}"',
    "up to 3": 'root ::= "\\"" [^"\\\\\\x7F\\x00-\\x1F]{0,3} "\\"" "}"',
    "30 to 32": 'root ::= "\\"" [^"\\\\\\x7F\\x00-\\x1F]{30,32} "\\"" "}"',
    "exactly 33": 'root ::= "\\"" [^"\\\\\\x7F\\x00-\\x1F]{33} "\\"" "}"',
    "called": 'root ::= s "}" | "{" root\ns ::= "\\"" [^"\\\\]{2,} "\\""',
    "to the end": 'root ::= "\\"" .*',
    "called, ends anywhere": 'root ::= "\\"" line "\\n" root | "}"\nline ::= [^\\n]+ | "(" line ")"',
    "two choices": 'root ::= "\\"" ([^"]* "\\"" | [^"]{0,2} "\\"}")',
    "not quite all": 'root ::= "\\"" [^"a]* "\\""',
    "ascii": 'root ::= "\\"" [ -~]* "\\""',
}


@pytest.mark.parametrize("source", STRINGS.values(), ids=STRINGS)
def test_ready_sets_are_what_single_tokens_give(source):
    grammar = Grammar.parse(source)
    texts = [*WORDS, *OTHERS]
    state = grammar.state(Vocabulary([*texts, None], [len(texts)]))
    for step in (b'"', b"x", b"\xe6\x97\xa5", b"y" * 28, b"z", b"z"):
        try:
            state.advance(step)
        except GrammarError:
            break
        for token, text in enumerate(texts):
            twin = state.fork()
            try:
                twin.advance(text)
                possible = True
            except GrammarError:
                possible = False
            assert (token in allowed(state)) == possible, text


def test_a_mask_doesnt_depend_on_what_is_below_the_trie_root():
    """Two grammars over one vocabulary share the entries of a rule that they both have, and go on differently."""
    vocabulary = Vocabulary([b"a", b'"', b'",', b'";', b'a",', b'a";', None], [6])
    string = 's ::= "\\"" [a-z]* "\\"" | "(" [a-z]* ")" | "[" [a-z]* "]" | "{" [a-z]* "}" | "<" [a-z]* ">"\n'
    for end, tokens in ((",", [0, 1, 2, 4]), (";", [0, 1, 3, 5])):
        state = Grammar.parse(f'root ::= s "{end}" x | s "{end}" s\nx ::= "x"\n{string}').state(vocabulary)
        state.advance(b'"')
        assert allowed(state) == tokens
    assert len(vocabulary.shared) > 0


def test_copies_and_blocks_of_a_repeat_are_the_same():
    from oxillama.grammar import RuleSet

    for least, most in ((0, 40), (17, 17), (3, None), (13, 64), (63, 65), (100, 300)):
        rules = RuleSet(copy_limit=64)
        root = rules.new_rule("root")
        item = rules.alt((rules.literal(b"a"), rules.literal(b"bc")))
        rules.define(root, rules.repeat(item, least, most))
        grammar = Grammar.from_rules(rules, root)
        draw = random.Random(1)
        for n in range(330):
            text = b"".join(draw.choice((b"a", b"bc")) for _ in range(n))
            assert grammar.accepts(text) == (least <= n and (most is None or n <= most)), (least, most, n)


def test_states_are_independent():
    grammar = Grammar.parse('root ::= "(" root ")" | "a"')
    vocabulary = Vocabulary([b"(", b")", b"a", b"((", None], [4])
    states = [grammar.state(vocabulary) for _ in range(5)]
    for i, state in enumerate(states):
        for _ in range(i):
            state.advance(0)
        state.advance(2)
    for i, state in enumerate(states):
        for _ in range(i):
            assert allowed(state) == [1]
            state.advance(1)
        assert allowed(state) == [4]
        assert isinstance(state, GrammarState)
