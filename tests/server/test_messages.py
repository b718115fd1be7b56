"""Messages of Anthropic's API: blocks, events in their order, and errors in its form."""

import json

import pytest

from oxillama.server.fields_messages import MESSAGES
from oxillama.server.routes.messages import as_object
from tests.server.client import HI
from tests.server.values import VALUES_OF_JSON

PATH = "/v1/messages"
BASE = {"messages": HI, "max_tokens": 8}
TOOL = {"name": "add", "input_schema": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
}}  # fmt: skip


NOT_HELD = {"name": "n", "input_schema": {"type": "object", "properties": {"a": {"type": 5}}}}


def test_an_answer_is_that_of_the_engine(client, engine):
    alone = engine.chat(HI, max_tokens=8, temperature=0)
    for content in ("hi", [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]):
        answer = client.post(PATH, messages=[{"role": "user", "content": content}], max_tokens=8, temperature=0).json
        assert answer["content"] == [{"type": "text", "text": alone.text}]
        assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "max_tokens")
        used = answer["usage"]
        assert used["input_tokens"] + used["cache_read_input_tokens"] == alone.prompt_tokens
        assert used["output_tokens"] == 8
    whole = engine.chat(HI, temperature=0)
    answer = client.post(PATH, messages=HI, max_tokens=500, temperature=0).json
    assert (answer["stop_reason"], answer["content"][0]["text"]) == ("end_turn", whole.text)
    stop = whole.text[3:6]
    answer = client.post(PATH, messages=HI, max_tokens=500, temperature=0, stop_sequences=["zzz", stop]).json
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert answer["content"][0]["text"] == whole.text[: whole.text.index(stop)]


def test_blocks_become_messages(client, engine):
    system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    given = [
        {"role": "user", "content": "Add 1"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                          {"type": "text", "text": "Well"}]},
        {"role": "user", "content": "hi"},
    ]  # fmt: skip
    messages = [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Add 1"},
        {"role": "assistant", "content": "Well", "reasoning_content": "hm"},
        {"role": "user", "content": "hi"},
    ]
    answer = client.post(PATH, messages=given, system=system, max_tokens=6, temperature=0).json
    assert answer["content"][0]["text"] == engine.chat(messages, max_tokens=6, temperature=0).text
    count = client.post(f"{PATH}/count_tokens", messages=given, system=system).json
    assert count == {"input_tokens": len(engine.chat_tokens(messages))}


BILL = "x-anthropic-billing-header: cc_version=2.1.197.{}; cc_entrypoint=cli;"


def billed(n):
    """Forms of a system message with a line for the bill, and where it stands."""
    line, block = BILL.format(n), {"type": "text", "text": "Be brief."}
    yield f"{line}\nBe brief.", "system=x-anthropic-billing-header"
    yield [{"type": "text", "text": line}, block], "system[0].text=x-anthropic-billing-header"
    yield [{"type": "text", "text": f"{line}\nBe brief."}], "system[0].text=x-anthropic-billing-header"
    made = {"type": "text", "text": line, "cache_control": {"type": "ephemeral"}}
    yield [{"type": "picture"}, made, block], "system[0].type=picture, system[1].text=x-anthropic-billing-header"


def test_a_line_for_the_bill_is_no_part_of_the_prompt(client, configured, engine):
    plain = engine.chat([{"role": "system", "content": "Be brief."}, *HI], max_tokens=8, temperature=0)
    for n in ("a4c", "b12"):
        for system, said in billed(n):
            answer = client.post(PATH, {**BASE, "system": system, "temperature": 0})
            assert answer.json["content"][0]["text"] == plain.text
            assert answer.headers["x-oxillama-left-out"] == said
            counted = client.post(f"{PATH}/count_tokens", messages=HI, system=system)
            assert counted.json["input_tokens"] == plain.prompt_tokens
            assert counted.headers["x-oxillama-left-out"] == said
    strict = configured(strict=True)  # its presence asks nothing of the model
    alone = strict.post(PATH, {**BASE, "system": BILL.format("a4c"), "temperature": 0})
    assert alone.json["content"][0]["text"] == engine.chat(HI, max_tokens=8, temperature=0).text
    for system in ("Be brief.\n" + BILL.format("a4c"), [{"type": "text", "text": "Be brief."}], ""):
        assert "x-oxillama-left-out" not in strict.post(PATH, {**BASE, "system": system}).headers


