"""Responses: items, events in their order, and what is refused since nothing is kept."""

import asyncio
import json

import pytest

from oxillama.server.fields_responses import RESPONSES
from oxillama.server.generation import GenerationRun
from tests.server.client import HI
from tests.server.values import VALUES_OF_JSON

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
}}  # fmt: skip


def test_an_answer_is_that_of_the_engine(client, engine):
    alone = engine.chat(HI, max_tokens=8, temperature=0)
    parts = [{"type": "input_text", "text": "hi"}]
    for given in ("hi", [{"role": "user", "content": "hi"}], [{"type": "message", "role": "user", "content": parts}]):
        answer = client.post(PATH, input=given, max_output_tokens=8, temperature=0, metadata={"a": "b"}).json
        assert answer["output_text"] == alone.text
        (item,) = answer["output"]
        assert (item["type"], item["content"][0]["text"]) == ("message", alone.text)
        assert answer["status"] == item["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["metadata"] == {"a": "b"}
        assert answer["usage"]["output_tokens"] == 8
        assert answer["store"] is False
    whole = client.post(PATH, input="hi", temperature=0).json
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)
    assert whole["output_text"] == engine.chat(HI, temperature=0).text


def test_items_become_messages(client, engine):
    items = [
        {"role": "user", "content": "Add 1"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
         "content": [{"type": "output_text", "text": "Well", "annotations": []}]},
        {"role": "user", "content": "hi"},
    ]  # fmt: skip
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add 1"},
        {"role": "assistant", "content": "Well", "reasoning_content": "hm"},
        {"role": "user", "content": "hi"},
    ]
    answer = client.post(PATH, input=items, instructions="Be brief.", max_output_tokens=6, temperature=0).json
    assert answer["output_text"] == engine.chat(messages, max_tokens=6, temperature=0).text
    count = client.post(f"{PATH}/input_tokens", input=items, instructions="Be brief.").json
    assert count == {"object": "response.input_tokens", "input_tokens": len(engine.chat_tokens(messages))}
    assert answer["usage"]["input_tokens"] == count["input_tokens"]


def test_the_events_of_a_stream(client):
    options = {"input": "hi", "max_output_tokens": 8, "seed": 3, "include": ["message.output_text.logprobs"]}
    whole = client.post(PATH, options).json
    events = client.post(PATH, options | {"stream": True}).events
    names = [name for name, _ in events]
    assert all(data["type"] == name for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    deltas = [data for name, data in events if name == "response.output_text.delta"]
    assert [name for name in names if name != "response.output_text.delta"] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    assert "".join(data["delta"] for data in deltas) == whole["output_text"]
    assert events[2][1]["item"]["content"] == []
    last = events[-1][1]["response"]
    assert last["output_text"] == whole["output_text"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert len({data["item_id"] for data in deltas} | {last["output"][0]["id"]}) == 1


def test_silence_is_filled_with_events_that_clients_count(configured, monkeypatch):
    computed = GenerationRun.next

    async def late(run):
        await asyncio.sleep(0.3)
        return await computed(run)

    monkeypatch.setattr(GenerationRun, "next", late)
    client = configured(sse_ping=0.05)
    events = client.post(PATH, input="hi", max_output_tokens=2, temperature=0, stream=True).events
    kinds = [name for name, _ in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "keepalive"]
    assert events[2][1] == {"type": "keepalive", "sequence_number": 2}
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    rest = [name for name in kinds if name != "keepalive"]
    monkeypatch.setattr(GenerationRun, "next", computed)
    alone = client.post(PATH, input="hi", max_output_tokens=2, temperature=0, stream=True).events
    assert rest == [name for name, _ in alone if name != "keepalive"]


def test_calls_are_items(configured):
    client = configured(tool_format="hermes")
    options = {"input": "hi", "tools": [TOOL], "seed": 2, "parallel_tool_calls": False,
               "tool_choice": {"type": "function", "name": "add"}}  # fmt: skip
    whole = client.post(PATH, options).json
    (call,) = whole["output"]
    assert (call["type"], call["name"], whole["status"]) == ("function_call", "add", "completed")
    assert json.loads(call["arguments"])["a"] in range(10)
    assert whole["tools"] == [TOOL]
    events = client.post(PATH, options | {"stream": True}).events
    arguments = "".join(d["delta"] for n, d in events if n == "response.function_call_arguments.delta")
    done = next(d for n, d in events if n == "response.function_call_arguments.done")
    assert arguments == done["arguments"] == call["arguments"]


@pytest.mark.parametrize("choice", [
    "required", {"type": "function", "name": "add"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]},
])  # fmt: skip
def test_a_form_holds_for_no_calls(configured, choice):
    """What instructor's RESPONSES_TOOLS sends: the schema as the form of the text, and as a call that is required."""
    options = {"input": "hi", "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False, "seed": 2}
    form = {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}}}}
    client = configured(tool_format="hermes")
    alone, formed = [client.post(PATH, options | more).json["output"] for more in ({}, form)]
    assert [one["type"] for one in formed] == ["function_call"]
    assert formed[0]["arguments"] == alone[0]["arguments"]


def test_a_call_that_is_cut_is_incomplete(configured):
    client = configured(tool_format="hermes")
    options = {"input": "hi", "tools": [TOOL], "tool_choice": "required", "seed": 2, "temperature": 0}
    n = client.post(PATH, options | {"parallel_tool_calls": False}).json["usage"]["output_tokens"]
    whole = client.post(PATH, options | {"max_output_tokens": n - 16}).json
    assert (whole["status"], whole["output"][-1]["status"]) == ("incomplete", "incomplete")
    assert whole["output"][-1]["type"] == "function_call"


@pytest.mark.parametrize(("fields", "param"), [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": "word " * 2000}, "input"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "text.format"),
    ({"tools": [{**TOOL, "parameters": {"type": 5}}], "tool_choice": "required"}, "tools[0].parameters"),
    ({"tools": [TOOL], "tool_choice": "required", "text": {"format": {"type": "json_schema", "schema": {"type": 5}}}},
     "text.format"),
    ({"instructions": "x", "input": [{"role": "user", "content": "y"}, {"type": "function_call", "call_id": "1",
      "name": "add", "arguments": {}}]}, "input[1].arguments"),
])  # fmt: skip
def test_what_is_refused(client, fields, param):
    answer = client.post(PATH, {"input": "hi", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_call_that_was_cut_off_comes_back(client):
    """The template shows no calls, so that they are text."""
    cut = {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 1'}
    given = {"type": "function_call_output", "call_id": "1", "output": "3"}
    answer = client.post(PATH, {"input": [{"role": "user", "content": "y"}, cut, given], "max_output_tokens": 2})
    assert answer.status == 200


def test_none_is_kept(client):
    for method in ("GET", "DELETE"):
        answer = client.call(method, f"{PATH}/resp_1")
        assert (answer.status, answer.error["code"]) == (404, "response_not_found")


@pytest.mark.parametrize("field", RESPONSES.fields, ids=lambda field: field.name)
def test_every_value_is_taken_or_refused_by_name(client, field):
    for value in VALUES_OF_JSON.values():
        answer = client.post(PATH, {"input": "hi", "max_output_tokens": 1, field.name: value})
        if answer.status != 200:
            assert answer.status == 400 or (field.name, answer.status) == ("model", 404), (value, answer.body)
            named = (field.name, "input") if field.name == "instructions" else field.name  # too long together
            assert answer.error["param"].startswith(named), (value, answer.error)
