"""Calls of tools through the engine: found in every kind of answer, and given back to the model.

The shipped model calls nothing by itself; a grammar makes it say what a model would that does.
"""

import asyncio
import json

import pytest

import oxillama as ox
from oxillama.chat.tool_format import FORMATS
from tests.fakes import assert_idle, factory_of

HERMES = (
    "{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}<|assistant|>"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]
ASK = [{"role": "user", "content": "How much is 1 and 2?"}]
SAID = 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
TWO = (
    SAID + '\n<tool_call>\n{"name": "add", "arguments": {"a": "</tool_call> é 😀", "b": {"c": "}"}}}\n</tool_call> So.'
)


def says(text):
    """A grammar of one text."""
    return "root ::= " + json.dumps(text, ensure_ascii=False)


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


def ask(engine, text, messages=ASK, **options):
    return engine.chat(messages, tools=TOOLS, chat_template=HERMES, grammar=says(text), seed=1, **options)


def test_an_answer_with_calls(engine):
    answer = ask(engine, TWO)
    assert answer.finish_reason == "stop"
    assert answer.text == "Let me see.\n So."
    assert [(c.name, c.arguments, c.offset) for c in answer.tool_calls] == [
        ("add", {"a": 1, "b": 2}, 12),
        ("add", {"a": "</tool_call> é 😀", "b": {"c": "}"}}, 12),
    ]


def test_a_stream_with_calls(engine):
    chunks = list(ask(engine, TWO, stream=True))
    whole = ask(engine, TWO)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [call for chunk in chunks for call in chunk.tool_calls] == whole.tool_calls
    assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert chunks[-1].finish_reason == "stop"
    first = next(i for i, chunk in enumerate(chunks) if chunk.tool_calls)
    assert any(chunk.token_ids for chunk in chunks[first + 1 :])  # it came before the end


def test_in_an_event_loop(engine):
    async def answers():
        loop = ox.AsyncEngine(engine)
        options = {"tools": TOOLS, "chat_template": HERMES, "grammar": says(TWO), "seed": 1}
        whole = await loop.chat(ASK, **options)
        chunks = [chunk async for chunk in await loop.chat(ASK, stream=True, **options)]
        return whole, [call for chunk in chunks for call in chunk.tool_calls]

    whole, streamed = asyncio.run(answers())
    expected = ask(engine, TWO)
    assert (whole.text, whole.tool_calls) == (expected.text, expected.tool_calls)
    assert streamed == expected.tool_calls


def test_other_calls_of_the_engine(engine):
    use = ox.ToolUse("hermes", first_id=5)
    results = engine.generate(["x", "y"], grammar=says(SAID), tool_use=use)
    results += engine.batch(["z"], grammar=says(SAID), tool_use=use)
    for result in results:
        assert result.text == "Let me see.\n"
        assert [(c.name, c.id) for c in result.tool_calls] == [("add", "call00005")]
    assert engine.generate("x", grammar=says(SAID)).text == SAID
    assert engine.generate("x", grammar=says(SAID)).tool_calls == []


def test_the_round_trip(engine):
    """Answer, result, next answer: the template gets all that was said, and ids go on."""
    functions = ox.ToolFunctions(TOOLS, {"add": lambda a, b: a + b})
    answer = ask(engine, SAID)
    results = [functions.dispatch(call) for call in answer.tool_calls]
    messages = [*ASK, answer.message, *(result.message for result in results)]
    assert messages[1]["content"] == "Let me see.\n"
    assert messages[2] == {"role": "tool", "tool_call_id": "call00000", "name": "add", "content": "3"}
    prompt = engine.detokenize(engine.chat_tokens(messages, chat_template=HERMES))
    assert prompt.endswith(f"<|assistant|>{SAID}<|user|>3<|assistant|>")
    again = ask(engine, SAID, messages)
    assert [call.id for call in again.tool_calls] == ["call00001"]


def test_a_call_that_is_cut_off(engine):
    n = len(ask(engine, SAID).token_ids)
    broken = ask(engine, SAID, max_tokens=n - 20)
    assert broken.finish_reason == "length"
    (call,) = broken.tool_calls
    assert isinstance(call, ox.BrokenToolCall)
    assert not call.complete
    assert SAID.removeprefix("Let me see.\n").startswith(call.raw)
    assert broken.message == {"role": "assistant", "content": "Let me see.\n" + call.raw}
    result = ox.ToolFunctions(TOOLS, {"add": max}).dispatch(call)
    assert isinstance(result.error, ox.ToolCallError)
    stopped = ask(engine, SAID, stop='"b"')
    assert stopped.finish_reason == "stop"
    assert stopped.tool_calls[0].raw == '<tool_call>\n{"name": "add", "arguments": {"a": 1, '


