"""`JsonSchemaCompiler`: the instances of each keyword, their spelling, and refusals with their place."""

import json
from collections import OrderedDict

import pytest

import oxillama as ox
from oxillama.errors import GrammarError

compile_schema = ox.JsonSchemaCompiler.compile


def check(schema, passing, failing, **options):
    """Accepts and rejects values, as `json.dumps` writes them; texts are taken as they are."""
    grammar = compile_schema(schema, **options)
    for expected, values in ((True, passing), (False, failing)):
        for value in values:
            texts = (
                [value[1]] if isinstance(value, tuple) else [json.dumps(value, ensure_ascii=a) for a in (True, False)]
            )
            for text in texts:
                assert grammar.accepts(text) == expected, text


def text(value):
    return ("text", value)


# ---- how it is written


def test_whitespace_is_that_of_json_dumps_unless_any_is_asked_for():
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    check(schema, [text('{"a": [1, 2], "b": {}}')], [text('{"a":[1, 2]}'), text('{ "a": [1, 2]}'), text(' {"a": [1]}')])
    loose = [text('{"a":[1,2]}'), text('{ "a" :\n\t[ 1 , 2 ] , "b":{ } }'), text('{"a": [1, 2]}')]
    check(schema, loose, [text("{'a': [1]}")], whitespace="flexible")


def test_strings_may_be_spelled_with_or_without_ascii_escapes():
    for schema in (
        {"const": "é😀\n\x7f"},
        {"pattern": "^é.\n\x7f$"},
        {"type": "string", "maxLength": 4},
        {"enum": [1, "é😀\n\x7f"]},
    ):
        check(schema, ["é😀\n\x7f"], ["é😀\n\x7fab"])
    check({"properties": {"é": {"type": "null"}}}, [{"é": None}, {"e": 1}], [{"é": 1}, text('{"\\u00E9": 1}')])


def test_lengths_count_characters():
    check({"minLength": 2, "maxLength": 2}, ["ab", "é😀", "😀😀", '"\\'], ["a", "😀", "abc"])
    check(
        {"maxLength": 1}, [text('"\\ud83d\\ude00"'), text('"\\uD83D\\uDE00"')], [text('"\\ud83d"'), text('"\\ude00"')]
    )


def test_order_of_properties_is_that_of_the_schema_and_others_stand_anywhere():
    schema = {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]}
    check(schema, [{"a": 1, "b": 2}, {"b": 1, "c": 2}, {"x": 1, "a": 1, "y": 1, "b": 1}], [{"b": 1, "a": 2}, {"a": 1}])
    check(schema | {"additionalProperties": False}, [{"a": 1, "b": 2, "c": 3}], [{"b": 1, "x": 1}, {"c": 1, "b": 1}])


def test_properties_of_several_schemas_may_mix():
    schema = {"allOf": [{"properties": {"a": {}, "b": {}}}, {"properties": {"c": {}, "d": {}}}], "required": ["e"]}
    passing = [dict.fromkeys("abcde", 1), dict.fromkeys("ecadb", 1), dict.fromkeys("ace", 1)]
    check(schema, passing, [dict.fromkeys("bae", 1), dict.fromkeys("dce", 1), dict.fromkeys("abcd", 1)])


def test_a_schema_may_be_text():
    check('{"type": "integer"}', [1], ["a"])
    check("true", [1, "a"], [])


# ---- values


