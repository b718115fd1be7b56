"""JSON text: expressions that all schemas share, such as separators, strings, numbers and any value."""

import json
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import (
    MAX_CHAR,
    Automaton,
    NoTextError,
    Range,
    RuleSet,
    Sequence,
    character_ranges,
    utf8_sequences,
)
from oxillama.grammar.json_schema.literals import Path, placed
from oxillama.grammar.json_schema.numbers import Numbers, number_expr
from oxillama.grammar.json_schema.spelling import free_number

__all__ = ["LIKELY_REFUSED", "JsonText"]

_SHORT = {0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}
_CODES = sorted(_SHORT)
RAW = character_ranges(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)), True)
HEX = tuple(b"0123456789abcdef")
KEPT = frozenset(("value", "object", "array"))
SCHEMA = "the schema"
FEW = 8  # ranges of characters
LIKELY_REFUSED = 100_000  # states, by a guess that is several times too high
# Automata that are kept: of up to so many states, at about 100 bytes, so many,
KEPT_SIZES = ((1 << 8, 1 << 10), (1 << 11, 1 << 7), (1 << 15, 1 << 3))
MAX_KEPT_RANGES = 1 << 11  # and of sets of at most so many ranges, which are their names: all letters are 700


class _Later(NamedTuple):
    """A rule that is still to be made."""

    rule: int
    size: int
    place: Path
    make: Callable[[int], None]


class _Spelling(NamedTuple):
    """Sequences of bytes, and behind them those of large sets of characters beyond ASCII, which `Rules` makes.
    is_escaped: as JSON's escapes, without the backslash."""

    sequences: tuple[Sequence, ...]
    beyond: tuple[Range, ...] = ()
    is_escaped: bool = False


_SIZE = attrgetter("size")


