"""Random schemas, and texts that their grammars for generating allow.

More than the tests have time for: `python -m tests.grammar.json_schema.generated`.

Each text must be an instance (`jsonschema` where it is installed, and the validator of these tests where it knows all
of a schema), be accepted by the grammar of all instances, and have finite numbers. Where there are instances at all,
there is one to generate.
"""

import argparse
import json
import math
from collections import Counter
from decimal import Decimal, localcontext
from random import Random

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from tests.fuzz.targets.walks import text_of
from tests.grammar.json_schema.naive import is_valid

try:
    from jsonschema import Draft202012Validator
except ImportError:
    Draft202012Validator = None

NAMES = ("a", "b", "cc", "é")
TEXTS = ("", "a", "b", "ab", 'q"\\', "é😀", "a/b\n")
NUMBERS = (-3, 0, 1, 1.5, 2, 2.5, 10, 1e-7, 150, 10**19, 1e22, -(10**20), 0.01, 1e300, -1e-300)
SCALARS = (None, True, False, *NUMBERS, 1.0, 15, -0.0, *TEXTS)
PATTERNS = ("a", "^a", "b$", "^[ab]*$", "^(a|é)", "^.{2,3}$", "[^a]")
FORMATS = ("date", "time", "date-time", "duration", "uuid", "ipv4")
LIMITS = {
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"),
    "object": (
        "properties", "properties", "properties", "required", "additionalProperties", "patternProperties",
        "minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas",
        "unevaluatedProperties",
    ),
    "boolean": (),
    "null": (),
}  # fmt: skip
KINDS = tuple(LIMITS)


class Maker:
    """Makes schemas of one source of chance."""

    def __init__(self, draw):
        self.draw = draw

    def root(self):
        found = self.schema(0)
        if isinstance(found, dict) and "#/$defs/d" in json.dumps(found):
            found["$defs"] = {"d": self.typed(self.draw.choice(KINDS), 2)}
        return found

    def schema(self, depth):
        draw = self.draw
        way = draw.random()
        if depth > 3 or way < 0.08:
            return draw.choice((True, {}, {"type": draw.choice(KINDS)}, {"type": ["integer", "null"]}))
        if way < 0.16:
            return draw.choice(({"const": self.value(0)}, {"enum": [self.value(0) for _ in range(draw.randint(1, 4))]}))
        if way < 0.2:
            return {"$ref": "#/$defs/d"}
        if way < 0.4:
            return self.combined(depth)
        return self.typed(draw.choice((*KINDS, "object", "object", "integer", "number")), depth)

    def value(self, depth):
        way = self.draw.random()
        if depth > 1 or way < 0.7:
            return self.draw.choice(SCALARS)
        if way < 0.85:
            return [self.value(depth + 1) for _ in range(self.draw.randint(0, 3))]
        return {name: self.value(depth + 1) for name in self.draw.sample(NAMES, self.draw.randint(0, 3))}

    def combined(self, depth):
        keyword = self.draw.choice(("allOf", "anyOf", "oneOf", "not", "if"))
        if keyword == "not":
            return {"not": self.schema(depth + 1), **self.typed(self.draw.choice(KINDS), depth + 1)}
        if keyword == "if":
            return {k: self.schema(depth + 2) for k in ("if", "then", "else") if k == "if" or self.draw.random() < 0.7}
        found = {keyword: [self.schema(depth + 1) for _ in range(self.draw.randint(1, 3))]}
        return found | self.typed("object", depth + 1) if self.draw.random() < 0.4 else found

    def typed(self, kind, depth):
        found = {"type": kind}
        known = LIMITS[kind]
        for keyword in self.draw.sample(known, min(len(known), self.draw.choice((0, 1, 1, 2, 3)))):
            found[keyword] = self.argument(keyword, depth)
        return found

    def argument(self, keyword, depth):
        draw = self.draw
        if keyword == "multipleOf":
            return draw.choice((1, 2, 3, 0.5, 0.01, 1024, 7))
        if keyword.endswith(("imum",)):
            return draw.choice(NUMBERS)
        if keyword in ("items", "contains", "additionalProperties", "unevaluatedProperties"):
            return self.schema(depth + 1) if draw.random() < 0.7 else draw.random() < 0.5
        if keyword == "propertyNames":
            return {"pattern": draw.choice(PATTERNS)}
        if keyword == "uniqueItems":
            return False
        if keyword == "prefixItems":
            return [self.schema(depth + 1) for _ in range(draw.randint(1, 2))]
        if keyword in ("properties", "dependentSchemas"):
            return {name: self.schema(depth + 1) for name in draw.sample(NAMES, draw.randint(0, 3))}
        if keyword == "patternProperties":
            return {draw.choice(PATTERNS): self.schema(depth + 1)}
        if keyword == "required":
            return draw.sample(NAMES, draw.randint(1, 2))
        if keyword == "dependentRequired":
            return {draw.choice(NAMES): [draw.choice(NAMES)]}
        return draw.choice({"pattern": PATTERNS, "format": FORMATS}.get(keyword, (0, 1, 2, 3)))


def grammars(schema):
    """The narrow grammar of a schema and the wide one; None where it has no instances, or can't be honoured."""
    try:
        wide = JsonSchemaCompiler.compile(schema)
    except GrammarError:
        return None
    return JsonSchemaCompiler.compile(schema, mode="generate"), wide


def without_twice(pairs):
    found = dict(pairs)
    assert len(found) == len(pairs), "a name twice"
    return found


def has(schema, *keywords):
    text = json.dumps(schema)
    return any(f'"{keyword}"' in text for keyword in keywords)


def check(text, schema, wide):
    """Raises AssertionError for a text that is none of the schema."""
    assert wide.accepts(text), "the grammar of all instances refuses it"
    digits = []
    value = json.loads(text, parse_float=lambda number: digits.append(number) or float(number))
    assert all(math.isfinite(float(number)) for number in digits)
    assert json.loads(json.dumps(value)) == value
    # That one takes formats for annotations, so that nothing follows from their opposites; and divides floats.
    if Draft202012Validator is not None and not (has(schema, "format") and has(schema, "not", "oneOf", "if")):
        described = json.loads(json.dumps(schema), parse_float=Decimal)
        with localcontext() as context:
            context.prec = 1000
            error = next(Draft202012Validator(described).iter_errors(json.loads(text, parse_float=Decimal)), None)
            assert error is None, error
    exact = all(Decimal(number) == Decimal(repr(float(number))) for number in digits)
    if exact and not has(schema, "$ref", "format", "unevaluatedProperties"):
        assert is_valid(value, schema)


def run(seed, n_texts):
    """(schemas with texts, texts checked, most keywords) of random schemas, from a seed."""
    draw = Random(seed)
    maker, counts = Maker(draw), Counter()
    while counts["texts"] < n_texts:
        schema = maker.root()
        counts["schemas"] += 1
        found = grammars(schema)
        if found is None:
            counts["without instances, or refused"] += 1
            continue
        for _ in range(3):
            raw = text_of(found[0], draw)
            if raw is None:
                counts["no end in time"] += 1
                continue
            try:
                check(raw.decode(), schema, found[1])
            except AssertionError as error:
                raise AssertionError(f"{json.dumps(schema)}: {raw.decode()}: {error}") from error
            counts["texts"] += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"checked by {'jsonschema and ' if Draft202012Validator else ''}the tests' own validator")
    print(dict(run(given.seed, given.texts)))
