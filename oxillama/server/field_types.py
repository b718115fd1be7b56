"""Kinds of values in requests: each checks one, names its place if it is wrong, and describes itself as a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from oxillama._util.checks import are_ints, misspelt, nearest
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.reading import Reading

__all__ = [
    "LEFT_OUT",
    "Any_",
    "Boolean",
    "Choice",
    "Either",
    "Field",
    "Integer",
    "Item",
    "Json",
    "Kind",
    "Limit",
    "ListOf",
    "MapOf",
    "Message",
    "Number",
    "Only",
    "Other",
    "Placed",
    "Reading",
    "Record",
    "Schema",
    "Tagged",
    "Text",
    "Tool",
    "Values",
]

Values = Mapping[str, Any]  # the fields of a request that are honoured, by name
Item = Mapping[str, Any]  # an object within a request: a call, a choice, an item of its input
Message = dict[str, Any]  # of a conversation, as chat completions have it
Tool = dict[str, Any]  # as chat completions describe it
Schema = dict[str, Any]  # JSON Schema of a field, for the OpenAPI document
MAX_TEXT = 1 << 26
SCALAR = 4  # characters of JSON that a number, or what surrounds a name, has at least, about
JSON_DEPTH = 64
MAX_COMPARED = 32  # unknown names of one request that are compared with the known ones
LEFT_OUT = object()  # in place of the value of an entry that a list leaves out


class Kind(Protocol):
    """Values of one kind."""

    def read(self, place: str, value: Any, reading: Reading) -> Any:
        """The value as it is used. Raises ApiError, which names the place, for one of another kind."""

    def schema(self) -> Schema:
        """The kind as JSON Schema."""


def shown(value: Any) -> str:
    """A value of JSON in a message: short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"{value!r:.60}"


def _said(value: Any) -> str:
    """`shown`, with what a list has, which may be all the difference."""
    return f"{value!r:.60}" if isinstance(value, list) else shown(value)


def wrong(place: str, wanted: str, value: Any) -> ApiError:
    return bad_value(place, f"{place} must be {wanted}, not {shown(value)}")


@dataclass(frozen=True)
class Boolean:
    def read(self, place: str, value: Any, reading: Reading) -> bool:
        if not isinstance(value, bool):
            raise wrong(place, "true or false", value)
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Integer:
    least: int
    most: int

    def read(self, place: str, value: Any, reading: Reading) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise wrong(place, f"an integer from {self.least} to {self.most}", value)
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Whole:
    """An integer, which may be written as 4096.0."""

    least: int
    most: int

    def read(self, place: str, value: Any, reading: Reading) -> int:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return Integer(self.least, self.most).read(place, whole, reading)

    def schema(self) -> Schema:
        return Integer(self.least, self.most).schema()


@dataclass(frozen=True)
class Limit:
    """An integer, or -1 for no limit."""

    least: int
    most: int

    def read(self, place: str, value: Any, reading: Reading) -> int:
        fits = isinstance(value, int) and (self.least <= value <= self.most or value == -1)
        if not fits or isinstance(value, bool):
            raise wrong(place, f"an integer from {self.least} to {self.most}, or -1 for no limit", value)
        return int(value)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": -1, "maximum": self.most}


@dataclass(frozen=True)
class Number:
    """A finite number; `lenient_most` is the highest for lenient readers."""

    least: float
    most: float
    above: bool = False
    lenient_most: float | None = None

    def read(self, place: str, value: Any, reading: Reading) -> float:
        most = self.lenient_most if reading.lenient and self.lenient_most is not None else self.most
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.least <= value <= most or (self.above and value == self.least):
            raise wrong(place, f"a number {'above' if self.above else 'from'} {self.least:g} to {most:g}", value)
        return float(value)

    def schema(self) -> Schema:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Text:
    least: int = 0
    most: int = MAX_TEXT

    def read(self, place: str, value: Any, reading: Reading) -> str:
        if not isinstance(value, str):
            raise wrong(place, "a string", value)
        if not self.least <= len(value) <= self.most:
            raise bad_value(place, f"{place} must have {self.least} to {self.most} characters, not {len(value)}")
        return value

    def schema(self) -> Schema:
        bounds = {"minLength": self.least} if self.least else {}
        return {"type": "string", **bounds, **({"maxLength": self.most} if self.most < MAX_TEXT else {})}


@dataclass(frozen=True)
class Choice:
    values: tuple[str, ...]

    def read(self, place: str, value: Any, reading: Reading) -> str:
        if not isinstance(value, str) or value not in self.values:
            raise wrong(place, "one of " + ", ".join(filter(None, self.values)), value)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.values)}


