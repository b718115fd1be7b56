"""Python functions as tools: descriptions made of them, and their arguments made of a call's."""

import enum
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, Required, TypedDict, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.chat.arguments import faults
from oxillama.chat.functions import described_function, described_tools
from oxillama.chat.schema_check import check_schema
from oxillama.errors import ConfigError


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Place(enum.Enum):
    """Values of no form in JSON: the names are."""

    HOME = (0, 0)
    AWAY = (1, 2)


@dataclass
class Point:
    """A point of the plane."""

    x: float
    y: float = 0.0
    unit: Unit = Unit.CELSIUS
    made: int = field(default=0, init=False)


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list)


class Options(TypedDict, total=False):
    a: Required[int]
    b: NotRequired[list[str]]
    c: Point


City = NewType("City", str)


def described(annotation, default=...):
    """The schema of a parameter with this annotation."""

    def look(x):
        pass

    look.__annotations__ = {"x": annotation}
    if default is not ...:
        look.__defaults__ = (default,)
    schema = described_function(look).description["function"]["parameters"]
    check_schema(schema)
    return schema


TYPES = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (Any, {}),
    (City, {"type": "string"}),
    ("str", {"type": "string"}),
    ("list[Unit]", {"type": "array", "items": {"type": "string", "enum": ["c", "f"]}}),
    (list, {"type": "array"}),
    (list[Any], {"type": "array"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (Sequence[list[int]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
    (Iterable[str], {"type": "array", "items": {"type": "string"}}),
    (set[str], {"type": "array", "items": {"type": "string"}}),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (tuple[int, str], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False,
                       "minItems": 2, "maxItems": 2}),
    (dict, {"type": "object"}),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (Mapping[str, Any], {"type": "object", "additionalProperties": True}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
    (Literal["a", 1, True, None], {"enum": ["a", 1, True, None]}),
    (Literal[Unit.CELSIUS], {"type": "string", "enum": ["c"]}),
    (Unit, {"type": "string", "enum": ["c", "f"]}),
    (Size, {"type": "integer", "enum": [1, 2]}),
    (Place, {"type": "string", "enum": ["HOME", "AWAY"]}),
    (str | None, {"type": ["string", "null"]}),
    (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045
    (Union[int, str], {"type": ["integer", "string"]}),  # noqa: UP007
    (list[int] | None, {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}),
    (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
    (Annotated[int, 5], {"type": "integer"}),
    (Point, {"description": "A point of the plane.", "type": "object", "properties": {
        "x": {"type": "number"}, "y": {"type": "number", "default": 0.0},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"}},
        "required": ["x"], "additionalProperties": False}),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "schema"), TYPES, ids=[str(annotation) for annotation, _ in TYPES])
def test_annotations_become_schemas(annotation, schema):
    assert described(annotation) == {
        "type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False,
    }  # fmt: skip


def test_typed_dicts():
    schema = described(Options)["properties"]["x"]
    assert (schema["required"], list(schema["properties"])) == (["a"], ["a", "b", "c"])
    assert schema["properties"]["b"] == {"type": "array", "items": {"type": "string"}}


def test_classes_that_contain_themselves():
    schema = described(Tree)
    assert schema["properties"]["x"] == {"$ref": "#/$defs/Tree"}
    tree = schema["$defs"]["Tree"]
    assert tree["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert next(faults(schema, {"x": {"name": "a", "children": [{"name": "b"}]}}), None) is None
    assert next(faults(schema, {"x": {"name": "a", "children": [{"name": 5}]}}), None) is not None


@pytest.mark.parametrize(("default", "shown"), [
    (5, {"default": 5}), (None, {"default": None}), (Unit.FAHRENHEIT, {"default": "f"}),
    ((1, "a"), {"default": [1, "a"]}), (object(), {}), (float("inf"), {}), (Point(1.0), {}),
    (Place.HOME, {"default": "HOME"}),
])  # fmt: skip
def test_defaults(default, shown):
    """What has one may be left out; it is shown where it has a form in JSON."""
    assert described(Any, default) == {"type": "object", "properties": {"x": shown}, "additionalProperties": False}


def weather(city: str, days: int = 3) -> str:
    """Looks the weather up,
    in a city.

    It takes a moment.

    Args:
        city: name of the city,
            with its country
        days (int): how many: at most 10

    Returns:
        city: nothing of it
    """
    return f"{city}, {days}"


def rest(city: str, days: int = 3):
    """:param city: name of the city,
        with its country
    :param int days: how many
    :returns: text"""


def bare(city: str, days: int = 3):
    """Args:
    city: name
    other: of none
    """


def silent(city: str, days: int = 3):
    pass


@pytest.mark.parametrize(("function", "description", "city", "days"), [
    (weather, "Looks the weather up, in a city.", "name of the city, with its country", "how many: at most 10"),
    (rest, None, "name of the city, with its country", "how many"),
    (bare, None, "name", None),
    (silent, None, None, None),
])  # fmt: skip
def test_docstrings(function, description, city, days):
    made = described_function(function).description
    assert made["type"] == "function"
    assert made["function"]["name"] == function.__name__
    assert made["function"].get("description") == description
    properties = made["function"]["parameters"]["properties"]
    assert [properties[name].get("description") for name in ("city", "days")] == [city, days]
    assert list(properties) == ["city", "days"]
    assert made["function"]["parameters"]["required"] == ["city"]


class Station:
    def look(self, city: str) -> str:
        return city

    @functools.lru_cache  # noqa: B019
    def kept(self, city: str) -> str:
        return city

    @staticmethod
    def plain(city: str) -> str:
        return city


@pytest.mark.parametrize("name", ["look", "plain"])
def test_methods(name):
    made = described_function(getattr(Station(), name)).description["function"]
    assert (made["name"], list(made["parameters"]["properties"])) == (name, ["city"])


def test_decorated_functions():
    @functools.wraps(weather)
    def around(*args, **kwargs):
        return weather(*args, **kwargs)

    assert described_function(around).description == described_function(weather).description


def test_a_function_without_parameters():
    def now() -> str:
        """The time."""

    assert described_function(now).description["function"] == {
        "name": "now", "description": "The time.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    }  # fmt: skip


def odd(x, /):
    pass


def local(x: "Nowhere"):  # noqa: F821
    pass


class Flags(enum.Flag):
    A = 1


class Empty(enum.Enum):
    pass


@dataclass
class Wrong:
    x: bytes


@pytest.mark.parametrize(("function", "message"), [
    (lambda x: x, r"a tool must be a function with a name, not <function <lambda> .*: write one with def"),
    (functools.partial(weather, days=1), "a tool must be a function with a name"),
    (Unit, "a tool must be a function with a name, not <enum 'Unit'>"),
    (odd, r"the parameter x of odd\(\) takes no keyword: leave it out"),
    (print, r"the parameter args of print\(\) takes any number of values: leave it out"),
    (local, r"the parameter x of local\(\) has an annotation that can't be read: name 'Nowhere' is not defined"),
    (dict.fromkeys, r"fromkeys\(\)"),
])  # fmt: skip
def test_functions_that_cannot_be_described(function, message):
    with pytest.raises(ConfigError, match=message) as caught:
        described_tools([function])
    assert "or give a description of it, {'type': 'function'" in str(caught.value)


@pytest.mark.parametrize(("annotation", "message"), [
    (bytes, "bytes has no form in JSON"),
    (object, "object has no form in JSON"),
    (dict[int, str], "keys of JSON objects are text"),
    (list[bytes], "bytes has no form in JSON"),
    (Wrong, "bytes has no form in JSON"),
    (Literal[b"a"], "the literal b'a' has no form in JSON"),
    (Flags, "Flags has no form in JSON"),
    (Empty, "Empty has no members"),
    (5, "has"),
    ("list[", "can't be read"),
])  # fmt: skip
def test_annotations_that_cannot_be_described(annotation, message):
    with pytest.raises(ConfigError, match=rf"^the parameter x of look\(\) .*{message}"):
        described(annotation)


def test_a_parameter_without_an_annotation():
    def look(city, days: int):
        pass

    said = r"^the parameter city of look\(\) has no annotation: write its type, such as city: str, or give"
    with pytest.raises(ConfigError, match=said):
        described_tools([look])


def test_lists_of_tools():
    description = described_function(weather).description
    assert described_tools([weather, description["function"] | {"name": "other"}])[0] == description
    for tools in (None, [], [description], "x", 5):
        assert described_tools(tools) is tools
    with pytest.raises(ConfigError, match=r"^tools must be a list, not a function: give \[weather\]"):
        described_tools(weather)


# ---- called


def test_calls_give_what_annotations_say():
    seen = []

    def look(
        unit: Unit, where: Point | None, tags: set[str], pair: tuple[int, Unit], tree: Tree, options: Options,
        units: dict[str, list[Unit]], either: Size | str, literal: Literal[Unit.CELSIUS, "x"],
        place: Place = Place.AWAY,
    ):  # fmt: skip
        seen.append((unit, where, tags, pair, tree, options, units, either, literal, place))
        return 5

    functions = ox.ToolFunctions([look])
    given = {
        "unit": "f", "where": {"x": 1, "unit": "f"}, "tags": ["a", "b"], "pair": [1, "c"],
        "tree": {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]},
        "options": {"a": 1, "c": {"x": 2}}, "units": {"k": ["c", "f"]}, "either": 2, "literal": "c", "place": "HOME",
    }  # fmt: skip
    answer = functions.dispatch(ox.ToolCall("look", given, "call00000"))
    assert (answer.error, answer.content) == (None, "5")
    c, f = Unit.CELSIUS, Unit.FAHRENHEIT
    tree = Tree("a", [Tree("b", [Tree("c")])])
    first = f, Point(1, unit=f), {"a", "b"}, (1, c), tree, {"a": 1, "c": Point(2)}, {"k": [c, f]}, Size.LARGE, c
    assert seen == [(*first, Place.HOME)]
    functions.dispatch(ox.ToolCall("look", given | {"where": None, "either": "x", "literal": "x"}, "call00000"))
    assert (seen[1][1], seen[1][7], seen[1][8]) == (None, "x", "x")
    wrong = functions.dispatch(ox.ToolCall("look", given | {"where": {"y": 1}}, "call00000"))
    assert isinstance(wrong.error, ox.ToolArgumentsError)
    del given["place"]
    functions.dispatch(ox.ToolCall("look", given, "call00000"))
    assert seen[-1][-1] is Place.AWAY


def test_functions_and_descriptions_beside_each_other():
    other = {"name": "other", "parameters": {"type": "object"}}
    functions = ox.ToolFunctions([weather, other], {"other": lambda: "x"})
    assert functions.dispatch(ox.ToolCall("weather", {"city": "Rome"}, "a")).content == "Rome, 3"
    assert functions.dispatch(ox.ToolCall("other", {}, "a")).content == "x"
    for wrong in (([other],), ([weather, other],), ([weather], {"weather": weather}), ([weather], {"more": weather})):
        with pytest.raises(ConfigError, match="tool '"):
            ox.ToolFunctions(*wrong)


SOME = [str, int, float, bool, Unit, Size, Place, Point, Tree, Options, Literal["a", 1], tuple[int, Unit]]


@given(st.recursive(
    st.sampled_from(SOME),
    lambda inner: st.builds(lambda one: list[one], inner) | st.builds(lambda one: dict[str, one], inner)
    | st.builds(lambda one, two: Union[one, two], inner, inner),  # noqa: UP007
    max_leaves=4,
))  # fmt: skip
def test_any_annotation_gives_a_schema_that_can_be_held(annotation):
    schema = described(annotation)
    assert ox.ToolFormat("<call>", "</call>").chat_format.faults([{"name": "f", "parameters": schema}]) == {}
