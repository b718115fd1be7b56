"""Chat completions: what they say is what the engine says."""

import json

import pytest

from oxillama.chat.tool_format import FORMATS
from oxillama.errors import ToolFormatError
from tests.server.client import HI

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
}}}  # fmt: skip
NOT_HELD = {"type": "function", "function": {"name": "odd", "parameters": {"$ref": "https://example.com/x"}}}
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def test_an_answer_is_that_of_the_engine(client, engine):
    for options in ({"temperature": 0}, {"seed": 5}, {"seed": 7, "top_k": 3, "temperature": 0.5}):
        answer = client.post(CHAT, messages=HI, max_tokens=12, **options).json
        alone = engine.chat(HI, max_tokens=12, **(PLAIN | options))
        (choice,) = answer["choices"]
        assert choice["message"]["content"] == alone.text
        assert choice["finish_reason"] == alone.finish_reason
        usage = answer["usage"]
        assert usage["prompt_tokens"] == alone.prompt_tokens
        assert usage["completion_tokens"] == len(alone.token_ids)
        assert usage["total_tokens"] == alone.prompt_tokens + len(alone.token_ids)


def test_the_defaults_of_the_file_count_where_they_are_asked_for(configured, engine):
    answer = configured(generation_config="file").post(CHAT, messages=HI, max_tokens=9, seed=3).json
    assert answer["choices"][0]["message"]["content"] == engine.chat(HI, max_tokens=9, seed=3).text
    answer = configured(default=("temperature=0",)).post(CHAT, messages=HI, max_tokens=9).json
    assert answer["choices"][0]["message"]["content"] == engine.chat(HI, max_tokens=9, temperature=0).text


def test_choices_have_seeds_of_their_own(client, engine):
    answer = client.post(CHAT, messages=HI, max_tokens=6, n=3, seed=10).json
    alone = [engine.chat(HI, max_tokens=6, seed=10 + i, **PLAIN) for i in range(3)]
    assert [c["message"]["content"] for c in answer["choices"]] == [c.text for c in alone]
    assert answer["usage"]["completion_tokens"] == sum(len(c.token_ids) for c in alone)
    assert answer["usage"]["prompt_tokens"] == alone[0].prompt_tokens


def test_log_probabilities(client, engine):
    answer = client.post(CHAT, messages=HI, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3).json
    alone = engine.chat(HI, max_tokens=4, temperature=0, logprobs=3)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [one.logprob for one in alone.logprobs]
    assert [[t["token"] for t in entry["top_logprobs"]] for entry in content] == [
        [t.text for t in one.top] for one in alone.logprobs
    ]
    assert [bytes(entry["bytes"]) for entry in content] == [one.bytes for one in alone.logprobs]


def test_a_stream_is_the_answer_in_pieces(client):
    options = {"messages": HI, "max_tokens": 20, "seed": 3, "n": 2, "logprobs": True}
    whole = client.post(CHAT, options).json
    answer = client.post(CHAT, options | {"stream": True, "stream_options": {"include_usage": True}})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, usage, done = [data for _, data in answer.events]
    assert done == "[DONE]"
    assert usage["choices"] == []
    whole["usage"]["prompt_tokens_details"] = usage["usage"]["prompt_tokens_details"] = None  # of the prefix cache
    assert usage["usage"] == whole["usage"]
    assert len({event["id"] for event in events}) == 1
    for choice in whole["choices"]:
        own = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        assert own[-1]["delta"] == {}
        entries = [entry for c in own if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]


def test_the_usage_so_far(client):
    answer = client.post(CHAT, messages=HI, max_tokens=5, stream=True, stream_options={"continuous_usage_stats": True})
    counts = [data["usage"]["completion_tokens"] for _, data in answer.events if data != "[DONE]"]
    assert counts == sorted(counts)
    assert counts[-1] > 0


@pytest.mark.parametrize(("fields", "param", "code"), [
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"n": 9}, "n", "invalid_value"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repeat_penalty", "invalid_value"),
    ({"priority": 1}, "priority", "unsupported_parameter"),
    ({"chat_template": "x"}, "chat_template", "unsupported_parameter"),
    ({"regex": "a", "choices": ["b"]}, "choices", "invalid_value"),
    ({"regex": "("}, "regex", "invalid_grammar"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar", "invalid_grammar"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
     "response_format", "invalid_json_schema"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
     "tool_choice.function.name", "invalid_value"),
    ({"lora": [{"name": "pirate"}]}, "lora[0].name", "invalid_value"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias", "invalid_value"),
    ({"guided_json": {}}, "guided_json", "unsupported_parameter"),
])  # fmt: skip
def test_combinations_that_are_refused(client, fields, param, code):
    answer = client.post(CHAT, {"messages": HI, **fields})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code)


