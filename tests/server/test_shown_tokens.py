"""Tokens that answers show: in a stream as in a whole answer, those without text of their own too."""

import pytest

from oxillama.chat.message import ToolCallDelta
from oxillama.core.results import Chunk, TokenLogprob
from oxillama.server.answers import DeltaReader
from oxillama.server.shown_tokens import AnswerTokens, ContentTokens
from tests.server.client import HI

TOKENS = [b"m</", b"think>", b"\n\n", b"Hel", b"lo", b"\n<ca", b"ll>", b"\xe2", b"\x82", b"\xac", b"<|x|>"]
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LOGPROBS = ["message.output_text.logprobs"]


def chunk(text, ids, **more):
    logprobs = [TokenLogprob(i, TOKENS[i], -1.0, ()) for i in ids]
    return Chunk(text, list(ids), logprobs=logprobs, **more)


def read(chunks, made):
    reader = made(TOKENS.__getitem__)
    return [[token for token, _ in reader.read(one, DeltaReader().read(one))] for one in chunks]


CALL = [ToolCallDelta(0, "id0", "get")]


@pytest.mark.parametrize(("chunks", "own"), [
    ([chunk("Hel", range(4), raw="m</think>\n\nHel")], [[3]]),
    ([chunk("Hello", range(7), raw="m</think>\n\nHello\n<call>")], [[3, 4]]),
    ([chunk("Hello\n", range(7), raw="m</think>\n\nHello\n<call>")], [[3, 4, 5]]),
    ([chunk("", [3]), chunk("Hel", [], raw="Hel"), chunk("H", range(4, 7))], [[], [3], [4, 5, 6]]),
    ([chunk("", [], reasoning="think"), chunk("k", range(1, 3))], [[], [1]]),
    ([chunk("other", range(5), raw="other")], [[0, 1, 2, 3, 4]]),
    ([chunk("", [])], [[]]),
    # a character of several tokens, at first, in the middle, behind a control token, and in the end
    ([chunk("", [7]), chunk("", [8]), chunk("€", [9], raw="€")], [[], [], [7, 8, 9]]),
    ([chunk("Hel", [3, 7]), chunk("", [8]), chunk("€", [9])], [[3], [], [7, 8, 9]]),
    ([chunk("", [10]), chunk("Hel", [3], raw="Hel"), chunk("", [10]), chunk("lo", [4])], [[], [10, 3], [], [10, 4]]),
    ([chunk("Hel", [3]), chunk("", [7]), chunk("", [8], finish_reason="length")], [[3], [], [7, 8]]),
    ([chunk("", [10]), chunk("", [10], finish_reason="stop")], [[], [10, 10]]),
    # a beginning of a mark belongs to the call, if one follows, and to the text if not
    ([chunk("Hel", [3]), chunk("", [5]), chunk("", [6], tool_call_deltas=CALL), chunk("", [10], finish_reason="stop")],
     [[3], [], [], []]),
    ([chunk("Hel", [3]), chunk("", [5]), chunk("\n<call>", [6], finish_reason="stop")], [[3], [], [5, 6]]),
    ([chunk("", [0], reasoning="m"), chunk("", [1]), chunk("", [2], finish_reason="length")], [[], [], []]),
])  # fmt: skip
def test_tokens_of_the_content(chunks, own):
    assert read(chunks, ContentTokens) == own


@pytest.mark.parametrize(("chunks", "own"), [
    ([chunk("", [7], reasoning="m"), chunk("", [8]), chunk("Hel", [1, 3]), chunk("", [10])], [[], [], [3], [10]]),
    ([chunk("", [0], reasoning="m"), chunk("", [7]), chunk("", [8], finish_reason="length")], [[], [], []]),
    ([chunk("", [7]), chunk("", [8], finish_reason="length")], [[], [7, 8]]),
    ([chunk("", [7]), chunk("", [8]), chunk("€", [9], raw="€")], [[], [], [7, 8, 9]]),
    ([chunk("", [0], reasoning="m"), chunk("", [5]), chunk("", [6], tool_call_deltas=CALL), chunk("", [4])],
     [[], [], [6], [4]]),
])  # fmt: skip
def test_tokens_behind_hidden_reasoning(chunks, own):
    reader = AnswerTokens(TOKENS.__getitem__, whole=False)
    assert [[token for token, _ in reader.read(one)] for one in chunks] == own
    reader = AnswerTokens(TOKENS.__getitem__, whole=True)
    assert [[token for token, _ in reader.read(one)] for one in chunks] == [one.token_ids for one in chunks]


