"""Instances of frozen dataclasses that are made without a call per field: as their constructor makes them."""

import gc
import sys
from dataclasses import FrozenInstanceError, dataclass, field, fields

import pytest

from oxillama import Chunk
from oxillama._util.slots import SlotsMaker
from oxillama.core.results import new_chunk, new_text


@dataclass(frozen=True, slots=True)
class Pair:
    first: object
    second: list[int] = field(default_factory=list)


def test_a_made_instance_is_the_one_that_the_constructor_makes():
    values = ("text", [1, 2], "stop", None, None, 3, [], "###", None, None, "why", [], "raw", ["w"])
    assert len(values) == len(fields(Chunk))
    made = new_chunk(*values)
    assert type(made) is Chunk
    assert made == Chunk(*values)
    assert repr(made) == repr(Chunk(*values))
    with pytest.raises(FrozenInstanceError):
        made.text = "other"


def test_values_are_kept_and_given_back():
    value, make = object(), SlotsMaker(Pair)
    before = sys.getrefcount(value)
    pairs = [make(value, [i]) for i in range(100)]
    assert sys.getrefcount(value) == before + 100
    assert all(pair.first is value for pair in pairs)
    assert gc.is_tracked(pairs[0])
    del pairs
    assert sys.getrefcount(value) == before


def test_fields_that_are_not_given_have_their_defaults():
    made = new_text("text", [1, 2], 3)
    assert made == Chunk("text", [1, 2], index=3)
    other = new_text("text", [1, 2], 3)
    assert made.tool_calls is not other.tool_calls
    assert made.tool_call_deltas is not made.tool_calls
    pair = SlotsMaker(Pair, "first")(5)
    assert pair == Pair(5)
    assert SlotsMaker(Pair, "second", "first")([1], 5) == Pair(5, [1])
    with pytest.raises(TypeError, match="Chunk is made of 3 values, not 2"):
        new_text("text", [1])


def test_fields_that_are_none_or_lack_a_default_are_refused():
    with pytest.raises(TypeError, match=r"Pair\.first has no default"):
        SlotsMaker(Pair, "second")
    for names in (["third"], ["first", "first"]):
        with pytest.raises(TypeError, match="not fields of Pair, each once"):
            SlotsMaker(Pair, *names)


def test_another_number_of_values_is_refused():
    make = SlotsMaker(Pair)
    for values in [(), (1,), (1, [], 2)]:
        with pytest.raises(TypeError, match="Pair is made of 2 values"):
            make(*values)


def test_classes_that_have_more_to_do_are_refused():
    @dataclass(frozen=True)
    class Dictionary:
        first: int

    @dataclass(frozen=True)
    class Default:
        first: int = 0

    @dataclass(frozen=True, slots=True)
    class Checked:
        first: int

        def __post_init__(self):
            raise ValueError

    for made in (Dictionary, Default):
        with pytest.raises(TypeError, match="is no slot"):
            SlotsMaker(made)
    with pytest.raises(TypeError, match="__post_init__"):
        SlotsMaker(Checked)
    with pytest.raises(TypeError):
        SlotsMaker(int)
