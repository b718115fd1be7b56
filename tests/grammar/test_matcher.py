"""`GrammarState`: steps, ends, rollback, forks, saved states, forced text, triggers, and masks on logits."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarState, Vocabulary, apply_grammar_mask
from oxillama.grammar.automaton import RuleSet
from tests.grammar.naive import allowed

# Ids 0 and 1 end a text, 2 is special.
TEXTS = [b"", b"</s>", None, b"a", b"b", b"(", b")", b"()", b"((", b"))"]
VOCABULARY = Vocabulary([*TEXTS, b"<tool>", b"<to", b"ol>(", b"ol>b", b"<", b"tool>"], [0, 1])
A, B, OPEN, CLOSE, BOTH = 3, 4, 5, 6, 7
BRACKETS = Grammar.parse('root ::= "(" root? ")" | "a" "b"')


def test_end_tokens_come_exactly_where_the_root_may_end():
    state = Grammar.parse('root ::= "a" ("b" "a")*').state(VOCABULARY)
    for token, before in ((A, False), (B, True), (A, False)):
        assert state.is_complete == before
        assert (0 in allowed(state)) == (1 in allowed(state)) == before
        state.advance(token)
    state.advance(1)
    assert state.is_complete
    assert allowed(state) == [0, 1, B]


def test_an_end_token_is_refused_where_the_text_cant_end():
    state = BRACKETS.state(VOCABULARY)
    with pytest.raises(GrammarError, match="token 1 can't come here"):
        state.advance(1)
    with pytest.raises(GrammarError, match="token 2 can't come here"):
        state.advance(2)
    with pytest.raises(GrammarError, match=r"token 4 \(b'b'\) can't come here"):
        state.advance(B)
    with pytest.raises(GrammarError, match="bytes b'x' can't come here"):
        state.advance(b"x")
    assert state.state() == []
    assert allowed(state) == [A, OPEN, BOTH, 8]


@pytest.mark.parametrize("step", [16, -1, 1 << 40])
def test_ids_outside_the_vocabulary(step):
    with pytest.raises((GrammarError, OverflowError), match=r"outside the vocabulary|too large"):
        BRACKETS.state(VOCABULARY).advance(step)


@pytest.mark.parametrize("step", [True, "a", 1.5, None, [A]])
def test_invalid_steps_are_refused(step):
    with pytest.raises(GrammarError, match="a step is a token id or bytes"):
        BRACKETS.state(VOCABULARY).advance(step)


def test_special_tokens_never_match_text():
    vocabulary = Vocabulary([b"x", None, b"<|end|>"], [2])
    state = Grammar.parse('root ::= .* "<|end|>"').state(vocabulary)
    assert allowed(state) == [0]
    state.advance(b"<|end|>")
    assert allowed(state) == [0, 2]


def test_references_to_tokens_are_checked_against_the_vocabulary():
    with pytest.raises(GrammarError, match=r"token 99; the vocabulary is 0\.\.15"):
        Grammar.parse("root ::= <[99]>").state(VOCABULARY)
    with pytest.raises(GrammarError, match="token 1, which ends a text"):
        Grammar.parse("root ::= <[1]>").state(VOCABULARY)
    state = Grammar.parse("root ::= !<[2]>").state(VOCABULARY)
    assert allowed(state) == list(range(3, 16))


def test_a_token_can_be_referred_to_and_spelt():
    state = Grammar.parse('root ::= <[3]> "(" | "a" "b"').state(VOCABULARY)
    state.advance(A)
    assert allowed(state) == [B, OPEN]
    state.rollback(1)
    state.advance(b"a")
    assert allowed(state) == [B]


STEPS = st.lists(st.sampled_from([A, B, OPEN, CLOSE, BOTH, 8, 9, b"(", b"ab", 1]), max_size=12)


def try_all(state, steps):
    """Takes the steps that are allowed; returns them."""
    taken = []
    for step in steps:
        try:
            state.advance(step)
        except GrammarError:
            continue
        taken.append(step)
    return taken


@given(STEPS, STEPS, st.integers(0, 12))
def test_rolled_back_forked_and_saved_states_are_like_new_ones(first, second, n):
    state = BRACKETS.state(VOCABULARY)
    taken = try_all(state, first)
    twin = state.fork()
    try_all(twin, second)
    n = min(n, len(taken))
    state.rollback(n)
    kept = taken[: len(taken) - n]
    fresh = BRACKETS.state(VOCABULARY)
    assert try_all(fresh, kept) == kept
    saved = json.loads(json.dumps(state.state()))
    resumed = GrammarState.from_state(saved, BRACKETS, VOCABULARY)
    assert allowed(state) == allowed(fresh) == allowed(resumed)
    assert state.state() == fresh.state() == resumed.state()
    assert try_all(state, second) == try_all(resumed, second)


def test_rolling_back_too_far():
    state = BRACKETS.state(VOCABULARY)
    state.advance(OPEN)
    for n in (2, -1):
        with pytest.raises(GrammarError, match=f"can't take back {n} steps: there were 1"):
            state.rollback(n)
    state.rollback(0)
    assert state.state() == [OPEN]


@pytest.mark.parametrize("data", [[B], ["zz"], [OPEN, 99], ["28", "62"], [None], [1.5], [1 << 70], ["2"]])
def test_damaged_saved_states(data):
    with pytest.raises(GrammarError, match="saved state doesn't fit the grammar at step"):
        GrammarState.from_state(data, BRACKETS, VOCABULARY)


def test_forced_bytes():
    state = Grammar.parse('root ::= "{\\"name\\": \\"" [a-z]+ "é" "x"{3} ("y" | "z") "end." "!"?').state(VOCABULARY)
    assert state.forced_bytes() == b'{"name": "'
    assert state.forced_bytes(limit=2) == b'{"'
    state.advance(state.forced_bytes())
    assert state.forced_bytes() == b""
    state.advance(b"q\xc3")
    assert state.forced_bytes() == b"\xa9xxx"
    state.advance(b"\xa9xxxy")
    assert state.forced_bytes() == b"end."
    state.advance(b"end.")
    assert state.is_complete
    assert state.forced_bytes() == b""


def test_forced_bytes_stop_at_tokens_and_in_loops():
    assert Grammar.parse('root ::= "a" <[3]>').state(VOCABULARY).forced_bytes() == b"a"
    assert Grammar.parse('root ::= "ab" ("ab" | "ac")').state(VOCABULARY).forced_bytes() == b"aba"
    assert len(Grammar.parse('root ::= "a"{1000} "b"').state(VOCABULARY).forced_bytes()) == 256


def test_threads_may_share_a_grammar():
    """While one renumbers the nodes, others follow their texts."""
    grammar = Grammar.parse('root ::= "(" root ")" | "a" | "b" root')
    failures = []

    def follow(n):
        try:
            for _ in range(20):
                state = grammar.state(VOCABULARY)
                for i in range(n):
                    state.advance(OPEN if i % 3 else B)
                    assert allowed(state) == [A, B, OPEN, 8]
                state.advance(A)
                for left in range(sum(1 for i in range(n) if i % 3), 0, -1):
                    assert not state.is_complete
                    assert allowed(state) == [CLOSE, 9] if left > 1 else [CLOSE]
                    state.advance(CLOSE)
                assert state.is_complete
        except BaseException as error:
            failures.append(error)

    def renumber():
        while any(t.is_alive() for t in threads):
            with grammar._lock:
                grammar._stacks.compact([s._nodes for s in grammar._states])
                for masks in grammar._masks.values():
                    masks.forget()

    threads = [threading.Thread(target=follow, args=(n,)) for n in (7, 20, 33, 50)]
    for thread in threads:
        thread.start()
    renumber()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- triggers

TOOL = Grammar.parse('root ::= "<tool>" "(" [ab]* ")"')


def test_before_a_trigger_all_tokens_are_allowed():
    state = TOOL.state(VOCABULARY, triggers=["<tool>"])
    assert not state.active
    assert state.is_complete
    assert allowed(state) == list(range(16))
    for token in (2, A, 9, 14, B):
        state.advance(token)
    assert not state.active
    assert state.forced_bytes() == b""


def test_a_trigger_in_one_token_puts_the_grammar_in_force():
    state = TOOL.state(VOCABULARY, triggers=["<tool>"])
    state.advance(10)
    assert state.active
    assert allowed(state) == [OPEN, BOTH]
    state.rollback(1)
    assert not state.active


def test_a_trigger_across_tokens_with_what_follows_it():
    state = TOOL.state(VOCABULARY, triggers=["<tool>"])
    state.advance(11)
    assert allowed(state) == [t for t in range(16) if t != 13]  # "ol>b" would break the grammar behind the trigger
    with pytest.raises(GrammarError, match="can't come here"):
        state.advance(13)
    state.advance(12)
    assert state.active
    assert allowed(state) == [A, B, CLOSE]


def test_a_special_token_interrupts_a_trigger():
    state = TOOL.state(VOCABULARY, triggers=["<tool>"])
    for token in (14, 2, 15):
        state.advance(token)
    assert not state.active
    state.advance(14)
    state.advance(15)
    assert state.active


def test_the_first_trigger_counts_and_the_longest_of_those():
    grammar = Grammar.parse('root ::= "(" "a" | "((" "b" | "a)" ")"')
    state = grammar.state(VOCABULARY, triggers=["((", "a)"])
    state.advance(b"(a)")
    assert allowed(state) == [CLOSE]
    state = grammar.state(VOCABULARY, triggers=["(("])
    state.advance(b"b((")
    assert allowed(state) == [B]


def test_triggers_survive_forks_and_saving():
    state = TOOL.state(VOCABULARY, triggers=["<tool>"])
    state.advance(11)
    twin = state.fork()
    saved = GrammarState.from_state(state.state(), TOOL, VOCABULARY, triggers=["<tool>"])
    for s in (twin, saved):
        s.advance(12)
        assert s.active
    assert not state.active


LINES = Grammar.parse(r'root ::= "\n"? "(" [ab]* ")"')


@pytest.mark.parametrize("before", [b"", b" \t", b"\n\n ", b"b\n", b"b\n\n"])
def test_a_text_may_begin_a_line(before):
    state = LINES.state(VOCABULARY, triggers=["\n("], at_line=True)
    state.advance(before)
    assert not state.active
    assert allowed(state) == [t for t in range(16) if t != 8]  # "((" would break the grammar
    state.advance(OPEN)
    assert state.active
    assert allowed(state) == [A, B, CLOSE]


@pytest.mark.parametrize(("before", "at_line"), [(b"", False), (b"b", True), (b"b\n ", True)])
def test_a_trigger_of_a_line_comes_nowhere_else(before, at_line):
    state = LINES.state(VOCABULARY, triggers=["\n("], at_line=at_line)
    state.advance(before)
    state.advance(OPEN)
    assert not state.active
    saved = GrammarState.from_state(state.state(), LINES, VOCABULARY, triggers=["\n("], at_line=at_line)
    saved.advance(b"\n(")
    assert saved.active


def test_a_special_token_ends_the_beginning_of_a_line():
    state = LINES.state(VOCABULARY, triggers=["\n("], at_line=True)
    state.advance(2)
    state.advance(OPEN)
    assert not state.active


@pytest.mark.parametrize(
    ("triggers", "message"), [([""], "at least"), ([3], "at least"), ("<tool>", "list"), (["x"], "begins")]
)  # fmt: skip
def test_bad_triggers(triggers, message):
    with pytest.raises(GrammarError, match=message):
        TOOL.state(VOCABULARY, triggers=triggers)


# ---- tokens without text

SPECIAL = Vocabulary([b"", None, None, None, b"a", b"b"], [0])


def controls(*but):
    """A grammar of "a", any special tokens but these, and "b"."""
    rules = RuleSet()
    root = rules.new_rule("root")
    middle = rules.repeat(rules.control(but), 0)
    rules.define(root, rules.seq((rules.literal(b"a"), middle, rules.literal(b"b"))))
    return Grammar.from_rules(rules, root)


@pytest.mark.parametrize("but", [(), (2,), (1, 3), (1, 2, 3)])
def test_tokens_without_text_but_some(but):
    state = controls(*but).state(SPECIAL)
    state.advance(4)
    wanted = [token for token in (1, 2, 3) if token not in but]
    for token in [*wanted, 5]:
        assert allowed(state) == [*wanted, 5]
        state.advance(token)
    assert state.is_complete
    for token in but:
        state.rollback(1)
        with pytest.raises(GrammarError, match=f"token {token} can't come here"):
            state.advance(token)
        state.advance(5)


def test_a_token_with_text_is_no_other_one():
    grammar = controls()
    assert grammar.accepts([b"a", 2, 7, b"b"])
    assert not grammar.accepts("axb")
    assert not grammar.accepts([b"a", b"b", b"b"])


def test_several_sets_of_tokens_without_text_in_one_place():
    rules = RuleSet()
    inner = rules.new_rule("inner")
    rules.define(inner, rules.seq((rules.control((1,)), rules.literal(b"a"))))
    linked = RuleSet()
    part = linked.linked("part", Grammar.from_rules(rules, inner).automaton)
    root = linked.new_rule("root")
    linked.define(root, linked.alt((linked.rule(part), linked.seq((linked.control((2,)), linked.literal(b"b"))))))
    state = Grammar.from_rules(linked, root).state(SPECIAL)
    assert allowed(state) == [1, 2, 3]
    for token, behind in ((1, [5]), (2, [4]), (3, [4, 5])):
        state.advance(token)
        assert allowed(state) == behind
        state.rollback(1)


def test_tokens_that_the_vocabulary_does_not_have_cannot_be_left_out():
    with pytest.raises(GrammarError, match="refers to token 9"):
        controls(9).state(SPECIAL)
    with pytest.raises(IndexError, match="no token -1"):
        RuleSet().control((-1,))


# ---- masks on logits


def test_apply_grammar_mask():
    state = BRACKETS.state(VOCABULARY)
    logits = np.arange(40, dtype=np.float32)
    apply_grammar_mask(logits, state)
    kept = [A, OPEN, BOTH, 8]
    assert [i for i in range(40) if logits[i] == i] == kept
    assert np.isneginf(np.delete(logits, kept)).all()


@pytest.mark.parametrize("logits", [np.zeros(8, np.float32), np.zeros(16), np.zeros((1, 16), np.float32), [0.0] * 16])
def test_logits_of_another_shape_or_type(logits):
    with pytest.raises(GrammarError, match="logits"):
        apply_grammar_mask(logits, BRACKETS.state(VOCABULARY))


def test_a_vocabulary_that_cant_spell_the_grammar():
    state = Grammar.parse('root ::= "q"').state(VOCABULARY)
    with pytest.raises(GrammarError, match="no token of the vocabulary can go on"):
        apply_grammar_mask(np.zeros(16, np.float32), state)


@pytest.mark.parametrize("out", [np.zeros(2, np.uint32), np.zeros(1, np.int32), np.zeros((1, 1), np.uint32), [0]])
def test_masks_of_another_shape_or_type(out):
    with pytest.raises(GrammarError, match="mask must"):
        BRACKETS.state(VOCABULARY).mask(out)


@pytest.mark.parametrize(("texts", "ends"), [([], []), ([b"a"], [1]), ([b"a"], [-1]), ([b"a" * 70000], [])])
def test_bad_vocabularies(texts, ends):
    with pytest.raises(GrammarError):
        Vocabulary(texts, ends)
