"""Type annotations as JSON Schema, and JSON values as what the annotations say."""

import collections.abc
import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

__all__ = ["Annotations", "Described", "NotDescribed", "first_paragraph"]

Schema = dict[str, Any]
Read = Callable[[Any], Any]
MAX_DEPTH = 32
_PARAMETERS = re.compile(r"(?:Args|Arguments|Parameters|Params):$|:param\s")
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", None: "null"}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection,
          collections.abc.MutableSequence)  # fmt: skip
_SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


class NotDescribed(Exception):
    """An annotation has no schema. The message says which part of it, and what can be done."""


class Described(NamedTuple):
    """A schema, and what makes the annotated value of a JSON value that fits it; None for the value itself."""

    schema: Schema
    read: Read | None = None


class Annotations:
    """Schemas of annotations that stand in one root schema.

    definitions: schemas of classes that contain themselves, by name, for the root's `$defs`.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._open: list[Any] = []  # classes that are being described, the outermost first
        self._recursive: dict[str, Any] = {}
        self._reads: dict[Any, Read | None] = {}

    def of(self, annotation: Any) -> Described:
        """The schema of an annotation, and how its values are read. Raises NotDescribed."""
        if len(self._open) > MAX_DEPTH:
            raise NotDescribed("its classes nest too deeply")
        if hasattr(annotation, "__supertype__"):  # of NewType
            return self.of(annotation.__supertype__)
        if hasattr(annotation, "__value__"):  # of `type X = ...`
            return self.of(annotation.__value__)
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._annotated(args)
        if origin in (typing.Required, typing.NotRequired):
            return self.of(args[0])
        if annotation is Any:
            return Described({})
        if annotation in _SCALARS:
            return Described({"type": _SCALARS[annotation]})
        if origin is Literal:
            return self._literal(args)
        if origin in (Union, types.UnionType):
            return self._union(args)
        return self._container(annotation, origin, args) or self._class(annotation)

    def _annotated(self, args: tuple[Any, ...]) -> Described:
        inner = self.of(args[0])
        texts = [text for text in args[1:] if isinstance(text, str)]
        return inner._replace(schema={**inner.schema, "description": texts[0]}) if texts else inner

    def _literal(self, values: tuple[Any, ...]) -> Described:
        members = {_plain(value): value for value in values if isinstance(value, enum.Enum)}
        listed = [_plain(value) for value in values]
        return Described(_listed(listed), (lambda value: members.get(value, value)) if members else None)

    def _union(self, args: tuple[Any, ...]) -> Described:
        members = [self.of(one) for one in args]
        kinds = [member.schema.get("type") for member in members]
        if all(set(member.schema) == {"type"} for member in members) and not {"object", "array"} & {*kinds}:
            return Described({"type": kinds})
        schema = {"anyOf": [member.schema for member in members]}
        return Described(schema, self._read_union(members) if any(member.read for member in members) else None)

    def _read_union(self, members: list[Described]) -> Read:
        """A maker of values by the first member that a JSON value fits."""
        from oxillama.chat.arguments import faults  # grammars of patterns, which only values need

        def read(value: Any) -> Any:
            for schema, own in members:
                if next(faults({**schema, "$defs": self.definitions}, value), None) is None:
                    return own(value) if own else value
            return value

        return read

    def _container(self, annotation: Any, origin: Any, args: tuple[Any, ...]) -> Described | None:
        kind = origin or annotation
        if kind in _LISTS:
            return self._items(args, None)
        if kind in _SETS:
            return self._items(args, frozenset if kind in (frozenset, collections.abc.Set) else set)
        if kind is tuple:
            return self._tuple(args)
        return self._dict(args) if kind in _DICTS else None

    def _items(self, args: tuple[Any, ...], make: Read | None) -> Described:
        if not args or args == (Any,):
            return Described({"type": "array"}, make)
        inner, own = self.of(args[0])
        schema = {"type": "array", "items": inner}
        if own is None:
            return Described(schema, make)
        return Described(schema, lambda value: (make or list)([own(item) for item in value]))

    def _tuple(self, args: tuple[Any, ...]) -> Described:
        if not args or args[1:] == (...,):
            return self._items(args[:1], tuple)
        members = [self.of(one) for one in args if one != ()]
        schema = {"type": "array", "prefixItems": [member.schema for member in members], "items": False}
        bounds = {"minItems": len(members), "maxItems": len(members)}

        def read(value: Any) -> Any:
            return tuple(own(item) if own else item for item, (_, own) in zip(value, members, strict=False))

        return Described({**schema, **bounds}, read)

    def _dict(self, args: tuple[Any, ...]) -> Described:
        if not args:
            return Described({"type": "object"})
        if args[0] is not str:
            raise NotDescribed(f"keys of JSON objects are text, so that it must be dict[str, ...], not {args[0]!r:.60}")
        inner, own = self.of(args[1])
        schema = {"type": "object", "additionalProperties": inner or True}
        return Described(schema, None if own is None else lambda value: {k: own(v) for k, v in value.items()})

    # ---- classes

    def _class(self, kind: Any) -> Described:
        if not isinstance(kind, type):
            raise NotDescribed(f"{kind!r:.80} has no form in JSON")
        if issubclass(kind, enum.Enum) and not issubclass(kind, enum.Flag):
            return _enum(kind)
        if hasattr(kind, "model_json_schema"):  # of pydantic
            return self._model(kind)
        if dataclasses.is_dataclass(kind):
            return self._fields(kind, _data_fields(kind), lambda values: kind(**values))
        if typing.is_typeddict(kind):
            hints = _hints(kind)
            needed: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
            fields = {name: (hint, name in needed, ...) for name, hint in hints.items()}
            return self._fields(kind, fields, None)
        raise NotDescribed(f"{kind.__name__} has no form in JSON")

    def _fields(self, kind: Any, fields: Mapping[str, tuple[Any, bool, Any]], make: Read | None) -> Described:
        """A class of fields, of each its annotation, whether it is needed, and its default; `...` for none."""
        name = kind.__name__
        if kind in self._open:
            self._recursive[name] = kind
            return Described({"$ref": f"#/$defs/{name}"}, lambda value: self._again(kind, value))
        if self._recursive.get(name, kind) is not kind:
            raise NotDescribed(f"two classes that contain themselves have the name {name}")
        self._open.append(kind)
        made = {key: (self.of(hint), needed, default) for key, (hint, needed, default) in fields.items()}
        self._open.pop()
        schema = object_schema({key: with_default(one.schema, default) for key, (one, _, default) in made.items()},
                               [key for key, (_, needed, _) in made.items() if needed])  # fmt: skip
        if text := first_paragraph(_own_doc(kind)):
            schema = {"description": text, **schema}
        reads = {key: one.read for key, (one, _, _) in made.items() if one.read}
        read = _read_fields(reads, make) if reads or make else None
        self._reads[kind] = read
        if self._recursive.get(name) is kind:
            self.definitions[name] = schema
            schema = {"$ref": f"#/$defs/{name}"}
        return Described(schema, read)

    def _again(self, kind: Any, value: Any) -> Any:
        read = self._reads[kind]
        return read(value) if read else value

    def _model(self, kind: Any) -> Described:
        schema = dict(kind.model_json_schema())
        self.definitions.update(schema.pop("$defs", {}))
        return Described(schema, kind.model_validate)


def object_schema(properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    """The schema of an object with these properties and no others."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    return {**schema, **({"required": list(required)} if required else {}), "additionalProperties": False}


