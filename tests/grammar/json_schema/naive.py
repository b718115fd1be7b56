"""A validator of JSON schemas, for comparison: without references, formats and annotations."""

import re
from fractions import Fraction

TYPES = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: isinstance(v, int | float) and not isinstance(v, bool) and v == int(v),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def exact(number):
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def equal(a, b):
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if TYPES["number"](a) and TYPES["number"](b):
        return exact(a) == exact(b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def is_valid(value, schema):
    if isinstance(schema, bool):
        return schema
    return all(CHECKS[keyword](value, schema[keyword], schema) for keyword in schema if keyword in CHECKS)


def of(kind, check):
    """A check that other types pass."""
    return lambda value, argument, schema: not TYPES[kind](value) or check(value, argument, schema)


def additional(value, argument, schema):
    named = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    others = [k for k in value if k not in named and not any(re.search(p, k) for p in patterns)]
    return all(is_valid(value[k], argument) for k in others)


def contains(value, argument, schema):
    count = sum(is_valid(item, argument) for item in value)
    return schema.get("minContains", 1) <= count <= schema.get("maxContains", count)


def branches(value, argument, schema):
    way = "then" if is_valid(value, argument) else "else"
    return is_valid(value, schema.get(way, True))


CHECKS = {
    "type": lambda v, a, s: any(TYPES[t](v) for t in ([a] if isinstance(a, str) else a)),
    "enum": lambda v, a, s: any(equal(v, x) for x in a),
    "const": lambda v, a, s: equal(v, a),
    "minimum": of("number", lambda v, a, s: exact(v) >= exact(a)),
    "maximum": of("number", lambda v, a, s: exact(v) <= exact(a)),
    "exclusiveMinimum": of("number", lambda v, a, s: exact(v) > exact(a)),
    "exclusiveMaximum": of("number", lambda v, a, s: exact(v) < exact(a)),
    "multipleOf": of("number", lambda v, a, s: (exact(v) / exact(a)).denominator == 1),
    "minLength": of("string", lambda v, a, s: len(v) >= a),
    "maxLength": of("string", lambda v, a, s: len(v) <= a),
    "pattern": of("string", lambda v, a, s: bool(re.search(a, v))),
    "minItems": of("array", lambda v, a, s: len(v) >= a),
    "maxItems": of("array", lambda v, a, s: len(v) <= a),
    "prefixItems": of("array", lambda v, a, s: all(map(is_valid, v, a))),
    "items": of("array", lambda v, a, s: all(is_valid(x, a) for x in v[len(s.get("prefixItems", ())) :])),
    "contains": of("array", contains),
    "uniqueItems": of("array", lambda v, a, s: not a or not any(equal(x, y) for i, x in enumerate(v) for y in v[:i])),
    "properties": of("object", lambda v, a, s: all(is_valid(v[k], a[k]) for k in a if k in v)),
    "patternProperties": of(
        "object", lambda v, a, s: all(is_valid(v[k], a[p]) for p in a for k in v if re.search(p, k))
    ),
    "additionalProperties": of("object", additional),
    "propertyNames": of("object", lambda v, a, s: all(is_valid(k, a) for k in v)),
    "required": of("object", lambda v, a, s: all(k in v for k in a)),
    "minProperties": of("object", lambda v, a, s: len(v) >= a),
    "maxProperties": of("object", lambda v, a, s: len(v) <= a),
    "dependentRequired": of("object", lambda v, a, s: all(r in v for k in a if k in v for r in a[k])),
    "dependentSchemas": of("object", lambda v, a, s: all(is_valid(v, a[k]) for k in a if k in v)),
    "allOf": lambda v, a, s: all(is_valid(v, x) for x in a),
    "anyOf": lambda v, a, s: any(is_valid(v, x) for x in a),
    "oneOf": lambda v, a, s: sum(is_valid(v, x) for x in a) == 1,
    "not": lambda v, a, s: not is_valid(v, a),
    "if": branches,
}
