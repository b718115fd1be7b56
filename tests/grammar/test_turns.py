"""Other threads get their turns while a grammar is compiled, so that the texts of other requests go on."""

import sys
import threading
import time
from itertools import pairwise

import pytest

from oxillama.grammar.automaton import Automaton, RuleSet
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal
from oxillama.grammar.json_schema.objects import Objects


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
