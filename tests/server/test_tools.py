"""Tools where the template shows none, and calls without a mark, in every dialect."""

import json

import pytest

from oxillama.core.answer_options import ToolUse
from tests.server.client import HI

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
UNSEEN = "the chat template shows no tools, and the tool format text describes none: the model doesn't see them"
SAID = "the chat template shows no tools: they are described in a system message, and calls are JSON"
BARE = {"const": [{"name": "add", "arguments": {"a": 1}}, {"name": "add", "parameters": {"a": 2}}]}
FORM = {
    CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BARE}}},
    RESPONSES: {"text": {"format": {"type": "json_schema", "name": "x", "schema": BARE}}},
    MESSAGES: {"output_format": {"type": "json_schema", "schema": BARE}},
}
ASKED = {
    CHAT: {"messages": HI, "tools": [TOOL], "tool_choice": "required", "seed": 2},
    RESPONSES: {"input": "hi", "tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "required"},
    MESSAGES: {
        "messages": HI,
        "max_tokens": 300,
        "tools": [{"name": "add", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    },
}


def calls_of(path, answer):
    """(name, arguments) of the calls of a whole answer."""
    if path == CHAT:
        found = [call["function"] for call in answer["choices"][0]["message"].get("tool_calls", ())]
    elif path == RESPONSES:
        found = [item for item in answer["output"] if item["type"] == "function_call"]
    else:
        return [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
    return [(call["name"], json.loads(call["arguments"])) for call in found]


@pytest.mark.parametrize("path", ASKED)
def test_tools_are_described_and_the_header_says_so(client, path):
    answer = client.post(path, ASKED[path])
    assert answer.status == 200
    assert answer.headers["x-oxillama-warnings"] == SAID
    (name, arguments), *_ = calls_of(path, answer.json)
    assert (name, arguments["a"] in range(10)) == ("add", True)
    streamed = client.post(path, ASKED[path] | {"stream": True})
    assert streamed.headers["x-oxillama-warnings"] == SAID
    counted = client.post("/v1/messages/count_tokens", {k: v for k, v in ASKED[MESSAGES].items() if k != "max_tokens"})
    assert counted.json["input_tokens"] > 100


def test_ollamas_api_describes_tools_too(client):
    asked = {"model": "tiny", "messages": HI, "tools": [TOOL], "options": {"num_predict": 2}}
    for streamed in (True, False):
        answer = client.post("/api/chat", asked | {"stream": streamed})
        assert (answer.status, answer.headers["x-oxillama-warnings"]) == (200, SAID)


def test_a_conversation_with_results(client):
    called = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = [*HI, {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "content": "3"}]  # fmt: skip
    for tools in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}):
        answer = client.post(CHAT, {"messages": said, "max_tokens": 2, **tools})
        assert answer.status == 200
        assert answer.headers.get("x-oxillama-warnings") == (SAID if len(tools) == 1 else None)


def test_formats_of_the_server(configured):
    """A format that is named is no news, "none" refuses, and "text" says that it shows nothing."""
    for form, status in (("hermes", 200), ("generic", 200), ("text", 200), ("none", 400)):
        answer = configured(tool_format=form).post(CHAT, messages=HI, tools=[TOOL], max_tokens=2)
        assert answer.status == status
        assert answer.headers.get("x-oxillama-warnings") == (UNSEEN if form == "text" else None)
    assert answer.error["code"] == "tool_format_unknown"
    assert "give --tool-format, one of hermes, " in answer.error["message"]
    named, text = (configured(tool_format=form) for form in ("mistral", "text"))
    counts = [
        c.post(CHAT, messages=HI, tools=[TOOL], max_tokens=1).json["usage"]["prompt_tokens"] for c in (named, text)
    ]
    assert counts[0] > counts[1] + 60


@pytest.mark.parametrize("path", ASKED)
def test_calls_without_a_mark(configured, path, monkeypatch):
    """A schema makes the model write them here, which says otherwise that they are the text that was asked for."""
    client = configured(tool_format="hermes")
    asked = {name: value for name, value in ASKED[path].items() if name != "tool_choice"} | FORM[path]
    assert calls_of(path, client.post(path, asked).json) == []
    parser_of = ToolUse.parser_of
    monkeypatch.setattr(ToolUse, "parser_of", lambda self, *, constrained: parser_of(self, constrained=False))
    assert calls_of(path, client.post(path, asked).json) == [("add", {"a": 1}), ("add", {"a": 2})]
    events = [data for _, data in client.post(path, asked | {"stream": True}).events if data != "[DONE]"]
    if path == CHAT:
        deltas = [event["choices"][0]["delta"] for event in events]
        assert not any(delta.get("content") for delta in deltas)
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ()) if piece["index"] == 1]
        assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"a": 2}
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    elif path == RESPONSES:
        assert calls_of(path, events[-1]["response"]) == [("add", {"a": 1}), ("add", {"a": 2})]
    else:
        assert [e["content_block"]["name"] for e in events if e["type"] == "content_block_start"] == ["add", "add"]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
