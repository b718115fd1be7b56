"""JSON in pieces: the bytes of `json.dumps`, whatever the value is."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.server import json_pieces
from oxillama.server.json_pieces import Rows, as_json, in_parts, in_pieces, pieces_of, written, written_parts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    max_leaves=40,
)


@settings(max_examples=300)
@given(VALUES)
def test_the_bytes_of_json(value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE", 3)
        patch.setattr(json_pieces, "NUMBERS", 3)
        patch.setattr(json_pieces, "SHORT", 2)
        patch.setattr(json_pieces, "MOST_MEMBERS", 2)
        try:
            expected = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            return
        assert written(value) == expected
        assert in_pieces(value) == as_json(value)


def test_rows_are_lists():
    rows = Rows([1, 2, 3], lambda i: {"a": [i]})
    assert json.loads(written({"rows": rows})) == json.loads(as_json({"rows": rows})) == {
        "rows": [{"a": [1]}, {"a": [2]}, {"a": [3]}]
    }  # fmt: skip
    assert len(rows) == 3
    assert written(Rows([], int)) == b"[]"


def test_rows_are_made_when_they_are_written():
    made = []
    pieces = pieces_of(Rows(range(1000), lambda i: made.append(i) or [i]))
    for _ in range(10):
        next(pieces)
    assert len(made) < 10


def test_no_piece_is_large():
    value = {"text": "é" * 100_000, "ids": [123_456] * 100_000, "rows": Rows(range(1000), lambda i: {"a": "b" * 100})}
    assert max(map(len, pieces_of(value))) < 200_000
    assert written(value) == as_json(value).encode()


def test_what_is_no_json():
    for value in ({"a": object()}, [float("nan")]):
        with pytest.raises((TypeError, ValueError)):
            written(value)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 20))
def test_parts_of_one_size(pieces, size):
    parts = in_parts(iter(pieces), size)
    assert b"".join(parts) == b"".join(pieces)
    assert {len(part) for part in parts[:-1]} <= {size}
    assert len(parts[-1]) <= size


def test_a_large_value_in_parts():
    value = {"rows": Rows(range(5000), lambda i: {"i": i, "a": "é" * 100})}
    parts = written_parts(value, 1 << 16)
    assert b"".join(parts) == written(value)
    assert max(map(len, parts)) == 1 << 16
