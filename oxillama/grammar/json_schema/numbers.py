"""Numbers: which decimals a schema allows, as an automaton over their digits.

Numbers are written as `json.dumps` does: plain, or in its exponent form (one digit before the point, an exponent from
16 up or from -5 down). Comparisons are of decimals, exactly, at any length.

Numbers for generating (`Numbers.narrow`) have bounded spellings: integers are digits alone, of 64 bits unless bounds or
divisors ask for more; others have about 17 significant digits and a small exponent wherever bounds leave room for it.
"""

import json
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import RuleSet
from oxillama.grammar.json_schema.digits import (
    DOWN,
    UP,
    Side,
    beyond,
    decimal_digits,
    digit_ranges,
    exponent_of,
    runs,
    settled,
    sign,
    step,
)
from oxillama.grammar.json_schema.spelling import FAR, MAX_FLOAT, Limits, integer_top, short_numbers

__all__ = [
    "Numbers",
    "constant_expr",
    "number_expr",
    "spelled",
]

MAX_STATES = 4000
MAX_LISTED = 1000
MAX_NARROW_STATES = 12_000  # where digits are counted beside remainders
STATE_UNITS = 80  # units of the budget for a state
# Digits behind the point of a float in exponent form: at most 16, so that from 1e16 on all are integers.
DIGITS = 16
Edge = tuple[int, str, str, int]  # node, first and last character, node
_EACH_DIGIT = tuple((digit, digit) for digit in range(10))
_ZERO_OR_NOT = ((0, 0), (1, 9))
_ANY_DIGIT = ((0, 9),)


