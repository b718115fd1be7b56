"""Calls, reasoning and streams of Ollama's API, and clients of it that leave."""

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import oxillama.server.ollama.conversations as conversations
import oxillama.server.respond as generating
from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.core.request import RequestClock
from oxillama.core.results import Chunk
from oxillama.server.ollama.parts import OllamaDialect, as_message, as_response
from oxillama.server.ollama.turns import messages_of
from tests.server.client import HI

CHAT, GENERATE = "/api/chat", "/api/generate"
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
}}}  # fmt: skip
THINKING = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>"
    "\n\n{% endif %}{{ m.content }}[end]\n{% endfor %}{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% endif %}"
)


@pytest.fixture
def calling(configured, monkeypatch):
    """A client of a server whose answers are calls of the tools that a chat gives."""
    read = conversations.read_as_chat

    def required(*given):
        translated = read(*given)
        return replace(translated, values={**translated.values, "tool_choice": "required"})

    monkeypatch.setattr(conversations, "read_as_chat", required)
    return configured(tool_format="hermes")


def test_calls_have_objects_for_arguments(calling):
    fields = {"model": "tiny", "messages": HI, "tools": [ADD], "options": {"temperature": 0, "num_predict": 200}}
    whole = calling.post(CHAT, {**fields, "stream": False}).json
    calls = whole["message"]["tool_calls"]
    assert (whole["message"]["content"], whole["done_reason"]) == ("", "stop")
    for i, call in enumerate(calls):
        assert call["id"]
        assert (call["function"]["index"], call["function"]["name"]) == (i, "add")
        assert call["function"]["arguments"]["a"] in range(10)
    *parts, last = calling.post(CHAT, fields).lines
    assert [call for part in parts for call in part["message"].get("tool_calls", ())] == calls
    assert (last["message"], last["done_reason"]) == ({"role": "assistant", "content": ""}, "stop")
    told = [*HI, whole["message"], *({"role": "tool", "tool_name": "add", "content": "5"} for _ in calls), *HI]
    assert (
        calling.post(CHAT, {**fields, "messages": told, "tools": []}).status == 400
    )  # this model knows no tools' role


def test_a_call_that_is_cut_off_is_text(calling):
    fields = {"model": "tiny", "messages": HI, "tools": [ADD]}
    texts = []
    for n in range(8, 40, 3):
        asked = {**fields, "options": {"temperature": 0, "num_predict": n}}
        whole = calling.post(CHAT, {**asked, "stream": False}).json
        parts = [part["message"] for part in calling.post(CHAT, asked).lines]
        assert "".join(part["content"] for part in parts) == whole["message"]["content"]
        assert [c for part in parts for c in part.get("tool_calls", ())] == whole["message"].get("tool_calls", [])
        assert all(isinstance(c["function"]["arguments"]["a"], int) for c in whole["message"].get("tool_calls", ()))
        texts.append(whole["message"]["content"])
    cut = [text for text in texts if text]
    assert cut  # others were cut before the name could be read, or between two calls
    assert all(text.startswith("<tool_call>") and not text.endswith("</tool_call>") for text in cut)


def dialect_of(said=as_message, **values):
    clock = RequestClock()
    run = SimpleNamespace(
        spec=SimpleNamespace(text=SimpleNamespace(stop_token_ids=())), prompts=[[1, 2]],
        requests=[SimpleNamespace(clock=clock)],
    )  # fmt: skip
    return OllamaDialect(run, {"model": "m", **values}, said, time.perf_counter() - 1.5, 0.25)


CALL = ToolCall("f", {"a": [1, {"b": None}]}, "call00001", raw="<call>")
CHUNKS = [
    Chunk("", [3], reasoning="hm"), Chunk("I", [4]), Chunk("", [5]), Chunk(" call", [6], tool_calls=[CALL]),
    Chunk("", [7], tool_calls=[BrokenToolCall("<call>{", "it ends", False, "call00002", begun=True, name="f")]),
    Chunk("", [8], "length", tool_calls=[BrokenToolCall("<ca", "it ends", False, "call00003")]),
]  # fmt: skip


