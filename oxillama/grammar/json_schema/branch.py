"""Branch of a schema: a conjunction of keywords, with what is known of its properties."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from oxillama.grammar.json_schema.literals import ALL, OBJECT, Literal
from oxillama.grammar.json_schema.numbers import Numbers
from oxillama.grammar.json_schema.strings import Strings

__all__ = [
    "Branch",
    "Fork",
    "Held",
]


class Held:
    """What the schemas that hold say of an object's properties. names: all that there may be, None for any."""

    def __init__(self, objects: Iterable[Literal]) -> None:
        self.required: set[str] = set()
        self.names: set[str] | None = None
        self.banned: set[str] = set()
        self.properties: dict[str, list[Literal]] = {}
        self.size = 0  # properties of all of them
        for literal in objects:
            schema = literal.schema
            if isinstance(schema.get("required"), list):
                self.required.update(name for name in schema["required"] if isinstance(name, str))
            properties = schema.get("properties", {})
            if not isinstance(properties, dict):
                continue
            self.size += 1 + len(properties)
            for name, sub in properties.items():
                self.properties.setdefault(name, []).append(literal._replace(schema=sub))
                if sub is False:
                    self.banned.add(name)
            if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
                self.names = set(properties) if self.names is None else self.names & set(properties)

    def forbids(self, name: str) -> bool:
        return name in self.banned or (self.names is not None and name not in self.names)

    def excludes(self, literal: Literal) -> bool:
        """Whether a made-up schema of objects can't hold."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict) or schema.get("\0types") != OBJECT:
            return False
        if "\0property" in schema:
            besides = schema["\0property"][2]
            return self.names is not None and self.names <= besides | self.banned
        if any(self.forbids(name) for name in schema.get("required", ())):
            return True
        return any(self._contradicts(literal, name, sub) for name, sub in schema.get("properties", {}).items())

    def _contradicts(self, literal: Literal, name: str, sub: Any) -> bool:
        """Whether a property is to be absent that is required, or to be what it must not be."""
        if sub is False:
            return name in self.required
        if not isinstance(sub, dict) or sub.keys() != {"not"} or "required" not in literal.schema:
            return False
        return any(
            known.schema is sub["not"] or (known.base == literal.base and _same(known.schema, sub["not"]))
            for known in self.properties.get(name, ())
        )

    def implies(self, literal: Literal) -> bool:
        """Whether a made-up schema holds anyhow: one for a property that isn't there."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict) or schema.keys() != {"\0types", "properties"}:
            return False
        return all(sub is False and self.forbids(name) for name, sub in schema["properties"].items())


def _same(a: Any, b: Any) -> bool:
    """Whether two schemas are the same reference, or ask for the same simple type."""
    keys = ({"$ref"}, {"type"})
    return isinstance(a, dict) and isinstance(b, dict) and a.keys() in keys and a == b


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
