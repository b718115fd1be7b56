"""What Ollama's API leaves out of requests and says, and what it refuses: each by its name."""

import pytest

from oxillama.server.fields_ollama import CHAT as CHAT_FIELDS
from oxillama.server.fields_ollama import COPY, CREATE, EMBED, EMBEDDINGS, OPTIONS, REGISTRY, SHOW
from oxillama.server.fields_ollama import GENERATE as GENERATE_FIELDS
from tests.server.client import HI
from tests.server.values import VALUES_OF_JSON

CHAT, GENERATE = "/api/chat", "/api/generate"
SAID = "x-oxillama-left-out"


def chat(client, messages=HI, **fields):
    return client.post(CHAT, {"model": "tiny", "messages": messages, **fields})


def generate(client, prompt="hi", **fields):
    return client.post(GENERATE, {"model": "tiny", "prompt": prompt, **fields})


@pytest.mark.parametrize(("fields", "said"), [
    ({"options": {"num_gpu": 99, "num_thread": 4}}, "options.num_gpu, options.num_thread"),
    ({"options": {"num_ctx": 4096}}, "options.num_ctx"),
    ({"options": {"num_ctx": 512, "low_vram": False, "numa": False, "tfs_z": 1, "penalize_newline": True}}, None),
    ({"options": {"low_vram": True, "tfs_z": 0.5}}, "options.low_vram, options.tfs_z"),
    ({"options": {"num_keep": 24, "main_gpu": 0}}, "options.num_keep, options.main_gpu"),
    ({"options": {"draft_num_predict": 4}}, "options.draft_num_predict"),
    ({"options": {"draft_num_predict": 0}}, None),
    ({"options": {"some_new_option": 4}}, "options.some_new_option"),
    ({"options": {"use_mmap": True, "num_batch": 512}}, "options.use_mmap, options.num_batch"),
    ({"think": True}, "think"), ({"think": "high"}, "think"), ({"think": False}, None),
    ({"keep_alive": "5m"}, "keep_alive"), ({"keep_alive": -1}, None),
    ({"shift": True}, "shift"), ({"shift": False, "truncate": True}, None),
    ({"some_new_field": {}}, "some_new_field"),
])  # fmt: skip
def test_wishes_are_left_out_and_said(client, configured, fields, said):
    fields = {"stream": False, **fields, "options": {"num_predict": 2, **fields.get("options", {})}}
    for ask in (chat, generate):
        answer = ask(client, **fields)
        assert answer.status == 200, answer.body
        assert answer.headers.get(SAID) == said
        strict = ask(configured(strict=True), **fields)
        assert strict.status == (200 if said is None else 400)
        if said is not None:
            assert said.partition(",")[0] in strict.error


@pytest.mark.parametrize(("fields", "place"), [
    ({"options": {"temperature": -1}}, "options.temperature must be"),
    ({"options": {"top_k": 0.5}}, "options.top_k must be an integer"),
    ({"options": {"num_gpu": "all"}}, "options.num_gpu must be an integer"),
    ({"options": {"temprature": 1}}, "'options.temprature' is not a known parameter; did you mean 'temperature'?"),
    ({"options": {"mirostat": 1, "temperature": 0}}, "options.temperature must be above 0"),
    ({"options": {"repeat_penalty": -1}}, "options.repeat_penalty must be"),
    ({"options": {"stop": [""]}}, "options.stop[0] must have"),
    ({"options": []}, "options must be an object"),
    ({"format": "yaml"}, "format must be one of json, not 'yaml'"),
    ({"format": {"type": 5}}, "format: "),
    ({"think": "a lot"}, "think must be one of low, medium, high, max"),
    ({"keep_alive": "soon"}, "keep_alive must be a duration"),
    ({"stream": "no"}, "stream must be true or false"),
    ({"top_logprobs": 99, "logprobs": True}, "top_logprobs must be at most 20"),
    ({"_debug_render_only": True}, "_debug_render_only must be false"),
])  # fmt: skip
def test_mistakes_are_refused_by_name(client, fields, place):
    for ask in (chat, generate):
        answer = ask(client, **fields)
        assert answer.status == 400
        assert set(answer.json) == {"error"}
        assert answer.error.startswith(place), answer.error


