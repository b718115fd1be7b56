"""Negation of schemas: for every keyword, the ways for it not to hold, as a fork."""

from collections.abc import Callable, Iterable
from typing import Any

from oxillama.grammar.json_schema.checks import counted, flagged, listed, mapped, names, type_mask
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.drafts import FOREIGN
from oxillama.grammar.json_schema.formats import FORMATS, REFUSED
from oxillama.grammar.json_schema.literals import ALL, ARRAY, NUMBER, OBJECT, STRING, Literal
from oxillama.grammar.json_schema.synthetic import absent, composite, excluded, made, present

__all__ = ["alternatives"]

Ways = list[list[Literal]]


def alternatives(documents: Documents, literal: Literal) -> Ways:
    """The ways not to meet a schema (an object). Raises GrammarError for malformed keywords."""
    schema = literal.schema
    key = ("ways", id(schema), literal.base)
    if key in documents.made:
        return documents.made[key]  # type: ignore[no-any-return]
    ways: Ways = []
    # Keywords beside a reference are left out if a draft may ignore them: fewer values remain then, all of them valid.
    keywords = ["$ref"] if "$ref" in schema and documents.draft != 2020 else list(schema)
    foreign = FOREIGN[documents.draft] if "\0types" not in schema else ()
    for keyword in keywords:
        handler = HANDLERS.get(keyword)
        if handler is not None and keyword not in foreign:
            ways += handler(documents, literal, keyword)
    documents.made[key] = ways
    return ways


# ---- one function for each keyword: the ways not to meet it


def _type(documents: Documents, literal: Literal, keyword: str) -> Ways:
    mask, integer = type_mask(literal)
    ways = [[made(documents, literal, keyword, {"\0types": ALL & ~mask})]]
    if integer:
        ways.append([made(documents, literal, keyword, {"\0types": NUMBER, "\0fractional": True}, "fractional")])
    return ways