class JsonText:
    """Expressions of one set of rules, made when first needed.

    Characters of strings are spelled as `json.dumps` does with or without `ensure_ascii`; in a string without
    constraints, any JSON spelling is allowed.

    narrow: for mode "generate". Numbers are bounded; texts that the schema names have one spelling, in UTF-8; flexible
    whitespace is a space behind a comma or a colon, or none.
    """

    def __init__(self, rules: RuleSet, flexible: bool, inner: bool = False, narrow: bool = False) -> None:
        """`inner`: the rules belong to a cached automaton, whose parts are not cached themselves."""
        self.rules, self.budget = rules, rules.budget
        self.inner = inner
        self.flexible, self.narrow = flexible, narrow
        # Whether closed objects may reach the required number of properties by their names alone, although some names
        # may have no valid value; and whether that was done.
        self.counts_on_names, self.counted_on_names = True, False
        space = None
        if flexible and not narrow:
            space = rules.repeat(rules.alt([rules.literal(c) for c in (b" ", b"\n", b"\t", b"\r")]), 0)
        self.comma = self._between(space, b",", b", ")
        self.colon = self._between(space, b":", b": ")
        self.open_object, self.close_object = self._after(space, b"{"), self._before(space, b"}")
        self.open_array, self.close_array = self._after(space, b"["), self._before(space, b"]")
        self.quote = rules.literal(b'"')
        self.place: Path = None  # of the schema whose expressions are being made
        self.unmet: list[Path] = []  # places of postponed schemas that no value meets
        self._rules: dict[object, int] = {}
        self.keys: dict[str, int] = {}  # by `key`
        self._made: dict[Hashable, tuple[int, int]] = {}  # expressions, and what they took
        self._later: list[_Later] = []
        self._chars: dict[tuple[Range, ...], int] = {}
        self._called: dict[tuple[Range, ...], int] = {}

    def _between(self, space: int | None, mark: bytes, plain: bytes) -> int:
        rules = self.rules
        if space is None:
            return rules.alt((rules.literal(plain), rules.literal(mark))) if self.flexible else rules.literal(plain)
        return rules.seq((space, rules.literal(mark), space))

    def _after(self, space: int | None, mark: bytes) -> int:
        return self.rules.literal(mark) if space is None else self.rules.seq((self.rules.literal(mark), space))

    def _before(self, space: int | None, mark: bytes) -> int:
        return self.rules.literal(mark) if space is None else self.rules.seq((space, self.rules.literal(mark)))

    def shared(self, name: str) -> int:
        """A call of a rule that is the same for every schema: string, number, integer, boolean, value..."""
        if name in KEPT and not self.inner:
            return self.kept((name, self.flexible, self.narrow), lambda texts: texts.shared(name))
        return self.helper(name, getattr(self, "_" + name))

    def maybe(self, expr: int) -> int:
        """An expression or nothing. Not a repeat: rules called in repeats are copied into them."""
        return self.rules.alt((expr, self.rules.seq(())))

    def again(self, name: Hashable, make: Callable[[], int]) -> int:
        """An expression that is made once under this name: of alternatives with the same list of texts there may be
        hundreds. Its work counts each time as it did the first time: also the spelling of characters beyond ASCII,
        a few units each, which a list of other texts would find done."""
        known = self._made.get(name)
        if known is None:
            before = self.budget.left
            expr = make()
            self._made[name] = expr, before - self.budget.left
            return expr
        self.budget.spend(known[1], SCHEMA)
        return known[0]

    def helper(self, name: object, make: Callable[[], int], calls: int = 0) -> int:
        """A call of a rule that is made once under this name. calls: as in `RuleSet.rule`."""
        rule = self._rules.get(name)
        if rule is None:
            rule = self._rules[name] = self.rules.new_rule(name if isinstance(name, str) else "")
            self.rules.define(rule, make())
        return self.rules.rule(rule, calls)

    def postponed(self, name: object, make: Callable[[], int], size: int = 0, calls: int = 0) -> int:
        """Number of a rule, as from `helper`, that `finish` makes: a schema that is refused for its structure needs
        none of its strings and numbers. size: a guess at the states that it takes; one of so many that it is likely to
        be refused is made at once, which takes little if it is."""
        return self.rules.rule(self._postponed(name, size, lambda rule: self.rules.define(rule, make())), calls)

    def kept(self, name: Hashable, make: "Callable[[JsonText], int]", size: int = 0) -> int:
        """A call of a rule that is compiled once per process under this name, when `finish` needs it."""
        return self.rules.rule(self._postponed(name, size, lambda rule: self._link(rule, name, make)))

    def _postponed(self, name: object, size: int, make: Callable[[int], None]) -> int:
        rule = self._rules.get(name)
        if rule is None:
            rule = self._rules[name] = self.rules.new_rule("")
            later = _Later(rule, size, self.place, make)
            if size > LIKELY_REFUSED:
                self._make(later)
            else:
                self._later.append(later)
        return rule

    def finish(self) -> None:
        """Makes the rules that were postponed, the largest first: if one is refused, it is likely to be that one.
        Raises GrammarError, with the place of the schema, for what takes too much work."""
        while self._later:
            todo = sorted(self._later, key=_SIZE, reverse=True)
            self._later.clear()
            for later in todo:
                self._make(later)

    def drop_postponed(self) -> None:
        """Forgets what a refusal left unmade, which would keep this object alive."""
        self._later.clear()

    def _make(self, later: _Later) -> None:
        self.place = later.place
        try:
            later.make(later.rule)
        except GrammarError as error:
            if self.inner:  # the schema that calls the rule knows the place
                raise
            raise placed(later.place, error) from None

    def _link(self, rule: int, name: Hashable, make: "Callable[[JsonText], int]") -> None:
        found = self._kept(name, make)
        if found is None:
            self.unmet.append(self.place)
            self.rules.define(rule, self.rules.alt(()))
        else:
            self.rules.link(rule, found)

    def _kept(self, name: Hashable, make: "Callable[[JsonText], int]") -> Automaton | None:
        """The automaton of a cached rule; None if it matches no text. Spends the same budget whether it was compiled
        before or not."""
        known = kept = _automata.get(name)
        if kept is None:
            rules = RuleSet()
            found: Automaton | None = None
            try:
                root = rules.new_rule("root")
                own = JsonText(rules, self.flexible, inner=True, narrow=self.narrow)
                expr = make(own)
                rules.define(root, expr)
                own.finish()
                found = rules.linked_by(expr) or Automaton(rules, root)  # most have one part, kept by itself
            except GrammarError as error:
                if not isinstance(error, NoTextError):
                    with suppress(GrammarError):  # the error of the part has more detail
                        self.budget.spend(rules.budget.spent, SCHEMA)
                    raise
            kept = _Kept(found, rules.budget.spent)
        _keep(name, kept, known is None)
        self.budget.spend(kept.cost, SCHEMA)
        return kept.automaton

    # ---- strings

    def chars(self, ranges: tuple[Range, ...]) -> int:
        """One character of a string, spelled as `json.dumps` does."""
        if ranges not in self._chars:
            self.budget.spend(4 * len(ranges), SCHEMA)
            raw, escaped = _spellings(ranges)
            escapes = [self._called_part(escaped, 1)] if any(escaped) else []
            self._chars[ranges] = self._escapable([self._spelled(raw)], escapes)
        return self._chars[ranges]

    def called_chars(self, ranges: tuple[Range, ...]) -> int:
        """Expression of a set of characters of which an automaton holds hundreds: escapes, and what is beyond ASCII,
        are called and not copied. A mask takes longer where calls may begin, but these copies would be nine tenths of
        an automaton. Large sets with the same characters beyond ASCII call the same rules for these."""
        if ranges not in self._called:
            self.budget.spend(4 * len(ranges), SCHEMA)
            ascii_, beyond = _divided(ranges)
            is_large = FEW < len(beyond) <= MAX_KEPT_RANGES
            raw, escaped = _spellings(ascii_ if is_large else ranges)
            ascii_raw = tuple([one for one in raw.sequences if len(one) == 1])
            raw = raw._replace(sequences=raw.sequences[len(ascii_raw) :])
            parts = [self.rules.chars(ascii_raw)] if ascii_raw or not beyond else []
            parts += [self._called_part(raw, 2)] if any(raw) else []
            escapes = [self._called_part(escaped, 2)] if any(escaped) else []
            if is_large:
                raw_beyond, escaped_beyond = self._called_beyond(beyond)
                parts, escapes = [*parts, raw_beyond], [*escapes, escaped_beyond]
            self._called[ranges] = self._escapable(parts, escapes)
        return self._called[ranges]

    def _called_beyond(self, ranges: tuple[Range, ...]) -> tuple[int, int]:
        """Calls of the rules of many characters beyond ASCII, and of their escapes, which are kept: patterns of many
        schemas have the same ones, such as all letters and digits."""
        return (
            self.kept(("raw", ranges), lambda own: own._spelled(_spellings(ranges)[0])),
            self.kept(("escaped", ranges), lambda own: own._spelled(_spellings(ranges)[1])),
        )

    def _escapable(self, parts: list[int], escapes: list[int]) -> int:
        if escapes:
            parts.append(self.rules.seq((self.rules.literal(b"\\"), self.rules.alt(escapes))))
        return self.rules.alt(parts)

    def _called_part(self, spelling: _Spelling, calls: int) -> int:
        """A call of the rule of a spelling."""
        return self.helper(spelling, lambda: self._spelled(spelling), calls)

    def _spelled(self, spelling: _Spelling) -> int:
        sequences, beyond, is_escaped = spelling
        return self.rules.characters(sequences, beyond, is_escaped) if beyond else self.rules.chars(sequences)

    def special(self, ranges: tuple[Range, ...]) -> int:
        """The characters after the backslash of an escaped character."""
        return self._spelled(_spellings(ranges)[1])

    def key(self, name: str) -> int:
        """The name of a property with the colon behind it; the same expression each time."""
        found = self.keys.get(name)
        if found is None:
            found = self.keys[name] = self.rules.seq((self.written(name), self.colon))
        return found

    def written(self, text: str) -> int:
        """One text as a string, quotes included."""
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise GrammarError(f"{text!r} has half of a surrogate pair, which is no character") from None
        if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
            return self.rules.literal(b'"' + raw + b'"')
        if self.narrow:
            return self.rules.literal(json.dumps(text, ensure_ascii=False).encode())
        self.budget.spend(len(text), SCHEMA)
        parts = [self.quote]
        for c in text:
            raws, escaped = _of_few(((ord(c), ord(c)),))
            parts.append(self.rules.chars((*raws, *(((0x5C, 0x5C), *e) for e in escaped))))
        return self.rules.seq((*parts, self.quote))

    def _character(self) -> int:
        """Any character of a string, in any spelling."""
        r = self.rules
        digit = r.alt((r.range(0x30, 0x39), r.range(0x41, 0x46), r.range(0x61, 0x66)))
        d = r.alt((r.literal(b"d"), r.literal(b"D")))
        high = r.seq((d, r.alt([r.range(*p) for p in ((0x38, 0x39), (0x41, 0x42), (0x61, 0x62))]), digit, digit))
        low = r.seq((d, r.alt([r.range(*p) for p in ((0x43, 0x46), (0x63, 0x66))]), digit, digit))
        others = r.alt([r.range(*p) for p in ((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66))])
        whole = r.alt((r.seq((others, digit, digit, digit)), r.seq((d, r.range(0x30, 0x37), digit, digit))))
        short = r.alt([r.literal(bytes((c,))) for c in b'"\\/bfnrt'])
        escape = r.alt((short, r.seq((r.literal(b"u"), r.alt((whole, r.seq((high, r.literal(b"\\u"), low))))))))
        rule = r.new_rule("escape")
        r.define(rule, escape)
        return r.alt((r.chars(utf8_sequences(RAW)), r.seq((r.literal(b"\\"), r.rule(rule, 1)))))

    def _string(self) -> int:
        return self.string(0, None)

    def string(self, least: int, most: int | None) -> int:
        """A string of so many characters, whatever their spelling."""
        return self.rules.seq((self.quote, self.rules.repeat(self.shared("character"), least, most), self.quote))

    # ---- values

    def _number(self) -> int:
        r = self.rules
        if self.narrow:
            return free_number(r)
        digits = r.repeat(r.range(0x30, 0x39), 1)
        whole = r.alt((r.literal(b"0"), r.seq((r.range(0x31, 0x39), r.repeat(r.range(0x30, 0x39), 0)))))
        sign = r.repeat(r.alt((r.literal(b"+"), r.literal(b"-"))), 0, 1)
        power = r.seq((r.alt((r.literal(b"e"), r.literal(b"E"))), sign, digits))
        part = r.repeat(r.seq((r.literal(b"."), digits)), 0, 1)
        return r.seq((r.repeat(r.literal(b"-"), 0, 1), whole, part, r.repeat(power, 0, 1)))

    def _integer(self) -> int:
        integers = Numbers(integer=True)
        return number_expr(self.rules, integers.for_generating() if self.narrow else integers)

    def _boolean(self) -> int:
        return self.rules.alt((self.rules.literal(b"true"), self.rules.literal(b"false")))

    def _value(self) -> int:
        r = self.rules
        names = ("string", "number", "object", "array", "boolean")
        return r.alt([*map(self.shared, names), r.literal(b"null")])

    def _object(self) -> int:
        r = self.rules
        pair = r.seq((self.shared("string"), self.colon, self.shared("value")))
        return r.seq((self.open_object, self._list(pair), self.close_object))

    def _array(self) -> int:
        return self.rules.seq((self.open_array, self._list(self.shared("value")), self.close_array))

    def _list(self, item: int) -> int:
        r = self.rules
        return self.maybe(r.seq((item, r.repeat(r.seq((self.comma, item)), 0))))


