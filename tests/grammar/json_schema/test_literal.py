"""Literals: keys by identity of schemas, and places."""

import pytest

from oxillama.grammar.json_schema.literal import Literal


def test_keys_are_those_of_the_same_schema():
    schema, same = {"type": "null"}, {"type": "null"}
    one = Literal(schema, True, "a", None)
    assert one.key == (id(schema), True, "a")
    assert one.key is one.key
    assert one.key == Literal(schema, True, "a", (None, "items")).key
    others = [Literal(same, True, "a", None), one.of_sign(False), one.at_base("b"), one.of_schema(same)]
    assert all(other.key != one.key and other != one for other in others)


def test_literals_are_equal_in_one_place_alone():
    schema = {"type": "null"}
    one = Literal(schema, True, "", None).sub(schema, "allOf", 0)
    assert one.path == ((None, "allOf"), 0)
    same = Literal(schema, True, "", ((None, "allOf"), 0))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Literal(schema, True, "", ((None, "allOf"), 1))
    assert one != "other"
    assert one.sub(True, "not", positive=False).positive is False


def test_literals_never_change():
    one = Literal({}, True, "", None)
    for name in ("schema", "positive", "base", "path", "key"):
        with pytest.raises(AttributeError):
            setattr(one, name, None)
