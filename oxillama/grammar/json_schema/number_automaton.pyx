# cython: boundscheck=True, wraparound=True
"""Automata over the digits of numbers: `NumberAutomaton`.

A state is the part of the number that is read (whole part, fraction, mantissa, exponent), how it compares with the
bounds so far, and its remainders by the divisors.
"""

from dataclasses import replace
from fractions import Fraction

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema.digits import DOWN, UP, Side, decimal_digits, digit_ranges, runs
from oxillama.grammar.json_schema.spelling import FAR, MAX_FLOAT, Limits, integer_top, short_numbers

MAX_STATES = 4000
MAX_BITS = 12_000   # of all divisors together: their least common multiple has digits that Python writes
MAX_WORK = 1 << 24  # products of two words, or less: a tenth of a second
PER_UNIT = 1 << 7   # of these, for a unit of the budget
FEW = 16            # divisors that aren't counted, if each fits into a word
REMAINDER = 128     # products in whose time a number is divided by a further one
# Digits behind the point of a float in exponent form: at most 16, so that from 1e16 on all are integers.
DIGITS = 16
cdef tuple EACH_DIGIT = tuple([(digit, digit) for digit in range(10)])
cdef tuple ZERO_OR_NOT = ((0, 0), (1, 9))
cdef tuple ANY_DIGIT = ((0, 9),)