class _Kept(NamedTuple):
    """An automaton, None for a rule that matches no text; and the units of the budget that it takes."""

    automaton: Automaton | None
    cost: int


# By the names of their rules; and these names by size, those not used for the longest time first. Several threads
# compile schemas: each call of a dict is one step for them, and a name is listed after its automaton is there, so that
# none stays for ever.
_automata: dict[Hashable, _Kept] = {}
_names: tuple[OrderedDict[Hashable, None], ...] = tuple(OrderedDict() for _ in KEPT_SIZES)


def _keep(name: Hashable, kept: _Kept, is_new: bool) -> None:
    """Keeps an automaton in place of the one of its size that wasn't used for the longest time."""
    n_states = 0 if kept.automaton is None else kept.automaton.n_states
    for names, (most, n_kept) in zip(_names, KEPT_SIZES, strict=True):
        if n_states <= most:
            with suppress(KeyError):  # another thread may have taken it out
                if not is_new:
                    names.move_to_end(name)
                    return
                _automata[name] = kept
                names[name] = None
                while len(names) > n_kept:
                    _automata.pop(names.popitem(last=False)[0], None)
            return


def _spellings(ranges: tuple[Range, ...]) -> tuple[_Spelling, _Spelling]:
    """Spellings of a set of characters: their UTF-8, and what follows a backslash."""
    if len(ranges) <= FEW:
        raw, escaped = _of_few(ranges)
        return _Spelling(raw), _Spelling(escaped)
    ascii_, beyond = _divided(character_ranges(ranges))
    raw, escaped = _of_few(ascii_)
    if len(beyond) > FEW:
        return _Spelling(raw, beyond), _Spelling(escaped, beyond, True)
    raw_beyond, escaped_beyond = _of_few(beyond)
    return _Spelling(raw + raw_beyond), _Spelling(escaped + escaped_beyond)


