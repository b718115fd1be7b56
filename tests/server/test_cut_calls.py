"""Calls that were cut off, or that a model wrote otherwise, sent back in the next request of each dialect."""

import pytest

from tests.chat.shapes import CALLS, calls_as

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
TEXTS = (
    "",
    "{",
    '{"a": 1, "b',
    "[1]",
    "null",
    '{"a": 1, "a": 2}',
    '{"a": 1e999}',
    '{"a": ' + "[" * 80 + "]" * 80 + "}",
)
NAMES = ("", "sub", "x" * 300, 'a"b\n\x01é')


@pytest.fixture
def templated(configured, tmp_path):
    """Makes a client of a server with this chat template."""

    def make(source):
        path = tmp_path / "template.jinja"
        path.write_text(source)
        return configured(chat_template=str(path), tool_format="hermes")

    return make


def call(arguments='{"a": 1}', name="add", id="call00000"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("source", [CALLS, calls_as("c.function.arguments | items | list")], ids=["json", "items"])
def test_any_call_is_taken_back(templated, source):
    client = templated(source)
    calls = [call(text) for text in TEXTS] + [call(name=name) for name in NAMES]
    calls += [call(id="i" * 300), call({"a": {}}), {"type": "function", "function": {"name": "add"}}]
    for one in calls:
        answer = {"role": "assistant", "content": None, "tool_calls": [one]}
        gave = {"role": "tool", "tool_call_id": one.get("id", "x"), "content": "error"}
        for rest in ([gave, HI], [HI]):
            found = client.post(CHAT, messages=[HI, answer, *rest], tools=[TOOL], max_tokens=1)
            assert found.status == 200, (one, found.body)
        function = one["function"]
        named = {"role": "tool", "tool_name": function["name"], "content": "error"}
        asked = {"model": "tiny", "stream": False, "options": {"num_predict": 1}}
        found = client.post("/api/chat", **asked, messages=[HI, {"role": "assistant", "tool_calls": [one]}, named, HI])
        assert found.status == 200, (one, found.body)
        text = function.get("arguments", "")
        if isinstance(text, str):
            item = {"type": "function_call", "call_id": one.get("id", "x"), "name": function["name"], "arguments": text}
            output = {"type": "function_call_output", "call_id": item["call_id"], "output": "error"}
            found = client.post(RESPONSES, input=[HI, item, output, HI], tools=[{"type": "function", **FUNCTION}])
            assert found.status == 200, (one, found.body)
        block = {"type": "tool_use", "id": one.get("id", "x"), "name": function["name"], "input": {}}
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": "error"}
        said = [HI, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
        assert client.post(MESSAGES, messages=said, max_tokens=1).status == 200


def test_more_calls_than_tools_may_be_offered(templated):
    shown = "{% for c in m.tool_calls or [] %}{{ c.function.name if loop.first }}{% endfor %}"
    client = templated(
        "{% for m in messages %}{{ m.role }}{{ m.content }}" + shown + "{% endfor %}{{ tools | tojson }}"
    )
    answer = {"role": "assistant", "content": None, "tool_calls": [call(id=f"call{i:05d}") for i in range(300)]}
    assert client.post(CHAT, messages=[HI, answer, HI], max_tokens=1).status == 200


def test_input_that_nests_deeply(templated):
    value = {}
    for _ in range(80):
        value = {"a": value}
    block = {"type": "tool_use", "id": "call00000", "name": "add", "input": value}
    said = [HI, {"role": "assistant", "content": [block]}, HI]
    assert templated(CALLS).post(MESSAGES, messages=said, max_tokens=1).status == 200


@pytest.mark.parametrize(("place", "wrong"), [
    ("arguments", [1]), ("arguments", 5), ("name", None), ("name", 5),
])  # fmt: skip
def test_what_no_server_writes_is_a_mistake(templated, place, wrong):
    one = call()
    one["function"][place] = wrong
    answer = {"role": "assistant", "content": None, "tool_calls": [one]}
    found = templated(CALLS).post(CHAT, messages=[HI, answer, HI])
    assert (found.status, found.error["param"]) == (400, f"messages[1].tool_calls[0].function.{place}")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_an_answer_cut_anywhere_is_taken_back(configured, path, stream):
    """By the model's own template, which knows neither calls nor results."""
    client = configured(tool_format="hermes")
    for n in (1, 4, 7, 10, 13, 17, 25, 40):
        asked = _asked(path) | {"seed": 2, "temperature": 0.9, _MOST[path]: n, "stream": stream}
        if path == MESSAGES:
            del asked["seed"]
        found = client.post(path, asked)
        assert found.status == 200, found.body
        said = _said(path, found, stream)
        again = _next(path, said)
        body = {name: value for name, value in asked.items() if name not in ("stream", "tool_choice")} | again
        found = client.post(path, body)
        assert found.status == 200, (said, found.body)


_MOST = {CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}


def _asked(path):
    if path == CHAT:
        return {"messages": [HI], "tools": [TOOL], "tool_choice": "required"}
    if path == RESPONSES:
        return {"input": [HI], "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}
    tool = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
    return {"messages": [HI], "tools": [tool], "tool_choice": {"type": "any"}}


def _said(path, found, stream):
    """The message, items or blocks of an answer; of a stream, as clients put them together."""
    if path == RESPONSES:
        return found.events[-1][1]["response"]["output"] if stream else found.json["output"]
    if path == MESSAGES:
        if not stream:
            return found.json["content"]
        blocks = [data["content_block"] for name, data in found.events if name == "content_block_start"]
        for name, data in found.events:
            if name == "content_block_delta" and data["delta"]["type"] == "text_delta":
                blocks[data["index"]]["text"] += data["delta"]["text"]
        return blocks
    if not stream:
        return found.json["choices"][0]["message"]
    message = {"role": "assistant", "content": "", "tool_calls": []}
    for _, data in found.events[:-1]:
        delta = data["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                message["tool_calls"].append(call("", piece["function"]["name"], piece["id"]))
            message["tool_calls"][-1]["function"]["arguments"] += piece["function"]["arguments"]
    return message


def _next(path, said):
    """The fields of the next request: the answer, what its calls gave, and a question."""
    if path == CHAT:
        gave = [{"role": "tool", "tool_call_id": one["id"], "content": "?"} for one in said.get("tool_calls") or ()]
        return {"messages": [HI, said, *gave, HI]}
    if path == RESPONSES:
        gave = [{"type": "function_call_output", "call_id": one["call_id"], "output": "?"}
                for one in said if one["type"] == "function_call"]  # fmt: skip
        return {"input": [HI, *said, *gave, HI]}
    gave = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": "?"} for one in said if one["type"] == "tool_use"
    ]
    return {"messages": [HI, {"role": "assistant", "content": said}, {"role": "user", "content": [*gave, _TEXT]}]}


_TEXT = {"type": "text", "text": "hi"}
