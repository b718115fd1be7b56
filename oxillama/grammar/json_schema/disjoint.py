"""Quick analysis of schemas: the types that they allow, and pairs that exclude each other."""

from fractions import Fraction
from itertools import repeat
from typing import Any

from oxillama._util.freeing import empty
from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Budget
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.literals import ALL, NUMBER, OBJECT, STRING, TYPES, Literal, fraction, type_of

__all__ = ["PAIRS", "Disjoint", "scalars"]

DEPTH = 4
PAIR_UNITS = 16  # units of the budget for a pair that is kept
PAIRS = "the schema, with all pairs of its alternatives,"
MAX_PARTS = 64
_ONLY_TEXTS = {str}


class Disjoint:
    """`disjoint(a, b)`: whether no value meets both, as far as a quick analysis shows."""

    def __init__(self, documents: Documents, budget: Budget) -> None:
        self.documents = documents
        self.budget = budget
        self._parts: dict[tuple[int, bool, str], list[Literal]] = {}
        self._apart: dict[tuple[object, object], bool] = {}
        self.known_types: dict[tuple[int, bool, str], int] = {}
        self._leading = frozenset(("$ref", "allOf", documents.id_key))  # keywords that lead to other parts
        self._tags: dict[tuple[int, bool, str], dict[str, set[object]]] = {}

    def __call__(self, a: Literal, b: Literal, depth: int = DEPTH) -> bool:
        self.budget.spend(3, PAIRS)
        common = self.types(a) & self.types(b)
        if not common or (common == OBJECT and self._tags_apart(a, b)):
            return True
        key = (a.key, b.key)
        if depth == DEPTH and key not in self._apart:
            self.budget.spend(PAIR_UNITS, PAIRS)
            self._apart[key] = self._apart[b.key, a.key] = self._are_apart(a, b, common, depth)
        return self._apart[key] if depth == DEPTH else self._are_apart(a, b, common, depth)

    def drop(self) -> None:
        """Frees what was kept, piece by piece."""
        empty(self._parts, self._apart, self.known_types, self._tags)

    def groups(self, each: list[Literal]) -> list[int]:
        """Numbers the literals by groups whose members exclude each other, -1 for none: literals with lists of
        values, and objects by the values of a required property. So large unions needn't be compared in pairs."""
        found = [-1] * len(each)
        values: dict[int, set[object]] = {}
        for i, literal in enumerate(each):
            lists = [scalars(part.schema, self.documents.draft) for part in self.parts(literal)]
            known = [listed for listed in lists if listed is not None]
            if known and literal.positive:
                values[i] = set.intersection(*known)
        _group(found, values, 0)
        objects = [i for i, literal in enumerate(each) if found[i] < 0 and self.types(literal) == OBJECT]
        for name in self.tags(each[objects[0]]) if objects else ():
            self.budget.spend(len(each), PAIRS)
            tags = {i: self.tags(each[i]).get(name) for i in objects}
            if _group(found, {i: tag for i, tag in tags.items() if tag is not None}, 1):
                break
        return found

    def _tags_apart(self, a: Literal, b: Literal) -> bool:
        """Whether a property that both require has values that exclude each other: the tag of most unions."""
        one, other = self.tags(a), self.tags(b)
        return any(name in other and one[name].isdisjoint(other[name]) for name in one)

    def tags(self, literal: Literal) -> dict[str, set[object]]:
        """The allowed values of required properties, where they are listed and simple."""
        known = self._tags.get(literal.key)
        if known is None:
            known = self._tags[literal.key] = {}
            parts = self.parts(literal) if literal.positive else []
            for name in _required(parts):
                demands = [part for demand in _property(parts, name) for part in self.parts(demand)]
                found = [scalars(part.schema, self.documents.draft) for part in demands]
                lists = [values for values in found if values is not None]
                if lists:
                    known[name] = set.intersection(*lists)
        return known

    def _are_apart(self, a: Literal, b: Literal, common: int, depth: int) -> bool:
        if depth == 0 or common & ~(STRING | NUMBER | OBJECT):
            return False
        one, other = self.parts(a), self.parts(b)
        return (
            (not common & (STRING | NUMBER) or _values_apart(one, other, common, self.documents.draft))
            and (not common & OBJECT or self.objects_apart(one, other, depth))
        )  # fmt: skip

    def types(self, literal: Literal) -> int:
        """Types that a literal may allow, as bits."""
        known = self.known_types.get(literal.key)
        if known is None:
            known = ALL
            if isinstance(literal.schema, bool):
                known = ALL if literal.schema == literal.positive else 0
            elif isinstance(literal.schema, dict):
                self.known_types[literal.key] = ALL  # during the computation: references may be circular
                try:
                    known = self._positive(literal) if literal.positive else _negative(literal.schema)
                except GrammarError:
                    del self.known_types[literal.key]
                    raise
            self.known_types[literal.key] = known
        return known

    def _positive(self, literal: Literal) -> int:
        mask = ALL
        for part in self.parts(literal):
            mask &= (
                _mask(part.schema, self.documents.draft) if isinstance(part.schema, dict) else ALL if part.schema else 0
            )
        return mask

    def parts(self, literal: Literal) -> list[Literal]:
        """A schema and those that hold wherever it does: behind `$ref` and in `allOf`."""
        known = self._parts.get(literal.key)
        if known is None:
            schema = literal.schema
            is_alone = isinstance(schema, dict) and self._leading.isdisjoint(schema)
            known = self._parts[literal.key] = [literal] if is_alone else self._find_parts(literal)
        return known

    def _find_parts(self, literal: Literal) -> list[Literal]:
        found = [literal]
        seen = {literal.key}
        for i, part in enumerate(found):
            if not isinstance(part.schema, dict) or len(found) > MAX_PARTS:
                continue
            if self.documents.id_key in part.schema:
                part = found[i] = part.at_base(self.documents.base_of(part.schema, part.base))
            more = []
            if "$ref" in part.schema:
                more.append(self.documents.resolve(part, "$ref"))
            if isinstance(part.schema.get("allOf"), list) and not (more and self.documents.draft != 2020):
                more += [part.sub(s, "allOf", k) for k, s in enumerate(part.schema["allOf"])]
            for one in more:
                if one.key not in seen:
                    seen.add(one.key)
                    found.append(one)
        return [p for p in found if isinstance(p.schema, dict | bool) and not self._replaced(p.schema)]

    def _replaced(self, schema: Any) -> bool:
        """Whether the keywords beside a `$ref` may be ignored."""
        return self.documents.draft != 2020 and isinstance(schema, dict) and "$ref" in schema

    def objects_apart(self, one: list[Literal], other: list[Literal], depth: int) -> bool:
        mine, theirs = _required(one), _required(other)
        for name in sorted(mine | theirs):
            for a in _property(one, name):
                for b in _property(other, name):
                    if self(a, b, depth - 1):
                        return True
        return any(_forbids(other, name) for name in mine) or any(_forbids(one, name) for name in theirs)


