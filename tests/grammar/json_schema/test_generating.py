"""Mode "generate": a narrow spelling of numbers and listed values, closed objects, all of it valid."""

import json
import math
import re
import sys
from decimal import Decimal
from itertools import permutations
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from tests.fuzz.targets.walks import text_of
from tests.grammar.json_schema.generated import run

LONG = 2**63


def generating(schema, **options):
    return JsonSchemaCompiler.compile(schema, mode="generate", **options)


ACCEPTED = [
    ({"type": "integer"}, "0 -1 15 9223372036854775807 -9223372036854775808"),
    ({"type": "integer", "minimum": 0, "maximum": 150}, "0 7 150"),
    ({"type": "integer", "minimum": 10**25}, f"{10**25} {10**26}"),
    ({"type": "integer", "exclusiveMinimum": 10**25 - 1}, f"{10**25} {10**25 + 1}"),
    ({"type": "integer", "maximum": -(10**25)}, f"{-(10**25)} {-(10**25) - 1}"),
    ({"type": "integer", "maximum": 10**25}, f"{10**25} -5"),
    ({"type": "integer", "multipleOf": 10**25}, f"0 {10**25} {-3 * 10**25}"),
    ({"type": "integer", "multipleOf": 1024}, "0 1024 -2048 999999999999998976"),
    ({"type": "integer", "multipleOf": 1000}, "0 1000 -5000 999999999999999000"),
    ({"type": "number", "multipleOf": 5}, "0 10 -15"),
    ({"enum": [1, 2, 30]}, "1 2 30"),
    ({"enum": [1.0, 2.5, 1e22, 1e-7, 10**20, -0.0]}, f"1.0 2.5 1e+22 1e-07 {10**20} -0.0"),
    ({"const": 15}, "15"),
    ({"type": "integer", "enum": [15.0, 2]}, "15 2"),
    ({"allOf": [{"enum": [1, 2.0]}, {"enum": [2, 1.0]}]}, "1 2.0"),
    ({"type": "number"}, "0 15 15.0 -0.5 1e5 6.02e23 1.5E-7 1e-07 -2e+37 12.50 123456789012345.67 9007199254740993"),
    ({"type": "number", "minimum": 0}, "15 15.0 0.5 0.00001 1e+16 1e-07"),
    ({"type": "number", "minimum": 0, "maximum": 1}, "0 0.95 1 1.0 5e-05"),
    ({"type": "number", "minimum": 1.5e308, "maximum": 1.6e308}, "1.55e+308"),
    ({"type": "number", "minimum": 10**30}, "1e+30 2.5e+37 1e+40"),
    ({"type": "number", "minimum": 1e308}, "1e+308 1.7976931348623157e+308"),
    ({"type": "number", "maximum": -1e308}, "-1e+308 -1.25e+308"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-100}, "1e-100 1.5e-109"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-310}, "1e-310 5e-320"),
    ({"type": "number", "minimum": 5e-324, "maximum": 1e300}, "0.5 1e-37 1e+37"),
    ({"type": "number", "minimum": 10**350}, str(10**350)),
    ({"type": "integer", "maximum": 10**300}, "9223372036854775807 -5"),
    ({"type": "number", "exclusiveMinimum": 10**17 - 1, "exclusiveMaximum": 10**17}, "99999999999999999.5"),
    ({"type": "number", "multipleOf": 0.01}, "0.95 1 1.0 12.50"),
    ({"not": {"type": "integer"}, "type": "number"}, "0.5 -1.25"),
]
REFUSED = [
    ({"type": "integer"}, f"15.0 15.000 1e3 -0 01 {LONG} {-LONG - 1} {'1' * 20} -"),
    ({"type": "integer", "minimum": 0, "maximum": 150}, "151 -1 7.0 1e1"),
    ({"type": "integer", "minimum": 10**25}, f"5 {10**28}"),
    ({"type": "integer", "multipleOf": 1024}, "5 1023 1024.0"),
    ({"type": "integer", "multipleOf": 1000}, f"5 1001 1000.0 {10**19}"),
    ({"type": "integer", "maximum": 10**25}, f"{10**25 + 1} -{'1' * 20}"),
    ({"type": "number", "multipleOf": 5}, "10.0 1e+20"),
    ({"enum": [1, 2, 30]}, "1.0 2.00 3e1 3"),
    ({"enum": [1.0, 2.5, 1e22]}, "1 2.50 10000000000000000000000"),
    ({"const": 15}, "15.0 15.00"),
    ({"type": "integer", "const": 15.0}, "15.0"),
    ({"type": "number"}, f"1e38 1e-38 12e5 1e999 {'1' * 20} 0.{'1' * 21} 1.{'1' * 17} 1. 1e .5 - 00 1e0"),
    ({"type": "number", "minimum": 0}, f"-1 1e+38 1e-38 {'1' * 20} 1.{'1' * 17}"),
    ({"type": "number", "minimum": 10**30}, f"{10**30} {10**30}.0 1e+41"),
    ({"type": "number", "minimum": 1e308}, f"{10**308} 1.8e+308 1e+37"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-100}, f"1e-111 0 0.{'0' * 100}1"),
    ({"type": "number", "minimum": 5e-324, "maximum": 1e300}, f"1e+38 1e-38 5e-324 0 0.5{'0' * 20}"),
    ({"type": "integer", "maximum": 10**300}, f"{10**300} {LONG}"),
    ({"type": "number", "minimum": 0, "maximum": 1}, f"1.1 -0.1 0.{'1' * 21}"),
    ({"type": "number", "multipleOf": 0.01}, "1.101 12.500"),
    ({}, "1e400 11111111111111111111 1.000000000000000000"),
]