def test_the_events_of_a_stream(client):
    options = {**BASE, "temperature": 0}
    whole = client.post(PATH, options).json
    events = client.post(PATH, options | {"stream": True}).events
    assert all(data["type"] == name for name, data in events)
    names = [name for name, _ in events]
    assert [name for name in names if name != "content_block_delta"] == [
        "message_start", "ping", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert text == whole["content"][0]["text"]
    last = events[-2][1]
    assert last["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == 8


def test_calls_are_blocks(configured):
    client = configured(tool_format="hermes")
    for choice in ({"type": "tool", "name": "add"}, {"type": "any", "disable_parallel_tool_use": True}):
        options = {"messages": HI, "max_tokens": 200, "tools": [TOOL], "tool_choice": choice}
        for temperature in (0, 1):
            whole = client.post(PATH, options | {"temperature": temperature, "top_k": 1}).json
            (block,) = whole["content"]
            assert (block["type"], block["name"], whole["stop_reason"]) == ("tool_use", "add", "tool_use")
            assert block["input"]["a"] in range(10)
        events = client.post(PATH, options | {"stream": True, "temperature": 0}).events
        pieces = [d["delta"]["partial_json"] for n, d in events if n == "content_block_delta"]
        assert json.loads("".join(pieces)) == block["input"]


def test_a_schema_is_held(client):
    form = {"type": "json_schema", "schema": TOOL["input_schema"]}
    answer = client.post(PATH, messages=HI, max_tokens=60, temperature=0, output_config={"format": form}).json
    assert json.loads(answer["content"][0]["text"])["a"] in range(10)


def test_what_clients_send_that_asks_for_nothing(client):
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    fields = {"context_management": keep, "speed": "standard", "inference_geo": "us", "metadata": {"user_id": "x"}}
    assert client.post(PATH, {**BASE, **fields}).status == 200


def test_the_form_of_an_answer_by_its_older_name(client):
    form = {"type": "json_schema", "schema": {"enum": ["ab"]}}
    for fields in ({"output_format": form}, {"output_format": form, "output_config": {"format": form}}):
        assert client.post(PATH, {**BASE, **fields, "max_tokens": 20}).json["content"][0]["text"] == '"ab"'


def test_errors_of_unknown_paths_have_its_form(client):
    answer = client.get("/v1/messages/batches")
    assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (404, "error", "not_found_error")


def test_errors_have_its_form(client):
    answer = client.post(PATH, messages=HI)
    assert answer.status == 400
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert answer.json["error"]["message"].startswith("max_tokens is missing")
    assert answer.json["request_id"] == answer.headers["x-request-id"]
    assert client.post(PATH, {**BASE, "model": "other"}).json["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(("fields", "place"), [
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
    ({"tools": [NOT_HELD], "tool_choice": {"type": "any"}}, "tools[0].input_schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "output_config.format"),
    ({"output_format": {"type": "json_schema", "schema": {"type": 5}}}, "output_format"),
    ({"output_format": {"type": "json_schema", "schema": {"type": "null"}},
      "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, "output_format and"),
    ({"compaction": {"type": "summary"}}, "compaction is not supported: nothing is kept"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 1.5}, "temperature"),
])  # fmt: skip
def test_what_is_refused(client, fields, place):
    answer = client.post(PATH, {**BASE, **fields})
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith(place)


def test_a_thread_is_not_found_so_that_its_client_sends_it_whole(client):
    answer = client.post(PATH, {**BASE, "thread": {"type": "continue", "previous_message_id": "msg_1"}})
    assert answer.status == 404
    assert answer.json["error"] == {
        "type": "not_found_error",
        "message": "thread: nothing is kept: send the whole conversation",
        "details": {"error_code": "thread_not_found"},
    }
    whole = client.post(PATH, {**BASE, "thread": {"type": "create"}})
    assert (whole.status, whole.headers["x-oxillama-left-out"]) == (200, "thread")


@pytest.mark.parametrize("field", MESSAGES.fields, ids=lambda field: field.name)
def test_every_value_is_taken_or_refused_by_name(client, field):
    for value in VALUES_OF_JSON.values():
        answer = client.post(PATH, {**BASE, "max_tokens": 1, field.name: value})
        if answer.status != 200:
            assert answer.status == 400 or (field.name, answer.status) == ("model", 404), (value, answer.body)
            message = answer.json["error"]["message"]
            assert field.name in message or "messages has" in message or "prompt of messages" in message, message


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": 1e999}', '{"a": "\\ud83d"}', '{"a": 1, "a": 2}'])
def test_input_that_no_client_can_read_is_empty(text):
    assert as_object(text) == {}
    assert as_object('{"a": [1.5, "é"]}') == {"a": [1.5, "é"]}
