"""Numbers: which decimals a schema allows, as an automaton over their digits.

Numbers are written as `json.dumps` does: plain, or in its exponent form (one digit before the point, an exponent from
16 up or from -5 down). Comparisons are of decimals, exactly, at any length.

Numbers for generating (`Numbers.narrow`) have bounded spellings: integers are digits alone, of 64 bits unless bounds or
divisors ask for more; others have about 17 significant digits and a small exponent wherever bounds leave room for it.
"""

import json
import math
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import RuleSet
from oxillama.grammar.json_schema.digits import DOWN, UP, decimal_digits, exponent_of
from oxillama.grammar.json_schema.number_automaton import MAX_STATES, NumberAutomaton

__all__ = [
    "Numbers",
    "constant_expr",
    "number_expr",
    "spelled",
]

MAX_LISTED = 1000
MAX_NARROW_STATES = 12_000  # where digits are counted beside remainders
STATE_UNITS = 80  # units of the budget for a state
Edge = tuple[int, str, str, int]  # node, first and last character, node
Built = tuple[int, list[Edge], list[int], int]  # nodes, edges, nodes at which a number may end, units of the budget


class Numbers(NamedTuple):
    """A set of numbers. low, high: None for no bound; `open`: without the bound itself. integer: None for either kind.

    multiples: numbers that must divide; others: numbers that must not. plain: integers have neither point nor exponent.
    narrow: with the bounded spellings of mode "generate".
    """

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    integer: bool | None = None
    multiples: frozenset[Fraction] = frozenset()
    others: frozenset[Fraction] = frozenset()
    plain: bool = False
    narrow: bool = False

    def above(self, bound: Fraction, is_open: bool) -> "Numbers":
        if self.low is None or (bound, is_open) > (self.low, self.low_open):
            return self._replace(low=bound, low_open=is_open)
        return self

    def below(self, bound: Fraction, is_open: bool) -> "Numbers":
        if self.high is None or (-bound, is_open) > (-self.high, self.high_open):
            return self._replace(high=bound, high_open=is_open)
        return self

    def of_kind(self, integer: bool) -> "Numbers":
        """Integers alone, or all others; an empty set has bounds that exclude each other."""
        if self.integer is (not integer):
            return self._replace(low=Fraction(1), high=Fraction(0))
        return self if self.integer is integer else self._replace(integer=integer)

    def for_generating(self) -> "Numbers":
        """Set of the same numbers with bounded spellings, and integers without a point."""
        integer = self.integer
        if integer is None and any(m.denominator == 1 for m in self.multiples):
            integer = True
        return self._replace(integer=integer, plain=integer is True, narrow=True)

    def least_magnitude(self, bound: Fraction, is_open: bool) -> Fraction:
        """The smallest magnitude above 0 that is not below a bound and is a multiple of the divisors."""
        divisors = [*self.multiples, *([Fraction(1)] if self.integer else [])]
        if not divisors:
            return bound
        step = Fraction(math.lcm(*(m.numerator for m in divisors)), math.gcd(*(m.denominator for m in divisors)))
        times = math.ceil(bound / step)
        return step * (times + (times * step == bound and (is_open or not bound)))

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, Fraction)
            and (self.low is None or value > self.low or (value == self.low and not self.low_open))
            and (self.high is None or value < self.high or (value == self.high and not self.high_open))
            and (self.integer is None or self.integer == (value.denominator == 1))
            and all((value / m).denominator == 1 for m in self.multiples)
            and not any((value / m).denominator == 1 for m in self.others)
        )


def number_expr(rules: RuleSet, numbers: Numbers) -> int:
    """The expression of a set of numbers. Raises GrammarError if it needs too many states."""
    try:
        n, edges, finals, cost = _automaton(numbers)
    except GrammarError:
        rules.budget.spend(STATE_UNITS * MAX_STATES, "a set of numbers")
        raise
    rules.budget.spend(cost, "a set of numbers")
    if not finals:
        return rules.alt(())
    exprs = {pair: rules.range(*pair) for pair in {edge[1] for edge in edges}}
    return rules.graph(n, [(a, exprs[pair], b) for a, pair, b in edges], finals)