def _types(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [[made(documents, literal, keyword, {"\0types": ALL & ~literal.schema[keyword]})]]


def _enum(documents: Documents, literal: Literal, keyword: str) -> Ways:
    values = [literal.schema["const"]] if keyword == "const" else listed(literal, keyword)
    way = [made(documents, literal, keyword, excluded(literal, keyword, values))]
    for i, value in enumerate(values):
        if isinstance(value, dict | list):
            whole = made(documents, literal, keyword, composite(value), i)
            way.append(whole.of_sign(False))
    return [way]


def _opposite(types: int, other: str, step: int = 0) -> Callable[[Documents, Literal, str], Ways]:
    """A limit whose opposite is another one; counts are off by `step`."""

    def ways(documents: Documents, literal: Literal, keyword: str) -> Ways:
        value = counted(literal, keyword) + step if step else literal.schema[keyword]
        if types == NUMBER and (
            value is True or literal.schema.get(f"exclusive{keyword[0].upper()}{keyword[1:]}") is True
        ):
            return _refuse(NUMBER)(documents, literal, keyword) if keyword[0] == "m" else []
        if step and value < 0:
            return []
        return [[made(documents, literal, keyword, {"\0types": types, other: value})]]

    return ways


def _format(documents: Documents, literal: Literal, keyword: str) -> Ways:
    name = literal.schema[keyword]
    if not isinstance(name, str) or name not in FORMATS:
        return _refuse(STRING)(documents, literal, keyword) if name in REFUSED else []
    return [[made(documents, literal, keyword, {"\0types": STRING, "\0!format": name})]]


def _required(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [[absent(documents, literal, name, OBJECT)] for name in names(literal, keyword)]


def _properties(documents: Documents, literal: Literal, keyword: str) -> Ways:
    ways = []
    for name, schema in mapped(literal, keyword).items():
        if schema is not True:
            body = {"\0types": OBJECT, "required": [name], "properties": {name: {"not": schema}}}
            ways.append([made(documents, literal, keyword, body, name)])
    return ways


def _prefix(documents: Documents, literal: Literal, keyword: str) -> Ways:
    ways = []
    for i, schema in enumerate(listed(literal, keyword)):
        if schema is not True:
            body = {"\0types": ARRAY, "minItems": i + 1, "prefixItems": [*[True] * i, {"not": schema}]}
            ways.append([made(documents, literal, keyword, body, i)])
    return ways


def _items(documents: Documents, literal: Literal, keyword: str) -> Ways:
    schema = literal.schema
    if isinstance(schema[keyword], list):
        return _prefix(documents, literal, keyword)
    prefix = schema.get("prefixItems", ()) if keyword == "items" else schema.get("items")
    if schema[keyword] is True or not isinstance(prefix, list | tuple):
        return []
    if schema[keyword] is False:
        return [[made(documents, literal, keyword, {"\0types": ARRAY, "minItems": len(prefix) + 1})]]
    body = {"\0types": ARRAY, "\0some": (len(prefix), {"not": schema[keyword]})}
    return [[made(documents, literal, keyword, body)]]


def _contains(documents: Documents, literal: Literal, keyword: str) -> Ways:
    schema = literal.schema
    least = counted(literal, "minContains") if "minContains" in schema else 1
    least = min(least, 1) if documents.early and "\0types" not in schema else least
    base = {"\0types": ARRAY, "contains": schema[keyword]}
    ways = []
    if least > 0:
        fewer = base | {"minContains": 0, "maxContains": least - 1}
        ways.append([made(documents, literal, keyword, fewer, "fewer")])
    if "maxContains" in schema and (not documents.early or "\0types" in schema):
        more = base | {"minContains": counted(literal, "maxContains") + 1}
        ways.append([made(documents, literal, keyword, more, "more")])
    return ways


def _refuse(types: int) -> Callable[[Documents, Literal, str], Ways]:
    """A keyword whose opposite can't be expressed: an error, if its types are still allowed."""

    def ways(documents: Documents, literal: Literal, keyword: str) -> Ways:
        value = literal.schema[keyword]
        if not flagged(literal, keyword) if keyword == "uniqueItems" else value in (True, {}):
            return []
        return [[made(documents, literal, keyword, {"\0types": types, "\0refuse": keyword})]]

    return ways


def _property(key: Any, value: Any, besides: Iterable[str] = ()) -> dict[str, Any]:
    """A schema for objects with a property whose name meets one schema, and whose value doesn't meet another. besides:
    excluded names."""
    value = True if value is False else {"not": value}
    return {"\0types": OBJECT, "\0property": (key, value, frozenset(besides))}


def _additional(documents: Documents, literal: Literal, keyword: str) -> Ways:
    schema = literal.schema
    if schema[keyword] is True or schema[keyword] == {}:
        return []
    named = list(mapped(literal, "properties")) if "properties" in schema else []
    patterns = mapped(literal, "patternProperties") if "patternProperties" in schema else {}
    key: dict[str, Any] = {"allOf": [{"not": {"pattern": pattern}} for pattern in patterns]}
    if named:
        key["not"] = {"enum": named}
    return [[made(documents, literal, keyword, _property(key, schema[keyword], named))]]


def _pattern_properties(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [
        [made(documents, literal, keyword, _property({"pattern": pattern}, schema), pattern)]
        for pattern, schema in mapped(literal, keyword).items()
        if schema is not True
    ]


def _property_names(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [[made(documents, literal, keyword, _property({"not": literal.schema[keyword]}, False))]]


def _all(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [[literal.sub(s, keyword, i, positive=False)] for i, s in enumerate(listed(literal, keyword))]


def _any(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [[literal.sub(s, keyword, i, positive=False) for i, s in enumerate(listed(literal, keyword))]]


def _one(documents: Documents, literal: Literal, keyword: str) -> Ways:
    each = [literal.sub(s, keyword, i) for i, s in enumerate(listed(literal, keyword))]
    pairs = [[a, b] for i, a in enumerate(each) for b in each[i + 1 :]]
    return [[s.of_sign(False) for s in each], *pairs]


def _not(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [[literal.sub(literal.schema[keyword], keyword)]]


def _if(documents: Documents, literal: Literal, keyword: str) -> Ways:
    schema = literal.schema
    test = literal.sub(schema["if"], "if")
    ways = []
    if "then" in schema:
        ways.append([test, literal.sub(schema["then"], "then", positive=False)])
    if "else" in schema:
        ways.append([test.of_sign(False), literal.sub(schema["else"], "else", positive=False)])
    return ways


def _dependent(documents: Documents, literal: Literal, keyword: str) -> Ways:
    ways = []
    for name, schema in mapped(literal, keyword).items():
        here = present(documents, literal, name)
        if isinstance(schema, list):
            names(literal.of_schema({keyword: schema}), keyword)
            ways += [[here, absent(documents, literal, other)] for other in schema]
        else:
            ways.append([here, literal.sub(schema, keyword, name, positive=False)])
    return ways


def _ref(documents: Documents, literal: Literal, keyword: str) -> Ways:
    return [[documents.resolve(literal, keyword)]]


HANDLERS: dict[str, Callable[[Documents, Literal, str], Ways]] = {
    "type": _type,
    "\0types": _types,
    "enum": _enum,
    "const": _enum,
    "minimum": _opposite(NUMBER, "exclusiveMaximum"),
    "maximum": _opposite(NUMBER, "exclusiveMinimum"),
    "exclusiveMinimum": _opposite(NUMBER, "maximum"),
    "exclusiveMaximum": _opposite(NUMBER, "minimum"),
    "multipleOf": _opposite(NUMBER, "\0!multipleOf"),
    "minLength": _opposite(STRING, "maxLength", -1),
    "maxLength": _opposite(STRING, "minLength", 1),
    "pattern": _opposite(STRING, "\0!pattern"),
    "format": _format,
    "minItems": _opposite(ARRAY, "maxItems", -1),
    "maxItems": _opposite(ARRAY, "minItems", 1),
    "prefixItems": _prefix,
    "items": _items,
    "additionalItems": _items,
    "contains": _contains,
    "uniqueItems": _refuse(ARRAY),
    "unevaluatedItems": _refuse(ARRAY),
    "required": _required,
    "properties": _properties,
    "minProperties": _opposite(OBJECT, "maxProperties", -1),
    "maxProperties": _opposite(OBJECT, "minProperties", 1),
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "unevaluatedProperties": _refuse(OBJECT),
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _if,
    "dependentRequired": _dependent,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
    "$ref": _ref,
    "$dynamicRef": _ref,
}