def test_parts_and_the_whole_say_the_same():
    streamed, whole = dialect_of(), dialect_of()
    parts = [json.loads(data) for chunk in CHUNKS for _, data in streamed.step(0, chunk)]
    for chunk in CHUNKS:
        whole.add(0, chunk)
    shown = {"id": "call00001", "function": {"index": 0, "name": "f", "arguments": {"a": [1, {"b": None}]}}}
    assert [part["message"] for part in parts] == [
        {"role": "assistant", "content": "", "thinking": "hm"}, {"role": "assistant", "content": "I"},
        {"role": "assistant", "content": " call", "tool_calls": [shown]}, {"role": "assistant", "content": "<call>{"},
    ]  # fmt: skip
    ((_, last),) = streamed.end()
    assert (last["message"], last["done_reason"]) == ({"role": "assistant", "content": ""}, "length")
    answer = whole.whole()
    assert answer["message"] == {
        "role": "assistant", "content": "I call<call>{", "thinking": "hm", "tool_calls": [shown],
    }  # fmt: skip
    assert answer["total_duration"] >= 1_500_000_000
    assert [answer[name] for name in ("load_duration", "prompt_eval_count", "eval_count")] == [250_000_000, 2, 6]


def test_the_tokens_of_a_prompt_without_a_template_are_no_conversation():
    for fields, has_context in (({}, True), ({"raw": True}, False), ({"suffix": "x"}, False)):
        dialect = dialect_of(as_response, **fields)
        dialect.add(0, Chunk("a", [3], "stop"))
        assert ("context" in dialect.whole()) is has_context
        assert dialect.whole()["response"] == "a"


def test_results_belong_to_calls():
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    other = {"id": "mine", "function": {"name": "g", "arguments": "{}"}}
    given = [
        *HI, {"role": "assistant", "tool_calls": [call, other, call], "thinking": "hm"},
        {"role": "tool", "tool_name": "f", "content": "1"}, {"role": "tool", "tool_call_id": "mine", "content": "2"},
        {"role": "tool", "content": "3"}, {"role": "tool", "name": "h", "content": "4"},
        {"role": "tool", "content": "5"},
    ]  # fmt: skip
    found = messages_of(given)
    calls = found[1]["tool_calls"]
    assert [(one["id"], one["type"], one["function"]) for one in calls] == [
        ("call00000", "function", call["function"]), ("mine", "function", other["function"]),
        ("call00002", "function", call["function"]),
    ]  # fmt: skip
    assert found[1]["reasoning_content"] == "hm"
    assert [(one.get("tool_call_id"), one.get("name")) for one in found[2:]] == [
        ("call00000", "f"), ("mine", "g"), ("call00002", "f"), ("call00000", "h"), ("call00000", None),
    ]  # fmt: skip


TOOLS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]\n{% endfor %}[assistant]"


def test_pictures_that_a_tool_gave_are_left_out_and_told(configured, engine, tmp_path):
    """An agent sends them with every further request, and so could never go on."""
    (tmp_path / "t.jinja").write_text(TOOLS)
    client = configured(chat_template=str(tmp_path / "t.jinja"))
    shown = "[pictures are not shown: this model reads text alone]"
    for given, own in (({"content": "seen"}, f"seen\n{shown}"), ({}, shown)):
        told = [*HI, {"role": "Tool", "tool_name": "look", "images": ["aGk="], **given}]
        answer = client.post(CHAT, model="tiny", messages=told, stream=False, options={"num_predict": 1})
        assert answer.headers["x-oxillama-left-out"] == "messages[1].images"
        said = [*HI, {"role": "tool", "content": own}]
        assert answer.json["prompt_eval_count"] == len(engine.chat_tokens(said, chat_template=TOOLS))
    parts = [{"type": "text", "text": "seen"}, {"type": "image_url", "image_url": {"url": "x"}}]
    answer = client.post(CHAT, model="tiny", messages=[*HI, {"role": "tool", "content": parts}], stream=False)
    assert (answer.status, answer.headers["x-oxillama-left-out"]) == (200, "messages[1].content[1].type=image_url")


