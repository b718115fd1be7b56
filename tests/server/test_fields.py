"""Every field with every kind of value: refused by name with status 400, or taken, and never a fault."""

import pytest

from oxillama.server import engine_options, prompting
from oxillama.server.errors import own_place
from oxillama.server.field_types import Only, Reading
from oxillama.server.fields import CALL, CHAT, COMPLETIONS
from oxillama.server.routes import ROUTES
from tests.server.client import HI
from tests.server.values import VALUES_OF_JSON

PATHS = {"/v1/chat/completions": (CHAT, {"messages": HI}), "/v1/completions": (COMPLETIONS, {"prompt": "Once"})}
CASES = [(path, field.name) for path, (record, _) in PATHS.items() for field in record.fields]


@pytest.mark.parametrize(("path", "name"), CASES)
def test_every_value_is_taken_or_refused_by_name(client, path, name):
    _, base = PATHS[path]
    for value in VALUES_OF_JSON.values():
        body = {"max_tokens": 1, **base, name: value}
        if name == "max_completion_tokens":
            del body["max_tokens"]
        answer = client.post(path, body)
        if answer.status == 404:
            assert name == "model"
            assert answer.error["code"] == "model_not_found"
        elif answer.status != 200:
            assert answer.status == 400, (value, answer.body)
            assert answer.error["param"].startswith(name), (value, answer.error)
            assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", PATHS)
def test_missing_fields_are_named(client, path):
    record, base = PATHS[path]
    required = [field.name for field in record.fields if field.required]
    assert required == list(base)
    for name in required:
        error = client.post(path, {k: v for k, v in base.items() if k != name}).error
        assert (error["param"], error["code"]) == (name, "missing_parameter")


@pytest.mark.parametrize("path", PATHS)
def test_unknown_fields_get_the_nearest_known_name(client, path):
    error = client.post(path, {**PATHS[path][1], "temprature": 1}).error
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")
    assert "did you mean 'temperature'?" in error["message"]


def test_unknown_fields_of_parts_are_named_with_their_place(client):
    messages = [*HI, {"role": "user", "content": [{"type": "text", "text": "x", "txt": 1}]}]
    error = client.post("/v1/chat/completions", messages=messages).error
    assert (error["param"], error["code"]) == ("messages[1].content[0].txt", "unknown_parameter")


@pytest.mark.parametrize("name", [f.name for f in CHAT.fields if f.rule == "refuse"])
def test_refused_fields_say_that_they_are(client, name):
    answer = client.post("/v1/chat/completions", {"messages": HI, name: {"x": 1}})
    assert answer.error["code"] == "unsupported_parameter"
    assert answer.error["param"] == name


def test_values_that_ask_for_nothing_are_taken(client):
    for field in CHAT.fields:
        if isinstance(field.kind, Only):
            for value in field.kind.values:
                assert (
                    client.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1, field.name: value}).status
                    == 200
                )


def test_a_list_that_is_refused_is_shown(client):
    error = client.post("/v1/chat/completions", messages=HI, modalities=["text", "audio"]).error
    assert error["message"] == "modalities must be ['text'], not ['text', 'audio']"


