"""Custom tools: their input is a text that matches its pattern, whole and in pieces, in chat and in responses."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.server.custom import InputReader
from tests.server.client import HI
from tests.server.values import VALUES_OF_JSON

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PATTERN = r'[a-c]{3}\n"[0-9]{1,3}"|é{2,4}'


def grammar(definition=PATTERN, syntax="regex"):
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def tool(name="run", **own):
    return {"type": "custom", "custom": {"name": name, **own}}


HELD = {"tools": [tool(format=grammar())], "tool_choice": "required", "parallel_tool_calls": False, "seed": 3}


TEMPLATE = """{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls or [] %}
{{ call.function.name }}: {{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"""


@pytest.fixture
def hermes(configured, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return configured(tool_format="hermes", chat_template=str(path))


@pytest.mark.parametrize("seed", range(4))
def test_an_input_matches_its_pattern(hermes, seed):
    asked = {"messages": HI, **HELD, "seed": seed, "max_tokens": 200}
    (choice,) = hermes.post(CHAT, asked).json["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["custom"]["name"], choice["finish_reason"]) == ("custom", "run", "tool_calls")
    assert re.fullmatch(PATTERN, call["custom"]["input"])
    events = [data["choices"][0] for _, data in hermes.post(CHAT, asked | {"stream": True}).events if data != "[DONE]"]
    pieces = [c["delta"]["tool_calls"][0] for c in events if "tool_calls" in c["delta"]]
    assert pieces[0] == {"index": 0, "id": call["id"], "type": "custom", "custom": {"name": "run", "input": ""}}
    assert all(set(piece) == {"index", "custom"} and piece["custom"]["input"] for piece in pieces[1:])
    assert "".join(piece["custom"]["input"] for piece in pieces) == call["custom"]["input"]


def test_a_response_has_an_item_for_it(hermes):
    held = {"type": "custom", "name": "run", "format": {"type": "grammar", **grammar()["grammar"]}}
    asked = {"input": "hi", "tools": [held], "tool_choice": {"type": "custom", "name": "run"}, "seed": 3,
             "parallel_tool_calls": False}  # fmt: skip
    whole = hermes.post(RESPONSES, asked).json
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["status"]) == ("custom_tool_call", "run", "completed")
    assert re.fullmatch(PATTERN, item["input"])
    assert whole["tools"] == [held]
    events = hermes.post(RESPONSES, asked | {"stream": True}).events
    kinds = [kind for kind, _ in events]
    assert "response.function_call_arguments.delta" not in kinds
    pieces = [data["delta"] for kind, data in events if kind == "response.custom_tool_call_input.delta"]
    (done,) = [data for kind, data in events if kind == "response.custom_tool_call_input.done"]
    assert "".join(pieces) == done["input"] == item["input"]
    # Its answer goes on from there.
    given_back = [item, {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}]
    answer = hermes.post(RESPONSES, {"input": [{"role": "user", "content": "hi"}, *given_back], "tools": [held]})
    assert answer.status == 200, answer.body


def test_calls_in_messages_are_those_of_functions(hermes):
    called = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "custom", "custom": {"name": "run", "input": 'x "y"'}}]}  # fmt: skip
    function = {"name": "run", "arguments": json.dumps({"input": 'x "y"'})}
    plain = {**called, "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "ok"}
    options = {"max_tokens": 1, "return_token_ids": True}
    found = [hermes.post(CHAT, messages=[*HI, one, result], **options).json for one in (called, plain)]
    assert found[0]["prompt_token_ids"] == found[1]["prompt_token_ids"]


def test_any_text_and_a_function_beside(hermes):
    function = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    tools = [function, tool("say", description="says it", format={"type": "text"})]
    for choice, kind in (
        ({"type": "custom", "custom": {"name": "say"}}, "custom"),
        ({"type": "function", "function": {"name": "add"}}, "function"),
    ):
        asked = {"messages": HI, "tools": tools, "tool_choice": choice, "max_tokens": 60, "seed": 1}
        (call,) = hermes.post(CHAT, asked).json["choices"][0]["message"]["tool_calls"]
        assert (call["type"], call[kind]["name"]) == (kind, choice[kind]["name"])
    one = {"type": "custom", "custom": {"name": "say"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    asked = {"messages": HI, "tools": tools, "tool_choice": allowed, "max_tokens": 60, "seed": 1}
    assert hermes.post(CHAT, asked).json["choices"][0]["message"]["tool_calls"][0]["custom"]["name"] == "say"


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CHOOSE_ADD = {"type": "function", "function": {"name": "add"}}


def allowed(*tools, mode="required"):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_tool_may_have_the_name_of_a_mode(hermes, kind):
    own = {"type": kind, kind: {"name": "auto"}}
    asked = {"messages": HI, "tools": [own, ADD], "tool_choice": own, "max_tokens": 60, "seed": 1}
    (call,) = hermes.post(CHAT, asked).json["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call[kind]["name"]) == (kind, "auto")


@pytest.mark.parametrize(("choice", "place"), [
    ({"type": "custom", "name": "go"}, "tool_choice.name"),
    ({"type": "function", "name": "run"}, "tool_choice.name"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "run"},
      {"type": "custom", "name": "go"}]}, "tool_choice.tools[1].name"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "run"}]},
     "tool_choice.tools[0].name"),
])  # fmt: skip
def test_a_wrong_choice_in_a_response_is_named(hermes, choice, place):
    answer = hermes.post(RESPONSES, input="hi", tools=[{"type": "custom", "name": "run"}], tool_choice=choice)
    assert (answer.status, answer.error["param"]) == (400, place), answer.body
    assert answer.error["message"].startswith(f"{place} must be ")


@pytest.mark.parametrize(("fields", "param"), [
    ({"tools": [tool(format=grammar("("))]}, "tools[0].custom.format.grammar.definition"),
    ({"tools": [tool(format=grammar("a)|(b"))]}, "tools[0].custom.format.grammar.definition"),
    ({"tools": [tool(format=grammar("a)|(?:b"))], "tool_choice": "required"},
     "tools[0].custom.format.grammar.definition"),
    ({"tools": [tool(format=grammar(""))]}, "tools[0].custom.format.grammar.definition"),
    ({"tools": [tool(format={"type": "gbnf"})]}, "tools[0].custom.format.type"),
    ({"tools": [tool(format={"type": "grammar"})]}, "tools[0].custom.format.grammar"),
    ({"tools": [tool(), tool()]}, "tools[1].custom.name"),
    ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
    ({"tools": [tool()], "tool_choice": {"type": "custom", "custom": {"name": "go"}}}, "tool_choice.custom.name"),
    ({"tools": [tool()], "tool_choice": {"type": "custom"}}, "tool_choice.custom"),
    ({"tools": [tool()], "tool_choice": {"custom": {"name": "run"}}}, "tool_choice.type"),
    ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "run"}}},
     "tool_choice.function.name"),
    ({"tools": [ADD], "tool_choice": {"type": "custom", "custom": {"name": "add"}}}, "tool_choice.custom.name"),
    ({"tools": [ADD, tool()], "tool_choice": allowed(CHOOSE_ADD, {"type": "function", "function": {"name": "run"}})},
     "tool_choice.allowed_tools.tools[1].function.name"),
    ({"tools": [ADD, tool()], "tool_choice": allowed({"type": "custom", "custom": {"name": "go"}})},
     "tool_choice.allowed_tools.tools[0].custom.name"),
])  # fmt: skip
def test_what_is_wrong_is_named(hermes, fields, param):
    answer = hermes.post(CHAT, {"messages": HI, "max_tokens": 1, **fields})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.parametrize(("definition", "said"), [
    ("ab(", "pattern, column 3: this group is never closed"),
    ("a)|(b", "pattern, column 2: there is no group to close"),
    ("b(?=a)a", "pattern 'b(?=a)a': looking ahead is supported only at the beginning"),
])  # fmt: skip
def test_a_pattern_is_reported_as_it_was_given(hermes, definition, said):
    answer = hermes.post(CHAT, messages=HI, max_tokens=1, tools=[tool(format=grammar(definition))])
    assert (answer.status, answer.error["code"]) == (400, "invalid_grammar")
    assert f"definition: {said}" in answer.error["message"]
    assert "(?:" not in answer.error["message"]


@pytest.mark.parametrize(("definition", "matches"), [
    ("(?=a)[a-c]{2}", "a[a-c]"), ("^(?!a)[a-c]{2}$", "[bc][a-c]"), ("aa|bb", "aa|bb"), ("^aa$|bb", "aa|bb"),
])  # fmt: skip
def test_a_pattern_may_look_ahead_and_have_anchors(hermes, definition, matches):
    asked = {"messages": HI, **HELD, "tools": [tool(format=grammar(definition))], "max_tokens": 200}
    (call,) = hermes.post(CHAT, asked).json["choices"][0]["message"]["tool_calls"]
    assert re.fullmatch(matches, call["custom"]["input"])


@pytest.mark.parametrize("path", [
    ("custom",), ("custom", "name"), ("custom", "description"), ("custom", "format"), ("custom", "format", "type"),
    ("custom", "format", "grammar"), ("custom", "format", "grammar", "syntax"),
    ("custom", "format", "grammar", "definition"),
])  # fmt: skip
def test_every_value_is_taken_or_refused_by_name(hermes, path):
    for value in VALUES_OF_JSON.values():
        made = json.loads(json.dumps(tool(format=grammar())))
        part = made
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
        answer = hermes.post(CHAT, messages=HI, tools=[made], max_tokens=1)
        if answer.status != 200:
            assert answer.status == 400, (value, answer.body)
            too_long = answer.error["code"] == "context_length_exceeded"  # the prompt has the tool
            assert too_long or answer.error["param"].startswith("tools"), (value, answer.error)


@pytest.mark.parametrize(("form", "place"), [
    ({"type": "grammar", "syntax": "ebnf", "definition": "x"}, "tools[0].format.syntax"),
    ({"type": "grammar", "syntax": "regex", "definition": "("}, "tools[0].format.definition"),
])  # fmt: skip
def test_what_is_wrong_in_a_response_is_named(hermes, form, place):
    answer = hermes.post(RESPONSES, input="hi", tools=[{"type": "custom", "name": "f", "format": form}])
    assert (answer.status, answer.error["param"]) == (400, place), answer.body


@given(st.text(), st.booleans(), st.integers(1, 7))
def test_an_input_is_read_in_pieces_of_any_size(text, ascii_only, size):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    reader = InputReader()
    assert "".join(reader.read(arguments[i : i + size]) for i in range(0, len(arguments), size)) == text
