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
    "Ways",
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


Ways = list[list[Literal]]
_NOTHING: frozenset[Any] = frozenset()


class Fork:
    """Alternatives, of which one must hold: each a conjunction of literals.

    keys: of all their literals. names: properties that synthetic schemas among these speak of; None for any.
    """

    __slots__ = ("keys", "names", "ways")

    def __init__(self, ways: Ways, origin: "Fork | None" = None) -> None:
        """origin: a fork that these ways are left of. Its keys and names are kept, which is more than is needed."""
        self.ways = ways
        self.keys: frozenset[tuple[int, bool, str]] = _NOTHING
        self.names: frozenset[str] | None = _NOTHING
        if origin is not None:
            self.keys, self.names = origin.keys, origin.names
            return
        self.keys = frozenset(literal.key for way in ways for literal in way)
        spoken: set[str] = set()
        for literal in (literal for way in ways for literal in way if literal.positive):
            schema = literal.schema
            if isinstance(schema, dict) and "\0types" in schema:
                if "\0property" in schema:
                    self.names = None
                    return
                spoken.update(schema.get("required", ()))
                spoken.update(schema.get("properties", ()))
        self.names = frozenset(spoken)

    def __len__(self) -> int:
        return len(self.ways)


class Branch:
    """A conjunction of keywords.

    types: bits of the allowed types. numbers, strings: the demands on these. arrays, objects: the schemas about these.
    unevaluated: schemas with a keyword of that name. forks: alternatives that are still open. added: forks that weren't
    held against the branch yet. seen: literals that hold; fresh: those of them that came since the forks were held
    against the branch. checked: types and number of objects then.
    """

    __slots__ = (
        "_held",
        "added",
        "any_order",
        "arrays",
        "checked",
        "forks",
        "fresh",
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
        self.added: list[Fork] = []
        self.checked = (ALL, 0)
        self.fresh: list[tuple[int, bool, str]] = []
        self._held: KnownProperties | None = None
        self.seen: set[tuple[int, bool, str]] = set()

    @property
    def held(self) -> KnownProperties:
        """The known properties."""
        if self._held is None or len(self._held.objects) != len(self.objects):
            self._held = KnownProperties(self.objects, self._held)
        return self._held

    def touched(self) -> set[str] | None:
        """Properties that objects which came since the forks were checked speak of; None if anything may matter."""
        types, n_objects = self.checked
        if types != self.types:
            return None
        found: set[str] = set()
        for literal in self.objects[n_objects:]:
            schema = literal.schema
            if schema.get("additionalProperties") is False:
                return None
            for keyword in ("required", "properties"):
                if isinstance(schema.get(keyword), list | dict):
                    found.update(name for name in schema[keyword] if isinstance(name, str))
        return found

    def copy(self) -> "Branch":
        other = Branch.__new__(Branch)
        for name in ("types", "numbers", "values", "without", "written", "strings", "any_order", "checked", "_held"):
            setattr(other, name, getattr(self, name))
        other.arrays, other.objects, other.forks = list(self.arrays), list(self.objects), list(self.forks)
        other.added, other.fresh = list(self.added), list(self.fresh)
        other.unevaluated = list(self.unevaluated)
        other.seen = set(self.seen)
        return other
