"""Calls as text: what is written in a format is read by its parser, and allowed by its grammar."""

import json

import pytest

from oxillama.chat.call_writer import WrittenCall, write_calls
from oxillama.chat.calls import BrokenToolCall
from oxillama.chat.format import ChatFormat
from oxillama.chat.tool_format import FORMATS, find_format
from oxillama.errors import ToolFormatError
from tests.chat.templates import TEMPLATES, THINKING

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TRIP = {
    "type": "object",
    "properties": {
        "budget": {"type": "number"},
        "people": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "sure": {"type": "boolean"},
    },
    "required": ["budget"],
}
SCHEMAS = {"weather": CITY, "trip": TRIP, "ping": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
CALLS = {
    "text": [("weather", {"city": "Zürich <b> & 'x' {1} 日本"})],
    "a number": [("weather", {"city": "12", "days": 3})],
    "nested": [("trip", {"budget": 99.5, "people": [{"name": "Ann A. Öst"}, {"name": "Bo"}], "sure": True})],
    "nothing": [("ping", {})],
    "several": [("weather", {"city": "Rome"}), ("ping", {}), ("trip", {"budget": 1})],
}
FORMS = {name: ChatFormat.of_template(source) for name, source in {**TEMPLATES, **THINKING}.items()}
FORMS |= {name: find_format(name) for name in FORMATS}
TEXTS = {
    "object": '<call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</call>',
    "list": '<calls>[{"name": "weather", "arguments": {"city": "Rome"}}]</calls>',
    "list-with-ids": '[CALLS][{"id": "0", "tool": "weather", "parameters": {"city": "Rome"}}]',
    "named-with-id": '[CALL]weather[ID]callnum01[ARGS]{"city": "Rome"}',
    "named-in-section": '<|calls|><|call|>tools.weather:0<|args|>{"city": "Rome"}<|call_end|><|calls_end|>',
    "tagged": "<do>\n<fn=weather>\n<arg=city>\nRome\n</arg>\n</fn>\n</do>",
    "tagged-types": '<runs>\n<run name="weather">\n<with key="city" text="yes">Rome</with>\n</run>\n</runs>',
    "python": "<|py|>[weather(city='Rome')]<|py_end|>",
    "braces": "<|do|>call:weather{city:<|q|>Rome<|q|>}<do|>",
    "nested": '@<do>\n@<run name="weather">@<city>Rome@</city>@</run>\n@</do>',
    "mistral-args": '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name):
    assert write_calls(FORMS[name].layout, [WrittenCall("weather", {"city": "Rome"}, "callnum01")]) == TEXTS[name]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("name", FORMS)
def test_what_is_written_is_read_and_allowed(name, kind):
    form, calls = FORMS[name], CALLS[kind]
    if len(calls) > 1 and not form.calls.parallel:
        calls = calls[:1]
    grammar = form.grammar(TOOLS, "required", parallel_tool_calls=True, reasoning=None)
    for as_text in (False, True):
        made = [
            WrittenCall(name, json.dumps(arguments, ensure_ascii=False) if as_text else arguments, f"callnum0{i}")
            for i, (name, arguments) in enumerate(calls)
        ]
        assert grammar.accepts(write_calls(form.layout, made))
        for content in ("", "I look.\n"):
            parser = form.parser(TOOLS, reasoning=None)
            parser.push(content + write_calls(form.layout, made, behind_text=bool(content)))
            found = parser.finish()
            assert [(call.name, call.arguments) for call in found.tool_calls] == calls
            assert found.content.strip() == content.strip()


@pytest.mark.parametrize("name", FORMS)
def test_arguments_that_are_no_json_are_written_as_they_are(name):
    for arguments in ('{"city": "Ro', "[1]"):
        text = write_calls(FORMS[name].layout, [WrittenCall("weather", arguments)])
        assert arguments in text
        parser = FORMS[name].parser(TOOLS, reasoning=None)
        parser.push(text)
        assert all(isinstance(call, BrokenToolCall) for call in parser.finish().tool_calls)


def test_a_format_without_calls_writes_none():
    form = ChatFormat.of_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ToolFormatError, match="calls can't be written: the template shows no calls of tools"):
        write_calls(form.layout, [WrittenCall("weather", {})])
    assert write_calls(form.with_generic_calls.layout, [WrittenCall("ping", {})]) == (
        '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    )
