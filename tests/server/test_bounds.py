"""Large requests: refused or bounded before they are worked on, while the event loop goes on."""

import asyncio
import gzip
import json
import threading
import time
from asyncio.events import Handle

import pytest

import oxillama as ox
from oxillama._util.freeing import free
from oxillama.core.options import TextOptions
from oxillama.server import ServerConfig, create_app, heap
from oxillama.server.embedding_run import SLICE
from oxillama.server.logprob_bounds import MOST_ENTRIES, bounded_tokens
from oxillama.tokenizer import Tokenizer
from tests.other_threads import frozen
from tests.server.client import HI, Client, until

GAP = 0.05  # seconds of work of the event loop's thread, whatever else the machine does
TEXT = "The cat sat on a mat, and 12 dogs. "


def long(n):
    return (TEXT * (n // len(TEXT) + 1))[:n]


def function(i):
    fields = {f"field{j}": {"type": "string", "description": "a" * 40} for j in range(10)}
    return {"name": f"f{i}", "description": "b" * 1000, "parameters": {"type": "object", "properties": fields}}


TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
PREDICTED = {"type": "content", "content": long(7_000_000)}
DOCUMENTS = [f"{i} document" for i in range(65536)]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000_000}}
LOGPROBS = {"messages": HI, "n": 128, "logprobs": True, "top_logprobs": 1024, "ignore_eos": True}
LONG, WRONG, SCHEMA = "context_length_exceeded", "invalid_value", "invalid_json_schema"
# path, body, and the status and code of the answer.
ATTACKS = {
    "brackets": ("completions", b'{"prompt": ' + b"[" * 8_000_000, WRONG),
    "lists": ("completions", b'{"prompt": [' + b"[]," * 2_600_000 + b"[]]}", WRONG),
    "objects": ("completions", b'{"prompt": [' + b"{}," * 2_600_000 + b"{}]}", WRONG),
    "nested lists": ("completions", b'{"prompt": [' + (b"[" * 300 + b"]" * 300 + b",") * 13_000 + b"1]}", WRONG),
    "names": ("completions", b"{" + b",".join(b'"%d":0' % i for i in range(600_000)) + b"}", WRONG),
    "integers": ("completions", b'{"prompt": [' + b"1," * 3_900_000 + b"1]}", LONG),
    "digits": ("completions", b'{"prompt": "a", "max_tokens": ' + b"1" * 8_000_000 + b"}", "invalid_json"),
    "halves": ("completions", b'{"prompt": "' + b"\\ud83d" * 1_300_000 + b'"}', LONG),
    "messages": ("chat/completions", {"messages": TALK * 8000}, LONG),
    "too many messages": ("chat/completions", {"messages": HI * 100_000}, WRONG),
    "text": ("chat/completions", {"messages": [{"role": "user", "content": long(7_000_000)}]}, LONG),
    "picture": ("chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}, "unsupported_parameter"),
    "tools": ("chat/completions", {"messages": HI, "tools": [
        {"type": "function", "function": function(i)} for i in range(500)]}, LONG),
    "too many tools": ("chat/completions", {"messages": HI, "tools": [
        {"type": "function", "function": function(i)} for i in range(1024)]}, WRONG),
    "properties": ("completions", {"prompt": "a", "json_schema": {"properties": {
        f"p{i}": {"type": "string"} for i in range(100_000)}}}, WRONG),
    "keywords": ("completions", {"prompt": "a", "json_schema": {f"k{i}": i for i in range(400_000)}}, WRONG),
    "parameters": ("messages", {"model": "", "messages": HI, "max_tokens": 1, "tools": [
        {"name": "f", "input_schema": {"enum": list(range(900_000))}}]}, "invalid_request_error"),
    "format": ("api/generate", {"model": "tiny", "prompt": "a", "format": {"const": "x" * 4_000_000}}, None),
    "grammar": ("completions", {"prompt": "a", "grammar": 'root ::= "' + "ab" * 3_000_000 + '"'}, WRONG),
    "objects in a list": ("completions", b'{"prompt": [' + b"{}," * 130_000 + b"{}]}", WRONG),
    "large integers": ("completions", {"prompt": list(range(10**15, 10**15 + 400_000))}, WRONG),
    "repeats": ("completions", {"prompt": "a", "grammar": "root ::= " + '"a"{0,1000} ' * 80_000}, "invalid_grammar"),
    "constant": ("completions", {"prompt": "a", "json_schema": {"const": list(range(150_000))}}, SCHEMA),
    "required": ("completions", {"prompt": "a", "json_schema": {
        "type": "object", "required": [f"p{i}" for i in range(80_000)]}}, SCHEMA),
    "pattern": ("completions", {"prompt": "a", "regex": "a" * 400_000}, "invalid_grammar"),
    "digits in a chat": ("api/chat", {"model": "tiny", "messages": [{**HI[0], "content": "7" * 7_000_000}]}, None),
    "turns": ("api/chat", {"model": "tiny", "messages": HI * 20_000}, None),
    "a format": ("api/chat", {"model": "tiny", "messages": HI, "format": {"enum": [[i] for i in range(80_000)]}}, None),
    "Go's template": ("api/generate", {"model": "tiny", "prompt": "a", "template": "{{ .Prompt }}" * 500_000}, None),
    "pictures": ("api/generate", {"model": "tiny", "prompt": "a", "images": ["AAAA"] * 1_000_000}, None),
    "class": ("completions", {"prompt": "a", "grammar": "root ::= [" + "a-c" * 300_000 + "]"}, "invalid_grammar"),
    "regex": ("completions", {"prompt": "a", "regex": "a" * 6_000_000}, WRONG),
    "choice": ("completions", {"prompt": "a", "structured_outputs": {"choice": ["ab" * 3_000_000]}}, WRONG),
    "choices": ("completions", {"prompt": "a", "choices": [f"{i} " + "x" * 400 for i in range(16_000)]}, WRONG),
    "variables": ("chat/completions", {"messages": HI, "chat_template_kwargs": {"a": [[]] * 240_000}}, WRONG),
    "score": ("score", {"text_1": "a question", "text_2": DOCUMENTS}, WRONG),
    "pairs": ("score", {"text_1": long(9000), "text_2": DOCUMENTS[:2000]}, WRONG),
    "logprobs": ("chat/completions", {**LOGPROBS, "max_tokens": 16}, WRONG),
    "prompt logprobs": ("completions", {"prompt": [long(1000)] * 32, "max_tokens": 0, "echo": True, "logprobs": 1024},
                        WRONG),
    "responses": ("responses", {"input": TALK * 5000}, LONG),
    "count": ("responses/input_tokens", {"input": long(7_000_000)}, LONG),
    "tokenize": ("tokenize", {"prompt": long(7_000_000)}, LONG),
}  # fmt: skip
# What is answered, however large it is.
ANSWERED = {
    "prediction": ("chat/completions", {"messages": HI, "max_tokens": 1, "prediction": PREDICTED}),
    "parts of a prediction": ("completions", {"prompt": "a", "max_tokens": 1, "prediction": {
        "type": "content", "content": [{"type": "text", "text": long(100_000)}] * 60}}),
    "log-probabilities": ("chat/completions", {**LOGPROBS, "n": 64, "max_tokens": 4}),
    "a stream of them": ("chat/completions", {**LOGPROBS, "n": 32, "max_tokens": 3, "stream": True}),
    "of prompts": ("completions", {"prompt": [long(900)] * 4, "max_tokens": 1, "echo": True, "logprobs": 100}),
    "a stream of those": ("completions", {
        "prompt": [long(900)] * 4, "max_tokens": 1, "echo": True, "logprobs": 100, "stream": True}),
    "tokens": ("tokenize", {"prompt": long(200_000), "return_token_strs": True}),
    "their text": ("detokenize", {"tokens": [300] * 400_000}),
    "embeddings": ("embeddings", {"input": DOCUMENTS[:1500]}),
    "groups": ("completions", {
        "prompt": "a", "max_tokens": 1, "grammar": "root ::= " + "(" * 500_000 + '"a"' + ")" * 500_000}),
    "a long literal": ("completions", {"prompt": "a", "max_tokens": 1, "grammar": 'root ::= "' + "ab" * 500_000 + '"'}),
    "digits": ("tokenize", {"prompt": "7" * 60_000}),
    "a context": ("api/generate", {
        "model": "tiny", "prompt": "a", "context": [300] * 1_000_000, "stream": False, "options": {"num_predict": 1}}),
    "options": ("api/generate", {
        "model": "tiny", "prompt": "a", "stream": False,
        "options": {"num_predict": 1, **{f"x{i}": 1 for i in range(100_000)}}}),
    "a template": ("apply-template", {"messages": [{"role": "user", "content": long(3_000_000)}]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def roomy(engine):
    return Client(create_app({"tiny": engine}, ServerConfig(max_n=128, max_logprobs=1024)))


def path_of(name):
    return (
        f"/{name}" if name.startswith("api/") or name in ("tokenize", "detokenize", "apply-template") else f"/v1/{name}"
    )


def longest_turn(call, monkeypatch):
    """What a call answers, and the longest work of the event loop's thread between two chances for other requests.

    On a loaded machine work takes longer, for cold caches and shared cores: five calls may be made for a short one.
    """
    for _ in range(5):
        answer, turn = measured_turn(call, monkeypatch)
        if turn < GAP:
            break
    return answer, turn


def measured_turn(call, monkeypatch):
    turns, run = [], Handle._run

    def timed(self):
        began = time.thread_time()
        run(self)
        turns.append(time.thread_time() - began)

    with frozen(), monkeypatch.context() as patch:
        patch.setattr(Handle, "_run", timed)
        answer = call()
    return answer, max(turns)


@pytest.mark.parametrize("name", ATTACKS)
def test_what_can_not_be_answered_is_refused_and_holds_nobody_up(roomy, name, monkeypatch):
    path, body, code = ATTACKS[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer, turn = longest_turn(lambda: roomy.post(path_of(path), data), monkeypatch)
    assert answer.status == 400
    if code is not None:
        assert answer.error["type" if path == "messages" else "code"] == code
    assert len(answer.body) < 1000
    assert turn < GAP


@pytest.mark.parametrize("name", ANSWERED)
def test_large_answers_hold_nobody_up(roomy, name, monkeypatch):
    path, body = ANSWERED[name]
    answer, turn = longest_turn(lambda: roomy.post(path_of(path), body), monkeypatch)
    assert answer.status == 200
    assert turn < GAP


def test_nothing_of_it_is_tokenised(roomy, monkeypatch):
    """But the beginning, from which it is known that there is too much."""
    seen, encode = [], Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text, *a, **k: seen.append(len(text)) or encode(self, text, *a, **k)
    )
    for name in ("prediction", "text", "tools", "score", "pairs", "count", "tokenize"):
        path, body = (ATTACKS | ANSWERED)[name][:2]
        roomy.post(path_of(path), body)
        assert sum(seen) < 1_000_000, name
        seen.clear()


def test_a_prediction_that_fits_is_taken(client, engine):
    """Up to the last token that an answer may have, in one part or several."""
    text = long(20_000)
    while len(engine.tokenizer.encode(text, add_special=False)) > engine.context_size:
        text = text[: len(text) * 9 // 10]
    plain = client.post("/v1/completions", prompt="a", max_tokens=8, temperature=0)
    for content in (text, [{"type": "text", "text": part} for part in (text[:99], text[99:], "")]):
        prediction = {"type": "content", "content": content}
        found = client.post("/v1/completions", prompt="a", max_tokens=8, temperature=0, prediction=prediction)
        assert (found.status, found.json["choices"]) == (200, plain.json["choices"])
    two = {"type": "content", "content": [{"type": "text", "text": text}] * 2}
    answer = client.post("/v1/completions", prompt="a", max_tokens=8, temperature=0, prediction=two)
    assert (answer.status, answer.json["choices"]) == (200, plain.json["choices"])
    assert answer.headers["x-oxillama-left-out"] == "prediction.content"


def test_texts_are_computed_a_part_at_a_time(client, engine):
    """With the results, and the order, of one call."""
    texts = [f"{i} {'word ' * (i % 7)}" for i in range(SLICE + 100)]
    found = client.post("/v1/embeddings", input=texts, encoding_format="float").json["data"]
    assert [one["index"] for one in found] == list(range(len(texts)))
    alone = engine.embed([texts[i] for i in (0, SLICE, SLICE + 99)])
    for i, vector in zip((0, SLICE, SLICE + 99), alone, strict=True):
        assert found[i]["embedding"] == pytest.approx(vector.tolist(), rel=1e-6)


def test_more_texts_than_may_wait_are_refused_by_their_number():
    with ox.load(num_threads=1, max_queue_size=4) as small:
        app = Client(create_app({"tiny": small}))
        assert app.post("/v1/embeddings", input=["a"] * 4).status == 200
        for path, fields, param in (
            ("/v1/embeddings", {"input": ["a"] * 5}, "input"),
            ("/v1/score", {"text_1": "a", "text_2": ["b"] * 3}, "text_2"),
            ("/api/embed", {"model": "tiny", "input": ["a"] * 5}, None),
        ):
            answer = app.post(path, fields)
            assert answer.status == 400, path
            assert "(max_queue_size)" in answer.body.decode()
            assert param is None or answer.error["param"] == param


def test_log_probabilities_have_a_bound():
    prompts = [[0] * 10, [0] * 20]
    chain = ox.SamplerChain.from_config(ox.SamplerConfig())
    assert bounded_tokens(prompts, TextOptions(chain), 5, 1000) is None
    assert bounded_tokens(prompts, TextOptions(chain, n=2, logprobs=3), 5, 1000) is None
    room = MOST_ENTRIES  # so that a text without a limit is bounded by its log-probabilities
    assert bounded_tokens(prompts, TextOptions(chain, n=2, logprobs=3), None, room) == MOST_ENTRIES // 16
    given = TextOptions(chain, n=2, logprobs=3, prompt_logprobs=9)
    assert bounded_tokens(prompts, given, None, room) == (MOST_ENTRIES - 300) // 16


def test_without_a_limit_the_answer_ends_where_its_log_probabilities_have_no_more_room(roomy, monkeypatch):
    monkeypatch.setattr("oxillama.server.logprob_bounds.MOST_ENTRIES", 200)
    for fields, n in (({}, 9), ({"n": 2}, 4)):
        asked = {"prompt": "a", "max_tokens": -1, "logprobs": 20, "ignore_eos": True, **fields}
        answer = roomy.post("/v1/completions", asked).json
        assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [n] * len(answer["choices"])
        assert answer["choices"][0]["finish_reason"] == "length"
    refused = roomy.post("/v1/completions", prompt="a", max_tokens=10, logprobs=20)
    assert (refused.status, refused.error["param"]) == (400, "logprobs")


def test_large_answers_go_in_parts(engine, monkeypatch):
    monkeypatch.setattr("oxillama.server.exchange.WRITTEN", 1000)
    monkeypatch.setattr("oxillama.server.exchange.PART", 300)
    parts = []
    app = create_app({"tiny": engine}, ServerConfig())

    async def watched(scope, receive, send):
        async def counted(message):
            parts.append(message)
            await send(message)

        await app(scope, receive, counted)

    answer = Client(watched).post("/detokenize", tokens=[300] * 4000)
    assert answer.json["prompt"] == engine.detokenize([300] * 4000)
    sizes = [len(part["body"]) for part in parts[1:]]
    assert set(sizes[:-1]) == {300}
    assert 0 < sizes[-1] <= 1000
    assert int(answer.headers["content-length"]) == sum(sizes)


def test_a_client_that_reads_none_of_a_large_answer_is_left(engine, monkeypatch):
    monkeypatch.setattr("oxillama.server.exchange.WRITTEN", 1000)
    monkeypatch.setattr("oxillama.server.exchange.PART", 300)
    app = create_app({"tiny": engine}, ServerConfig(stall_timeout=0.05))
    aborted = []

    async def stalled(scope, receive, send):
        async def never(message):
            if message.get("more_body"):
                await asyncio.Event().wait()
            await send(message)

        await app({**scope, "state": {"abort": lambda: aborted.append(1)}}, receive, never)

    Client(stalled).post("/detokenize", tokens=[300] * 4000)
    assert aborted == [1]


def test_large_bodies_are_freed_in_another_thread(engine, monkeypatch):
    """Part by part, once nothing of the request is needed; also if they are refused."""
    freed, app = [], create_app({"tiny": engine}, ServerConfig())
    real = app.service.free
    monkeypatch.setattr(app.service, "free", lambda parts: freed.append(len(parts)) or real(parts))
    called = []

    def noted(parts):
        called.append(threading.get_ident())
        free(parts)

    monkeypatch.setattr("oxillama.server.service.free", noted)
    for fields in ({"metadata": {"a": "b"}}, {"metadata": {"a": [[]]}}):
        talk = [{"role": "user", "content": [{"type": "text", "text": "h"}] * 3} for _ in range(5000)]
        Client(app).post("/v1/chat/completions", messages=talk, **fields)
    assert len(freed) == len(called) == 2
    assert min(freed) > 20_000
    assert threading.get_ident() not in called
    Client(app).post("/v1/chat/completions", messages=HI, max_tokens=1)
    assert len(freed) == 2


def test_a_packed_body_is_unpacked_no_further_than_a_body_may_go(roomy, monkeypatch):
    body = gzip.compress(b'{"prompt": "' + b"a" * 200_000_000 + b'"}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    app = roomy
    answer, turn = longest_turn(lambda: app.call("POST", "/v1/completions", body, headers), monkeypatch)
    assert answer.status == 413
    assert turn < GAP


def test_large_requests_end_with_the_heap_given_back(engine, monkeypatch):
    monkeypatch.setattr(heap, "DELAY", 3600.0)
    trimmed = []
    app = create_app({"tiny": engine}, ServerConfig())
    app.service.heap._trim = lambda: trimmed.append(1)

    async def two():
        for _ in range(2):
            body = json.dumps({"prompt": long(2_000_000)}).encode()
            await Client(app).acall("POST", "/v1/completions", body, {"content-type": "application/json"})
        await Client(app).acall("POST", "/v1/completions", b'{"prompt": "a"}', {"content-type": "application/json"})
        assert trimmed == []
        app.service.heap._timer._run()
        assert await until(lambda: trimmed)

    asyncio.run(two())
    assert trimmed == [1]