@lru_cache(maxsize=512)
def _automaton(numbers: Numbers) -> tuple[int, list[tuple[int, tuple[int, int], int]], list[int], int]:
    """Nodes, edges, nodes at which a number may end, and the cost in units of the budget."""
    cost = 0
    try:
        n, edges, finals, work = _built(numbers)
    except GrammarError:
        if not numbers.narrow:
            raise
        cost = STATE_UNITS * MAX_STATES
        n, edges, finals, work = _of_large_divisors(numbers)
    return n, [(a, (ord(x), ord(y)), b) for a, x, y, b in edges], finals, cost + work + STATE_UNITS * n


def _built(numbers: Numbers, max_states: int = MAX_STATES, max_digits: int | None = None) -> Built:
    automaton = NumberAutomaton(numbers, max_states, max_digits)
    return *automaton.build(), automaton.work


def _of_large_divisors(numbers: Numbers) -> Built:
    """The multiples between two bounds, if they are few. Else numbers with as many digits as can be counted beside
    remainders, if each divisor has a multiple among them; else with any number of digits."""
    few = _few(numbers)
    if few is not None:
        return *_trie([str(n) for n in few]), 0
    whole = _built(numbers._replace(narrow=False))
    n_digits = MAX_NARROW_STATES // whole[0]
    if n_digits > max((len(str(int(m))) for m in numbers.multiples), default=0):
        with suppress(GrammarError):
            n, edges, finals, work = _built(numbers, MAX_NARROW_STATES, n_digits)
            return n, edges, finals, work + whole[3]
    return whole


def _few(numbers: Numbers) -> list[int] | None:
    """All integers of a set that has bounds and divisors; None if there may be more than `MAX_LISTED`."""
    n = numbers
    if not n.plain or n.low is None or n.high is None or not n.multiples:
        return None
    divisor = 1  # whole numbers that they divide are multiples of it
    for m in n.multiples:
        divisor = math.lcm(divisor, m.numerator)
        if divisor > max(abs(n.low), abs(n.high)):  # with further ones, too, 0 alone is left
            break
    first, last = math.ceil(n.low / divisor), math.floor(n.high / divisor)
    if last - first >= MAX_LISTED:
        return None
    return [i * divisor for i in range(first, last + 1) if Fraction(i * divisor) in n]


def _trie(texts: list[str]) -> tuple[int, list[Edge], list[int]]:
    nodes, edges = {"": 0}, []
    for text in texts:
        for i in range(len(text)):
            before, here = text[:i], text[: i + 1]
            if here not in nodes:
                nodes[here] = len(nodes)
                edges.append((nodes[before], text[i], text[i], nodes[here]))
    return len(nodes), edges, sorted(nodes[text] for text in texts)


def spelled(value: int | float | Decimal) -> str:
    """A number as `json.dumps` writes it; a Decimal without an exponent."""
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)


def constant_expr(rules: RuleSet, value: Fraction, plain: bool = False) -> int:
    """The expression of one number in all its spellings; `plain`: of an integer, without point and exponent."""
    if plain:
        return rules.literal(str(value).encode())
    whole, part = decimal_digits(abs(value))
    sign = b"-" if value < 0 else b""
    zeros = rules.repeat(rules.literal(b"0"), 0)
    text = sign + whole.encode()
    fraction = rules.seq((rules.literal(b".0"), zeros))
    if part:
        return rules.alt(
            (rules.seq((rules.literal(text + b"." + part.encode()), zeros)), *_power(rules, value, sign, zeros))
        )
    spelled = [rules.seq((rules.literal(text), rules.repeat(fraction, 0, 1)))]
    if value == 0:
        spelled.append(rules.seq((rules.literal(b"-0"), fraction)))
    return rules.alt((*spelled, *_power(rules, value, sign, zeros)))


def _power(rules: RuleSet, value: Fraction, sign: bytes, zeros: int) -> list[int]:
    """A number in exponent form, if it is so large or small that floats are written so."""
    exponent = exponent_of(abs(value))
    if not (UP[0] <= exponent <= UP[1] or DOWN[0] <= exponent <= DOWN[1]):
        return []
    digits = "".join(decimal_digits(abs(value))).strip("0").encode()
    power = rules.literal(f"e{'+' if exponent > 0 else '-'}{abs(exponent):02d}".encode())
    point = rules.literal(b".") if digits[1:] else rules.literal(b".0")
    behind = rules.seq((point, rules.literal(digits[1:]), zeros))
    if not digits[1:]:
        behind = rules.repeat(behind, 0, 1)
    return [rules.seq((rules.literal(sign + digits[:1]), behind, power))]
