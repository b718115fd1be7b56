"""Settings: declared once, checked under their names, told by their docstring."""

import textwrap
from dataclasses import dataclass, fields

import pytest

import oxillama as ox
from oxillama._util.settings import Setting, check_fields, described, setting, settings, settings_of
from oxillama.config import SamplingOptions
from oxillama.errors import ConfigError


@settings("box.")
@dataclass(frozen=True, slots=True)
class Box:
    """A box.

    {fields}

    Raises ConfigError.
    """

    size: int = setting(3, "centimetres of an edge.", least=1, most=9)
    weight: float | None = setting(None, "kilograms; None: it isn't known.", above=True)
    colour: str = setting("red", "of the paint, which is a long story " * 6, choices=("red", "blue"), brief="of paint")
    names: tuple[str, ...] = setting((), "whose it is")
    closed: bool = setting(False, "whether the lid is on")
    ids: tuple[int, ...] = setting((), "numbers", check=lambda name, given: tuple(given))
    plain: int = 5

    def __post_init__(self) -> None:
        check_fields(self)


def test_the_docstring_has_the_meanings():
    lines = Box.__doc__.splitlines()
    assert lines[:3] == ["A box.", "", "size: centimetres of an edge."]
    assert lines[4].startswith("colour: of the paint")
    assert lines[5].startswith("    ")
    assert max(map(len, lines)) <= 116
    assert lines[-1] == "Raises ConfigError."


@pytest.mark.parametrize(("given", "message"), [
    ({"size": 0}, "box.size must be from 1 to 9, not 0"),
    ({"size": True}, "box.size must be an integer from 1 to 9, not True"),
    ({"weight": 0}, "box.weight must be a finite number above 0, not 0"),
    ({"colour": "green"}, "box.colour must be one of red, blue, not 'green'"),
    ({"names": 5}, "box.names must be texts, not 5"),
    ({"names": [""]}, r"box.names must be texts, not \[''\]"),
    ({"closed": 1}, "box.closed must be True or False, not 1"),
])  # fmt: skip
def test_errors_name_the_field_and_its_range(given, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        Box(**given)


def test_none_is_not_given():
    assert Box(size=None, colour=None, names=None, closed=None, ids=None) == Box()


def test_values_are_kept_as_their_checks_return_them():
    box = Box(weight=2, names=["a"], ids=range(3))
    assert (box.weight, box.names, box.ids) == (2.0, ("a",), (0, 1, 2))
    assert type(box.weight) is float


def test_lines_are_those_of_textwrap():
    words = ["a" * n for n in (1, 5, 40, 111, 112, 113, 115, 116, 117, 130)]
    for i in range(300):
        text = "x: " + " ".join(words[(i * 7 + k * k) % len(words)] for k in range(i % 25))
        expected = textwrap.fill(text, 116, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        assert described({"x": Setting(text.removeprefix("x: "))}).rstrip() == expected


def test_heirs_have_the_settings_of_their_class():
    class Heir(Box):
        pass

    @dataclass(frozen=True)
    class Wide(Box):
        width: int = 4

    assert settings_of(Heir) is settings_of(Box)
    assert Wide(size=2, width=5).width == 5
    for kind in (Heir, Wide):
        with pytest.raises(ConfigError, match=r"^box\.size must be from 1 to 9, not 0$"):
            kind(size=0)
    assert Heir(size=None).size == 3


def test_unknown_fields_name_the_nearest():
    with pytest.raises(TypeError, match="did you mean 'colour'"):
        Box(color="red")


def test_settings_know_what_they_are():
    known = settings_of(Box)
    assert list(known) == ["size", "weight", "colour", "names", "closed", "ids"]  # `plain` is a field, and no setting
    assert [one.item for one in known.values()] == [None, None, None, str, None, int]
    assert (known["weight"].kind, known["size"].shown, known["size"].brief) == (
        "float",
        "box.size",
        "centimetres of an edge",
    )
    assert known["colour"].brief == "of paint"


def test_a_kind_without_a_check_is_refused_where_it_is_declared():
    with pytest.raises(TypeError, match="size is a dict, which needs a check of its own"):

        @settings()
        @dataclass(frozen=True)
        class Wrong:
            size: dict = setting(None, "of it")

    with pytest.raises(TypeError, match="size is an int, which needs the most that it can be"):

        @settings()
        @dataclass(frozen=True)
        class Endless:
            size: int = setting(1, "of it", least=1)


def test_keywords_are_the_fields():
    """Static typing needs keywords spelt a second time."""
    declared = SamplingOptions.__annotations__
    assert dict.fromkeys(declared) == dict.fromkeys(f.name for f in fields(ox.SamplerConfig))
    assert all(settings_of(ox.SamplerConfig)[name].text for name in declared)


def test_none_is_not_given_in_any_call():
    engine = ox.load(num_threads=1)
    names = [*settings_of(ox.SamplerConfig), "stop_token_ids", "stop", "max_in_flight", "num_speculative", "acceptance"]
    options = {name: None for name in names if name != "max_in_flight"} | {"seed": 3, "max_tokens": 6}
    assert engine.generate("Once", **options).token_ids == engine.generate("Once", seed=3, max_tokens=6).token_ids
    kept = ox.SamplerConfig(seed=3, top_k=5)
    given = engine.generate("Once", sampler=kept, seed=None, top_k=None, max_tokens=6)
    assert given.token_ids == engine.generate("Once", sampler=kept, max_tokens=6).token_ids
    engine.close()
