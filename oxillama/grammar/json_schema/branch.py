"""Branch of a schema: a conjunction of keywords, with the known properties of its objects."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from oxillama.grammar.json_schema.literals import ALL, OBJECT, Literal
from oxillama.grammar.json_schema.numbers import Numbers
from oxillama.grammar.json_schema.strings import Strings

__all__ = [
    "Branch",
    "Fork",
    "KnownProperties",
]


class KnownProperties:
    """Properties of an object that are known from the schemas that hold. names: all allowed names, None for any.

    size: number of properties of all schemas.
    """

    __slots__ = ("banned", "names", "objects", "required", "size")

    def __init__(self, objects: Iterable[Literal], before: "KnownProperties | None" = None) -> None:
        """before: of the first of the objects. A branch asks at each of its forks, and has few new ones then."""
        self.objects = list(objects)
        n_before = 0 if before is None else len(before.objects)
        self.required: set[str] = set() if before is None else set(before.required)
        self.names: set[str] | None = None if before is None else before.names
        self.banned: set[str] = set() if before is None else set(before.banned)
        self.size: int = 0 if before is None else before.size
        for literal in self.objects[n_before:]:
            schema = literal.schema
            if isinstance(schema.get("required"), list):
                self.required.update(name for name in schema["required"] if isinstance(name, str))
            properties = schema.get("properties", {})
            if not isinstance(properties, dict):
                continue
            self.size += 1 + len(properties)
            self.banned.update(name for name, sub in properties.items() if sub is False)
            if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
                self.names = set(properties) if self.names is None else self.names & properties.keys()

    def forbids(self, name: str) -> bool:
        return name in self.banned or (self.names is not None and name not in self.names)

    def excludes(self, literal: Literal) -> bool:
        """Whether a synthetic schema of objects can't hold."""
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
        """Whether a required property would be absent, or a property would have a forbidden value."""
        if sub is False:
            return name in self.required
        if not isinstance(sub, dict) or sub.keys() != {"not"} or "required" not in literal.schema:
            return False
        return any(
            known is sub["not"] or (base == literal.base and _same(known, sub["not"]))
            for known, base in self._schemas_of(name)
        )

    def _schemas_of(self, name: str) -> Iterator[tuple[Any, str]]:
        """The schemas of a property, each with its base."""
        for literal in self.objects:
            properties = literal.schema.get("properties")
            if isinstance(properties, dict) and name in properties:
                yield properties[name], literal.base

    def implies(self, literal: Literal) -> bool:
        """Whether a synthetic schema always holds: one for a property that is absent."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict) or schema.keys() != {"\0types", "properties"}:
            return False
        return all(sub is False and self.forbids(name) for name, sub in schema["properties"].items())


def _same(a: Any, b: Any) -> bool:
    """Whether two schemas are the same reference, or demand the same simple type."""
    keys = ({"$ref"}, {"type"})
    return isinstance(a, dict) and isinstance(b, dict) and a.keys() in keys and a == b


Fork = list[list[Literal]]


class Branch:
    """A conjunction of keywords.

    types: bits of the allowed types. numbers, strings: the demands on these. arrays, objects: the schemas about these.
    unevaluated: schemas with a keyword of that name. forks: alternatives that are still open. seen: literals that hold.
    """

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
        self.values: frozenset[Fraction] | None = None  # the only allowed numbers
        self.without: frozenset[Fraction] = frozenset()  # excluded numbers
        self.written: dict[Fraction, str] = {}  # spellings of listed numbers
        self.strings = Strings()
        self.arrays: list[Literal] = []
        self.objects: list[Literal] = []
        self.any_order = False
        self.unevaluated: list[Literal] = []
        self.forks: list[Fork] = []
        self._held: KnownProperties | None = None
        self.seen: set[tuple[int, bool, str]] = set()

    @property
    def held(self) -> KnownProperties:
        """The known properties."""
        if self._held is None or len(self._held.objects) != len(self.objects):
            self._held = KnownProperties(self.objects, self._held)
        return self._held

    def copy(self) -> "Branch":
        other = Branch.__new__(Branch)
        for name in ("types", "numbers", "values", "without", "written", "strings", "any_order", "_held"):
            setattr(other, name, getattr(self, name))
        other.arrays, other.objects, other.forks = list(self.arrays), list(self.objects), list(self.forks)
        other.unevaluated = list(self.unevaluated)
        other.seen = set(self.seen)
        return other
