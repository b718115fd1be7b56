"""Bounded spellings of numbers in mode "generate": numbers of digits, and exponents.

A model that may write any number of digits often never ends one. Integers have at most 19 digits, those of 64 bits (18
with divisors), unless bounds or divisors ask for more. Other numbers have about 17 significant digits and the exponents
of 32-bit floats, and where bounds leave no such number, those of 64-bit floats, next to the bounds.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from oxillama.grammar.automaton import RuleSet
from oxillama.grammar.json_schema.digits import DOWN, UP, Side, exponent_of

__all__ = ["FAR", "MAX_FLOAT", "Limits", "free_number", "integer_top", "short_numbers"]

INT64 = (2**63 - 1, 2**63)  # the greatest magnitudes above 0, and below it
WHOLE = 19  # digits before a point
SIGNIFICANT = 17
BEHIND_ZERO = 20  # digits behind the point of a number below 1, as repr() of a float has them
EXPONENT = 37  # with any digits before it, a finite and normal float of 32 bits
BESIDE = 10  # how much further than a bound's exponents may go
MAX_EXPONENT = 307  # with any digits before it; 308 with some
LEAST_EXPONENT = -323  # with any digits before it, not 0 as a float
FAR = Fraction(10**39)  # bounds above it bound no digits
MAX_FLOAT = Fraction(sys.float_info.max)


def integer_top(least: Fraction, negative: bool) -> Fraction:
    """The greatest magnitude of integers without a bound. least: the smallest possible one."""
    top = Fraction(INT64[negative])
    return top if least <= top else Fraction(10 ** (len(str(int(least))) + 1) - 1)


def exponents_between(low: Fraction, high: Fraction | None) -> tuple[int, int]:
    """The first and the last exponent of numbers between two bounds."""
    first, last = -EXPONENT, max(EXPONENT, exponent_of(low) + BESIDE)
    if high:  # not 0
        top = exponent_of(high)
        first = max(min(first, top - BESIDE), -MAX_EXPONENT if top >= -MAX_EXPONENT else LEAST_EXPONENT)
    return first, min(last, UP[1] if high is not None and high <= MAX_FLOAT else MAX_EXPONENT)


def short_numbers(low: Fraction, first: int) -> Iterator[Fraction]:
    """The smallest numbers of 17 significant digits that aren't below a bound, nor have an exponent below the first."""
    low = max(low, Fraction(10) ** first)
    unit = Fraction(10) ** (exponent_of(low) - SIGNIFICANT + 1)
    for times in range(3):
        yield (math.ceil(low / unit) + times) * unit


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the spelling of numbers of one sign. whole: digits before the point, None for any number. behind:
    digits behind the point that are enough for every number, None if only the bounds limit them. extra: digits behind
    the point that must be possible with as many digits before it as the bounds have, `n_whole`. exponents: the first
    and the last."""

    whole: int | None = None
    behind: int | None = None
    extra: int = 0
    n_whole: int = 0
    exponents: tuple[int, int] = (DOWN[0], UP[1])

    @classmethod
    def short(cls, side: Side, divided: int | None) -> "Limits":
        """Limits of numbers with exponents, where bounds leave room for 17 significant digits. divided: digits behind
        the point that are enough for the divisors, None without divisors."""
        high = side.bounds[1] if len(side.bounds) > 1 else None
        return cls(WHOLE, divided, 0, side.n_whole, exponents_between(side.bounds[0], high))

    @classmethod
    def long(cls, side: Side, least: Fraction, divided: int | None, places: int, plain: bool) -> "Limits":
        """Limits where the bounds, or divisors, ask for more digits. least: the smallest magnitude; places: digits
        behind the point that divisors have; plain: of integers alone, whose bounds allow the last of 19 digits."""
        high = side.bounds[1] if len(side.bounds) > 1 else None
        whole = max(WHOLE - plain, len(str(int(least))) + 1)
        if high is not None and high <= max(FAR, least * 10):
            whole = max(whole, side.n_whole)
        exponents = exponents_between(side.bounds[0], high)
        return cls(whole, divided, max(side.n_part, places) + 1, side.n_whole, exponents)

    def places(self, n: int, zero: bool) -> int:
        """Number of digits allowed behind the point after n digits (`zero`: a single 0); -1 for any number."""
        if self.whole is None:
            return -1
        if self.behind is not None:
            return self.behind
        found = BEHIND_ZERO if zero else max(SIGNIFICANT - n, 0)
        return max(found, self.extra) if n <= self.n_whole else found


def free_number(rules: RuleSet) -> int:
    """The expression of any number: up to 19 digits, or about 17 with a point, and a small exponent behind one digit
    before the point."""
    edges: list[tuple[int, int, int]] = []
    digit, nonzero, point = rules.range(0x30, 0x39), rules.range(0x31, 0x39), rules.literal(b".")
    start, signed, zero, power, end = range(5)
    # States by the number of digits: without a point, with one behind the first digit, behind a later one, behind 0.
    whole = range(4, 5 + WHOLE)
    mantissa = range(whole[-1], whole[-1] + 1 + SIGNIFICANT)
    part = range(mantissa[-1], mantissa[-1] + 1 + SIGNIFICANT)
    small = range(part[-1], part[-1] + 1 + BEHIND_ZERO)
    edges.append((start, rules.literal(b"-"), signed))
    for at in (start, signed):
        edges += [(at, rules.literal(b"0"), zero), (at, nonzero, whole[1])]
    edges.append((zero, rules.seq((point, digit)), small[1]))
    for n in range(1, SIGNIFICANT):
        edges.append((whole[n], rules.seq((point, digit)), (mantissa if n == 1 else part)[n + 1]))
    for nodes in (whole, mantissa, part, small):
        edges += [(nodes[n], digit, nodes[n + 1]) for n in range(1, len(nodes) - 1)]
    letter = rules.alt((rules.literal(b"e"), rules.literal(b"E")))
    edges += [(at, letter, power) for at in (whole[1], *mantissa[2:])]
    edges.append((power, _exponent(rules), end))
    finals = [zero, end, *whole[1:], *mantissa[2:], *part[3:], *small[1:]]
    return rules.graph(small[-1] + 1, edges, finals)


def _exponent(rules: RuleSet) -> int:
    """Expression of what follows the letter: a sign or none, and 1 to 37, a single digit with or without a zero before
    it."""
    digit, nonzero = rules.range(0x30, 0x39), rules.range(0x31, 0x39)
    sizes = (
        rules.seq((rules.alt((rules.literal(b"0"), rules.seq(()))), nonzero)),
        rules.seq((rules.range(0x31, 0x32), digit)),
        rules.seq((rules.literal(b"3"), rules.range(0x30, 0x37))),
    )
    sign = rules.alt((rules.literal(b"+"), rules.literal(b"-"), rules.seq(())))
    return rules.seq((sign, rules.alt(sizes)))