def test_a_prompt_that_is_too_long(client):
    answer = client.post(CHAT, messages=[{"role": "user", "content": "word " * 1500}])
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["message"].startswith("This model's maximum context length is 1024 tokens. However, ")


def test_more_tokens_than_there_is_room_for_are_cut(client):
    answer = client.post(CHAT, messages=HI, max_tokens=32_000, stop=["e"]).json
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_constraints_hold(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        {"json_schema": schema},
        {"structured_outputs": {"json": schema}},
    ):
        answer = client.post(CHAT, {"messages": HI, "max_tokens": 60, "seed": 1, **fields}).json
        found = json.loads(answer["choices"][0]["message"]["content"])
        assert list(found) == ["n"]
        assert found["n"] <= 99
    answer = client.post(CHAT, messages=HI, choices=["yes", "no"]).json
    assert answer["choices"][0]["message"]["content"] in ("yes", "no")
    answer = client.post(CHAT, messages=HI, response_format={"type": "json_object"}, max_tokens=400, seed=1).json
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)


def test_calls_of_tools(configured):
    client = configured(tool_format="hermes")
    asked = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "seed": 2}
    answer = client.post(CHAT, asked).json
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"])["a"] in range(10)
    events = [data["choices"][0] for _, data in client.post(CHAT, asked | {"stream": True}).events if data != "[DONE]"]
    pieces = [c["delta"]["tool_calls"][0] for c in events if "tool_calls" in c["delta"]]
    assert pieces[0] == {"index": 0, "id": call["id"], "type": "function",
                         "function": {"name": "add", "arguments": ""}}  # fmt: skip
    assert all(set(piece) == {"index", "function"} for piece in pieces[1:])
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]
    assert events[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_call_that_is_cut_off_is_no_content(configured, form, choice):
    client = configured(tool_format=form)
    asked = {"messages": HI, "tools": [TOOL], "tool_choice": choice, "seed": 2}
    for n in range(1, 16):
        (choice,) = client.post(CHAT, asked | {"max_tokens": n}).json["choices"]
        assert not choice["message"]["content"], n
        events = client.post(CHAT, asked | {"max_tokens": n, "stream": True}).events
        assert not any(data["choices"][0]["delta"].get("content") for _, data in events if data != "[DONE]")


@pytest.mark.parametrize("name", ["auto", "required", "none"])
def test_tools_whose_names_are_words_of_choices(configured, name):
    client = configured(tool_format="hermes")
    named = {**TOOL, "function": {**TOOL["function"], "name": name}}
    chosen = {"type": "function", "function": {"name": name}}
    for tools in ([TOOL, named], [named]):
        answer = client.post(CHAT, messages=HI, tools=tools, tool_choice=chosen, seed=2).json
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == name


def test_allowed_tools_leave_the_prompt_as_it_is(configured, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}")
    client = configured(tool_format="hermes", chat_template=str(path))
    other = {**TOOL, "function": {**TOOL["function"], "name": "sub"}}
    given = {"messages": HI, "tools": [TOOL, other], "seed": 2, "return_token_ids": True}
    one = {"type": "function", "function": {"name": "sub"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    first = client.post(CHAT, given | {"tool_choice": "required", "parallel_tool_calls": False}).json
    second = client.post(CHAT, given | {"tool_choice": allowed, "parallel_tool_calls": False}).json
    assert first["prompt_token_ids"] == second["prompt_token_ids"]
    assert second["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "sub"


def test_remedies_are_those_of_a_server(client, configured):
    error = configured(tool_format="none").post(CHAT, messages=HI, tools=[TOOL]).error
    assert (error["param"], error["code"]) == ("tools", "tool_format_unknown")
    assert error["message"].startswith(
        "the chat template doesn't tell in which format the model calls tools: give --tool-format, one of "
        f"{', '.join(FORMATS)}, text ("
    )
    with pytest.raises(ToolFormatError, match=r"^tool_format must be one of"):
        configured(tool_format="hermse")


def test_calls_and_a_form_of_the_text_are_not_both_required(configured):
    client = configured(tool_format="hermes")
    options = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    error = client.post(CHAT, **options, structured_outputs={"choice": ["a"]}).error
    assert error["param"] == "structured_outputs.choice"
    assert error["message"].startswith("structured_outputs.choice is given")
    # OpenAI's own form is of what is said beside calls, which is nothing
    (choice,) = client.post(CHAT, **options, response_format={"type": "json_object"}, max_tokens=200).json["choices"]
    assert choice["message"]["tool_calls"]
    options["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]
    assert client.post(CHAT, **options, response_format={"type": "json_object"}).error["param"] == "tools"


def test_the_models_own_end_is_no_reason_to_stop(client, engine):
    alone = engine.chat(HI, temperature=0)
    assert isinstance(alone.stop_reason, int)
    (choice,) = client.post(CHAT, messages=HI, temperature=0).json["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    last = alone.token_ids[3]
    (choice,) = client.post(CHAT, messages=HI, temperature=0, stop_token_ids=[last]).json["choices"]
    assert choice["stop_reason"] == last


def test_a_schema_that_cant_be_held(configured):
    client = configured(tool_format="hermes")
    for stream in (False, True):
        answer = client.post(CHAT, messages=HI, max_tokens=2, tools=[TOOL, NOT_HELD], stream=stream)
        assert answer.status == 200
        assert answer.headers["x-oxillama-warnings"] == "the arguments of odd are held to no schema"
    assert "x-oxillama-warnings" not in client.post(CHAT, messages=HI, max_tokens=2, tools=[TOOL]).headers
    answer = client.post(CHAT, messages=HI, max_tokens=2, tools=[NOT_HELD], tool_choice="required")
    assert answer.error["param"] == "tools[0].function.parameters"
    assert answer.error["code"] == "invalid_json_schema"
    strict = {**NOT_HELD, "function": {**NOT_HELD["function"], "strict": True}}
    answer = client.post(CHAT, messages=HI, max_tokens=2, tools=[TOOL, strict])
    assert answer.error["param"] == "tools[1].function.parameters"


def test_names_of_tools_break_no_header(configured, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}")
    client = configured(tool_format="hermes", chat_template=str(path))
    names = ["a\r\nX-Other: 1", "\x00\x7fé", *(f"odd{i}" for i in range(100))]
    tools = [{**NOT_HELD, "function": {**NOT_HELD["function"], "name": name}} for name in names]
    answer = client.post(CHAT, messages=HI, max_tokens=1, tools=tools)
    assert answer.status == 200
    said = answer.headers["x-oxillama-warnings"]
    assert said.startswith("the arguments of a??X-Other: 1 are held to no schema; the arguments of ??? are held to no")
    assert said.endswith(" more")
    assert len(said) <= 1024
    assert "x-other" not in answer.headers


def test_a_developer_is_a_system_where_the_template_knows_none(client, engine):
    messages = [{"role": "developer", "content": "Be brief."}, *HI]
    answer = client.post(CHAT, messages=messages, max_tokens=5, temperature=0).json
    alone = engine.chat([{"role": "system", "content": "Be brief."}, *HI], max_tokens=5, temperature=0)
    assert answer["choices"][0]["message"]["content"] == alone.text


def test_predictions_change_no_text_and_are_counted(client, engine):
    alone = engine.chat(HI, max_tokens=30, temperature=0)
    predicted = {"type": "content", "content": alone.text}
    answer = client.post(CHAT, messages=HI, max_tokens=30, temperature=0, prediction=predicted).json
    assert answer["choices"][0]["message"]["content"] == alone.text
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0


def test_ids_and_timings(client, engine):
    answer = client.post(
        CHAT, messages=HI, max_tokens=4, temperature=0, return_token_ids=True, return_timings=True
    ).json
    assert answer["prompt_token_ids"] == engine.chat_tokens(HI)
    assert answer["choices"][0]["token_ids"] == engine.chat(HI, max_tokens=4, temperature=0).token_ids
    assert answer["oxillama"]["timings"][0]["time_to_first_token"] > 0


def with_id(one):
    """A log-probability as the API shows it with ids."""
    return {"id": one.token_id, "token": one.text, "logprob": one.logprob, "bytes": list(one.bytes)}


def test_log_probabilities_have_the_ids_of_their_tokens(client, engine):
    asked = {"messages": HI, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    alone = engine.chat(HI, max_tokens=4, temperature=0, logprobs=2)
    expected = [{**with_id(one), "top_logprobs": list(map(with_id, one.top))} for one in alone.logprobs]
    whole = client.post(CHAT, {**asked, "return_token_ids": True}).json
    assert whole["choices"][0]["logprobs"]["content"] == expected
    events = [data for _, data in client.post(CHAT, {**asked, "return_token_ids": True, "stream": True}).events[:-1]]
    streamed = [one for event in events for one in (event["choices"][0]["logprobs"] or {}).get("content", ())]
    assert streamed == expected
    assert "id" not in client.post(CHAT, asked).json["choices"][0]["logprobs"]["content"][0]


def test_fingerprints_are_those_of_the_model(client, engine, configured):
    first, second = (c.post(CHAT, messages=HI, max_tokens=1).json for c in (client, configured()))
    assert first["system_fingerprint"] == second["system_fingerprint"] != ""