@pytest.mark.parametrize(("fields", "place"), [
    ({"context": [5, 10**6]}, "context[1] must be from 0 to 1535"), ({"context": "x"}, "context must be a list"),
    ({"context": [-1]}, "context[0] must be an integer"), ({"system": 5}, "system must be a string"),
    ({"raw": "yes"}, "raw must be true or false"),
])  # fmt: skip
def test_prompts_that_are_refused(client, fields, place):
    answer = generate(client, **fields)
    assert answer.status == 400
    assert answer.error.startswith(place), answer.error


def test_tools_of_vendors_are_left_out(configured):
    client = configured(tool_format="hermes")
    own = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": 5}}}
    fields = {"stream": False, "options": {"num_predict": 1}}
    answer = chat(client, tools=[{"type": "web_search"}], **fields)
    assert (answer.status, answer.headers[SAID]) == (200, "tools[0].type=web_search")
    for tools, place in (
        ([{"type": "mcp"}, {"function": {"name": ""}}], "tools[1].function.name must have"),
        ([{"type": "mcp"}, own, own], "tools[2].function.name is that of an earlier tool"),
    ):
        answer = chat(client, tools=tools, **fields)
        assert answer.status == 400
        assert answer.error.startswith(place), answer.error


@pytest.mark.parametrize(("messages", "place"), [
    ([{"role": "user", "content": "x", "images": ["aGk="]}], "messages[0].images: pictures are not read"),
    ([*HI, {"role": "bot", "content": "x"}], "messages[1].role must be one of"),
    ([{"role": "user", "content": 5}], "messages[0].content must be"),
    ([{"content": "x"}], "messages[0].role is missing"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].image_url: "),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name is missing"),
])  # fmt: skip
def test_messages_that_are_refused(client, messages, place):
    answer = chat(client, messages)
    assert answer.status == 400
    assert answer.error.startswith(place), answer.error


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_models_that_are_not_there(client, path):
    answer = client.post(path, model="llama3.2:3b", messages=HI, prompt="x")
    assert (answer.status, answer.json) == (404, {"error": "model 'llama3.2:3b' not found"})
    for given in ({}, {"model": ""}, {"model": None}):
        answer = client.post(path, {"messages": HI, "prompt": "x", **given})
        assert (answer.status, answer.json) == (400, {"error": "model is required"})


@pytest.mark.parametrize("record", [CHAT_FIELDS, GENERATE_FIELDS], ids=["chat", "generate"])
def test_every_value_is_taken_or_refused_by_name(client, record):
    path = CHAT if record is CHAT_FIELDS else GENERATE
    base = {"model": "tiny", "messages": HI} if path == CHAT else {"model": "tiny", "prompt": "hi"}
    for field in record.fields:
        for value in VALUES_OF_JSON.values():
            answer = client.post(path, {**base, "options": {"num_predict": 1}, field.name: value})
            if answer.status == 200:
                continue
            assert answer.status == 400 or (field.name, answer.status) == ("model", 404), (value, answer.body)
            assert field.name in answer.error or "prompt of messages" in answer.error, answer.error


@pytest.mark.parametrize("field", OPTIONS.fields, ids=lambda field: field.name)
def test_every_option_is_taken_or_refused_by_name(client, field):
    for value in VALUES_OF_JSON.values():
        answer = chat(client, options={"num_predict": 1, field.name: value})
        if answer.status != 200:
            assert answer.status == 400
            assert f"options.{field.name}" in answer.error, answer.error


@pytest.mark.parametrize(("path", "record", "base"), [
    ("/api/embed", EMBED, {"model": "tiny", "input": "a"}),
    ("/api/embeddings", EMBEDDINGS, {"model": "tiny", "prompt": "a"}), ("/api/show", SHOW, {"model": "tiny"}),
    ("/api/pull", REGISTRY, {"model": "tiny"}), ("/api/copy", COPY, {}),
    ("/api/create", CREATE, {"model": "tiny"}),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_every_value_of_the_other_paths_is_taken_or_refused_by_name(client, path, record, base):
    taken = 501 if record in (REGISTRY, COPY, CREATE) else 200
    for field in record.fields:
        for value in VALUES_OF_JSON.values():
            answer = client.post(path, {**base, field.name: value})
            if answer.status != taken:
                assert answer.status == 400 or (field.name, answer.status) == ("model", 404), (value, answer.body)
                assert field.name in answer.error, answer.error