def _group(found: list[int], values: dict[int, set[object]], number: int) -> bool:
    """Puts the literals with these values into a group, if no value occurs twice."""
    if sum(map(len, values.values())) > len(set().union(*values.values())):
        return False
    for i in values:
        found[i] = number
    return True


def _mask(schema: dict[str, Any], draft: int | None) -> int:
    mask = schema.get("\0types", ALL)
    kinds = schema.get("type")
    if isinstance(kinds, str):
        mask &= TYPES.get(kinds, ALL)
    elif isinstance(kinds, list):
        mask &= sum({TYPES.get(k, 0) for k in kinds if isinstance(k, str)} - {NUMBER}) | (
            NUMBER if {"number", "integer"} & {k for k in kinds if isinstance(k, str)} else 0
        )
    values = _values(schema, draft)
    if values is not None:
        allowed = 0
        for value in values:
            allowed |= type_of(value)
        mask &= allowed
    return int(mask)


def _negative(schema: dict[str, Any]) -> int:
    """Types excluded by a schema that must not hold: its own, if it has no other keyword."""
    if set(schema) == {"type"}:
        kinds = schema["type"]
        if isinstance(kinds, str) and kinds != "integer":
            return ALL & ~TYPES.get(kinds, 0)
    return ALL


def _values(schema: dict[str, Any], draft: int | None) -> list[Any] | None:
    if "const" in schema and draft != 4:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def scalars(schema: Any, draft: int | None) -> set[object] | None:
    """The listed values of a schema; None without a list of only strings, numbers, booleans and null."""
    values = _values(schema, draft) if isinstance(schema, dict) else None
    if values is None:
        return None
    if set(map(type, values)) == _ONLY_TEXTS:  # most are, and some list thousands
        return set(zip(repeat(STRING), values))
    if any(isinstance(v, list | dict) or (isinstance(v, float) and v - v != 0) for v in values):
        return None
    return {(type_of(v), fraction(v) if type_of(v) == NUMBER else v) for v in values}


def _keys(parts: list[Literal], common: int, draft: int | None) -> set[str | Fraction] | None:
    """Texts and numbers of these types that one of the lists of values allows."""
    found = None
    for part in parts:
        values = _values(part.schema, draft) if isinstance(part.schema, dict) else None
        if values is not None:
            keys = {
                v if isinstance(v, str) else fraction(v)
                for v in values
                if type_of(v) & common and (not isinstance(v, float) or v - v == 0)
            }
            found = keys if found is None else found & keys
    return found


def _values_apart(one: list[Literal], other: list[Literal], common: int, draft: int | None) -> bool:
    a, b = (_keys(parts, common & (STRING | NUMBER), draft) for parts in (one, other))
    return a is not None and b is not None and not a & b


def _required(parts: list[Literal]) -> set[str]:
    return {
        name
        for part in parts
        if isinstance(part.schema, dict) and isinstance(part.schema.get("required"), list)
        for name in part.schema["required"]
        if isinstance(name, str)
    }


def _property(parts: list[Literal], name: str) -> list[Literal]:
    found = []
    for part in parts:
        if isinstance(part.schema, dict):
            properties = part.schema.get("properties")
            if isinstance(properties, dict) and isinstance(properties.get(name), dict | bool):
                found.append(part.sub(properties[name], "properties", name))
    return found


def _forbids(parts: list[Literal], name: str) -> bool:
    for part in parts:
        schema = part.schema
        if isinstance(schema, dict):
            properties = schema.get("properties")
            listed = properties if isinstance(properties, dict) else {}
            if listed.get(name) is False:
                return True
            if schema.get("additionalProperties") is False and name not in listed and "patternProperties" not in schema:
                return True
    return False
