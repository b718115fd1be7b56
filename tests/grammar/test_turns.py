"""Other threads get their turns while a grammar is compiled, so that the texts of other requests go on."""

import gc
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest

import oxillama as ox
from oxillama.grammar.automata.stacks import Stacks
from oxillama.grammar.automaton import Automaton, RuleSet
from oxillama.grammar.gbnf import parse_gbnf
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal
from oxillama.grammar.json_schema.objects import Objects
from tests.other_threads import longest_turn


def turns_during(work, note=lambda: None):
    """How often another thread, which calls `note` and gives every turn back at once, had one while `work()` ran."""
    started, over = threading.Event(), threading.Event()
    n = 0

    def count():
        nonlocal n
        started.set()
        while not over.is_set():
            time.sleep(0)
            note()
            n += 1

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    started.wait()
    try:
        sys.setswitchinterval(1e-4)
        before = n
        work()
        return n - before
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


def one_rule():
    """Rules with one that has many states."""
    rules = RuleSet()
    root = rules.new_rule("root")
    rules.define(root, rules.alt([rules.literal(bytes([i]) + b"a" * 1000) for i in range(200)]))
    return lambda: Automaton(rules, root)


def many_rules():
    rules = RuleSet()
    root = rules.new_rule("root")
    parts = [rules.new_rule("") for _ in range(20_000)]
    for i, part in enumerate(parts):
        rules.define(part, rules.literal(b"%012d" % i))
    rules.define(root, rules.alt([rules.rule(part, 2) for part in parts]))
    return lambda: Automaton(rules, root)


@pytest.mark.parametrize("make", [one_rule, many_rules])
def test_other_threads_go_on_while_a_grammar_is_compiled(make):
    work = make()
    assert turns_during(work) >= 3  # a call that keeps the interpreter to itself allows one or two, at its ends


def test_other_threads_go_on_while_an_object_of_many_properties_is_compiled():
    """All of one schema, so that hardly a function of Python is called for them. What is spent between two turns of
    another thread is a small part of all."""
    names, integer = [f"p{i}" for i in range(90_000)], {"type": "integer"}
    schema = {"type": "object", "properties": dict.fromkeys(names, integer), "required": names}
    texts = JsonText(RuleSet(), flexible=False)
    objects, literal, budget = Objects(texts), Literal(schema, True, "", None), texts.budget
    spent = [0]
    turns_during(lambda: objects.expr([literal], False, len, None), lambda: spent.append(budget.spent))
    assert max(after - before for before, after in pairwise([*spent, budget.spent])) < budget.spent // 4


# Sources that take compiling, or following, a long way in compiled loops, and what they were seen to end in.
LONG = {
    "one literal": 'root ::= "' + "ab" * 300_000 + '"',
    "repeats": "root ::= " + '"a"{0,10} ' * 6000,
    "large repeats": "root ::= " + '"a"{0,1000} ' * 400,
    "nested repeats": "root ::= " + "(" * 30_000 + '"a"' + '"b")*' * 30_000,
    "calls": "root ::= " + " | ".join(f"r{i}" for i in range(9000)) + "".join(
        f'\nr{i} ::= "(" r{i} ")" | "a{i}"' for i in range(9000)),
    "left recursion": "root ::= " + " | ".join(f'root "{i}"' for i in range(20_000)) + ' | "a"',
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_no_loop_of_compiling_keeps_other_threads_out(name):
    rules, root = parse_gbnf(LONG[name])

    def compiled():
        with suppress(ox.GrammarError):
            Stacks(Automaton(rules, root))

    assert any(longest_turn(compiled) < 1 / 6 for _ in range(8))


def test_other_threads_run_while_the_first_mask_of_a_long_text_is_made():
    grammar = ox.Grammar.parse('root ::= "' + "ab" * 300_000 + '"')

    def masked():
        vocabulary = ox.Vocabulary([b"a", b"b", None], [2])
        grammar.state(vocabulary).mask(np.zeros(1, np.uint32))

    assert any(longest_turn(masked) < 1 / 3 for _ in range(8))


def test_groups_and_patterns_are_nothing_to_the_collector():
    """However deep they nest, and many they are: each collection would look at all of them."""
    gc.collect()
    for make in (
        lambda: ox.Grammar.parse("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000),
        lambda: ox.Grammar.from_regex("ab|" * 10_000 + "c"),
    ):
        before = sum(one["collections"] for one in gc.get_stats())
        make()
        assert sum(one["collections"] for one in gc.get_stats()) - before < 10


def test_edges_of_many_rules_lead_where_they_led():
    """Rules called in one place are found by their number, however many there are."""
    n = 400
    rules = "".join(f'\nr{i} ::= "(" r{i} ")" | "a{i}"' for i in range(n))
    many = ox.Grammar.parse("root ::= " + " | ".join(f"r{i}" for i in range(n)) + rules)
    for i in (0, 1, 15, 16, 17, n - 1):
        assert many.accepts(f"a{i}")
        assert many.accepts(f"((a{i}))")
        assert not many.accepts(f"(a{i}")