@dataclass(frozen=True)
class Only:
    """The values of a field that is refused, left out, or has no effect, with which it asks for nothing else."""

    values: tuple[Any, ...]
    remedy: str = ""

    def has(self, value: Any) -> bool:
        """Whether a value asks for nothing else."""
        return any(type(value) is type(one) and value == one for one in self.values)

    def read(self, place: str, value: Any, reading: Reading) -> Any:
        if not self.has(value):
            why = f"{place} is not supported" + (f": {self.remedy}" if self.remedy else "")
            if self.values:
                why = f"{place} must be {' or '.join(map(_said, self.values))}, not {_said(value)}"
                why += f": {self.remedy}" if self.remedy else ""
            raise bad_value(place, why, "unsupported_parameter")
        return value

    def schema(self) -> Schema:
        return {"enum": [*self.values, None]}


@dataclass(frozen=True)
class Any_:
    """Any value of JSON, of a depth that templates and grammars can go through."""

    depth: int = JSON_DEPTH

    def read(self, place: str, value: Any, reading: Reading) -> Any:
        check_depth(place, value, self.depth)
        return value

    def schema(self) -> Schema:
        return {}


@dataclass(frozen=True)
class Json:
    """An object with any properties. size: characters that it may have as JSON."""

    depth: int = JSON_DEPTH
    size: int = MAX_TEXT

    def read(self, place: str, value: Any, reading: Reading) -> Schema:
        if not isinstance(value, dict):
            raise wrong(place, "an object", value)
        check_size(place, value, self.size)
        check_depth(place, value, self.depth)
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


def check_depth(place: str, value: Any, most: int) -> None:
    """Raises ApiError for lists and objects nested deeper than that."""
    level = [value]
    for _ in range(most + 1):
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise bad_value(place, f"{place} must nest at most {most} deep")


def check_size(place: str, value: Any, most: int) -> None:
    """Raises ApiError for a value of more characters as JSON, about; what is beyond them isn't looked at."""
    if most >= MAX_TEXT:
        return
    size, todo = 0, [value]
    while todo and size <= most:
        one = todo.pop()
        if isinstance(one, str):
            size += len(one) + 2
            continue
        size += SCALAR
        if isinstance(one, dict | list) and SCALAR * len(one) > most:
            size += SCALAR * len(one)
        elif isinstance(one, dict):
            size += sum(map(len, one)) + SCALAR * len(one)
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    if size > most:
        raise bad_value(place, f"{place} must have at most {most} characters as JSON")


class Placed(list[Any]):
    """Entries of a list of which some were left out or stood in another entry. places: of each in the request."""

    def __init__(self, found: Iterable[tuple[str, Any]] = ()) -> None:
        pairs = list(found)
        super().__init__(value for _, value in pairs)
        self.places = [place for place, _ in pairs]

    @classmethod
    def of(cls, place: str, entries: list[Any]) -> Placed:
        """The entries of a list at a place, which may have places of their own."""
        if isinstance(entries, Placed):
            return entries
        return cls((f"{place}[{i}]", one) for i, one in enumerate(entries))


@dataclass(frozen=True)
class ListOf:
    """A list of values of one kind, without those that are left out. size: characters that it may have as JSON."""

    kind: Kind
    most: int
    least: int = 0
    size: int = MAX_TEXT

    def read(self, place: str, value: Any, reading: Reading) -> list[Any]:
        if not isinstance(value, list):
            raise wrong(place, "a list", value)
        if not self.least <= len(value) <= self.most:
            raise bad_value(place, f"{place} must have {self.least} to {self.most} entries, not {len(value)}")
        check_size(place, value, self.size)
        if self._are_fitting_integers(value):
            return value
        found = [self.kind.read(f"{place}[{i}]", one, reading) for i, one in enumerate(value)]
        if any(one is LEFT_OUT or isinstance(one, Placed) for one in found):
            found = Placed(pair for i, one in enumerate(found) for pair in _entries(f"{place}[{i}]", one))
            if len(found) > self.most:
                raise bad_value(place, f"{place} must have at most {self.most} entries, not {len(found)}")
        return found

    def _are_fitting_integers(self, value: list[Any]) -> bool:
        """Whether a list is as it should be that has nothing but integers, such as thousands of token ids."""
        kind = self.kind.kinds.get("number") if isinstance(self.kind, Either) else self.kind
        return isinstance(kind, Integer) and are_ints(value, kind.least, kind.most)

    def schema(self) -> Schema:
        return {"type": "array", "items": self.kind.schema(), "minItems": self.least, "maxItems": self.most}


