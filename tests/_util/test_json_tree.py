"""JSON as Python values: those of `json.loads`, within bounds, while other threads run."""

import gc
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama._util.json_tree import JsonError, JsonTooMuch, JsonTree
from oxillama.chat.calls import read_json
from tests.other_threads import longest_turn

PARTS = [
    "{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", '"a"', '"b":', '"\\u0041"', '"\\ud83d\\ude00"', '"\\ud83d"',
    '"\\uD83D\\u0041"', '"é漢🙂"', "1", "-1", "1.5", "1e5", "-", "0", "01", "1.", ".5", "1e", "1E+3", "null", "true",
    "false", "NaN", "Infinity", "-Infinity", "nul", "\\u12", "\\x", '"\x01"', "1e999", "-0", "-0.0", "é", '"\\',
    '"\\/\\b\\f\\n\\r\\t\\""', "123456789012345678", "1234567890123456789", "-99999999999999999999", "\u2028",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def tree(data, depth=320, parts=1000, keys=1000):
    return JsonTree(data, most_depth=depth, most_parts=parts, most_keys=keys)


def outcome(read):
    try:
        return repr(read())
    except ValueError as error:
        return f"refused: {error}"


@settings(max_examples=1000)
@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_any_text_gives_what_json_gives(text):
    found = outcome(tree(text.encode()).read)
    expected = outcome(lambda: read_json(text, halves=True))
    both = ("Unterminated", "Invalid \\u")  # at the end of the text it is either
    if not all(any(word in one for word in both) for one in (found, expected)):
        assert found == expected


@settings(max_examples=300)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_values_come_back(value, plain, indent):
    text = json.dumps(value, ensure_ascii=plain, indent=indent)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    assert outcome(tree(data).read) == outcome(lambda: json.loads(text))


@pytest.mark.parametrize("text", [
    "a" * 200_000, "漢" * 70_000, "é\n" * 70_000, "a" * 65_535 + "\\", "🙂" * 66_000, "\x00" * 70_000, '"' * 65_537,
])  # fmt: skip
def test_long_strings(text):
    for plain in (True, False):
        assert tree(json.dumps([text], ensure_ascii=plain).encode()).read() == [text]


def test_halves_are_told():
    for data, halves in ((b'"\\ud83d"', True), (b'"\\ud83d\\ude00"', False), (b'["a", "\\ude00\\ud83d"]', True)):
        found = tree(data)
        assert found.read() == json.loads(data)
        assert found.has_halves is halves


@pytest.mark.parametrize(("data", "message", "field"), [
    (b'{"a": [[[[1]]]]}', "must nest at most 4 deep", "a"),
    (b'{"a": 1, "b": [[],[],[],[],[],[],[]]}', "must have at most 8 lists and objects, with all of the body", "b"),
    (b'{"a": {"b":1,"c":1,"d":1,"e":1,"f":1,"g":1}}', "must have at most 6 names of fields, with all of the body", "a"),
    (b"[[[[[", "must nest at most 4 deep", ""),
])  # fmt: skip
def test_bounds(data, message, field):
    with pytest.raises(JsonTooMuch) as error:
        tree(data, 4, 8, 6).read()
    assert (str(error.value), error.value.field) == (message, field)


def test_bounds_are_reached():
    assert tree(b'{"a": [[[1]]], "b": [[],[],[]]}', 4, 8, 2).read() == {"a": [[[1]]], "b": [[], [], []]}


def test_numbers_of_thousands_of_digits_are_refused():
    with pytest.raises(JsonError, match="a number has 9000 characters: at most 4300 are read"):
        tree(b"9" * 9000).read()
    with pytest.raises(JsonError, match="at most 4300 are read"):
        tree(b"0." + b"9" * 9000).read()


def test_a_tree_is_read_again():
    found = tree(b'{"a": [1, 2]}')
    assert found.read() == found.read()


@pytest.mark.parametrize("data", [
    b"[" + b"1000," * 3_000_000 + b"1]", b"[" + b'"ab",' * 2_000_000 + b'""]', b'"' + b"\\u0041" * 6_000_000 + b'"',
    ('"' + "漢" * 12_000_000 + '"').encode(),
], ids=["integers", "strings", "escapes", "characters"])  # fmt: skip
def test_other_threads_run_meanwhile(data):
    assert any(longest_turn(tree(data).read) < 1 / 3 for _ in range(12))


def test_the_collector_of_garbage_does_not_look_at_a_million_numbers():
    many = ",".join(["1"] * 2000)
    read = tree(f'[[{many}], [{many}, []], [1, 2], [{many[:-1]}"a"]]'.encode(), parts=10).read()
    assert [gc.is_tracked(one) for one in read] == [False, True, True, False]
    assert gc.is_tracked(read)
