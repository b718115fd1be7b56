"""Functions of one number, rounded correctly: those of C libraries differ in their last bits from machine to machine.

Each takes microseconds, by the decimal module; `oxillama.kernels.elementary` has fast ones of arrays.
"""

import math
from decimal import Context, Decimal

__all__ = ["exp", "expm1", "log", "log2", "power"]

# Digits: those of a double are 17, and none of the values that are met lies this near to the middle of two.
CONTEXT = Context(prec=34, Emax=999_999, Emin=-999_999, traps=[])
LN_2 = CONTEXT.ln(Decimal(2))


def log(x: float) -> float:
    """The natural logarithm. ValueError for x <= 0, as of math.log."""
    if not 0.0 < x < math.inf:
        return math.log(x)
    return float(CONTEXT.ln(Decimal(x)))


def log2(x: float) -> float:
    """The logarithm to the base 2. ValueError for x <= 0, as of math.log2."""
    if not 0.0 < x < math.inf:
        return math.log2(x)
    return float(CONTEXT.divide(CONTEXT.ln(Decimal(x)), LN_2))


def exp(x: float) -> float:
    """``e ** x``. OverflowError as of math.exp."""
    if not -745.0 < x < 709.0:
        return math.exp(x)
    return float(CONTEXT.exp(Decimal(x)))


def expm1(x: float) -> float:
    """``e ** x - 1``. OverflowError as of math.expm1."""
    if not 1e-18 < abs(x) < 700.0:
        return math.expm1(x)
    return float(CONTEXT.subtract(CONTEXT.exp(Decimal(x)), Decimal(1)))


def power(base: float, exponent: float) -> float:
    """``base ** exponent`` of a base that isn't negative. OverflowError as of math.pow."""
    if not (0.0 < base < math.inf and math.isfinite(exponent)):
        return math.pow(base, exponent)
    found = float(CONTEXT.exp(CONTEXT.multiply(CONTEXT.ln(Decimal(base)), Decimal(exponent))))
    if math.isinf(found):
        raise OverflowError("math range error")
    return found
