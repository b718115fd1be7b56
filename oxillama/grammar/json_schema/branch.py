"""Branch of a schema: a conjunction of keywords, with the known properties of its objects."""

from collections.abc import Iterable, Set
from fractions import Fraction
from typing import Any

from oxillama.grammar.json_schema.disjoint import scalars
from oxillama.grammar.json_schema.literals import ALL, OBJECT, Literal
from oxillama.grammar.json_schema.numbers import Numbers
from oxillama.grammar.json_schema.strings import Strings

__all__ = [
    "Branch",
    "Fork",
    "Key",
    "KnownProperties",
    "PropertyFacts",
    "Way",
    "Ways",
]


Ways = list[list[Literal]]
Key = tuple[int, bool, str]
_NOTHING: frozenset[Any] = frozenset()


class PropertyFacts:
    """What a schema says of the properties of objects. names: all allowed names, None for any. is_closed: it forbids
    others. size: number of its properties."""

    __slots__ = ("_spoken", "_tags", "_values", "banned", "is_closed", "literal", "names", "required", "size")

    def __init__(self, literal: Literal) -> None:
        schema = literal.schema
        self.literal = literal
        self.required: frozenset[str] = _NOTHING
        self.names: frozenset[str] | None = None
        self.banned: frozenset[str] = _NOTHING
        self.size = 0
        self.is_closed = schema.get("additionalProperties") is False
        self._spoken: frozenset[str] | None = None
        self._values: frozenset[object] | None = None
        self._tags: dict[str, set[object]] | None = None
        if isinstance(schema.get("required"), list):
            self.required = frozenset([name for name in schema["required"] if isinstance(name, str)])
        properties = schema.get("properties", {})
        if isinstance(properties, dict):
            self.size = 1 + len(properties)
            self.banned = frozenset([name for name, sub in properties.items() if sub is False])
            if self.is_closed and not schema.get("patternProperties"):
                self.names = frozenset(properties)

    @property
    def spoken(self) -> frozenset[str]:
        """Properties that it names or requires."""
        if self._spoken is None:
            schema = self.literal.schema
            lists = [schema[keyword] for keyword in ("required", "properties") if keyword in schema]
            found = [name for names in lists if isinstance(names, list | dict) for name in names]
            self._spoken = frozenset([name for name in found if isinstance(name, str)])
        return self._spoken

    @property
    def tags(self) -> dict[str, set[object]]:
        """The values that properties may have if they are there, where they are listed."""
        if self._tags is None:
            self._tags = _tags_of(self.literal.schema)
        return self._tags

    @property
    def values(self) -> frozenset[object]:
        """Each property with the keys of its schema (`_value_keys`)."""
        if self._values is None:
            properties = self.literal.schema.get("properties")
            found = properties.items() if isinstance(properties, dict) else ()
            base = self.literal.base
            self._values = frozenset([(name, key) for name, sub in found for key in _value_keys(sub, base)])
        return self._values


def _tags_of(schema: dict[str, Any]) -> dict[str, set[object]]:
    """The values that properties may have if they are there, where they are listed."""
    properties = schema.get("properties")
    found = {}
    for name, sub in properties.items() if isinstance(properties, dict) else ():
        if isinstance(sub, dict) and ("const" in sub or "enum" in sub) and "$ref" not in sub:
            values = scalars(sub, None)
            if values is not None:
                found[name] = values
    return found


def _value_keys(schema: Any, base: str) -> list[object]:
    """Keys of which two schemas have one in common if they are one object, or the same reference or simple type."""
    keys: list[object] = [id(schema)]
    if isinstance(schema, dict) and len(schema) == 1:
        for keyword in ("$ref", "type"):
            if keyword in schema:
                keys.append((base, keyword, repr(schema[keyword])))
    return keys