def test_delimiters_that_are_control_tokens(engine):
    """They are no text otherwise."""
    form = ox.ToolFormat("<|user|>", "<|system|>")
    grammar = 'root ::= "Hm. " <|user|> "{\\"name\\": \\"f\\"}" <|system|> " ok" <|begin|>'
    found = engine.generate("x", grammar=grammar, tool_use=ox.ToolUse(form))
    assert [call.name for call in found.tool_calls] == ["f"]
    assert found.text == "Hm.  ok"
    assert engine.generate("x", grammar=grammar).text == 'Hm. {"name": "f"} ok'


def test_other_formats_by_name(engine):
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}]'
    answer = engine.chat(ASK, tools=TOOLS, tool_format="mistral", grammar=says(text))
    assert [call.name for call in answer.tool_calls] == ["f"]
    answer = engine.chat(ASK, tools=TOOLS, tool_format="text", grammar=says(text))
    assert (answer.text, answer.tool_calls) == (text, [])


def test_without_tools(engine):
    answer = engine.chat(ASK, tools=TOOLS, tool_choice="none", chat_template=HERMES, grammar=says(SAID), seed=1)
    assert (answer.text, answer.tool_calls) == (SAID, [])
    plain = engine.chat(ASK, chat_template=HERMES, grammar=says(SAID), seed=1)
    assert plain.prompt_tokens == answer.prompt_tokens < ask(engine, SAID).prompt_tokens


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tools": TOOLS, "tool_format": "none"}, ox.ToolFormatError, "the chat template doesn't tell in which format"),
        ({"tools": TOOLS, "tool_format": "xml"}, ox.ToolFormatError, "tool_format must be one of 'hermes'"),
        (
            {"tools": TOOLS, "tool_choice": "maybe"},
            ox.ConfigError,
            "tool_choice must be one of auto, required, none, add",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function"}},
            ox.ConfigError,
            "tool_choice must be {'type': 'function'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": 3}}},
            ox.ConfigError,
            "tool_choice must be",
        ),
        ({"tools": TOOLS, "tool_choice": "add", "tool_format": "text"}, ox.ConfigError, "needs calls that are found"),
        ({"tools": TOOLS, "tool_choice": "add", "constrain_tools": False}, ox.ConfigError, "held to their schemas"),
        ({"tools": TOOLS, "tool_choice": "add", "tool_format": "qwen", "regex": "a"}, ox.ConfigError, "regex is given"),
        ({"tools": TOOLS, "tool_format": "qwen", "constrain_tools": 1}, ox.ConfigError, "constrain_tools must be"),
        ({"constrain_tools": False}, ox.ConfigError, "constrain_tools is given without tools"),
        ({"tools": ["add"], "tool_format": "hermes"}, ox.OxiLlamaError, "tools"),
        ({"tools": [{}], "tool_format": "hermes"}, ox.ConfigError, r"tools\[0\] must be"),
        ({"tool_choice": "auto"}, ox.ConfigError, "tool_choice is given without tools"),
        ({"tools": [], "tool_format": "hermes"}, ox.ConfigError, "tool_format is given without tools"),
        ({"tool_use": "hermes"}, ox.ConfigError, "tool_use must be a ToolUse or None"),
        ({"tools": TOOLS, "tool_format": "hermes", "tool_use": ox.ToolUse("hermes")}, ox.ConfigError, "both given"),
    ],
)
def test_bad_options(engine, options, error, message):
    with pytest.raises(error, match=message):
        engine.chat(ASK, **options)


def test_bad_uses():
    for make in (
        lambda: ox.ToolUse(None),
        lambda: ox.ToolUse("xml"),
        lambda: ox.ToolUse("hermes", -1),
        lambda: ox.ToolUse("hermes", choice="required"),
        lambda: ox.ToolUse("hermes", tools=TOOLS, choice="subtract"),
        lambda: ox.ToolUse("hermes", tools=[{"name": "f", "parameters": {"default": {1}}}]),
    ):
        with pytest.raises(ox.ConfigError):
            make()
    assert ox.ToolUse("hermes").format == FORMATS["hermes"].chat_format == ox.ToolUse(FORMATS["qwen"]).format


