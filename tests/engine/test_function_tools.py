"""Typed Python functions as tools: wherever tools are given, they are what their descriptions are."""

import asyncio
import enum
from typing import Literal

import pytest

import oxillama as ox
from oxillama.chat.functions import described_function
from tests.chat.shapes import CALLS

HI = [{"role": "user", "content": "How is the weather?"}]
SHOWS = CALLS + "{{ tools | tojson }}"


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


def weather(city: Literal["Rome", "Oslo"], unit: Unit = Unit.CELSIUS) -> str:
    """Looks the weather up.

    Args:
        city: where
    """
    return f"{city} in {unit.name}"


DESCRIBED = described_function(weather).description
OPTIONS = {"tool_format": "hermes", "tool_choice": "weather", "chat_template": SHOWS, "max_tokens": 60, "seed": 1}


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine):
    return engine.chat(HI, tools=[DESCRIBED], **OPTIONS)


def test_chat(engine, expected):
    answer = engine.chat(HI, tools=[weather], **OPTIONS)
    assert answer == expected
    (call,) = answer.tool_calls
    assert ox.ToolFunctions([weather]).dispatch(call).content in {
        f"{city} in {unit.name}" for city in ("Rome", "Oslo") for unit in Unit
    }
    chunks = list(engine.chat(HI, tools=[weather], stream=True, **OPTIONS))
    assert [call for chunk in chunks for call in chunk.tool_calls] == expected.tool_calls


def test_chat_tokens(engine):
    assert engine.chat_tokens(HI, tools=[weather], chat_template=SHOWS) == engine.chat_tokens(
        HI, tools=[DESCRIBED], chat_template=SHOWS
    )


def test_other_engines(engine, expected):
    async def ask():
        return await ox.AsyncEngine(engine).chat(HI, tools=[weather], **OPTIONS)

    assert asyncio.run(ask()) == expected
    with ox.SpeculativeEngine(engine, "lookup") as guessing:
        assert guessing.chat(HI, tools=[weather], **OPTIONS) == expected


def test_tool_use_and_formats(engine):
    use = ox.ToolUse("hermes", tools=[weather])
    assert use == ox.ToolUse("hermes", tools=[DESCRIBED])
    form = ox.ChatFormat.of_template(CALLS)
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    hermes = use.format
    assert not hermes.grammar([weather], "required").accepts(text)
    assert hermes.grammar([weather], "required").accepts(text.replace("Paris", "Rome"))
    assert hermes.parser([weather]).push(text)
    assert form.parser([weather]).finish().tool_calls == []
    template = ox.ChatTemplate(SHOWS)
    assert template.render(HI, tools=[weather]) == template.render(HI, tools=[DESCRIBED])


def test_a_resumed_answer(engine, expected):
    stream = engine.chat(HI, tools=[weather], stream=True, **OPTIONS)
    first = next(stream)
    rest = list(engine.resume(stream.snapshot_bytes()))
    stream.close()
    assert "".join(chunk.raw for chunk in [first, *rest]) == expected.raw


def test_what_cannot_be_described(engine):
    def look(city, days: int):
        pass

    said = (
        r"^the parameter city of look\(\) has no annotation: write its type, such as city: str, or give a description"
    )
    for ask in (engine.chat, engine.chat_tokens):
        with pytest.raises(ox.ConfigError, match=said):
            ask(HI, tools=[look], chat_template=SHOWS)
    with pytest.raises(ox.ConfigError, match=r"^tools must be a list, not a function: give \[weather\]"):
        engine.chat(HI, tools=weather, tool_format="hermes")