def _divided(ranges: tuple[Range, ...]) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """The ASCII of a sorted set, and the rest."""
    return tuple(_cut(ranges, ((0, 0x7F),))), tuple(_cut(ranges, ((0x80, MAX_CHAR),)))


def _spelled(ranges: tuple[Range, ...]) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
    ranges = tuple(sorted(ranges))
    raw = tuple(_cut(ranges, RAW))
    escaped: list[Sequence] = []
    for code, letter in _SHORT.items():
        if _cut(ranges, ((code, code),)):
            escaped.append(((letter[0], letter[0]),))
    others = _cut(ranges, ((0, 0x1F), (0x7F, 0xD7FF), (0xE000, 0xFFFF)))
    for low, high in others:
        for code in _CODES if low <= _CODES[-1] else ():
            if low <= code <= high:
                if low < code:
                    escaped += _hexadecimal(low, code - 1)
                low = code + 1
        if low <= high:
            escaped += _hexadecimal(low, high)
    for low, high in _cut(ranges, ((0x10000, MAX_CHAR),)):
        escaped += _pairs(low - 0x10000, high - 0x10000)
    return utf8_sequences(raw), tuple(escaped)


_of_few = lru_cache(maxsize=2048)(_spelled)


def _cut(ranges: tuple[Range, ...], others: tuple[Range, ...]) -> list[Range]:
    """Intersection of two sorted sets. Of the first, which may be large, only the ends of each part are looked
    at."""
    found: list[Range] = []
    for low, high in others:
        first, end = bisect_left(ranges, (low,)), bisect_right(ranges, (high, MAX_CHAR))
        first -= first > 0 and ranges[first - 1][1] >= low
        part = ranges[first:end]
        if part:
            found += part
            at = len(found) - len(part)
            found[at] = max(found[at][0], low), found[at][1]
            found[-1] = found[-1][0], min(found[-1][1], high)
    return found


