"""Divisors of numbers: which remainders are told apart, and what large ones cost."""

from fractions import Fraction

import pytest

import oxillama as ox
from oxillama.errors import GrammarError
from oxillama.grammar.json_schema.number_automaton import MAX_STATES, NumberAutomaton
from oxillama.grammar.json_schema.numbers import Numbers

START, UNITS = 2, 2_500_000


def ends(rest: int, divisor: int) -> tuple[int, ...]:
    """By the number of following digits: the digits that make a multiple, -1 for none."""
    found, power = [], 1
    while True:
        end = -rest * power % divisor
        found.append(end if end < power else -1)
        if power >= divisor:
            return tuple(found)
        power *= 10


def n_states(divisor: int) -> int:
    """States of the automaton of all multiples, as digits: of each sign by the number of digits, up to two, and the
    class of the remainder."""
    first: dict[tuple[int, ...], int] = {}

    def known(rest: int) -> int:
        return first.setdefault(ends(rest, divisor), rest)

    todo = [(1, known(digit % divisor), digit == 0) for digit in range(10)]
    states = set(todo)
    while todo:
        n, rest, zero = todo.pop()
        for digit in () if zero else range(10):
            state = (min(n + 1, 2), known((10 * rest + digit) % divisor), False)
            if state not in states:
                states.add(state)
                todo.append(state)
    return START + 2 * len(states)


@pytest.mark.parametrize(
    "divisor", [1, 2, 3, 7, 10, 16, 25, 60, 96, 125, 128, 640, 997, 1000, 1024, 1280, 10**12, 5**9]
)
def test_remainders_are_told_apart_as_far_as_following_digits_can(divisor: int) -> None:
    numbers = Numbers(integer=True, plain=True, multiples=frozenset((Fraction(divisor),)))
    n, _, _ = NumberAutomaton(numbers).build()
    assert n == n_states(divisor)


@pytest.mark.parametrize("divisor", [12, 250, 3 * 2**5, 10**30, 7 * 10**20])
def test_multiples_of_a_divisor_are_accepted(divisor: int) -> None:
    grammar = ox.JsonSchemaCompiler.compile({"type": "integer", "multipleOf": divisor})
    for times in (0, 1, 3, 10, 12345, 10**9 + 7):
        number = times * divisor
        assert grammar.accepts(str(number))
        assert grammar.accepts(f"-{number}") == (number > 0)
        for other in (1, 2, 10, divisor // 2):
            assert not grammar.accepts(str(number + other))


def odd(k: int) -> int:
    return 10**299 + 2 * k + 1


HOSTILE = {
    "two of 300 digits": [{"multipleOf": odd(3)}, {"multipleOf": odd(4)}],
    "two even ones": [{"multipleOf": 2 * odd(3)}, {"multipleOf": 2**990}],
    "many of 300 digits": [{"multipleOf": odd(k)} for k in range(100)],
    "many small ones": [{"multipleOf": 2 * k + 11} for k in range(1000)],
    "none of four": [{"not": {"multipleOf": odd(k)}} for k in range(4)],
}


@pytest.mark.parametrize("mode", ["full", "generate"])
@pytest.mark.parametrize("name", HOSTILE)
def test_large_divisors_are_refused(name: str, mode: ox.sampler_config.SchemaMode) -> None:
    with pytest.raises(GrammarError, match="divisor"):
        ox.JsonSchemaCompiler.compile({"type": "number", "allOf": HOSTILE[name]}, mode=mode)


def test_work_with_large_divisors_is_counted() -> None:
    """A divisor of 300 digits takes more than its states alone; one that fits into a word doesn't."""
    large, small = (
        NumberAutomaton(Numbers(integer=True, multiples=frozenset((Fraction(divisor),)))) for divisor in (10**299, 1000)
    )
    n, _, _ = large.build()
    assert n < MAX_STATES < large.work < UNITS // 4
    small.build()
    assert small.work == 0


def test_many_large_divisors_use_the_budget_up() -> None:
    schema = {"properties": {f"p{i}": {"multipleOf": 10 ** (299 - i)} for i in range(100)}}
    with pytest.raises(GrammarError, match=f"the budget of {UNITS} units"):
        ox.JsonSchemaCompiler.compile(schema)


def test_listed_numbers_are_paid_for_by_their_divisors() -> None:
    schema = {"enum": list(range(2000)), "allOf": [{"multipleOf": k} for k in range(1, 500)]}
    with pytest.raises(GrammarError, match=f"a list of numbers is too large .* {UNITS} units"):
        ox.JsonSchemaCompiler.compile(schema)
