"""What is left out of requests: answered, and said in a header, the log and a metric; refused by strict servers."""

import json
import logging

import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from oxillama.server.field_types import MAX_COMPARED
from oxillama.server.headers import MOST_OF_A_VALUE
from oxillama.server.reading import MOST_NAMED, Reading
from tests.server.client import HI, Client

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
)  # fmt: skip
BASES = {
    CHAT: {"messages": HI, "max_tokens": 2},
    COMPLETIONS: {"prompt": "Once", "max_tokens": 2},
    RESPONSES: {"input": "hi", "max_output_tokens": 2},
    MESSAGES: {"messages": HI, "max_tokens": 2},
}
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
SAID = "x-oxillama-left-out"


def blocks(*content):
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, *content]}]}


def items(*more):
    return {"input": [{"role": "user", "content": "hi"}, *more]}


CASES = [
    (CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
    (CHAT, {"reasoning_budget": 5}, "reasoning_budget"),
    (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking"),
    (CHAT, {"verbosity": "low"}, "verbosity"),
    (CHAT, {"service_tier": "flex"}, "service_tier"),
    (CHAT, {"store": True}, "store"),
    (CHAT, {"models": ["a"], "reasoning_format": "none", "parse_tool_calls": False, "speed": "fast"},
     "models, reasoning_format, parse_tool_calls, speed"),
    (COMPLETIONS, {"models": ["a"]}, "models"),
    (MESSAGES, {"seed": 1}, "seed"),
    (RESPONSES, {"conversation_id": "a"}, "conversation_id"),
    (CHAT, {"web_search_options": {}}, "web_search_options"),
    (CHAT, {"tools": [{"type": "web_search"}]}, "tools[0].type=web_search"),
    (CHAT, {"messages": [{**HI[0], "reasoning_details": []}]}, "messages[0].reasoning_details"),
    (CHAT, blocks({"type": "refusal", "refusal": "no"}, {"type": "quiz"}), "messages[0].content[2].type=quiz"),
    (RESPONSES, items({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, {"type": "quiz"}),
     "input[2].type=quiz"),
    (CHAT, blocks({"type": "quiz", "text": "there"}), "messages[0].content[1].type=quiz"),
    (COMPLETIONS, {"some_new_field": 1}, "some_new_field"),
    (COMPLETIONS, {"service_tier": "flex", "moderation": {}}, "service_tier, moderation"),
    (RESPONSES, {"store": True, "truncation": "auto"}, "store, truncation"),
    (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, "reasoning.summary, reasoning.effort"),
    (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
    (RESPONSES, {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
     "include[1]=file_search_call.results"),
    (RESPONSES, {"tools": [{"type": "web_search"}, {"type": "local_shell"}]},
     "tools[0].type=web_search, tools[1].type=local_shell"),
    (RESPONSES, {"tools": [{"type": "namespace", "name": "n", "tools": []}]}, "tools[0].type=namespace"),
    (RESPONSES, items({"type": "web_search_call", "id": "a", "status": "completed"}), "input[1].type=web_search_call"),
    (RESPONSES, items({"type": "reasoning", "encrypted_content": "gAAAA"}), "input[1].encrypted_content"),
    (MESSAGES, {"output_config": {"effort": "high"}}, "output_config.effort"),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    (MESSAGES, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
     "context_management.edits[0].type=clear_tool_uses_20250919"),
    (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type=bash_20250124"),
    (MESSAGES, {"mcp_servers": [{"url": "x"}], "container": "c", "speed": "fast"}, "mcp_servers, container, speed"),
    (MESSAGES, {"thread": {"type": "create"}}, "thread"),
    (MESSAGES, blocks({"type": "redacted_thinking", "data": "x"}), "messages[0].content[1].type=redacted_thinking"),
    (MESSAGES, blocks({"type": "tool_reference", "tool_name": "x"}), "messages[0].content[1].type=tool_reference"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "said"), CASES)
def test_what_is_left_out_is_said(client, path, fields, said):
    answer = client.post(path, {**BASES[path], **fields})
    assert answer.status == 200, answer.body
    assert answer.headers[SAID] == said


@pytest.mark.parametrize(("path", "fields", "said"), CASES)
def test_a_strict_server_refuses_it(configured, path, fields, said):
    answer = configured(strict=True).post(path, {**BASES[path], **fields})
    assert answer.status == 400, answer.body
    if path != MESSAGES:
        names = [name.partition("=")[0] for name in said.split(", ")]
        assert answer.error["param"] in names
        assert answer.error["code"] in ("unsupported_parameter", "unknown_parameter")


@pytest.mark.parametrize("path", BASES)
def test_nothing_is_said_of_a_request_that_asks_for_nothing_else(configured, path):
    asked = {CHAT: {"store": False, "verbosity": "medium", "service_tier": "auto", "user": "u", "tools": [],
                    "tool_choice": "auto", "reasoning_format": "auto", "parse_tool_calls": True},
             COMPLETIONS: {"service_tier": "default", "metadata": {"a": "b"}},
             RESPONSES: {"store": False, "truncation": "disabled", "client_metadata": {"a": "b"}, "tools": [],
                         "tool_choice": "auto", "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k"},
             MESSAGES: {"thinking": {"type": "adaptive"}, "service_tier": "auto", "speed": "standard",
                        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
             }[path]  # fmt: skip
    answer = configured(strict=True).post(path, {**BASES[path], **asked})
    assert answer.status == 200, answer.body
    assert SAID not in answer.headers


@pytest.mark.parametrize(("fields", "place"), [
    (blocks({"type": "image_url", "image_url": {"url": "data:"}}), "messages[0].content[1].image_url"),
    (blocks({"type": "input_audio", "input_audio": {}}), "messages[0].content[1].input_audio"),
    (blocks({"type": "file", "file": {"file_id": "x"}}), "messages[0].content[1].file"),
])  # fmt: skip
def test_content_that_an_answer_would_miss_is_refused(client, fields, place):
    answer = client.post(CHAT, {**BASES[CHAT], **fields})
    assert (answer.status, answer.error["param"]) == (400, place)


@pytest.mark.parametrize("block", [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
    {"type": "document", "source": {"type": "file", "file_id": "f"}},
    {"type": "container_upload", "file_id": "f"},
])  # fmt: skip
def test_pictures_and_files_of_messages_are_refused(client, block):
    answer = client.post(MESSAGES, {**BASES[MESSAGES], **blocks(block)})
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith("messages[0].content[1]")


def document(*parts, **fields):
    return {"type": "document", "source": {"type": "content", "content": list(parts)}, **fields}


def test_what_of_a_document_is_not_read_is_said(client):
    text, picture = {"type": "text", "text": "A fox."}, {"type": "image", "source": {"type": "url", "url": "u"}}
    for block, said in (
        (document(text, citations={"enabled": True}, foo=1), "content[1].citations, messages[0].content[1].foo"),
        (document(text, {"type": "quiz"}), "content[1].source.content[1].type=quiz"),
        (document(text, citations={"enabled": False}, cache_control={"type": "ephemeral"}, title=None), None),
    ):
        answer = client.post(MESSAGES, {**BASES[MESSAGES], **blocks(block)})
        assert (answer.status, answer.headers.get(SAID)) == (200, said and f"messages[0].{said}")
    answer = client.post(MESSAGES, {**BASES[MESSAGES], **blocks(document(text, picture))})
    assert answer.json["error"]["message"].startswith("messages[0].content[1].source.content[1].type: pictures")
    given = blocks({"type": "tool_result", "tool_use_id": "a", "content": [document(text, picture)]})
    answer = client.post(f"{MESSAGES}/count_tokens", given)
    assert answer.headers[SAID] == "messages[0].content[1].content[0].source.content[1].type=image"


def test_a_picture_that_a_tool_gave_locks_no_conversation(configured, tmp_path):
    template = tmp_path / "calls.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls }}{% endfor %}")
    client, strict = (configured(chat_template=str(template), strict=strict) for strict in (False, True))
    shown = "[pictures are not shown: this model reads text alone]"
    called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [*HI, {"role": "assistant", "tool_calls": [called]}]
    used = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    for path, picture, name, wrap in (
        (CHAT, {"type": "image_url", "image_url": {"url": "data:"}}, "messages[2].content[0].type=image_url",
         lambda part: {"messages": [*given, {"role": "tool", "tool_call_id": "a", "content": part}]}),
        (RESPONSES, {"type": "input_image", "image_url": "data:"}, "input[2].output[0].type=input_image",
         lambda part: {"input": [*HI, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                                 {"type": "function_call_output", "call_id": "a", "output": part}]}),
        (MESSAGES, {"type": "image", "source": {}}, "messages[2].content[0].content[0].type=image",
         lambda part: {"messages": [*HI, {"role": "assistant", "content": [used]}, {"role": "user", "content": [
             {"type": "tool_result", "tool_use_id": "a", "content": part}]}]}),
    ):  # fmt: skip
        answer = client.post(path, {**BASES[path], **wrap([picture])})
        assert (answer.status, answer.headers[SAID]) == (200, name), answer.body
        usage = answer.json["usage"]
        said = client.post(path, {**BASES[path], **wrap(shown)}).json["usage"]
        counts = ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
        assert sum(usage.get(n, 0) for n in counts) == sum(said.get(n, 0) for n in counts)
        assert strict.post(path, {**BASES[path], **wrap([picture])}).status == 400


@pytest.mark.parametrize(("block", "text"), [
    ({"type": "document", "title": "Tale", "source": {"type": "text", "media_type": "text/plain", "data": "A fox."}},
     "Tale\nA fox."),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "A fox."}]}}, "A fox."),
    ({"type": "search_result", "title": "Tale", "source": "here", "content": [{"type": "text", "text": "A fox."}]},
     "Tale\nhere\nA fox."),
    ({"type": "web_search_tool_result", "tool_use_id": "a", "content": [
        {"type": "web_search_result", "title": "Tale", "url": "u", "encrypted_content": "e"}]}, "Tale\nu"),
])  # fmt: skip
def test_text_of_other_blocks_is_in_the_prompt(client, block, text):
    said = {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}
    given = {"messages": [{"role": "user", "content": [block]}]}
    counted = [client.post(f"{MESSAGES}/count_tokens", one).json for one in (given, said)]
    assert counted[0] == counted[1]
    assert "input_tokens" in counted[0]


@pytest.mark.parametrize(("path", "fields", "said"), [
    (CHAT, lambda deep: blocks({"type": "quiz", "content": deep}), "messages[0].content[1].type=quiz"),
    (MESSAGES, lambda deep: blocks({"type": "mcp_tool_use", "id": "a", "name": "n", "input": {"a": deep}}),
     "messages[0].content[1].type=mcp_tool_use"),
    (RESPONSES, lambda deep: items({"type": "tool_search_output", "tools": deep}), "input[1].type=tool_search_output"),
])  # fmt: skip
def test_content_of_other_kinds_may_nest_deeply(client, path, fields, said):
    """A client sends what came from elsewhere again with each request: if it were refused, it could never go on."""
    answer = client.post(path, {**BASES[path], **fields(json.loads("[" * 250 + '"text"' + "]" * 250))})
    assert (answer.status, answer.headers[SAID]) == (200, said), answer.body


def test_reasoning_has_parts_of_any_type(client):
    def counted(*parts):
        body = {**items({"type": "reasoning", "content": list(parts), "summary": [{"type": "quiz"}]}), "tools": []}
        answer = client.post(f"{RESPONSES}/input_tokens", body)
        return answer.status, answer.headers[SAID], answer.json["input_tokens"]

    one = counted({"type": "reasoning_text", "text": "x"})
    assert one[:2] == (200, "input[1].summary[0].type=quiz")
    assert counted({"type": "text", "text": "x"}) == one
    assert counted({"type": "quiz"})[1] == "input[1].content[0].type=quiz, input[1].summary[0].type=quiz"


def test_metadata_of_messages_may_be_null(client):
    """As Anthropic's types have it."""
    answer = client.post(MESSAGES, {**BASES[MESSAGES], "metadata": {"user_id": None}})
    assert (answer.status, answer.headers.get(SAID)) == (200, None)


def test_a_tool_of_its_vendor_that_is_chosen_is_refused(client):
    tools = [{"type": "function", **ADD}, {"type": "web_search"}]
    for choice in ({"type": "web_search"}, {"type": "function", "name": "web_search"}, "required"):
        asked = {**BASES[RESPONSES], "tools": tools[1:] if choice == "required" else tools, "tool_choice": choice}
        answer = client.post(RESPONSES, asked)
        assert answer.status == 400
        assert answer.error["param"].startswith("tool_choice")
    asked = {**BASES[MESSAGES], "tools": [{"type": "bash_20250124", "name": "bash"}]}
    assert client.post(MESSAGES, {**asked, "tool_choice": {"type": "tool", "name": "bash"}}).status == 400
    assert client.post(MESSAGES, {**asked, "tool_choice": {"type": "auto"}}).status == 200


def test_places_of_tools_are_those_of_the_request(configured):
    client = configured(tool_format="hermes")
    wrong = {"type": "function", "name": "f", "parameters": {"type": 5}}
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [{"type": "function", **ADD}, wrong]}]
    answer = client.post(RESPONSES, {**BASES[RESPONSES], "tools": tools, "tool_choice": "required"})
    assert answer.error["param"] == "tools[1].tools[1].parameters"
    wrong = {"type": "function", "function": {"name": "f", "parameters": {"type": 5}, "strict": True}}
    asked = {"messages": HI, "tools": [{"type": "x"}, wrong]}
    for path in (CHAT, "/tokenize", "/apply-template"):
        answer = client.post(path, asked)
        assert answer.error["param"] == "tools[1].function.parameters"