@pytest.mark.parametrize(("place", "message"), [
    ("messages[0].content[0].image_url", {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
    ("messages[0].role", {"role": "function", "content": "x"}),
    ("messages[0].function_call", {"role": "assistant", "content": "x", "function_call": {"name": "f"}}),
    ("messages[0].content", {"role": "user", "content": 5}),
    ("messages[0].tool_calls[0].function", {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}),
])  # fmt: skip
def test_places_in_messages(client, place, message):
    error = client.post("/v1/chat/completions", messages=[message]).error
    assert error["param"] == place


@pytest.mark.parametrize("path", PATHS)
def test_tables_describe_what_they_read(path):
    """The schema of a record has all of its fields, each with a description."""
    record, base = PATHS[path]
    schema = record.schema()
    assert list(schema["properties"]) == [field.name for field in record.fields]
    assert schema["required"] == list(base)
    assert all(one["description"] for one in schema["properties"].values())
    assert record.read("", base, Reading()) == base


BODIES = {
    b"": "invalid_json",
    b"{": "invalid_json",
    b"[]": "invalid_json",
    b"\xff{}": "invalid_json",
    b'{"prompt": "a", "prompt": "b"}': "invalid_json",
    b'{"prompt": "a", "temperature": NaN}': "invalid_json",
    b'{"prompt": ' + b"[" * 100_000: "invalid_value",
    b'{"prompt": ' + b"[" * 400 + b"]" * 400 + b"}": "invalid_value",
    b'{"prompt": ' + b"9" * 5000 + b"}": "invalid_json",
}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:24]))
def test_bodies_that_are_no_json(client, body):
    answer = client.post("/v1/completions", body)
    assert (answer.status, answer.error["code"]) == (400, BODIES[body])


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_types_of_content(client, kind):
    answer = client.post("/v1/completions", {"prompt": "a"}, {"content-type": kind})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


def test_a_body_that_is_too_large(client):
    answer = client.post("/v1/completions", b'{"prompt": "' + b"x" * (1 << 20) + b'"}')
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("kind", [{}, {"type": None}])
def test_a_kind_that_is_not_given_is_missing(client, kind):
    asked = {"messages": HI, "max_tokens": 1}
    for fields, place in (
        ({"tools": [{**kind, "function": {"name": "f"}}]}, "tools[0].type"),
        ({"thinking": {**kind, "budget_tokens": 5}}, "thinking.type"),
    ):
        answer = client.post("/v1/chat/completions", asked | fields)
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, place, "missing_parameter")
        assert answer.error["message"].startswith(f"{place} is missing: it must be one of ")
    call = {**kind, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    assert CALL.read("call", call, Reading())["type"] == "function"  # by default


def test_the_schema_says_where_a_kind_is_needed():
    known = {field.name: field.kind.schema() for field in CHAT.fields}
    assert all("type" in form["required"] for form in known["tools"]["items"]["anyOf"])
    calls = known["messages"]["items"]["properties"]["tool_calls"]["items"]["anyOf"]
    assert not any("type" in form["required"] for form in calls)  # `function`, by default


def test_the_longest_name_of_a_place_counts():
    """And is found without a look at the others: of a long conversation, each message has a name."""
    names = {f"messages[{i}].tool_calls[0]": f"input[{2 * i + 1}]" for i in range(1000)}
    names |= {"messages": "input", "messages[3]": "input[6]", "max_completion_tokens": "max_output_tokens"}

    class Hashed(dict):
        def __iter__(self):
            raise AssertionError

        items = keys = __iter__

    for place, own in {
        "messages": "input",
        "messages[3].content": "input[6].content",
        "messages[3].tool_calls[0].function.name": "input[7].function.name",
        "messages[3].tool_calls[1]": "input[6].tool_calls[1]",
        "messages[4].content[1].type": "input[4].content[1].type",
        "max_completion_tokens": "max_output_tokens",
        "max_completion": "max_completion",
        "messagesx[3]": "messagesx[3]",
        "": "",
    }.items():
        assert own_place(place, Hashed(names)) == own


def test_fields_that_are_keywords_of_the_engine_reach_it():
    """A row of `engine(...)` that nothing reads would be taken and do nothing."""
    read = {field.name for field in engine_options._KEYWORDS} | set(prompting._PROMPT_FIELDS.values())
    read |= {"prompt_logprobs", *prompting._ANSWER_FIELDS}  # by readers of their own
    fields = [field for endpoint in ROUTES if endpoint.record is not None for field in endpoint.record.fields]
    assert len([field for field in fields if field.to]) > 100
    assert {field.name for field in fields if field.to} <= read
