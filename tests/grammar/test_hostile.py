"""Hostile grammars: a right answer or a GrammarError, never a crash, a recursion limit or a blow-up."""

import numpy as np
import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, Vocabulary

DEEP = 60_000
LONG = 100_000
VOCABULARY = Vocabulary([b"a", b"b", b"x", b"aa", b"(", b")", b"((", b"(((a", None], [8])


def chain(rule, last):
    return "root ::= r0\n" + "\n".join([*(rule.format(i=i, j=i + 1) for i in range(LONG)), f"r{LONG} ::= {last}"])


def check(source, passing, failing):
    """Accepts, rejects, and gives a mask after each of the first steps."""
    grammar = Grammar.parse(source)
    for text in passing:
        assert grammar.accepts(text)
    for text in failing:
        assert not grammar.accepts(text)
    state = grammar.state(VOCABULARY)
    out = np.empty(VOCABULARY.n_words, np.uint32)
    for byte in passing[0].encode()[:20]:
        state.mask(out)
        state.advance(bytes([byte]))
    state.mask(out)
    return grammar


GRAMMARS = {
    "nested groups": ("root ::= " + "(" * DEEP + '"a"' + ")" * DEEP, ["a"], ["", "aa"]),
    "groups with content": ("root ::= " + '("a" ' * DEEP + ")" * DEEP, ["a" * DEEP], ["a" * (DEEP - 1)]),
    "nested stars": ("root ::= " + "(" * DEEP + '"a"' + ")*" * DEEP, ["a" * 50, ""], ["b"]),
    "star of star": ('root ::= ("a"*)*', ["", "aaaa"], ["b"]),
    "nullable stars": ('root ::= (("a"* "b"*)* "x"?)*', ["", "abxba"], ["c"]),
    "a thousand million": ('root ::= "x"{0,1000000000}', ["x" * LONG, ""], ["a", "x" * 50 + "a"]),
    "of what may be empty": ('root ::= ("x"? "a"?){1000000000}', ["xaxa", ""], ["b"]),
    "at least a million": ('root ::= "x"{1000000,}', ["x" * 1000000], ["x" * 999999]),
    "exactly": ('root ::= ("x" | "ab"){70000}', ["x" * 69999 + "ab"], ["x" * 69999, "x" * 70001]),
    "counts in counts": ("root ::= " + "(" * 6 + '"x"' + "{100})" * 6, [], ["x" * 1000]),
    "optional in optional": ("root ::= " + "(" * 8 + '"x"' + "{0,100})" * 8, ["x" * 1000, ""], ["a"]),
    "chain": (chain("r{i} ::= r{j}", '"a"'), ["a"], ["", "b"]),
    "chain with tails": (chain('r{i} ::= r{j} "b"', '"a"'), ["a" + "b" * LONG], ["a" + "b" * (LONG - 1)]),
    "chain to the right": (chain('r{i} ::= "b" r{j}', '"a"'), ["b" * LONG + "a"], ["b" * (LONG - 1) + "a"]),
    "ambiguous": ('root ::= root root | "a"', ["a" * 5000], ["", "ab"]),
    "ambiguous, may be empty": ('root ::= root root root | root root | "a" | ""', ["a" * 5000, ""], ["b"]),
    "ambiguous brackets": ('root ::= ("(" root ")" | root root | "x")?', ["(" * 500 + "x" + ")" * 500], ["(" * 500]),
    "equal rules": (
        'root ::= "a" root "b" | "a" t "x" | ""\nt ::= "a" root "b" | "a" t "x" | ""',
        ["a" * 2000 + "bx" * 1000], ["a" * 2000 + "bx" * 999],
    ),
    "palindromes": ('root ::= "a" root "a" | "b" root "b" | "a"', ["ab" * 500 + "a" + "ba" * 500], ["ab" * 500]),
    "dangling": ('root ::= "a" root | "a" root "b" root | "x"', ["a" * 2000 + "x" + "bx" * 100], ["a" * 100]),
    "subsets": ('root ::= [ab]* "a" [ab]{300} "x"', ["a" + "ab" * 150 + "x"], ["b" + "ab" * 150 + "x"]),
    "options": ("root ::= " + '"a"? ' * 2000, ["a" * 2000, ""], ["a" * 2001]),
    "deep text": ('root ::= "(" root ")" | "a"', ["(" * DEEP + "a" + ")" * DEEP], ["(" * DEEP + "a"]),
    "returns from the deep": ('root ::= "(" root ")"? | "a"', ["(" * DEEP + "a"], ["(" * 10 + "a" + ")" * 11]),
    "many choices": ("root ::= " + " | ".join(f'"a{i}b"' for i in range(5000)), ["a4999b"], ["a5000b"]),
    "left-recursive group of many": (
        "root ::= r0\n" + "\n".join(f'r{i} ::= r{(i + 1) % 1000} "b" | "a{i}"' for i in range(1000)),
        ["a3bbb", "a0" + "b" * 1000], ["a3bb", "a0bbb"],
    ),
}  # fmt: skip


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", GRAMMARS)
def test_hostile_grammars_give_right_answers(name):
    source, passing, failing = GRAMMARS[name]
    if passing:
        check(source, passing, failing)
    else:
        grammar = Grammar.parse(source)
        assert not any(grammar.accepts(text) for text in failing)


@pytest.mark.long
def test_a_left_recursive_circle_through_a_hundred_thousand_rules():
    source = chain('r{i} ::= r{j} "b" | "x"', 'r0 "a"')
    with pytest.raises(GrammarError, match="is too large to compile"):
        check(source, ["x"], [])


@pytest.mark.long
def test_too_many_states_are_refused():
    group = " | ".join(f'r{j} "{j % 10}"' for j in range(400))
    calls = " ".join(f'"x" r{i}' for i in range(400))
    rules = "\n".join(f'r{i} ::= {group} | "a{i}"' for i in range(400))
    with pytest.raises(GrammarError, match=r"too large|more than"):
        check(f"root ::= {calls}\n{rules}", ["xa0"], [])


def test_too_many_readings_are_refused_and_the_state_stays_usable():
    source = "root ::= r0\n" + "\n".join(
        [*(f'r{i} ::= "b" r{i + 1} | r{i + 1} "c" | "x"' for i in range(5000)), 'r5000 ::= "a"']
    )
    with pytest.raises(GrammarError, match="too ambiguous"):
        Grammar.parse(source).accepts("b" * 1000)


@pytest.mark.long
def test_what_is_known_of_stacks_is_forgotten_like_the_stacks():
    """Rules that may all begin each other add few stacks for a byte, and a hundred thousand unions of them."""
    bodies = [" ".join(f"r{j}?" for j in range(20)) + ' "a"'] * 20
    grammar = Grammar.parse("root ::= r0\n" + "\n".join(f"r{i} ::= {body}" for i, body in enumerate(bodies)))
    assert not grammar._stacks.crowded
    assert grammar._stacks.step_bytes(grammar._stacks.root, b"a" * 150)
    assert grammar._stacks.crowded
    grammar.make_room()
    assert not grammar._stacks.crowded
    assert grammar.accepts("a" * 300)  # which makes room on its way
    assert not grammar._stacks.crowded
    assert not grammar.accepts("a" * 300 + "b")
    assert grammar.accepts("a" * 10)