@lru_cache(maxsize=2048)
def _hexadecimal(low: int, high: int) -> tuple[Sequence, ...]:
    """uXXXX for code units from low to high."""
    u = ((0x75, 0x75),)
    return tuple((*u, *digits) for digits in _digits(low, high, 4))


def _digits(low: int, high: int, n: int) -> list[Sequence]:
    """`n` lowercase hexadecimal digits for numbers from low to high, as ranges of bytes."""
    out: list[Sequence] = []
    while low <= high:
        free = 0
        while free < n - 1 and low % 16 ** (free + 1) == 0 and low + 16 ** (free + 1) - 1 <= high:
            free += 1
        size = 16**free
        digit = low // size % 16
        last = min(15, digit + (high - low + 1) // size - 1)
        fixed = tuple((HEX[low >> 4 * k & 15],) * 2 for k in range(n - 1, free, -1))
        tails: list[Sequence] = [()]
        for part in [(digit, last)] + [(0, 15)] * free:
            tails = [(*tail, piece) for tail in tails for piece in _bytes(*part)]
        out += [(*fixed, *tail) for tail in tails]
        low += (last - digit + 1) * size
    return out


def _bytes(low: int, high: int) -> list[Range]:
    """Hexadecimal digits from low to high: one range of bytes, or two."""
    out = []
    if low <= 9:
        out.append((HEX[low], HEX[min(high, 9)]))
    if high >= 10:
        out.append((HEX[max(low, 10)], HEX[high]))
    return out


@lru_cache(maxsize=256)
def _pairs(low: int, high: int) -> tuple[Sequence, ...]:
    """Surrogate pairs for characters from low to high, counted from U+10000, without the first backslash."""
    out: list[Sequence] = []
    first, last = low >> 10, high >> 10
    parts = [(first, first, low & 1023, 1023 if last > first else high & 1023)]
    if last > first:
        if low & 1023:
            first += 1
        else:
            parts = []
        full = last if high & 1023 == 1023 else last - 1
        if first <= full:
            parts.append((first, full, 0, 1023))
        if full < last:
            parts.append((last, last, 0, high & 1023))
    for a, b, c, d in parts:
        for head in _hexadecimal(0xD800 + a, 0xD800 + b):
            out += [(*head, (0x5C, 0x5C), *tail) for tail in _hexadecimal(0xDC00 + c, 0xDC00 + d)]
    return tuple(out)
