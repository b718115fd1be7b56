"""Single numbers: as they are written in a schema, and in all their spellings."""

import json
from decimal import Decimal
from fractions import Fraction

from oxillama.sampling.grammar.automaton import RuleSet
from oxillama.sampling.grammar.json_schema.digits import DOWN, UP, decimal_digits, exponent_of

__all__ = ["constant_expr", "spelled"]


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
    """A number in exponent form, if it is so large or small that floats are written that way."""
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