# ---- held to the tools' schemas

HELD = [
    {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Rome", "Zürich"]},
            "days": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    }}},
    {"type": "function", "function": {"name": "time", "parameters": {
        "$defs": {"zone": {"type": "string", "pattern": "^[A-Z]{3}$"}},
        "type": "object",
        "properties": {"zone": {"$ref": "#/$defs/zone"}},
        "required": ["zone"],
        "additionalProperties": False,
    }}},
]  # fmt: skip
FORMS = [*sorted(set(FORMATS) - {"qwen"}), ox.ToolFormat("<|user|>", "<|system|>"), ox.ToolFormat("CALL: ", "!")]
RANDOM = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
functions = ox.ToolFunctions(HELD, {"weather": lambda city, days: [city, days], "time": lambda zone: zone})


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("choice", ["required", "time", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_calls_that_are_required_fit_their_schemas(engine, form, choice):
    for seed in range(3):
        answer = engine.chat(ASK, tools=HELD, tool_choice=choice, tool_format=form, seed=seed, max_tokens=400, **RANDOM)
        assert answer.text == ""
        complete = [c for c in answer.tool_calls if not (isinstance(c, ox.BrokenToolCall) and not c.complete)]
        assert [functions.dispatch(call).error for call in complete] == [None] * len(complete)
        if choice != "required":
            assert answer.finish_reason == "stop"
            name = choice if isinstance(choice, str) else "weather"
            assert [call.name for call in answer.tool_calls] == [name]
        elif answer.finish_reason == "stop":
            assert len(complete) == len(answer.tool_calls) >= 1


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_calls_that_the_model_begins_fit_their_schemas(engine, form):
    """A bias makes it begin one at once; which one, and with what, is up to it."""
    use = ox.ToolUse(form, tools=HELD)
    state = factory_of(engine)._grammars.state(ox.SamplerConfig(), use)
    plain = FORMATS[form] if isinstance(form, str) else form
    opening = plain.begin if not plain.bare else '{"name": "'
    tokens = engine.tokenize(opening, add_special=False, parse_special=True)
    for token in tokens:
        state.advance(token)
    held = ox.Sampler(ox.SamplerConfig(seed=1, **RANDOM), grammar=state)
    raw = opening.encode()
    row = engine.prefill(engine.tokenize("The") + tokens)
    for _ in range(60):
        token = held.sample(row)
        if token in engine.tokenizer.eog_ids:
            break
        held.accept(token)
        raw += engine.tokenizer.token_bytes(token)
        row = engine.forward_one(token)
    engine.reset()
    parser = use.parser
    parser.push(raw.decode("utf-8", "replace"))
    calls = parser.finish().tool_calls
    assert calls
    whole = [c for c in calls if isinstance(c, ox.ToolCall)]
    assert all(c.complete is False for c in calls if isinstance(c, ox.BrokenToolCall))
    assert [functions.dispatch(c).error for c in whole] == [None] * len(whole)


@pytest.mark.parametrize("form", ["hermes", "mistral", ox.ToolFormat("<|user|>")], ids=str)
def test_what_is_no_call_is_free(engine, form):
    """The grammar waits for a call: until then every text comes as without it."""
    free = engine.generate("Once upon a time", seed=2, max_tokens=40)
    held = engine.generate("Once upon a time", seed=2, max_tokens=40, tool_use=ox.ToolUse(form, tools=HELD))
    assert (held.token_ids, held.text) == (free.token_ids, free.text)


def test_a_schema_that_calls_cannot_be_held_to(engine):
    tools = [{"name": "f", "parameters": {"properties": {"a": {"$ref": "https://example.org/a"}}}}]
    with pytest.raises(ox.GrammarError, match="the parameters of the tool 'f'"):
        engine.chat(ASK, tools=tools, tool_format="hermes", tool_choice="required")
    with pytest.raises(ox.GrammarError, match="must be of type object"):
        engine.chat(ASK, tools=[{"name": "f", "parameters": {"type": "string"}}], tool_format="hermes")
    assert engine.chat(ASK, tools=tools, tool_format="hermes", max_tokens=3).token_ids  # see test_free_tools.py
    assert engine.chat(ASK, tools=tools, tool_format="hermes", constrain_tools=False, max_tokens=3).token_ids