@pytest.fixture
def thinking(configured, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(THINKING)
    return configured(chat_template=str(path))


def test_reasoning_is_apart(thinking, engine):
    options = {"temperature": 0, "num_predict": 24}
    for think, switch in ((True, True), (None, None), (False, False)):
        kwargs = {} if switch is None else {"template_kwargs": {"enable_thinking": switch}}
        alone = engine.chat(HI, chat_template=THINKING, max_tokens=24, temperature=0, **kwargs)
        fields = {"model": "tiny", "think": think, "options": options}
        answer = thinking.post(CHAT, {**fields, "messages": HI, "stream": False})
        message = answer.json["message"]
        assert (message.get("thinking", ""), message["content"]) == (alone.reasoning, alone.text)
        assert bool(alone.reasoning) is (switch is not False)
        parts = [part["message"] for part in thinking.post(CHAT, {**fields, "messages": HI}).lines]
        assert "".join(part.get("thinking", "") for part in parts) == alone.reasoning
        answer = thinking.post(GENERATE, {**fields, "prompt": "hi", "stream": False}).json
        assert (answer.get("thinking", ""), answer["response"]) == (alone.reasoning, alone.text)
    levelled = thinking.post(CHAT, model="tiny", messages=HI, think="low", stream=False, options=options)
    assert levelled.headers["x-oxillama-left-out"] == "think"  # its level: the template has no variable for it
    assert levelled.json["message"]["thinking"]


def test_reasoning_of_earlier_answers_is_taken_back(thinking, engine):
    told = [*HI, {"role": "assistant", "content": "Well", "thinking": "hm"}, *HI]
    own = [*HI, {"role": "assistant", "content": "Well", "reasoning_content": "hm"}, *HI]
    answer = thinking.post(CHAT, model="tiny", messages=told, stream=False, options={"num_predict": 1}).json
    assert answer["prompt_eval_count"] == len(engine.chat_tokens(own, chat_template=THINKING))


LONG = {"model": "tiny", "messages": HI, "options": {"num_predict": 900, "ignore_eos": True}}


def test_silence_is_filled_with_parts_that_say_nothing(configured, monkeypatch):
    following = generating.GenerationRun.next

    async def slow(self):
        await asyncio.sleep(0.03)
        return await following(self)

    monkeypatch.setattr(generating.GenerationRun, "next", slow)
    fields = {"model": "tiny", "messages": HI, "options": {"num_predict": 3}}
    *parts, last = configured(sse_ping=0.01).post(CHAT, fields).lines
    empty = [part for part in parts if not part["message"]["content"]]
    assert empty
    assert all((part["model"], part["done"]) == ("tiny", False) for part in empty)
    assert last["eval_count"] == 3


def test_an_error_within_a_stream_is_its_last_line(configured):
    *parts, last = configured(request_timeout=0.02).post(CHAT, LONG).lines
    assert last == {"error": "the answer took longer than the server's --request-timeout"}
    assert not any(part["done"] for part in parts)
    whole = configured(request_timeout=0.02).post(CHAT, {**LONG, "stream": False})
    assert (whole.status, whole.json) == (504, last)


@pytest.mark.parametrize("leave_after", [1, 2, 4])
def test_clients_that_leave(configured, engine, leave_after):
    client = configured()

    async def main():
        body, headers = json.dumps(LONG).encode(), {"content-type": "application/json"}
        await client.acall("POST", CHAT, body, headers, leave_after=leave_after)

    asyncio.run(main())
    assert client.app.service.gate.running == 0
    assert client.app.service.metrics.disconnects == 1