def test_numbers_are_compared_exactly():
    check(
        {"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.3}, [0.1, 0.2, 0.29999999], [0.3, 0.09, 0, 1e-7, 1e300]
    )
    check({"type": "integer"}, [0, -5, 10**30, 1.0, 1e300, -0.0], [1.5, 1e-7, text("-0"), text("01"), text("1.")])
    check({"minimum": 10**20, "type": "integer"}, [10**20, 1e20, 1e300], [10**20 - 1, 9.9e19])
    check({"type": "number", "maximum": 1e-7}, [1e-7, 5e-8, 0, -1], [1.1e-7, 1e-6])
    check({"multipleOf": 0.01, "type": "number"}, [1.5, 0.07, 10, -3.25], [0.001, 1.005])
    check({"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 1000}, [14, 994.0], [7, 15, 1001])
    check({"const": 1}, [1, 1.0], [True, 2, "1"])
    check({"enum": [1e20, 0]}, [10**20, 1e20, 0, -0.0], [1e21])


def test_enumerated_objects_have_no_order():
    check({"const": {"a": 1, "b": [1, {}]}}, [{"a": 1.0, "b": [1, {}]}, {"b": [1, {}], "a": 1}], [{"a": 1}, {}])
    check({"not": {"const": [1, 2]}}, [[1], [1, 2, 3], [2, 2], 1], [[1, 2], [1.0, 2]])


@pytest.mark.parametrize(
    ("schema", "passing", "failing"),
    [
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, "a"], [3, 1.5]),
        ({"anyOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, 3], [1.5]),
        ({"not": {"type": "integer"}}, [1.5, "a", {}], [1, 1.0]),
        ({"type": "string", "not": {"pattern": "^a"}}, ["", "b"], ["a", "ab"]),
        ({"pattern": "a", "format": "date"}, [1], ["2020-01-01", "a"]),
        ({"pattern": "^2020", "format": "date", "maxLength": 10}, ["2020-02-29"], ["2021-01-01", "2020-02-30"]),
        ({"pattern": "^[a-z]+$", "minLength": 3, "maxLength": 5}, ["abc", "abcde"], ["ab", "abcdef", "ABC"]),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, [{"a": 1, "b": 1}, {}, 3], [{"a": 1}]),
        ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {"b": 1}], [{"a": 1}]),
        ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 2}], [{}, dict.fromkeys("abc")]),
        ({"items": {"enum": [1, 2, 3]}, "uniqueItems": True}, [[], [3, 1], [2, 1, 3]], [[1, 1], [1, 2, 1]]),
        ({"contains": {"type": "null"}, "maxContains": 1}, [[None], [1, None, 2]], [[], [None, None], [1]]),
        ({"prefixItems": [{"type": "null"}], "items": False}, [[], [None]], [[1], [None, 1]]),
        ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
        ({"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
         [{"ab": None, "b": 1}], [{"ab": 1}, {"b": None}]),
    ],
)  # fmt: skip
def test_combinations_of_schemas(schema, passing, failing):
    check(schema, passing, failing)


def test_many_patterns_of_names():
    apart = {f"^{c}-": {"minimum": i} for i, c in enumerate("abcdefgh")}
    check({"patternProperties": apart, "additionalProperties": False}, [{"c-x": 2}], [{"c-x": 1}, {"x": 1}])
    overlap = {c: {"minimum": i} for i, c in enumerate("abcd")}
    check({"patternProperties": overlap}, [{"abd": 3, "x": 0}], [{"abd": 2}, {"cb": 1}])
    ahead = {"patternProperties": {"^(?!x)[a-z]+$": {"type": "null"}}, "additionalProperties": {"type": "integer"}}
    check(ahead, [{"ab": None, "xb": 1, "A": 1}], [{"ab": 1}, {"xb": None}])
    with pytest.raises(GrammarError, match="patternProperties at #: there are too many choices"):
        compile_schema({"patternProperties": {c: {"type": "null"} for c in "abcdefg"}})


def test_references_are_resolved():
    tree = {"$defs": {"t": {"properties": {"l": {"$ref": "#/$defs/t"}}, "required": ["v"]}}, "$ref": "#/$defs/t"}
    check(tree, [{"v": 1}, {"l": {"l": {"v": 1}, "v": 2}, "v": 3}], [{}, {"l": {}, "v": 1}])
    anchors = {"$id": "http://x/y", "$defs": {"a": {"$anchor": "n", "type": "null"}}, "items": {"$ref": "y#n"}}
    check(anchors, [[None]], [[1]])
    beside = {"definitions": {"n": {"type": "integer"}}, "items": {"$ref": "#/definitions/n", "minimum": 3}}
    check(beside, [[3]], [[2], ["a"]])
    check(beside, [[2]], [["a"]], draft=7)
    check(beside | {"$schema": "http://json-schema.org/draft-07/schema#"}, [[2]], [["a"]])


