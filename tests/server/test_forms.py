"""Fields as clients of llama-server write them: no limit as -1, and the schema of a JSON object."""

import json

import pytest

from tests.server.client import HI

SCHEMA = {"type": "object", "properties": {"a": {"enum": [7, 8]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HI, "max_tokens": -1}),
        ("/v1/chat/completions", {"messages": HI, "max_completion_tokens": -1}),
        ("/v1/chat/completions", {"messages": HI, "max_completion_tokens": -1, "max_tokens": -1}),
        ("/v1/completions", {"prompt": "The", "max_tokens": -1}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": -1}),
        ("/v1/messages", {"messages": HI, "max_tokens": -1}),
    ],
)
def test_minus_one_is_no_limit(client, path, fields):
    """The answers end by their own stop, far beyond what a default would allow."""
    name = "stop_sequences" if path == "/v1/messages" else "stop"
    stop = {} if path == "/v1/responses" else {name: ["."]}
    answer = client.post(path, {**fields, **stop, "temperature": 0})
    assert answer.status == 200
    assert "x-oxillama-left-out" not in answer.headers
    assert '"length"' not in answer.body.decode()


def test_there_is_room_for_all_of_the_context(configured):
    answer = configured().post("/v1/completions", prompt="The", max_tokens=-1, ignore_eos=True, temperature=0)
    assert answer.json["usage"]["total_tokens"] == 1024
    assert answer.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("value", [-2, -1.0, True, 1 << 32, "5"])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_other_numbers_are_named(client, name, value):
    answer = client.post("/v1/chat/completions", {"messages": HI, name: value})
    assert (answer.status, answer.error["param"]) == (400, name)
    assert answer.error["message"].startswith(
        f"{name} must be an integer from 1 to 2147483648, or -1 for no limit, not"
    )


def test_zero_tokens_are_for_scores_alone(client):
    assert client.post("/v1/chat/completions", {"messages": HI, "max_tokens": 0}).status == 400
    assert client.post("/v1/completions", {"prompt": "x", "max_tokens": 0}).status == 400
    assert client.post("/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": True}).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_schema_of_a_json_object_holds(client, path):
    form = {"type": "json_object", "schema": SCHEMA}
    given = {"messages": HI} if "chat" in path else {"prompt": "JSON:"}
    answer = client.post(path, {**given, "response_format": form, "max_tokens": 30, "seed": 1})
    choice = answer.json["choices"][0]
    assert json.loads(choice["message"]["content"] if "chat" in path else choice["text"])["a"] in (7, 8)


def test_schemas_that_cannot_be_held(client):
    for form in ({"type": "json_object", "schema": {"type": "array", "uniqueItems": True}},
                 {"type": "json_object", "schema": {"$ref": "http://x"}}):  # fmt: skip
        answer = client.post("/v1/chat/completions", {"messages": HI, "response_format": form})
        assert (answer.status, answer.error["code"]) == (400, "invalid_json_schema")
        assert answer.error["param"] == "response_format"
    for kind in ("text", "json_schema"):
        answer = client.post("/v1/chat/completions", {"messages": HI, "response_format": {"type": kind, "schema": {}}})
        assert (answer.status, answer.error["param"]) == (400, "response_format.schema")
