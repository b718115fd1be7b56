"""llama.cpp's own cases of JSON schemas (MIT): schemas as text, and texts that are instances or not.

Some have spaces where `json.dumps` writes none, so whitespace is flexible here.
"""

import json
from pathlib import Path

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler

CASES = json.loads((Path(__file__).parents[2] / "data" / "schema_cases.json").read_text())

# Schemas that are refused, and why.
REFUSED = {"required props": "uniqueItems"}  # of free strings: all that came before would have to be remembered
# Texts that llama.cpp's converter is not to accept though they are valid, and why.
VALID = {
    ("min 0", "100000000000000000000000000000000"),  # it stops at 16 digits
    ("min+max items", "1"),  # nothing says that it must be an array
}


def test_exceptions_are_of_these_cases():
    assert REFUSED.keys() <= {case["desc"] for case in CASES}
    assert {(case["desc"], text) for case in CASES for text in case["failing"]} >= VALID
    assert len(CASES) == 17


@pytest.mark.parametrize("case", [c for c in CASES if c["desc"] not in REFUSED], ids=lambda c: c["desc"])
def test_recorded_cases(case):
    grammar = JsonSchemaCompiler.compile(case["source"], whitespace="flexible")
    for text in case["passing"]:
        assert grammar.accepts(text), text
    for text in case["failing"]:
        assert grammar.accepts(text) == ((case["desc"], text) in VALID), text


@pytest.mark.parametrize("case", [c for c in CASES if c["desc"] in REFUSED], ids=lambda c: c["desc"])
def test_recorded_unsupported_schemas_are_refused(case):
    with pytest.raises(GrammarError, match=f"{REFUSED[case['desc']]} at #"):
        JsonSchemaCompiler.compile(case["source"])
