"""Bounded spellings of numbers for generating: how many digits, and which exponents.

A model that may write any number of digits often never ends one. Integers have at most 19 digits, those of 64 bits,
unless bounds or divisors ask for more; other numbers have about 17 significant digits and stay finite as floats.
"""

import sys
from dataclasses import dataclass
from fractions import Fraction

from oxillama.grammar.automaton import RuleSet
from oxillama.grammar.json_schema.digits import DOWN, UP, Side

__all__ = ["Limits", "free_number", "integer_top"]

INT64 = (2**63 - 1, 2**63)  # the greatest magnitudes above 0, and below it
WHOLE = 19  # digits before a point
SIGNIFICANT = 17
BEHIND_ZERO = 20  # digits behind the point of a number below 1, as repr() of a float has them
MAX_EXPONENT = 307  # with any digits before it; 308 with some
MAX_FLOAT = Fraction(sys.float_info.max)


def integer_top(least: Fraction, negative: bool) -> Fraction:
    """The greatest magnitude of integers without a bound. least: the smallest that there may be."""
    top = Fraction(INT64[negative])
    return top if least <= top else Fraction(10 ** (len(str(int(least))) + 1) - 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the numbers of one sign. whole: digits before the point, None for any number. behind: digits behind the point
    that are enough for every number, None if only bounds say which. extra: digits behind the point that must be
    possible beside as many digits before it as the bounds have, `n_whole`. exponents: the first and the last."""

    whole: int | None = None
    behind: int | None = None
    extra: int = 0
    n_whole: int = 0
    exponents: tuple[int, int] = (DOWN[0], UP[1])

    @classmethod
    def narrow(
        cls, side: Side, least: Fraction, behind: int | None, places: int, plain: bool, exponents: bool
    ) -> "Limits":
        """Those for generating. least: the smallest magnitude; places: digits behind the point that divisors have;
        plain: of integers alone, whose bounds allow the last of 19 digits; exponents: whether there may be any."""
        whole = max(WHOLE - plain, len(side.whole[0]))
        high = side.bounds[1] if len(side.bounds) > 1 else None
        if not exponents:
            whole = max(whole, len(str(int(least))) + 1, side.n_whole)
        last = UP[1] if high is not None and high <= MAX_FLOAT else MAX_EXPONENT
        return cls(whole, behind, max(side.n_part, places) + 1, side.n_whole, (-MAX_EXPONENT, last))

    def places(self, n: int, zero: bool) -> int:
        """How many digits may stand behind the point after n digits (`zero`: a single 0); -1 for any number."""
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
    # By the number of digits so far: without a point, with one behind the first of them, behind a later one, behind 0.
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
    """What follows the letter: a sign or none, and 1 to 307, a single digit with or without a zero before it."""
    digit, nonzero = rules.range(0x30, 0x39), rules.range(0x31, 0x39)
    sizes = (
        rules.seq((rules.alt((rules.literal(b"0"), rules.seq(()))), nonzero)),
        rules.seq((nonzero, digit)),
        rules.seq((rules.range(0x31, 0x32), digit, digit)),
        rules.seq((rules.literal(b"30"), rules.range(0x30, 0x37))),
    )
    sign = rules.alt((rules.literal(b"+"), rules.literal(b"-"), rules.seq(())))
    return rules.seq((sign, rules.alt(sizes)))