def test_draft_4_has_its_own_exclusive_bounds():
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "minimum": 2,
        "exclusiveMinimum": True,
        "maximum": 4,
    }
    check(schema, [3, 4, 2.5], [2, 1, 5])
    check(schema | {"exclusiveMinimum": False}, [2], [1])


# ---- what is refused


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a/b": {"$ref": "http://x/y"}}}, "$ref at #/properties/a~1b: 'http://x/y' is outside"),
        ({"items": {"$ref": "#/$defs/x"}}, "$ref at #/items: '#/$defs/x' leads nowhere"),
        ({"items": {"$ref": "#x"}}, "$ref at #/items: there is no anchor 'x'"),
        ({"$ref": "#"}, "$ref at #: it leads back to itself"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
         "leads back to itself"),
        ({"items": {"type": "text"}}, "type at #/items: 'text' is none of"),
        ({"anyOf": {}}, "anyOf at #: its value must be a list"),
        ({"properties": {"a": 3}}, "schema at #/properties/a: it is an object or a boolean"),
        ({"minLength": -1}, "minLength at #: its value must be a count"),
        ({"uniqueItems": 2}, "uniqueItems at #: its value must be true or false"),
        ({"not": {"uniqueItems": 1}}, "uniqueItems at #/not: its value must be true or false"),
        ({"minimum": "1"}, "minimum at #: expected a number"),
        ({"minimum": float("nan")}, "minimum at #: nan is no number"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum at #: expected a number"),
        ({"multipleOf": 0}, "multipleOf at #: 0 isn't above 0"),
        ({"pattern": "(?<=a)b"}, "pattern at #: pattern, column 1: looking behind"),
        ({"pattern": 3}, "pattern at #: a pattern must be a str"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems at #: "),
        ({"format": "idn-email"}, "format at #: 'idn-email' is not supported"),
        ({"minProperties": 2}, "minProperties at #: "),
        ({"not": {"uniqueItems": True}}, "uniqueItems at #/not/uniqueItems: its opposite"),
        ({"required": [1]}, "required at #: its items must be str"),
        (False, "matches no text at all"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "a^b"}}, "required": ["a"]},
         "schema at #/properties/a"),
        ({"allOf": [{"type": "null"}, {"minLength": 1, "type": "string"}]}, "matches no text at all"),
        ("{", "the schema is no JSON"),
        (None, "a schema is an object or a boolean, not NoneType"),
        (b"[]", "a schema is an object or a boolean, not list"),
    ],
)  # fmt: skip
def test_unsupported_schemas_are_refused(schema, message):
    with pytest.raises(GrammarError) as caught:
        compile_schema(schema)
    assert message in str(caught.value)


def test_options_are_checked():
    with pytest.raises(GrammarError, match="whitespace must be one of"):
        compile_schema({}, whitespace="any")
    with pytest.raises(GrammarError, match="draft must be"):
        compile_schema({}, draft=5)


def test_unknown_keywords_are_ignored():
    check({"x-order": 3, "format": "color", "title": 3, "type": "string"}, ["a"], [1])


# ---- made to hurt


def nested(wrap, depth, schema):
    for _ in range(depth):
        schema = wrap(schema)
    return schema


