"""Decimal digits: bounds as digits, and ranges of numbers as ranges of digits."""

from fractions import Fraction

from oxillama.errors import GrammarError

__all__ = ["DOWN", "UP", "Side", "decimal_digits", "digit_ranges", "exponent_of", "runs"]

# Exponents in the repr() of a float.
UP, DOWN = (16, 308), (-324, -5)
MAX_PLACES = 400


class Side:
    """Magnitudes between two bounds, and the digits of these."""

    def __init__(self, low: Fraction, low_open: bool, high: Fraction | None, high_open: bool) -> None:
        self.bounds = [low] if high is None else [low, high]
        self.open = (low_open, high_open)
        digits = [decimal_digits(b) for b in self.bounds]
        self.whole = [w for w, _ in digits]
        self.part = [f for _, f in digits]
        self.n_whole = max(map(len, self.whole))
        self.n_part = max(map(len, self.part))
        self.mantissa = [(w + f).lstrip("0") or "0" for w, f in digits]
        self.n_mantissa = max(map(len, self.mantissa))
        self.exponent = [exponent_of(b) for b in self.bounds]

    def has(self, magnitude: Fraction) -> bool:
        low, high = self.bounds[0], self.bounds[-1]
        if magnitude < low or (magnitude == low and self.open[0]):
            return False
        return len(self.bounds) == 1 or magnitude < high or (magnitude == high and not self.open[1])


def decimal_digits(value: Fraction) -> tuple[str, str]:
    """Digits before and behind the point. Every number of a schema has finitely many."""
    rest = value.denominator
    twos, fives = (rest & -rest).bit_length() - 1, 0
    rest >>= twos
    while rest % 5 == 0 and fives <= MAX_PLACES:
        rest //= 5
        fives += 1
    places = max(twos, fives)
    if rest != 1 or places > MAX_PLACES:
        raise GrammarError("it has no finite decimal form")
    text = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    return text[: len(text) - places], text[len(text) - places :]


def exponent_of(value: Fraction) -> int:
    """Exponent of the first digit of a number that isn't 0."""
    if value == 0:
        return -(10**6)
    whole, part = decimal_digits(value)
    return len(whole) - 1 if whole != "0" else -1 - (len(part) - len(part.lstrip("0")))


def runs(values: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for v in values:
        if runs and runs[-1][1] == v - 1:
            runs[-1] = (runs[-1][0], v)
        else:
            runs.append((v, v))
    return runs


def digit_ranges(low: int, high: int) -> list[tuple[tuple[str, str], ...]]:
    """Numbers of at least two digits from low to high, as one range for each digit."""
    out = []
    while low <= high:
        text = f"{low:02d}"
        size = 1
        while low % (10 * size) == 0 and low + 10 * size - 1 <= high and 10 * size < 10 ** len(text):
            size *= 10
        free = len(str(size)) - 1
        digit = int(text[len(text) - 1 - free])
        steps = min(9 - digit, (high - low + 1) // size - 1)
        fixed = text[: len(text) - 1 - free]
        out.append((*((c, c) for c in fixed), (str(digit), str(digit + steps)), *((("0", "9"),) * free)))
        low += (steps + 1) * size
    return out