@dataclass(frozen=True, slots=True)
class Numbers:
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
            return replace(self, low=bound, low_open=is_open)
        return self

    def below(self, bound: Fraction, is_open: bool) -> "Numbers":
        if self.high is None or (-bound, is_open) > (-self.high, self.high_open):
            return replace(self, high=bound, high_open=is_open)
        return self

    def of_kind(self, integer: bool) -> "Numbers":
        """Integers alone, or all others; an empty set has bounds that exclude each other."""
        if self.integer is (not integer):
            return replace(self, low=Fraction(1), high=Fraction(0))
        return self if self.integer is integer else replace(self, integer=integer)

    def for_generating(self) -> "Numbers":
        """The same set with bounded spellings, and integers without a point."""
        integer = self.integer
        if integer is None and any(m.denominator == 1 for m in self.multiples):
            integer = True
        return replace(self, integer=integer, plain=integer is True, narrow=True)

    def least_magnitude(self, bound: Fraction, is_open: bool) -> Fraction:
        """The smallest magnitude above 0 that is not below a bound and is a multiple of the divisors."""
        divisors = [*self.multiples, *([Fraction(1)] if self.integer else [])]
        if not divisors:
            return bound
        step = Fraction(math.lcm(*(m.numerator for m in divisors)), math.gcd(*(m.denominator for m in divisors)))
        times = math.ceil(bound / step)
        return step * (times + (times * step == bound and (is_open or not bound)))

    def __contains__(self, value: Fraction) -> bool:
        return (
            (self.low is None or value > self.low or (value == self.low and not self.low_open))
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
        n, edges, finals = _Builder(numbers).build()
    except GrammarError:
        if not numbers.narrow:
            raise
        cost = STATE_UNITS * MAX_STATES
        n, edges, finals = _of_large_divisors(numbers)
    return n, [(a, (ord(x), ord(y)), b) for a, x, y, b in edges], finals, cost + STATE_UNITS * n


def _of_large_divisors(numbers: Numbers) -> tuple[int, list[Edge], list[int]]:
    """The multiples between two bounds, if they are few. Else numbers with as many digits as can be counted beside
    remainders, if each divisor has a multiple among them; else with any number of digits."""
    few = _few(numbers)
    if few is not None:
        return _trie([str(n) for n in few])
    whole = replace(numbers, narrow=False)
    n, edges, finals = _Builder(whole).build()
    n_digits = MAX_NARROW_STATES // n
    if n_digits > max((len(str(int(m))) for m in numbers.multiples), default=0):
        with suppress(GrammarError):
            return _Builder(numbers, MAX_NARROW_STATES, n_digits).build()
    return n, edges, finals


def _few(numbers: Numbers) -> list[int] | None:
    """All integers of a set that has bounds and divisors; None if there may be more than `MAX_LISTED`."""
    n = numbers
    if not n.plain or n.low is None or n.high is None or not n.multiples:
        return None
    divisor = math.lcm(*(m.numerator for m in n.multiples))  # whole numbers that they divide are multiples of it
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


class _Builder:
    """max_digits: before the point, at most, of narrow numbers."""

    def __init__(self, numbers: Numbers, max_states: int = MAX_STATES, max_digits: int | None = None) -> None:
        self.numbers, self.max_states, self.max_digits = numbers, max_states, max_digits
        divisors = [*numbers.multiples, *numbers.others]
        # x is a multiple of M / 10^places exactly if x 10^places is one of M.
        self.places = max((len(decimal_digits(m)[1]) for m in divisors), default=0)
        self.moduli = [int(m * 10**self.places) for m in divisors]
        self.must = [True] * len(numbers.multiples) + [False] * len(numbers.others)
        self.known: dict[object, int] = {"start": 0}
        self.todo: list[tuple[object, ...]] = []
        self.edges: list[Edge] = []
        self.finals: set[int] = set()
        self.powers: set[int] = set()  # nodes with their exponents added
        self.allowed: dict[tuple[int, ...], list[int]] = {}
        self.limits = Limits()
        self.remainder_of: list[dict[int, int]] = [{} for _ in self.moduli]
        self.classes: list[dict[tuple[int, ...], int]] = [{} for _ in self.moduli]

    def build(self) -> tuple[int, list[Edge], list[int]]:
        n = self.numbers
        # Above 0, and below it mirrored; 0 itself is on the first side, and as -0.0 on the second.
        zero = Fraction(0)
        if n.high is None or n.high >= 0:
            low, is_open = (zero, False) if n.low is None or n.low < 0 else (n.low, n.low_open)
            self.side(0, self.magnitudes(low, is_open, n.high, n.high_open, False), False)
        if n.low is None or n.low < 0 or (n.low == 0 and not n.low_open):
            low, is_open = (
                (zero, n.high == 0 and n.high_open) if n.high is None or n.high >= 0 else (-n.high, n.high_open)
            )
            minus = self.node(("minus",))
            self.edges.append((0, "-", "-", minus))
            high = None if n.low is None else -n.low
            self.side(minus, self.magnitudes(low, is_open, high, n.low_open, True), True)
        return len(self.known), self.edges, sorted(self.finals)

    def magnitudes(self, low: Fraction, low_open: bool, high: Fraction | None, high_open: bool, negative: bool) -> Side:
        """The magnitudes of one sign, and the limits of their spelling."""
        n = self.numbers
        if not n.narrow:
            return Side(low, low_open, high, high_open)
        least = n.least_magnitude(low, low_open)
        if n.plain and not n.multiples:  # there, states are remainders too: digits are counted alone
            top = integer_top(least, negative)
            if high is None or high > max(FAR, top):
                high, high_open = top, False
        if not n.plain and high is None and 10**308 <= low <= MAX_FLOAT:
            high = MAX_FLOAT
        side = Side(low, low_open, high, high_open)
        divided = max(self.places, 1) if n.multiples else None
        self.limits = Limits.short(side, divided)
        if not self.is_short(side):
            self.limits = Limits.long(side, least, divided, self.places, n.plain)
        if self.max_digits is not None:
            if least >= Fraction(10) ** self.max_digits:
                raise GrammarError(f"its least number has more than {self.max_digits} digits")
            self.limits = replace(self.limits, whole=min(self.limits.whole or self.max_digits, self.max_digits))
        return side

    def is_short(self, side: Side) -> bool:
        """Whether there are numbers of few digits between bounds, with an exponent or without."""
        if not self.has_exponents():
            return False
        first, last = self.limits.exponents
        top = UP[0] if self.numbers.integer is False else last + 1
        return any(
            side.has(x) and x < Fraction(10) ** top and (self.numbers.integer is None or x.denominator != 1)
            for x in short_numbers(side.bounds[0], first if not self.moduli else 0)
        )

    def node(self, state: tuple[object, ...]) -> int:
        found = self.known.get(state)
        if found is None:
            if len(self.known) >= self.max_states:
                raise GrammarError(
                    f"it needs more than {self.max_states} states: use a smaller divisor, or shorter bounds"
                )
            found = self.known[state] = len(self.known)
            self.todo.append(state)
        return found

    def side(self, start: int, side: Side, negative: bool) -> None:
        """All magnitudes of one sign. States: whole part, fraction; mantissa, its fraction, exponent."""
        zeros = (0,) * len(side.bounds)
        rest = (0,) * len(self.moduli)
        self.todo.clear()
        self.allowed.clear()
        for digit in range(10):
            cmp = step(zeros, side.whole, 0, digit)
            self.edge(start, digit, digit, ("whole", negative, 1, cmp, self.remainders(rest, digit), digit == 0))
            if digit and self.has_exponents():
                cmp = step(zeros, side.mantissa, 0, digit)
                self.edge(start, digit, digit, ("mantissa", negative, 1, cmp))
        while self.todo:
            state = self.todo.pop()
            if state[0] == "whole":
                self.leave_whole(side, *state)  # type: ignore[arg-type]
            elif state[0] == "part":
                self.leave_part(side, *state)  # type: ignore[arg-type]
            elif state[0] == "mantissa":
                self.leave_mantissa(side, *state)  # type: ignore[arg-type]

    def edge(self, source: int, first: int, last: int, state: tuple[object, ...]) -> None:
        """An edge for some digits, joined with the one before if only these differ."""
        target, c = self.node(state), str(last)
        if self.edges and first:
            before = self.edges[-1]
            if before[0] == source and before[3] == target and before[2] == str(first - 1):
                self.edges[-1] = (source, before[1], c, target)
                return
        self.edges.append((source, str(first), c, target))

    def digits(self, cmp: tuple[int, ...], is_beyond: bool) -> tuple[tuple[int, int], ...]:
        """First and last of the digits that lead to the same state. is_beyond: the bounds have no digit there."""
        if self.moduli or not (is_beyond or 0 not in cmp):
            return _EACH_DIGIT
        return _ZERO_OR_NOT if 0 in cmp or self.numbers.integer is not None else _ANY_DIGIT

    def remainders(self, rest: tuple[int, ...], digit: int) -> tuple[int, ...]:
        if not rest:
            return rest
        return tuple(self.remainder(i, (10 * r + digit) % self.moduli[i]) for i, r in enumerate(rest))

    def remainder(self, i: int, rest: int) -> int:
        """The first remainder by divisor i that is equivalent to this one for all following digits: for a divisor of
        1000, only the number of zeros at the end matters."""
        known = self.remainder_of[i].get(rest)
        if known is None:
            m, power = self.moduli[i], 1
            ends = []  # by the number of following digits: the digits that make a multiple, -1 for none
            while True:
                end = -rest * power % m
                ends.append(end if end < power else -1)
                if power >= m:
                    break
                power *= 10
            known = self.remainder_of[i][rest] = self.classes[i].setdefault(tuple(ends), rest)
        return known

    def divides(self, rest: tuple[int, ...], places: int, excess: bool) -> bool:
        """Whether all divisors that must divide do, and no others. excess: digits behind the last place matter."""
        if not rest:
            return True
        scale = 10 ** (self.places - places)
        return all(
            (not excess and r * scale % m == 0) == must for r, m, must in zip(rest, self.moduli, self.must, strict=True)
        )

    def leave_whole(
        self, side: Side, _: str, negative: bool, n: int, cmp: tuple[int, ...], rest: tuple[int, ...], zero: bool
    ) -> None:
        here = self.node(("whole", negative, n, cmp, rest, zero))
        ended = sign(side.end_of_whole(n, cmp))
        # An integer is never written -0, but -0.0 is a float's zero.
        if (
            side.fits(settled(ended, side.part, 0))
            and self.numbers.integer is not False
            and self.divides(rest, 0, False)
        ) and not (zero and negative):
            self.finals.add(here)
        left = self.limits.places(n, zero)
        if not self.numbers.plain and left:
            point = self.node(("part", negative, 0, ended, rest, False, False, left))
            self.edges.append((here, ".", ".", point))
        most = self.limits.whole
        if zero or (most is not None and n >= most):
            return
        for digit, last in self.digits(cmp, n >= side.n_whole):
            if n > side.n_whole and most is None:
                following = cmp, n
            else:
                following = step(cmp, side.whole, n, digit) if n < side.n_whole else cmp, n + 1
            state = ("whole", negative, following[1], following[0], self.remainders(rest, digit), False)
            self.edge(here, digit, last, state)

    def leave_part(
        self,
        side: Side,
        _: str,
        negative: bool,
        n: int,
        cmp: tuple[int, ...],
        rest: tuple[int, ...],
        nonzero: bool,
        excess: bool,
        left: int,
    ) -> None:
        """`n` digits behind the point, counted as far as they matter. nonzero: one of them is nonzero; excess: one is
        too far; left: number of further digits allowed, -1 for any."""
        if not left:
            return
        here = self.node(("part", negative, n, cmp, rest, nonzero, excess, left))
        top = max(side.n_part, self.places, 1)
        for digit, last in self.digits(cmp, n >= side.n_part):
            if digit and self.numbers.integer:
                break
            following = step(cmp, side.part, n, digit) if n < side.n_part else beyond(cmp, digit)
            rests = self.remainders(rest, digit) if n < self.places else rest
            far = excess or bool(digit and n >= self.places and self.moduli)
            some = nonzero or bool(digit and self.numbers.integer is not None)
            state = ("part", negative, min(n + 1, top), following, rests, some, far, max(left - 1, -1))
            self.edge(here, digit, last, state)
            fits = side.fits(settled(following, side.part, n + 1)) and self.divides(rests, min(n + 1, self.places), far)
            if fits and (self.numbers.integer is not False or some):
                self.finals.add(self.known[state])

    # ---- exponents

    def has_exponents(self) -> bool:
        """Whether numbers may have exponents: with divisors, only if a power of ten is a multiple."""
        n = self.numbers
        if n.plain or (n.integer and n.low is not None and n.high is not None and max(-n.low, n.high) < 10 ** UP[0]):
            return False
        return not n.others and all(1000 % m == 0 for m in self.moduli)

    def leave_mantissa(self, side: Side, _: str, negative: bool, n: int, cmp: tuple[int, ...]) -> None:
        """`n` digits; the point comes after the first."""
        here = self.node(("mantissa", negative, n, cmp))
        point = here
        if n == 1:
            point = self.node(("mantissa point", negative, cmp))
            self.edges.append((here, ".", ".", point))
        bounded = self.numbers.integer is not None or bool(self.moduli) or self.numbers.narrow
        top = max(side.n_mantissa, 2)
        if not bounded or n <= DIGITS:
            for digit, last in self.digits(cmp, n >= side.n_mantissa):
                following = step(cmp, side.mantissa, n, digit) if n < side.n_mantissa else beyond(cmp, digit)
                count = n + 1 if bounded else min(n + 1, top)
                self.edge(point, digit, last, ("mantissa", negative, count, following))
        tied = tuple(
            0 if c == 0 and n >= len(m.rstrip("0")) else c or -1 for c, m in zip(cmp, side.mantissa, strict=True)
        )
        key = (*tied, n if self.moduli else 0)
        if key not in self.allowed:
            self.allowed[key] = [
                e
                for e in self.exponents(n)
                if side.fits(tuple(t if e == x else e - x for t, x in zip(tied, side.exponent, strict=True)))
            ]
        self.exponent_edges(here, self.allowed[key])

    def exponents(self, n: int) -> list[int]:
        first, last = self.limits.exponents
        if self.moduli:  # the last of n digits counts a thousand at least
            return [] if self.numbers.integer is False else list(range(max(UP[0], n + 2), last + 1))
        if self.numbers.integer:
            return list(range(UP[0], last + 1))
        down = list(range(first, DOWN[1] + 1))
        return down if self.numbers.integer is False else [*down, *range(UP[0], last + 1)]

    def exponent_edges(self, here: int, allowed: list[int]) -> None:
        """`e+16`: all exponents of a list, two digits or three."""
        if not allowed:
            return
        end = self.node(("end",))
        self.finals.add(end)
        letter = self.node(("e", tuple(allowed)))
        self.edges.append((here, "e", "e", letter))
        if letter in self.powers:
            return
        self.powers.add(letter)
        made: set[Edge] = set()
        for low, high in runs(allowed):
            for ranges in digit_ranges(min(abs(low), abs(high)), max(abs(low), abs(high))):
                sign = "+" if low > 0 else "-"
                at = letter
                for i, (x, y) in enumerate([(sign, sign), *ranges]):
                    following = end if i == len(ranges) else self.node(("e", tuple(allowed), sign, ranges[:i]))
                    if (at, x, y, following) not in made:
                        made.add((at, x, y, following))
                        self.edges.append((at, x, y, following))
                    at = following


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
