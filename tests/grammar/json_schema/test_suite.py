"""The official JSON-Schema-Test-Suite: no invalid instance is accepted, and how many groups of tests are right."""

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler

DATA = Path(__file__).parents[2] / "data" / "json_schema_suite.json.xz"
SUITE = json.loads(lzma.decompress(DATA.read_bytes()))
DRAFTS = {"draft2020-12": 2020, "draft7": 7}

# Valid instances that aren't accepted though their schema compiles. Everything else is accepted, or the schema refused.
# `format` asserts here, though the main part of the suite has it say nothing; what else a format leaves out is told in
# formats.py. The last is a schema whose own dialect switches validation off.
MISSED = {
    "draft2020-12": {
        "format": 17,
        "optional/format/date-time": 1,
        "optional/format/ecmascript-regex": 6,
        "optional/format/hostname": 15,
        "optional/format/time": 4,
        "optional/format/uri-template": 1,
        "vocabulary": 1,
    },
    "draft7": {
        "optional/format/date-time": 1,
        "optional/format/ecmascript-regex": 6,
        "optional/format/hostname": 15,
        "optional/format/time": 4,
        "optional/format/uri-template": 1,
    },
}

# Tests that a compiled grammar answers rightly, for each keyword.
RIGHT = {
    "draft2020-12": {
        "additionalProperties": 21,
        "allOf": 30,
        "anchor": 8,
        "anyOf": 18,
        "boolean_schema": 18,
        "const": 54,
        "contains": 21,
        "content": 18,
        "default": 7,
        "defs": 0,
        "dependentRequired": 20,
        "dependentSchemas": 16,
        "dynamicRef": 14,
        "enum": 51,
        "exclusiveMaximum": 4,
        "exclusiveMinimum": 4,
        "format": 102,
        "if-then-else": 30,
        "infinite-loop-detection": 2,
        "items": 29,
        "maxContains": 14,
        "maxItems": 6,
        "maxLength": 7,
        "maxProperties": 10,
        "maximum": 8,
        "minContains": 28,
        "minItems": 6,
        "minLength": 7,
        "minProperties": 10,
        "minimum": 11,
        "multipleOf": 10,
        "not": 38,
        "oneOf": 27,
        "optional/anchor": 4,
        "optional/bignum": 9,
        "optional/cross-draft": 0,
        "optional/dependencies-compatibility": 32,
        "optional/dynamicRef": 0,
        "optional/ecmascript-regex": 74,
        "optional/float-overflow": 1,
        "optional/format-assertion": 4,
        "optional/format/date-time": 32,
        "optional/format/date": 81,
        "optional/format/duration": 52,
        "optional/format/ecmascript-regex": 6,
        "optional/format/email": 27,
        "optional/format/hostname": 49,
        "optional/format/idn-email": 0,
        "optional/format/idn-hostname": 0,
        "optional/format/ipv4": 41,
        "optional/format/ipv6": 42,
        "optional/format/iri-reference": 13,
        "optional/format/iri": 24,
        "optional/format/json-pointer": 40,
        "optional/format/regex": 8,
        "optional/format/relative-json-pointer": 25,
        "optional/format/time": 43,
        "optional/format/unknown": 7,
        "optional/format/uri-reference": 28,
        "optional/format/uri-template": 37,
        "optional/format/uri": 46,
        "optional/format/uuid": 28,
        "optional/id": 3,
        "optional/no-schema": 3,
        "optional/non-bmp-regex": 12,
        "optional/refOfUnknownKeyword": 10,
        "optional/unknownKeyword": 3,
        "pattern": 12,
        "patternProperties": 25,
        "prefixItems": 11,
        "properties": 28,
        "propertyNames": 22,
        "ref": 73,
        "refRemote": 0,
        "required": 18,
        "type": 80,
        "unevaluatedItems": 69,
        "unevaluatedProperties": 127,
        "uniqueItems": 28,
        "vocabulary": 4,
    },
    "draft7": {
        "additionalItems": 19,
        "additionalProperties": 16,
        "allOf": 30,
        "anyOf": 18,
        "boolean_schema": 18,
        "const": 54,
        "contains": 21,
        "default": 7,
        "definitions": 0,
        "dependencies": 29,
        "enum": 45,
        "exclusiveMaximum": 4,
        "exclusiveMinimum": 4,
        "format": 90,
        "if-then-else": 30,
        "infinite-loop-detection": 2,
        "items": 28,
        "maxItems": 6,
        "maxLength": 7,
        "maxProperties": 10,
        "maximum": 8,
        "minItems": 6,
        "minLength": 7,
        "minProperties": 10,
        "minimum": 11,
        "multipleOf": 10,
        "not": 38,
        "oneOf": 27,
        "optional/bignum": 9,
        "optional/content": 3,
        "optional/cross-draft": 0,
        "optional/ecmascript-regex": 74,
        "optional/float-overflow": 1,
        "optional/format/date-time": 32,
        "optional/format/date": 81,
        "optional/format/ecmascript-regex": 6,
        "optional/format/email": 20,
        "optional/format/hostname": 49,
        "optional/format/idn-email": 0,
        "optional/format/idn-hostname": 0,
        "optional/format/ipv4": 41,
        "optional/format/ipv6": 42,
        "optional/format/iri-reference": 13,
        "optional/format/iri": 24,
        "optional/format/json-pointer": 40,
        "optional/format/regex": 8,
        "optional/format/relative-json-pointer": 25,
        "optional/format/time": 43,
        "optional/format/unknown": 7,
        "optional/format/uri-reference": 28,
        "optional/format/uri-template": 37,
        "optional/format/uri": 46,
        "optional/id": 7,
        "optional/non-bmp-regex": 12,
        "optional/unknownKeyword": 3,
        "pattern": 9,
        "patternProperties": 23,
        "properties": 28,
        "propertyNames": 22,
        "ref": 76,
        "refRemote": 0,
        "required": 18,
        "type": 80,
        "uniqueItems": 28,
    },
}


def outcome(schema, tests, draft):
    """Counts of right, refused, missed (valid, but not accepted) and wrong (accepted, but invalid)."""
    try:
        grammar = JsonSchemaCompiler.compile(schema, draft=draft)
    except GrammarError as error:
        if "no text at all" not in str(error):
            return Counter(refused=len(tests))
        return Counter("missed" if valid else "right" for _, _, valid in tests)
    counts = Counter()
    for _, data, valid in tests:
        # A lone surrogate is no character that UTF-8 has.
        texts = {json.dumps(data), json.dumps(data, ensure_ascii=False)}
        accepted = {grammar.accepts(text) for text in texts}
        counts["right" if accepted == {valid} else "missed" if valid else "wrong"] += 1
    return counts


@pytest.mark.parametrize("draft", DRAFTS)
def test_official_suite(draft):
    counts = {
        keyword: sum((outcome(schema, tests, DRAFTS[draft]) for _, schema, tests in groups), Counter())
        for keyword, groups in SUITE[draft].items()
    }
    assert not [keyword for keyword, count in counts.items() if count["wrong"]]
    assert {keyword: count["missed"] for keyword, count in counts.items() if count["missed"]} == MISSED[draft]
    fewer = {keyword: count["right"] for keyword, count in counts.items() if count["right"] < RIGHT[draft][keyword]}
    assert not fewer


def test_no_invalid_instance_is_accepted_with_an_unknown_draft():
    """The tests of draft 7 don't name it."""
    for keyword, groups in SUITE["draft7"].items():
        for description, schema, tests in groups:
            assert not outcome(schema, tests, None)["wrong"], (keyword, description)