class KnownProperties:
    """Properties of an object that are known from the schemas that hold. names: all allowed names, None for any.

    size: number of properties of all schemas.
    """

    __slots__ = ("_impossible", "_parts", "_tags", "_values", "banned", "facts", "names", "required", "size")

    def __init__(self, facts: tuple[PropertyFacts, ...], before: "KnownProperties | None" = None) -> None:
        """before: of the first of the schemas. A branch asks at each of its forks, and has few new ones then."""
        self.facts = facts
        self.required, self.banned, self.size = _NOTHING, _NOTHING, 0
        self.names: frozenset[str] | None = None
        self._values: frozenset[object] | None = None
        self._tags: dict[str, set[object]] | None = None
        self._impossible: frozenset[str] | None = None
        self._parts: tuple[KnownProperties, ...] = ()
        n_before = 0
        if before is not None:
            n_before = len(before.facts)
            self.required, self.banned, self.size, self.names = (
                before.required, before.banned, before.size, before.names
            )  # fmt: skip
            if before._tags is not None:
                self._tags = _common_tags(before._tags, self.facts[n_before:])
        for one in self.facts[n_before:]:
            self.required = self.required | one.required if one.required else self.required
            self.banned = self.banned | one.banned if one.banned else self.banned
            self.size += one.size
            if one.names is not None:
                self.names = one.names if self.names is None else self.names & one.names

    @property
    def values(self) -> frozenset[object]:
        """Each property with the keys of its schemas."""
        if self._values is None:
            self._values = _NOTHING.union(*[one.values for one in (self._parts or self.facts)])
        return self._values

    @property
    def tags(self) -> dict[str, set[object]]:
        """The values that properties may have by all schemas, where they are listed."""
        if self._tags is None:
            self._tags = _common_tags({}, self._parts or self.facts)
        return self._tags

    @property
    def impossible(self) -> frozenset[str]:
        """Properties that can't have any value."""
        if self._impossible is None:
            self._impossible = frozenset([name for name, values in self.tags.items() if not values])
        return self._impossible

    @property
    def is_contradictory(self) -> bool:
        """Whether a required property can't have any value."""
        return not self.required.isdisjoint(self.impossible)

    def contradicts(self, way: "Way") -> bool:
        """Whether a required property can't have any of the values that a way lists for it."""
        return not way.required.isdisjoint(self.impossible) or any(
            name in self.tags and self.tags[name].isdisjoint(values) and (name in self.required or name in way.required)
            for name, values in way.tags
        )

    def both(self, other: "KnownProperties") -> "KnownProperties":
        """What two lists of schemas say together."""
        found = KnownProperties(())
        found.required, found.banned = self.required | other.required, self.banned | other.banned
        found.size, found.names = self.size + other.size, self.names
        if other.names is not None:
            found.names = other.names if self.names is None else self.names & other.names
        found._parts = (self, other)
        return found

    def excludes(self, claim: "Claim") -> bool:
        """Whether a synthetic schema of objects can't hold: a required property would be forbidden, or have a forbidden
        value, or be absent."""
        if claim.besides is not None:
            return self.names is not None and self.names <= claim.besides | self.banned
        return (
            not claim.required.isdisjoint(self.banned)
            or not claim.required.isdisjoint(self.impossible)
            or (self.names is not None and not claim.required <= self.names)
            or not claim.absent.isdisjoint(self.required)
            or (bool(claim.other_values) and not self.values.isdisjoint(claim.other_values))
        )

    def lacks(self, names: frozenset[str]) -> bool:
        """Whether none of these properties may be there."""
        return (names if self.names is None else names & self.names) <= self.banned


def _common_tags(
    known: dict[str, set[object]], more: "Iterable[PropertyFacts | KnownProperties]"
) -> dict[str, set[object]]:
    """The values that properties may have by all of these; `known` itself if none lists any more."""
    lists = [one.tags for one in more if one.tags]
    found = dict(known) if lists else known
    for tags in lists:
        for name, values in tags.items():
            found[name] = found[name] & values if name in found else values
    return found


class Claim:
    """What a synthetic schema of objects says. besides: names that the required property without a name doesn't have,
    None if there is no such property; other_values: each property that must be there with the keys of a schema that it
    must not meet."""

    __slots__ = ("absent", "besides", "other_values", "required")

    def __init__(self, literal: Literal) -> None:
        schema = literal.schema
        properties = schema.get("properties", {})
        self.besides: frozenset[str] | None = schema["\0property"][2] if "\0property" in schema else None
        self.required = frozenset(schema.get("required", ()))
        self.absent = frozenset([name for name, sub in properties.items() if sub is False])
        self.other_values: frozenset[object] = _NOTHING
        if "required" in schema:
            negated = [
                (name, sub) for name, sub in properties.items() if isinstance(sub, dict) and sub.keys() == {"not"}
            ]
            self.other_values = frozenset(
                [(name, key) for name, sub in negated for key in _value_keys(sub["not"], literal.base)]
            )


class Way:
    """A conjunction of literals, one alternative of a fork, with what the checks of branches ask of it again and again.

    keys: of its literals. claims: of those that are synthetic schemas of objects. absent: the properties that it says
    are absent, if it says nothing else; None otherwise. tags: properties with the values that it lists for them, if
    they are there; required: properties that must be.
    """

    __slots__ = ("absent", "claims", "keys", "literals", "required", "tags")

    def __init__(self, literals: list[Literal]) -> None:
        self.literals = literals
        self.keys = frozenset([literal.key for literal in literals])
        synthetic = [literal for literal in literals if literal.positive and _is_synthetic(literal.schema)]
        self.claims = [Claim(literal) for literal in synthetic if literal.schema["\0types"] == OBJECT]
        self.absent: frozenset[str] | None = None
        if len(synthetic) == len(literals) and all(map(_says_absent, literals)):
            self.absent = frozenset([name for literal in literals for name in literal.schema["properties"]])
        plain = [one.schema for one in literals if one.positive and isinstance(one.schema, dict)]
        plain = [schema for schema in plain if "$ref" not in schema]  # drafts may ignore what is beside it
        self.tags = [pair for schema in plain for pair in _tags_of(schema).items()]
        lists = [schema["required"] for schema in plain if isinstance(schema.get("required"), list)]
        self.required = frozenset([name for names in lists for name in names if isinstance(name, str)])