def with_default(schema: Schema, default: Any) -> Schema:
    """A schema that names the default, if that has a form in JSON. default: `...` for none."""
    if default is ...:
        return schema
    try:
        default = _plain(default) if isinstance(default, enum.Enum) else default
        return {**schema, "default": json.loads(json.dumps(default, allow_nan=False))}
    except (TypeError, ValueError, RecursionError):
        return schema


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, in one line, up to what it says of parameters."""
    found = []
    for line in (text or "").strip().splitlines():
        if not line.strip() or _PARAMETERS.match(line.strip()):
            break
        found.append(line.strip())
    return " ".join(found)


def _own_doc(kind: Any) -> str | None:
    """The docstring that a class was given; dataclasses without one get that of their fields."""
    text: str | None = kind.__doc__ if kind.__doc__ is not dict.__doc__ else None
    return None if text is None or text.startswith(f"{kind.__name__}(") else text


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception as error:  # whatever evaluating an annotation raises
        raise NotDescribed(f"the annotations of {kind.__name__} can't be read: {error}") from None


def _data_fields(kind: Any) -> dict[str, tuple[Any, bool, Any]]:
    hints, found = _hints(kind), {}
    for one in dataclasses.fields(kind):
        if one.init:
            needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            found[one.name] = hints[one.name], needed, ... if one.default is dataclasses.MISSING else one.default
    return found


def _read_fields(reads: Mapping[str, Read], make: Read | None) -> Read:
    def read(value: Mapping[str, Any]) -> Any:
        values = {key: reads[key](one) if key in reads else one for key, one in value.items()}
        return make(values) if make else values

    return read


def _plain(value: Any) -> Any:
    """A value of a Literal as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str | int | float | None) else value.name
    if not isinstance(value, str | int | None):
        raise NotDescribed(f"the literal {value!r:.60} has no form in JSON")
    return value


def _enum(kind: type[enum.Enum]) -> Described:
    """Values of the members, if all of them have a form in JSON, else their names."""
    members = list(kind)
    plain = all(isinstance(one.value, str | int | float) for one in members)
    known = {one.value if plain else one.name: one for one in members}
    if not known:
        raise NotDescribed(f"{kind.__name__} has no members")
    return Described(_listed(list(known)), known.__getitem__)


def _listed(values: list[Any]) -> Schema:
    """The schema of one of these values."""
    kinds = {type(value) for value in values}
    kind = _SCALARS.get(kinds.pop()) if len(kinds) == 1 else None
    return {**({"type": kind} if kind else {}), "enum": values}