@pytest.mark.parametrize(("schema", "texts"), ACCEPTED, ids=str)
def test_numbers_that_may_be_generated(schema, texts):
    narrow, wide = generating(schema), JsonSchemaCompiler.compile(schema)
    for text in texts.split():
        assert narrow.accepts(text), text
        assert wide.accepts(text), text


@pytest.mark.parametrize(("schema", "texts"), REFUSED, ids=str)
def test_numbers_that_may_not_be_generated(schema, texts):
    narrow = generating(schema)
    for text in texts.split():
        assert not narrow.accepts(text), text


@settings(max_examples=60)
@given(st.integers(-(10**21), 10**21) | st.integers(-999, 999), st.integers(0, 10**6), st.booleans())
def test_integers_between_bounds(low, span, is_open):
    high = low + span + 2 * is_open
    names = ("exclusiveMinimum", "exclusiveMaximum") if is_open else ("minimum", "maximum")
    narrow = generating({"type": "integer"} | dict(zip(names, (low, high), strict=True)))
    for value in (low - 1, low, low + 1, (low + high) // 2, high - 1, high, high + 1):
        inside = low < value < high if is_open else low <= value <= high
        assert narrow.accepts(str(value)) == inside
        assert not narrow.accepts(f"{value}.0")


@settings(max_examples=30)
@given(st.integers(1, 60) | st.sampled_from([512, 1000, 3600, 10**6]), st.integers(0, 10**12 - 1))
def test_multiples(step, times):
    """Of up to 18 digits: remainders and the bounds of 64 bits together would take too many states."""
    narrow = generating({"type": "integer", "multipleOf": step})
    for value in (step * times, -step * times, step * times + 1, step * times + step // 2):
        assert narrow.accepts(str(value)) == (value % step == 0)


@pytest.mark.parametrize(("step", "n_digits"), [(499, 11), (997, 5), (1001, 5), (86400, 17)])
def test_multiples_of_large_divisors_end(step, n_digits):
    """As many digits as can be counted beside remainders, and no more than 18."""
    narrow = generating({"type": "integer", "multipleOf": step})
    most = 10**n_digits // step * step
    for value in (0, step, -step, most, -most):
        assert narrow.accepts(str(value))
        assert not narrow.accepts(str(value + 1))
    assert not narrow.accepts(str(10**19 // step * step))


def test_numbers_that_a_large_divisor_must_not_divide():
    narrow = generating({"type": "integer", "not": {"multipleOf": 997}})
    assert narrow.accepts("998")
    assert not narrow.accepts("9970")


@pytest.mark.long
@settings(max_examples=40)
@given(st.integers(-4000, 4000), st.integers(0, 60_000), st.sampled_from([997, 1001, 3999]), st.booleans())
def test_multiples_between_bounds_are_those_that_there_are(low, width, step, is_open):
    below, above = ("exclusiveMinimum", "exclusiveMaximum") if is_open else ("minimum", "maximum")
    schema = {"type": "integer", "multipleOf": step, below: low, above: low + width}
    wanted = {v for v in range(low + is_open, low + width + 1 - is_open) if v % step == 0}
    if not wanted:
        with pytest.raises(GrammarError):
            generating(schema)
        return
    narrow = generating(schema)
    for value in range((low // step - 2) * step, low + width + 2 * step, step):
        assert narrow.accepts(str(value)) == (value in wanted)
        assert not narrow.accepts(f"{value}.0")


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e6, 1e6) | st.floats(width=32))
def test_all_floats_of_32_bits_but_the_greatest_may_be_generated(value):
    assume(math.isfinite(value))
    for schema in ({"type": "number"}, {"type": "number", "minimum": -(10**309)}):
        assert generating(schema).accepts(json.dumps(value)) == (1e-37 <= abs(value) < 1e38 or value == 0)


BOUND = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1e308, -1e308, 5e-324, 1e-310, 1e300])
WINDOW = range(-37, 38)


@settings(max_examples=80)
@given(BOUND, BOUND | st.none(), st.booleans(), st.integers(0, 999))
def test_digits_and_exponents_are_few_where_bounds_leave_room(one, other, is_open, seed):
    """Every interval of floats has numbers of 17 digits in it, unless it is empty."""
    low, high = (one, None) if other is None else sorted((one, other))
    assume(not is_open or low != high)
    assume((low, high) != (sys.float_info.max, None) or not is_open)
    names = ("exclusiveMinimum", "exclusiveMaximum") if is_open else ("minimum", "maximum")
    narrow = generating({"type": "number"} | {n: v for n, v in zip(names, (low, high), strict=True) if v is not None})
    near = {math.floor(math.log10(abs(v))) for v in (low, high) if v}
    draw = Random(seed)
    for _ in range(4):
        text = text_of(narrow, draw, 400).decode()
        value, parts = Decimal(text), text.lstrip("-").partition("e")
        inside = Decimal(repr(low)) < value if is_open else Decimal(repr(low)) <= value
        assert inside
        assert high is None or (value < Decimal(repr(high)) if is_open else value <= Decimal(repr(high)))
        assert math.isfinite(float(text))
        assert len(parts[0].replace(".", "").lstrip("0")) <= 20
        exponent = int(parts[2] or 0)
        assert exponent in WINDOW or any(abs(exponent - e) <= 11 for e in near)


# ---- texts


def test_listed_texts_are_spelled_in_one_way():
    texts = ["é", '"', "a/b", "\n\x01", "😀"]
    narrow = generating({"enum": texts})
    for text in texts:
        assert narrow.accepts(json.dumps(text, ensure_ascii=False))
        assert text.isascii() or not narrow.accepts(json.dumps(text))
    assert not narrow.accepts('"a\\/b"')
    narrow = generating({"properties": {"é": {}}, "required": ["é"]})
    assert narrow.accepts('{"é": 1}')
    assert not narrow.accepts('{"\\u00e9": 1}')
    value = {"b": 1, "a": [1.0, "é\n", {}], "c": {"z": None, "y": True}}
    for schema in ({"const": value}, {"enum": [3, value]}):
        assert generating(schema).accepts(json.dumps(value, ensure_ascii=False))
        assert not generating(schema).accepts(json.dumps(value, ensure_ascii=False, sort_keys=True))


def test_spaces_between_tokens():
    schema = {"properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}}, "type": "object"}
    strict, loose = generating(schema), generating(schema, whitespace="flexible")
    for text, is_strict in (
        ('{"a": [1, 2], "b": {}}', True), ('{"a":[1,2],"b":{}}', False), ('{"a": [1,2], "b":{}}', False),
    ):  # fmt: skip
        assert strict.accepts(text) == is_strict
        assert loose.accepts(text)
    for text in ('{ "a": []}', '{"a":  []}', '{"a" : []}', '{"a": [1 , 2]}', '{"a":\n[]}', '{"a": [] }'):
        assert not strict.accepts(text)
        assert not loose.accepts(text)


def test_formats_have_bounded_numbers_of_digits():
    for name, text in (("date-time", "2020-01-01T00:00:00.{}Z"), ("time", "00:00:00.{}Z"), ("duration", "PT{}S")):
        grammar = generating({"type": "string", "format": name})
        assert grammar.accepts(json.dumps(text.format("123456789")))
        assert not grammar.accepts(json.dumps(text.format("1234567890")))


# ---- objects

A, B = {"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}
OBJECTS = [
    (A, ['{"a": 1}', "{}", "3", '"x"'], ['{"b": 1}', '{"a": 1, "b": 1}']),
    ({"type": "object", "properties": {}}, ["{}"], ['{"a": 1}']),
    ({"type": "object"}, ["{}", '{"a": 1.5, "b": [{}]}'], []),
    (A | {"additionalProperties": True}, ['{"a": 1, "b": "x"}'], ['{"a": 1.0}']),
    (A | {"additionalProperties": {}}, ['{"a": 1, "b": "x"}'], []),
    (A | {"additionalProperties": {"type": "integer"}}, ['{"a": 1, "z": 1}'], ['{"z": 1.0}', '{"z": "x"}']),
    (A | {"unevaluatedProperties": {"type": "null"}}, ['{"a": 1, "z": null}'], ['{"z": 1}']),
    (A | {"unevaluatedProperties": False}, ['{"a": 1}'], ['{"z": 1}']),
    (A | {"required": ["a", "z"]}, ['{"a": 1, "z": [1.5]}'], ['{"a": 1}', '{"a": 1, "z": 1, "y": 1}']),
    (A | {"patternProperties": {"^x": {"type": "null"}}}, ['{"a": 1, "x1": null}'], ['{"y": null}', '{"x": 1}']),
    ({"allOf": [A, B]}, ['{"a": 1, "b": 1}', '{"b": 1}'], ['{"c": 1}']),
    ({"allOf": [A, B], "properties": {"c": {}}}, ['{"c": 1, "a": 1, "b": 1}'], ['{"d": 1}']),
    ({"allOf": [A, {"required": ["z"]}]}, ['{"z": 1}'], ['{"z": 1, "y": 1}']),
    ({"allOf": [A, B | {"additionalProperties": True}]}, ['{"a": 1, "b": 1, "c": 1}'], []),
    ({"anyOf": [A, B | {"required": ["b"]}]}, ['{"a": 1}', '{"b": 1}'], ['{"c": 1}']),
    ({"$ref": "#/$defs/a", **B, "$defs": {"a": A}}, ['{"b": 1, "a": 1}'], ['{"c": 1}']),
    (A | {"minProperties": 2}, None, None),
    (A | {"minProperties": 1, "properties": {"a": {}, "b": {}}}, ['{"b": 1}'], ["{}", '{"c": 1}']),
    ({"type": "object", "properties": {}, "minProperties": 1}, ['{"z": 1}'], ["{}"]),
    (
        {"type": "object", "properties": {"a": {"pattern": "^x$", "maxLength": 0, "type": "string"}, "b": {}},
         "required": ["b"], "minProperties": 2},
        ['{"b": 1, "z": 1}'], ['{"b": 1}', '{"b": 1, "a": 1}'],
    ),
    (A | {"patternProperties": {"^x": False}, "minProperties": 1}, ['{"a": 1}'], ['{"b": 1}', "{}"]),
    (A | {"dependentSchemas": {"a": B}}, ['{"a": 1, "b": 1}', "{}"], ['{"b": 1, "c": 1}', '{"c": 1}']),
    ({"dependentRequired": {"a": ["b"]}, "type": "object"}, ['{"a": 1, "b": 1}', '{"c": 1}'], ['{"a": 1}']),
    (
        {**A, "if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {**B, "required": ["b"]}},
        ['{"a": 1, "b": 2}', '{"a": 2}', "{}"], ['{"a": 1}', '{"a": 1, "b": 2, "c": 3}'],
    ),
    (A | {"not": B, "type": "object"}, ['{"b": "x"}', '{"b": "x", "a": 1}'][:1], ["{}", '{"b": 1}']),
    (A | {"propertyNames": {"maxLength": 1}, "type": "object"}, ['{"a": 1}'], ['{"b": 1}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "passing", "failing"), OBJECTS, ids=lambda v: str(v)[:60])
def test_objects_have_the_properties_that_are_named(schema, passing, failing):
    if passing is None:
        remedy = "might have one name, and names can't be compared: name more in `properties`, or ask for at most "
        with pytest.raises(GrammarError, match=rf"^minProperties at #: two properties .* {remedy}\d+$"):
            generating(schema)
        return
    narrow, wide = generating(schema), JsonSchemaCompiler.compile(schema)
    for text in passing:
        assert narrow.accepts(text), text
        assert wide.accepts(text), text
    for text in failing:
        assert not narrow.accepts(text), text


def named(*names):
    return {"type": "object", "properties": {key: {"type": "null"} for key in names}, "required": list(names)}


ORDERS = [
    ({"$ref": "#/$defs/r", **named("d", "c"), "$defs": {"r": named("b", "a")}}, "dcba"),
    ({**named("d", "c"), "allOf": [named("b"), {"$ref": "#/$defs/r"}], "$defs": {"r": named("a", "c")}}, "dcba"),
    ({"allOf": [{"$ref": "#/$defs/r"}, {"allOf": [named("c")]}, named("a")], "$defs": {"r": named("d", "b")}}, "dbca"),
    ({"$ref": "#/$defs/r", "allOf": [named("c"), named("b")], "$defs": {"r": named("d", "a")}}, "dacb"),
    ({"anyOf": [named("a")], **named("c", "b")}, "cba"),
    ({**named("b", "c"), "if": {}, "then": named("a")}, "bca"),
    ({"allOf": [named("b"), named("a")], "minProperties": 2}, "ba"),
]


@pytest.mark.parametrize(("schema", "order"), ORDERS, ids=[order for _, order in ORDERS])
def test_properties_of_several_schemas_have_one_order(schema, order):
    narrow = generating(schema)
    for found in permutations(order):
        assert narrow.accepts(json.dumps(dict.fromkeys(found))) == ("".join(found) == order)


def test_inner_objects_are_closed_too():
    schema = {"type": "array", "items": {"properties": {"p": A | {"type": "object"}}, "type": "object"}}
    narrow = generating(schema)
    assert narrow.accepts('[{"p": {"a": 1}}]')
    assert not narrow.accepts('[{"p": {"a": 1, "b": 1}}]')
    assert not narrow.accepts('[{"q": {}}]')


# ---- whatever the schema


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(5))
def test_texts_of_random_schemas_are_instances(seed):
    counts = run(seed, 120)
    assert counts["schemas"] > 30


def test_full_is_the_default_and_others_are_refused():
    assert JsonSchemaCompiler.compile({"type": "integer"}).accepts("15.0")
    assert JsonSchemaCompiler.compile(A, mode="full").accepts('{"b": 1}')
    with pytest.raises(GrammarError, match=re.escape("mode must be one of generate, full, not 'narrow'")):
        JsonSchemaCompiler.compile({}, mode="narrow")


def test_both_modes_beside_each_other():
    """What is kept for schemas to come is kept for each mode."""
    for schema in ({"type": "integer", "maximum": 9}, {"type": "array"}, {}):
        for _ in range(2):
            wide, narrow = JsonSchemaCompiler.compile(schema), generating(schema)
            text = "1.0" if schema.get("type") == "integer" else "[1e400]"
            assert wide.accepts(text)
            assert not narrow.accepts(text)