def _is_synthetic(schema: Any) -> bool:
    return isinstance(schema, dict) and "\0types" in schema


def _says_absent(literal: Literal) -> bool:
    schema = literal.schema
    return schema.keys() == {"\0types", "properties"} and all(sub is False for sub in schema["properties"].values())


class Fork:
    """Alternatives, of which one must hold.

    keys: of all their literals. names: properties that synthetic schemas among these name; None for any. fitting:
    by the bits of types, the ways that these allow; as far as it was asked for. has_claims: some way has a synthetic
    schema of objects, or says that properties are absent. has_tags: some way lists values of a property.
    """

    __slots__ = ("fitting", "has_claims", "has_tags", "keys", "n", "names", "ways")

    def __init__(self, ways: list[Way], origin: "Fork | None" = None) -> None:
        """origin: a fork that these ways are left of. Its keys and names are kept, which is more than is needed."""
        self.ways = ways
        self.n = len(ways)
        self.fitting: dict[int, list[Way]] = {}
        self.names: frozenset[str] | None
        if origin is None:
            self.keys: frozenset[Key] = _NOTHING.union(*[way.keys for way in ways])
            self.names = _names_of(ways)
            self.has_claims = any(way.claims or way.absent is not None for way in ways)
            self.has_tags = any(way.tags for way in ways)
        else:
            self.keys, self.names = origin.keys, origin.names
            self.has_claims, self.has_tags = origin.has_claims, origin.has_tags


def _names_of(ways: list[Way]) -> frozenset[str] | None:
    found: set[str] = set()
    for literal in (literal for way in ways for literal in way.literals if literal.positive):
        schema = literal.schema
        if _is_synthetic(schema):
            if "\0property" in schema:
                return None
            found.update(schema.get("required", ()))
            found.update(schema.get("properties", ()))
    return frozenset(found)


class Branch:
    """A conjunction of keywords.

    types: bits of the allowed types. numbers, strings: the demands on these. arrays, objects: the schemas about these.
    unevaluated: schemas with a keyword of that name. forks: alternatives that are still open. added: forks that weren't
    held against the branch yet. seen: literals that hold; fresh: those of them that came since the forks were held
    against the branch. facts: what each of `objects` says of properties. checked: types and number of objects then.
    """

    __slots__ = (
        "_held",
        "added",
        "any_order",
        "arrays",
        "checked",
        "facts",
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
        self.arrays: tuple[Literal, ...] = ()
        self.objects: tuple[Literal, ...] = ()
        self.facts: tuple[PropertyFacts, ...] = ()
        self.any_order = False
        self.unevaluated: tuple[Literal, ...] = ()
        self.forks: list[Fork] = []  # never changed in place, so that copies share it
        self.added: list[Fork] = []
        self.checked = (ALL, 0)
        self.fresh: list[tuple[int, bool, str]] = []
        self._held: KnownProperties | None = None
        self.seen: set[tuple[int, bool, str]] = set()

    @property
    def held(self) -> KnownProperties:
        """The known properties."""
        if self._held is None or len(self._held.facts) != len(self.facts):
            self._held = KnownProperties(self.facts, self._held)
        return self._held

    def touched(self) -> Set[str] | None:
        """Properties that objects which came since the forks were checked speak of; None if anything may matter."""
        types, n_objects = self.checked
        if types != self.types:
            return None
        if n_objects == len(self.objects):
            return _NOTHING
        more = self.facts[n_objects:]
        if any(one.is_closed for one in more):
            return None
        return more[0].spoken if len(more) == 1 else _NOTHING.union(*[one.spoken for one in more])

    def copy(self) -> "Branch":
        other = Branch.__new__(Branch)
        other.types, other.numbers, other.values, other.without = self.types, self.numbers, self.values, self.without
        other.written, other.strings, other.any_order = self.written, self.strings, self.any_order
        other.checked, other._held = self.checked, self._held
        other.arrays, other.objects, other.facts = self.arrays, self.objects, self.facts
        other.unevaluated, other.forks = self.unevaluated, self.forks
        other.added, other.fresh = self.added[:], self.fresh[:]
        other.seen = self.seen.copy()
        return other
