"""`Branch`: one way to meet a demand on a value."""

from fractions import Fraction

from oxillama.sampling.grammar.json_schema.literals import ALL, Literal
from oxillama.sampling.grammar.json_schema.numbers import Numbers
from oxillama.sampling.grammar.json_schema.shortcuts import Held
from oxillama.sampling.grammar.json_schema.strings import Strings

__all__ = ["Branch", "Fork"]

Fork = list[list[Literal]]


class Branch:
    """types: bits of those there may be. numbers, strings: what is asked of these. arrays, objects: the schemas that
    speak of these. unevaluated: schemas with a keyword of that name. forks: alternatives that are still open. seen:
    literals that hold."""

    __slots__ = (
        "_held",
        "any_order",
        "arrays",
        "forks",
        "numbers",
        "objects",
        "seen",
        "strings",
        "types",
        "unevaluated",
        "values",
        "without",
        "written",
    )

    def __init__(self) -> None:
        self.types = ALL
        self.numbers = Numbers()
        self.values: frozenset[Fraction] | None = None  # the only numbers
        self.without: frozenset[Fraction] = frozenset()  # numbers that are not
        self.written: dict[Fraction, str] = {}  # listed numbers, as they are spelled
        self.strings = Strings()
        self.arrays: list[Literal] = []
        self.objects: list[Literal] = []
        self.any_order = False
        self.unevaluated: list[Literal] = []
        self.forks: list[Fork] = []
        self._held: tuple[int, Held] | None = None
        self.seen: set[tuple[int, bool, str]] = set()

    @property
    def held(self) -> Held:
        """What is known of properties."""
        if self._held is None or self._held[0] != len(self.objects):
            self._held = len(self.objects), Held(self.objects)
        return self._held[1]

    def copy(self) -> "Branch":
        other = Branch.__new__(Branch)
        for name in ("types", "numbers", "values", "without", "written", "strings", "any_order", "_held"):
            setattr(other, name, getattr(self, name))
        other.arrays, other.objects, other.forks = list(self.arrays), list(self.objects), list(self.forks)
        other.unevaluated = list(self.unevaluated)
        other.seen = set(self.seen)
        return other