OPTIONAL = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(10_000)}}
HOSTILE = {
    "items": (nested(lambda s: {"items": s}, 100_000, {}), []),
    "allOf": (nested(lambda s: {"allOf": [s]}, 100_000, {}), []),
    "anyOf": (nested(lambda s: {"anyOf": [s, {}]}, 100_000, {}), []),
    "not": (nested(lambda s: {"not": s}, 100_000, {"type": "null"}), []),
    "text": ('{"items":' * 100_000 + "{}" + "}" * 100_000, []),
    "shared anyOf": (nested(lambda s: {"anyOf": [s, s]}, 60, {"type": "null"}), []),
    "shared oneOf": (nested(lambda s: {"oneOf": [s, {"not": s}]}, 60, {"type": "null"}), []),
    "shared properties": (nested(lambda s: {"properties": {"a": s, "b": s}}, 60, {}), [({"a": {"b": 1}}, True)]),
    "references": (
        {"$defs": {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(5000)} | {"r5000": {"type": "null"}},
         "$ref": "#/$defs/r0"}, [(None, True), (1, False)],
    ),
    "optional": (OPTIONAL, [({"p3": 1, "p9999": 2}, True), ({"p3": "a"}, False), ({"x": 1}, True)]),
    "optional, closed": (OPTIONAL | {"additionalProperties": False}, [({"p3": 1}, True), ({"x": 1}, False)]),
    "optional, but one": (OPTIONAL | {"required": ["p5000"]}, []),
    "choices": ({"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(40)]}, []),
    "counts": ({"minItems": 10**12, "maxItems": 10**12}, [([1], False)]),
    "lengths": ({"maxLength": 10**12}, [("a", True)]),
    "length of a pattern": ({"pattern": "^([a-z]|ab)+$", "maxLength": 10**9}, []),
    "backtracking": ({"pattern": "^(a+)+$"}, [("a" * 2000, True), ("a" * 2000 + "b", False)]),
    "exponential": ({"pattern": "a[ab]{25}$", "not": {"pattern": "c"}}, []),
    "digits": ({"type": "integer", "minimum": 10**5000}, []),
    "divisor": ({"type": "integer", "multipleOf": 1000003}, []),
    "contains": ({"contains": {"type": "null"}, "minContains": 10**6}, []),
}  # fmt: skip


@pytest.mark.sweep(7)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_get_an_answer_or_an_error(name):
    schema, answers = HOSTILE[name]
    try:
        grammar = compile_schema(schema)
    except GrammarError:
        assert not answers
        return
    for value, expected in answers:
        assert grammar.accepts(json.dumps(value)) == expected


@pytest.mark.parametrize(
    ("name", "passing", "failing"),
    [
        ("regex", ["", "^[a-z]+$", "a{1,3}?", r"(a|(?:b[^\d-])*)\x41", "a|"],
         ["(", "a{3,1}", "[z-a]", "*", "a**", "[", "\\", ")", r"\a"]),
        ("uri-template", ["http://x/{id}{?q,r*}", "", "{+a:3}", "{a.b}"],
         ["{", "{a", "}", "{}", "{a,}", "{a:0}", "a b"]),
    ],
)  # fmt: skip
def test_formats_of_languages(name, passing, failing):
    check({"type": "string", "format": name}, passing, failing)


@pytest.mark.parametrize("mode", ["full", "generate"])
def test_keys_of_synthetic_schemas_are_refused(mode):
    """At any depth, in schemas that contain themselves, and in data that a reference reaches."""
    key = {"\0types": 64, "\0property": []}
    deep = {"\0types": 1, "properties": 5}
    for _ in range(3000):
        deep = {"not": deep}
    loop = {"properties": {}, "anyOf": [key]}
    loop["properties"]["a"] = loop
    other = OrderedDict(key)
    around = ({"anyOf": [key, {"required": ["b"]}]}, {"$ref": "#/examples/0", "examples": [key]}, {"not": other})
    for schema in (key, deep, loop, other, {"allOf": [other]}, *around):
        with pytest.raises(GrammarError, match="zero byte"):
            ox.JsonSchemaCompiler.compile(schema, mode=mode)


def test_repeats_of_nothing_end():
    for pattern in ("((()){20000}){20000}", "(((){9}){9999}){9999}"):
        with pytest.raises(GrammarError, match="repeats too much"):
            ox.JsonSchemaCompiler.compile({"type": "string", "pattern": pattern, "minLength": 1})


@pytest.mark.parametrize("keyword", ["minLength", "minItems", "minProperties", "maxProperties"])
def test_counts_beyond_floats_are_refused(keyword):
    with pytest.raises(GrammarError):
        ox.JsonSchemaCompiler.compile({"type": ["string", "array", "object"], keyword: 10**399})