cdef class NumberAutomaton:
    """The automaton of a set of numbers, as it is built. max_digits: before the point, at most, of narrow numbers.

    work: that large and many divisors made, in units of the budget; none for a few that fit into a word.
    """

    cdef object numbers, max_states, max_digits, places, limits
    cdef list moduli, must, todo, edges, remainder_of, classes, tens, words
    cdef list whole, part, mantissa, exponent       # of the side under way
    cdef Py_ssize_t n_whole, n_part, n_mantissa
    cdef bint low_open, high_open
    cdef Py_ssize_t n_words, n_products     # words: of each divisor, beyond its first; n_words: what a digit takes
    cdef dict known, allowed
    cdef set finals, powers         # powers: nodes with their exponents added

    def __init__(self, numbers, max_states=MAX_STATES, max_digits=None):
        self.numbers, self.max_states, self.max_digits = numbers, max_states, max_digits
        divisors = [*numbers.multiples, *numbers.others]
        # x is a multiple of M / 10^places exactly if x 10^places is one of M.
        self.places = max([len(decimal_digits(m)[1]) for m in divisors], default=0)
        self.moduli = [int(m * 10**self.places) for m in divisors]
        if sum([m.bit_length() for m in self.moduli]) > MAX_BITS:
            raise GrammarError("its divisors have too many digits together: use fewer, or smaller ones")
        self.words = [m.bit_length() // 64 for m in self.moduli]
        self.n_words = sum(self.words) + REMAINDER * max(len(self.moduli) - FEW, 0)
        self.tens = [powers_up_to(m) for m in self.moduli]
        self.must = [True] * len(numbers.multiples) + [False] * len(numbers.others)
        self.known = {"start": 0}
        self.todo = []
        self.edges = []
        self.finals = set()
        self.powers = set()
        self.allowed = {}
        self.limits = Limits()
        self.remainder_of = [{} for _ in self.moduli]
        self.classes = [{} for _ in self.moduli]

    @property
    def work(self):
        return self.n_products // PER_UNIT

    def build(self):
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

    cdef object magnitudes(self, low, bint low_open, high, bint high_open, bint negative):
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
        if not self._is_short(side):
            self.limits = Limits.long(side, least, divided, self.places, n.plain)
        if self.max_digits is not None:
            if least >= Fraction(10) ** self.max_digits:
                raise GrammarError(f"its least number has more than {self.max_digits} digits")
            self.limits = replace(self.limits, whole=min(self.limits.whole or self.max_digits, self.max_digits))
        return side

    def _is_short(self, side):
        """Whether there are numbers of few digits between bounds, with an exponent or without."""
        if not self.has_exponents():
            return False
        first, last = self.limits.exponents
        top = UP[0] if self.numbers.integer is False else last + 1
        for x in short_numbers(side.bounds[0], first if not self.moduli else 0):
            if side.has(x) and x < Fraction(10) ** top and (self.numbers.integer is None or x.denominator != 1):
                return True
        return False

    cdef Py_ssize_t node(self, tuple state) except -1:
        found = self.known.get(state)
        if found is None:
            if len(self.known) >= self.max_states:
                raise GrammarError(
                    f"it needs more than {self.max_states} states: use a smaller divisor, or shorter bounds"
                )
            found = self.known[state] = len(self.known)
            self.todo.append(state)
        return found

    cdef int side(self, Py_ssize_t start, side, bint negative) except -1:
        """All magnitudes of one sign. States: whole part, fraction; mantissa, its fraction, exponent."""
        zeros = (0,) * len(side.bounds)
        self.whole, self.part, self.mantissa, self.exponent = side.whole, side.part, side.mantissa, side.exponent
        self.n_whole, self.n_part, self.n_mantissa = side.n_whole, side.n_part, side.n_mantissa
        self.low_open, self.high_open = side.open
        rest = (0,) * len(self.moduli)
        self.todo.clear()
        self.allowed.clear()
        for digit in range(10):
            cmp = step(zeros, self.whole, 0, digit)
            self.edge(start, digit, digit, ("whole", negative, 1, cmp, self.remainders(rest, digit), digit == 0))
            if digit and self.has_exponents():
                cmp = step(zeros, self.mantissa, 0, digit)
                self.edge(start, digit, digit, ("mantissa", negative, 1, cmp))
        while self.todo:
            state = self.todo.pop()
            if state[0] == "whole":
                _, negative, n, cmp, rest, is_zero = state
                self.leave_whole(negative, n, cmp, rest, is_zero)
            elif state[0] == "part":
                _, negative, n, cmp, rest, nonzero, excess, left = state
                self.leave_part(negative, n, cmp, rest, nonzero, excess, left)
            elif state[0] == "mantissa":
                _, negative, n, cmp = state
                self.leave_mantissa(negative, n, cmp)
        return 0

    cdef int edge(self, Py_ssize_t source, int first, int last, tuple state) except -1:
        """An edge for some digits, joined with the one before if only these differ."""
        target, c = self.node(state), str(last)
        if self.edges and first:
            before = self.edges[len(self.edges) - 1]
            if before[0] == source and before[3] == target and before[2] == str(first - 1):
                self.edges[len(self.edges) - 1] = (source, before[1], c, target)
                return 0
        self.edges.append((source, str(first), c, target))
        return 0

    cdef tuple digits(self, tuple cmp, bint is_beyond):
        """First and last of the digits that lead to the same state. is_beyond: the bounds have no digit there."""
        if self.moduli or not (is_beyond or 0 not in cmp):
            return EACH_DIGIT
        return ZERO_OR_NOT if 0 in cmp or self.numbers.integer is not None else ANY_DIGIT

    cdef int spend(self, Py_ssize_t n_products) except -1:
        self.n_products += n_products
        if self.n_products > MAX_WORK:
            raise GrammarError("its divisors have too many digits for the states that it needs: use smaller ones")
        return 0

    cdef tuple remainders(self, tuple rest, int digit):
        if not rest:
            return rest
        self.spend(self.n_words)
        return tuple([self.remainder(i, (10 * r + digit) % self.moduli[i]) for i, r in enumerate(rest)])

    cdef object remainder(self, Py_ssize_t i, rest):
        """The first remainder by divisor i that is equivalent to this one for all following digits: for a divisor of
        1000, only the number of zeros at the end matters."""
        known = self.remainder_of[i].get(rest)
        if known is None:
            known = self.remainder_of[i][rest] = self.classes[i].setdefault(self.shortest_end(i, rest), rest)
        return known

    cdef tuple shortest_end(self, Py_ssize_t i, rest):
        """The fewest digits that make a multiple behind a remainder, as their number and value.

        They decide which longer ones do: at one digit more those are ten times as much, less multiples, which is in
        reach again. So lengths are searched by halves, from the greatest: for most remainders it is that, or nearly.
        """
        cdef list tens = self.tens[i]
        cdef Py_ssize_t none = -1, found = len(tens) - 1, at, stride = 1
        m = self.moduli[i]
        end = -rest * tens[found] % m
        while found - none > 1:
            at = max(found - stride, (none + found) // 2)
            stride *= 2
            self.spend(self.words[i] * self.words[i])
            shorter = -rest * tens[at] % m
            if shorter < tens[at]:
                found, end = at, shorter
            else:
                none, stride = at, 1
        return found, end

    cdef bint divides(self, tuple rest, places, bint excess) except -1:
        """Whether all divisors that must divide do, and no others. excess: digits behind the last place matter."""
        if not rest:
            return True
        self.spend(self.n_words * (1 + self.places // 16))
        scale = 10 ** (self.places - places)
        for r, m, must in zip(rest, self.moduli, self.must):
            if (not excess and r * scale % m == 0) != must:
                return False
        return True

    cdef bint fits(self, tuple cmp) except -1:
        """Whether a number that compares so with the bounds is between them."""
        cdef int low = cmp[0], high
        if low < 0 or (low == 0 and self.low_open):
            return False
        if len(cmp) == 1:
            return True
        high = cmp[1]
        return high < 0 or (high == 0 and not self.high_open)

    cdef int leave_whole(self, bint negative, Py_ssize_t n, tuple cmp, tuple rest, bint zero) except -1:
        here = self.node(("whole", negative, n, cmp, rest, zero))
        ended = end_of_whole(cmp, self.whole, n)
        # An integer is never written -0, but -0.0 is a float's zero.
        if (
            self.fits(settled(ended, self.part, 0))
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
            return 0
        for digit, last in self.digits(cmp, n >= self.n_whole):
            if n > self.n_whole and most is None:
                following = cmp, n
            else:
                following = step(cmp, self.whole, n, digit) if n < self.n_whole else cmp, n + 1
            state = ("whole", negative, following[1], following[0], self.remainders(rest, digit), False)
            self.edge(here, digit, last, state)
        return 0

    cdef int leave_part(
        self, bint negative, Py_ssize_t n, tuple cmp, tuple rest, bint nonzero, bint excess, Py_ssize_t left
    ) except -1:
        """`n` digits behind the point, counted as far as they matter. nonzero: one of them is nonzero; excess: one is
        too far; left: number of further digits allowed, -1 for any."""
        if not left:
            return 0
        here = self.node(("part", negative, n, cmp, rest, nonzero, excess, left))
        top = max(self.n_part, self.places, 1)
        for digit, last in self.digits(cmp, n >= self.n_part):
            if digit and self.numbers.integer:
                break
            following = step(cmp, self.part, n, digit) if n < self.n_part else beyond(cmp, digit)
            rests = self.remainders(rest, digit) if n < self.places else rest
            far = excess or bool(digit and n >= self.places and self.moduli)
            some = nonzero or bool(digit and self.numbers.integer is not None)
            state = ("part", negative, min(n + 1, top), following, rests, some, far, max(left - 1, -1))
            self.edge(here, digit, last, state)
            fits = self.fits(settled(following, self.part, n + 1)) and self.divides(rests, min(n + 1, self.places), far)
            if fits and (self.numbers.integer is not False or some):
                self.finals.add(self.known[state])
        return 0

    # ---- exponents

    cdef bint has_exponents(self) except -1:
        """Whether numbers may have exponents: with divisors, only if a power of ten is a multiple."""
        n = self.numbers
        if n.plain or (n.integer and n.low is not None and n.high is not None and max(-n.low, n.high) < 10 ** UP[0]):
            return False
        return not n.others and all([1000 % m == 0 for m in self.moduli])

    cdef int leave_mantissa(self, bint negative, Py_ssize_t n, tuple cmp) except -1:
        """`n` digits; the point comes after the first."""
        here = self.node(("mantissa", negative, n, cmp))
        point = here
        if n == 1:
            point = self.node(("mantissa point", negative, cmp))
            self.edges.append((here, ".", ".", point))
        bounded = self.numbers.integer is not None or bool(self.moduli) or self.numbers.narrow
        top = max(self.n_mantissa, 2)
        if not bounded or n <= DIGITS:
            for digit, last in self.digits(cmp, n >= self.n_mantissa):
                following = step(cmp, self.mantissa, n, digit) if n < self.n_mantissa else beyond(cmp, digit)
                count = n + 1 if bounded else min(n + 1, top)
                self.edge(point, digit, last, ("mantissa", negative, count, following))
        tied = tuple([0 if c == 0 and n >= len(m.rstrip("0")) else c or -1 for c, m in zip(cmp, self.mantissa)])
        key = (*tied, n if self.moduli else 0)
        if key not in self.allowed:
            self.allowed[key] = [
                e
                for e in self.exponents(n)
                if self.fits(tuple([t if e == x else e - x for t, x in zip(tied, self.exponent)]))
            ]
        return self.exponent_edges(here, self.allowed[key])

    cdef list exponents(self, n):
        first, last = self.limits.exponents
        if self.moduli:  # the last of n digits counts a thousand at least
            return [] if self.numbers.integer is False else list(range(max(UP[0], n + 2), last + 1))
        if self.numbers.integer:
            return list(range(UP[0], last + 1))
        down = list(range(first, DOWN[1] + 1))
        return down if self.numbers.integer is False else [*down, *range(UP[0], last + 1)]

    cdef int exponent_edges(self, Py_ssize_t here, list allowed) except -1:
        """`e+16`: all exponents of a list, two digits or three."""
        if not allowed:
            return 0
        end = self.node(("end",))
        self.finals.add(end)
        letter = self.node(("e", tuple(allowed)))
        self.edges.append((here, "e", "e", letter))
        if letter in self.powers:
            return 0
        self.powers.add(letter)
        made = set()
        for low, high in runs(allowed):
            for ranges in digit_ranges(min(abs(low), abs(high)), max(abs(low), abs(high))):
                mark = "+" if low > 0 else "-"
                at = letter
                for i, (x, y) in enumerate([(mark, mark), *ranges]):
                    following = end if i == len(ranges) else self.node(("e", tuple(allowed), mark, ranges[:i]))
                    if (at, x, y, following) not in made:
                        made.add((at, x, y, following))
                        self.edges.append((at, x, y, following))
                    at = following
        return 0


cdef list powers_up_to(object m):
    """The powers of ten from 1 to the first that isn't below a number."""
    cdef list found = [1]
    while found[len(found) - 1] < m:
        found.append(10 * found[len(found) - 1])
    return found


# ---- comparisons with each bound, -1, 0 or 1, as digits are read


cdef tuple end_of_whole(tuple cmp, list whole, Py_ssize_t n):
    """Comparisons once `n` digits, without more before the point, are the whole part."""
    cdef list found = []
    cdef Py_ssize_t i, size
    for i in range(len(cmp)):
        size = len(<str> whole[i])
        found.append(cmp[i] if n == size else 1 if n > size else -1)
    return tuple(found)


cdef tuple settled(tuple cmp, list digits, Py_ssize_t n):
    """Comparisons of a number that ends here: a bound with more digits is larger."""
    if 0 not in cmp:
        return cmp
    return tuple([c or -bool(d[n:].strip("0")) for c, d in zip(cmp, digits)])


cdef tuple step(tuple cmp, list digits, Py_ssize_t at, int digit):
    """Comparisons after one more digit: the first that differs decides."""
    cdef list found
    cdef Py_ssize_t i
    cdef int of_bound
    if 0 not in cmp:
        return cmp
    found = []
    for i in range(len(cmp)):
        if cmp[i]:
            found.append(cmp[i])
            continue
        of_bound = ord((<str> digits[i])[at]) - 48 if at < len(<str> digits[i]) else 0
        found.append((digit > of_bound) - (digit < of_bound))
    return tuple(found)


cdef tuple beyond(tuple cmp, int digit):
    """Comparisons after one more digit than the bounds have."""
    if 0 not in cmp:
        return cmp
    return tuple([c or int(digit > 0) for c in cmp])