TEXTS = ["né €", "😀😀 a", "€"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_of_responses_has_every_token(client, engine, text):
    form = {"format": {"type": "json_schema", "name": "a", "schema": {"const": text}}}
    fields = {"input": "hi", "text": form, "temperature": 0, "include": LOGPROBS, "top_logprobs": 2}
    whole = client.post(RESPONSES, fields).json
    alone = engine.chat(HI, json_schema={"const": text}, temperature=0, logprobs=2)
    (part,) = whole["output"][0]["content"]
    assert [one["logprob"] for one in part["logprobs"]] == [one.logprob for one in alone.logprobs]
    assert bytes(b for one in part["logprobs"] for b in one["bytes"]).decode() == part["text"] == f'"{text}"'
    assert len(part["logprobs"]) > len(text)
    events = client.post(RESPONSES, {**fields, "stream": True}).events
    deltas = [data for name, data in events if name == "response.output_text.delta"]
    assert [one for data in deltas for one in data["logprobs"]] == part["logprobs"]
    assert "".join(data["delta"] for data in deltas) == part["text"]


@pytest.mark.parametrize("most", range(1, 8))
def test_an_answer_that_ends_inside_of_a_character_has_its_tokens(client, most):
    """Cut anywhere, a response has as many entries as tokens, and those of chat completions."""
    schema = {"const": "😀€"}
    fields = {"max_output_tokens": most, "temperature": 0, "include": LOGPROBS}
    form = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    whole = client.post(RESPONSES, input="hi", text=form, **fields).json
    told = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "logprobs": True}
    chat = client.post(CHAT, messages=HI, max_tokens=most, temperature=0, **told).json
    (part,) = whole["output"][0]["content"]
    assert part["logprobs"] == [one | {"top_logprobs": []} for one in chat["choices"][0]["logprobs"]["content"]]
    assert len(part["logprobs"]) == whole["usage"]["output_tokens"] == most
    events = client.post(RESPONSES, input="hi", text=form, stream=True, **fields).events
    deltas = [data for name, data in events if name == "response.output_text.delta"]
    assert [one for data in deltas for one in data["logprobs"]] == part["logprobs"]
    (done,) = [data for name, data in events if name == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"]


CONST = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "é😀€ a"}}}}


@pytest.mark.parametrize("more", [CONST, {"stop": ["a", "e", "o"], "seed": 2}, {**CONST, "stop": ["€ a"]}])
@pytest.mark.parametrize("path", ["chat", "completions", "ollama"])
def test_streams_of_every_api_have_every_token(client, path, more):
    fields = {"max_tokens": 30, "temperature": 0, **more}
    if path == "chat":
        asked, place = {"messages": HI, "logprobs": True, **fields}, lambda c: c["logprobs"]["content"]
    elif path == "completions":
        asked, place = {"prompt": "Once", "logprobs": 1, **fields}, lambda c: c["logprobs"]["token_logprobs"]
    else:
        options = {"num_predict": 30, "temperature": 0, **{k: v for k, v in more.items() if k in ("stop", "seed")}}
        form = {"format": {"const": "é😀€ a"}} if "response_format" in more else {}
        asked = {"model": "tiny", "messages": HI, "logprobs": True, "options": options, **form}
        whole = client.post("/api/chat", {**asked, "stream": False}).json
        parts = client.post("/api/chat", asked).lines
        assert [one for part in parts for one in part.get("logprobs", ())] == whole["logprobs"]
        assert len(whole["logprobs"]) == whole["eval_count"]
        return
    url = CHAT if path == "chat" else "/v1/completions"
    answer = client.post(url, asked).json
    whole = place(answer["choices"][0])
    events = client.post(url, asked | {"stream": True}).events
    parts = [data["choices"][0] for _, data in events if data != "[DONE]"]
    assert [one for part in parts if part["logprobs"] for one in place(part)] == whole
    assert len(whole) == answer["usage"]["completion_tokens"]