def test_a_grammar_of_another_kind_leaves_the_input_free(configured):
    client = configured(tool_format="hermes")
    tool = {"type": "custom", "name": "patch", "format": LARK}
    asked = {**BASES[RESPONSES], "max_output_tokens": 40, "tools": [{"type": "web_search"}, tool], "seed": 1}
    answer = client.post(RESPONSES, {**asked, "tool_choice": "required"})
    assert answer.json["output"][0]["type"] == "custom_tool_call"
    assert answer.headers[SAID] == "tools[0].type=web_search, tools[1].format.syntax=lark"


def test_more_tokens_than_there_is_room_for_are_said(client, configured):
    for path, name in ((CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens"),
                       (MESSAGES, "max_tokens"), (COMPLETIONS, "max_tokens")):  # fmt: skip
        base = {key: value for key, value in BASES[path].items() if not key.startswith("max_")}
        answer = client.post(path, {**base, name: 32_000, "temperature": 0, "stream": True})
        assert (answer.status, answer.headers[SAID]) == (200, name)
    strict = configured(strict=True)  # the context bounds it either way
    assert strict.post(CHAT, {**BASES[CHAT], "max_tokens": 32_000, "temperature": 0}).status == 200


def test_a_small_kv_cache_bounds_output_and_prompt(engine):
    with ox.load(num_threads=1, kv_budget=engine.memory_bytes()["kv_cache"] // 64) as small:
        client = Client(create_app({"tiny": small}, ServerConfig()))
        room = client.get("/v1/models").json["data"][0]["oxillama"]["context_length"]
        assert 16 < room < small.context_size
        for path, name in ((CHAT, "max_tokens"), (RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")):
            answer = client.post(path, {**BASES[path], name: 32_000, "temperature": 0})
            assert (answer.status, answer.headers[SAID]) == (200, name)
        whole = client.post(CHAT, messages=HI, max_tokens=32_000, ignore_eos=True, temperature=0).json["usage"]
        assert whole["prompt_tokens"] + whole["completion_tokens"] == room
        long = [{"role": "user", "content": "the fox " * room}]
        for path, said in ((CHAT, f"This model's maximum context length is {room} tokens"),
                           (MESSAGES, "prompt is too long: ")):  # fmt: skip
            answer = client.post(path, messages=long, max_tokens=32_000)
            assert answer.status == 400
            assert answer.json["error"]["message"].startswith(said)
            assert f"the KV cache has room for {room}" in answer.json["error"]["message"]
        scored = client.post(COMPLETIONS, prompt=[1] * (room + 1), max_tokens=0, echo=True, logprobs=1)
        assert scored.error["code"] == "context_length_exceeded"
        assert "room for" in scored.error["message"]
        assert client.post(COMPLETIONS, prompt=[1] * room, max_tokens=0, echo=True, logprobs=1).status == 200


def test_misspelt_names_are_mistakes(client, configured):
    for name, meant in {"temprature": "temperature", "maxTokens": "max_tokens", "n_predict": "max_tokens"}.items():
        error = client.post(COMPLETIONS, {**BASES[COMPLETIONS], name: 1}).error
        assert error["message"].endswith(f"did you mean {meant!r}?")
    lenient = configured(lenient=True)
    answer = lenient.post(COMPLETIONS, {**BASES[COMPLETIONS], "temprature": 1, "temperature": 5})
    assert (answer.status, answer.headers[SAID]) == (200, "temprature")


def test_a_header_holds_no_content_and_is_bounded():
    reading = Reading()
    for i in range(500):
        reading.leave_out(f"a{i}\r\nX: \x00é, {i}")
    assert len(reading.left_out) == MOST_NAMED
    assert len(reading.header) <= MOST_OF_A_VALUE
    assert reading.header.isascii()
    assert reading.header.isprintable()
    assert reading.header.endswith(" more")
    assert reading.header.startswith("a0??X:?????0, a1")


def test_a_thousand_unknown_names_take_a_bounded_number_of_comparisons(client, monkeypatch):
    compared = []
    monkeypatch.setattr("oxillama.server.field_types.misspelt", lambda name, known: compared.append(name))
    answer = client.post(COMPLETIONS, {**BASES[COMPLETIONS], **{f"zz{i}qq": 0 for i in range(20_000)}})
    assert answer.status == 200
    assert len(answer.headers[SAID]) <= MOST_OF_A_VALUE
    assert len(compared) == MAX_COMPARED


def test_each_kind_is_logged_once_for_a_client_and_counted(configured, caplog):
    client = configured()
    tools = [{"type": "web_search"}, {"type": "mcp", "server_label": "secret"}]
    with caplog.at_level(logging.INFO, "oxillama"):
        for _ in range(3):
            client.post(RESPONSES, {**BASES[RESPONSES], "tools": tools, "brand_new": "secret"})
    lines = [record.getMessage() for record in caplog.records if record.name == "oxillama"]
    assert [line for line in lines if line.startswith("left out")] == [
        "left out of requests of 127.0.0.1: tools.type",
        "left out of requests of 127.0.0.1: unknown",
    ]
    assert "secret" not in caplog.text
    text = client.get("/metrics").body.decode()
    assert 'oxillama_left_out_total{kind="tools.type"} 6' in text
    assert 'oxillama_left_out_total{kind="unknown"} 3' in text


def test_reasoning_goes_to_the_client_and_back(configured, tmp_path):
    template = tmp_path / "thinks.jinja"
    template.write_text(
        "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
        "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
    )
    client = configured(chat_template=str(template))
    asked = {"input": "hi", "max_output_tokens": 30, "reasoning_budget": 8, "temperature": 0}
    plain = client.post(RESPONSES, asked).json["output"]
    assert "encrypted_content" not in plain[0]
    output = client.post(RESPONSES, {**asked, "include": ["reasoning.encrypted_content"]}).json["output"]
    assert output[0]["content"][0]["text"] == plain[0]["content"][0]["text"]

    def counted(reasoning):
        question = {"role": "user", "content": "hi"}
        body = json.dumps({"input": [question, reasoning, *output[1:], question]}).encode()
        return client.post(f"{RESPONSES}/input_tokens", body).json["input_tokens"]

    kept = {name: value for name, value in output[0].items() if name != "content"}
    assert counted(kept) == counted(plain[0]) > counted({"type": "reasoning", "summary": []})


CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}<call>{{ c.function.name }}"
    "{{ c.function.arguments }}{% endfor %}{% endfor %}"
)


def space(name, *functions):
    return {"type": "namespace", "name": name, "description": "d", "tools": list(functions)}


def function(name):
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "function", "name": name, "parameters": schema}


def test_functions_of_namespaces_are_called_by_their_own_names(configured, tmp_path):
    template = tmp_path / "calls.jinja"
    template.write_text(CALLS)
    client = configured(tool_format="hermes", chat_template=str(template))

    tools = [space("one", function("list"), function("read")), space("two", function("list"))]
    asked = {"input": "hi", "max_output_tokens": 60, "tools": tools, "seed": 1}
    for shown, own in {"read": ("one", "read"), "one.list": ("one", "list"), "two.list": ("two", "list")}.items():
        choice = {"type": "function", "name": shown}
        answer = client.post(RESPONSES, {**asked, "tool_choice": choice})
        (call,) = answer.json["output"]
        assert (call["namespace"], call["name"]) == own
        assert answer.headers[SAID] == "tools[0].description, tools[1].description"
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
        again = client.post(RESPONSES, {**asked, "input": [{"role": "user", "content": "hi"}, call, result]})
        assert again.status == 200, again.body
    events = client.post(RESPONSES, {**asked, "tool_choice": choice, "stream": True}).events
    added = [data["item"] for name, data in events if name == "response.output_item.added"]
    assert [(item["namespace"], item["name"]) for item in added] == [("two", "list")]


def test_names_of_namespaces_that_are_names_of_other_tools(configured, tmp_path):
    """A client tells its functions apart by namespace and name, whatever the model is shown."""
    template = tmp_path / "calls.jinja"
    template.write_text(CALLS)
    client = configured(tool_format="hermes", chat_template=str(template))
    tools = [function("list"), space("one", function("list")), function("one.list"), space("one.list", function("x")),
             space("a", function("b.c")), space("a.b", function("c")), function("c"), function("b.c")]  # fmt: skip
    own = [(None, "list"), ("one", "list"), (None, "one.list"), ("one.list", "x"), ("a", "b.c"), ("a.b", "c"),
           (None, "c"), (None, "b.c")]  # fmt: skip
    asked = {"input": "hi", "max_output_tokens": 60, "tools": tools, "seed": 1}
    for space_name, name in own:
        named = {} if space_name is None else {"namespace": space_name}
        choice = {"type": "function", "name": name, **named}
        (call,) = client.post(RESPONSES, {**asked, "tool_choice": choice}).json["output"]
        assert (call.get("namespace"), call["name"]) == (space_name, name)
        choice = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
        (call,) = client.post(RESPONSES, {**asked, "tool_choice": choice}).json["output"]
        assert (call.get("namespace"), call["name"]) == (space_name, name)
    twice = [space("one", function("list")), space("one", function("list"))]
    answer = client.post(RESPONSES, {**asked, "tools": twice})
    assert (answer.status, answer.error["param"]) == (400, "tools[1].tools[0].name")


def test_a_namespace_may_lack_its_functions(client):
    tools = [{"type": "namespace", "name": "n"}, {"type": "namespace", "name": "m", "tools": None}]
    answer = client.post(RESPONSES, {**BASES[RESPONSES], "tools": tools})
    assert (answer.status, answer.headers[SAID]) == (200, "tools[0].type=namespace, tools[1].type=namespace")