def _entries(place: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Entries that an entry that was read gives to its list, each with its place."""
    if isinstance(value, Placed):
        return zip(value.places, value, strict=True)
    return [] if value is LEFT_OUT else [(place, value)]


@dataclass(frozen=True)
class MapOf:
    """An object whose keys are names of one form, checked by `key`, and whose values are of one kind."""

    kind: Kind
    most: int
    key: Callable[[str, str], Any]

    def read(self, place: str, value: Any, reading: Reading) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise wrong(place, "an object", value)
        if len(value) > self.most:
            raise bad_value(place, f"{place} must have at most {self.most} entries, not {len(value)}")
        return {self.key(place, k): self.kind.read(f"{place}.{k:.40}", v, reading) for k, v in value.items()}

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": self.kind.schema(), "maxProperties": self.most}


@dataclass(frozen=True)
class Either:
    """One of several kinds, chosen by the type of the value in JSON."""

    kinds: Mapping[str, Kind]

    def read(self, place: str, value: Any, reading: Reading) -> Any:
        kind = self.kinds.get(_type_of(value))
        if kind is None:
            raise wrong(place, " or ".join(_NAMES[name] for name in self.kinds), value)
        return kind.read(place, value, reading)

    def schema(self) -> Schema:
        found = [kind.schema() for kind in self.kinds.values()]
        return {"anyOf": [one for schema in found for one in schema.get("anyOf", [schema])]}


_NAMES = {"string": "a string", "array": "a list", "object": "an object", "number": "a number", "boolean": "a boolean"}


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number" if isinstance(value, int | float) else "null"


@dataclass(frozen=True)
class Field:
    """A field of a request.

    rule: "honour"; "wish": it is done as far as the model goes, and left out where it doesn't; "leave": it is left out
    but for values that ask for nothing; "accept": it has no effect, by nature; "refuse": only values that ask for
    nothing are taken. to: the keyword of the engine that it is, if it is one.
    """

    name: str
    kind: Kind
    text: str
    rule: str = "honour"
    to: str = ""
    required: bool = False


def _described(text: str) -> Schema:
    """The description of a schema, if there is one."""
    return {"description": text} if text else {}


@dataclass(frozen=True)
class Record:
    """An object of known fields; those that are null count as absent."""

    fields: tuple[Field, ...]
    _known: dict[str, Field] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._known.update({f.name: f for f in self.fields})

    def read(self, place: str, value: Any, reading: Reading) -> Schema:
        """The fields that are honoured, by name, with wishes that the model may follow."""
        if not isinstance(value, dict):
            raise wrong(place or "the body", "an object", value)
        prefix = f"{place}." if place else ""
        found = {}
        for name, given in value.items():
            known = self._known.get(name)
            if known is None:
                self._unknown(prefix, name, reading)
            elif given is None:
                continue
            elif known.rule == "leave" and isinstance(known.kind, Only):
                if not known.kind.has(given):
                    reading.leave_out(prefix + name, known.text)
            else:
                read = known.kind.read(prefix + name, given, reading)
                if known.rule in ("honour", "wish"):
                    found[name] = read
                elif known.rule == "leave":
                    reading.leave_out(prefix + name, known.text)
        for one in self.fields:
            if one.required and one.name not in found:
                raise bad_value(prefix + one.name, f"{prefix}{one.name} is missing: {one.text}", "missing_parameter")
        return found

    def _unknown(self, prefix: str, name: str, reading: Reading) -> None:
        """Leaves an unknown field out, unless its name is that of a known one misspelt."""
        place = f"{prefix}{name:.64}"
        reading.n_unknown += 1
        near = None
        if len(name) <= 64 and reading.n_unknown <= MAX_COMPARED:
            near = nearest(name, self._known) if reading.strict else misspelt(name, self._known)
        if reading.strict or (near is not None and not reading.lenient):
            remedy = f"; did you mean {near!r}?" if near else ""
            raise bad_value(place, f"{place!r} is not a known parameter{remedy}", "unknown_parameter")
        reading.leave_out(place, label="unknown")

    def schema(self) -> Schema:
        required: Sequence[str] = [f.name for f in self.fields if f.required]
        made: Schema = {
            "type": "object",
            "properties": {f.name: f.kind.schema() | _described(f.text) for f in self.fields},
            "additionalProperties": False,
        }
        return made | ({"required": list(required)} if required else {})


# Reads an object of another type than is known: (place, type, object, reading).
Other = Callable[[str, str, Values, Reading], object]


@dataclass(frozen=True)
class Tagged:
    """An object of one of several forms, which its `type` names; without one, `default`.

    other: reads objects of other types; without it they are refused.
    """

    forms: Mapping[str, Record]
    default: str = ""
    other: Other | None = None

    def read(self, place: str, value: Any, reading: Reading) -> Any:
        if not isinstance(value, dict):
            raise wrong(place, "an object", value)
        name = value.get("type")
        if name is None:  # counts as absent
            name = self.default or None
        if name is None:
            text = f"{place}.type is missing: it must be one of {', '.join(self.forms)}"
            raise bad_value(f"{place}.type", text, "missing_parameter")
        form = self.forms.get(name) if isinstance(name, str) else None
        if form is None and isinstance(name, str) and self.other is not None:
            return self.other(place, name, value, reading)
        if form is None:
            text = f"{place}.type must be one of {', '.join(self.forms)}, not {shown(name)}"
            raise bad_value(
                f"{place}.type", text, "unsupported_parameter" if isinstance(name, str) else "invalid_value"
            )
        return {"type": name, **form.read(place, value, reading)}

    def schema(self) -> Schema:
        found = [form.schema() for form in self.forms.values()]
        if not self.default:
            found = [one | {"required": ["type", *one.get("required", ())]} for one in found]
        return {"anyOf": found}
