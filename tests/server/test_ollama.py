"""Chat and generate of Ollama's API: shapes, streams, what options mean, and what is refused."""

import asyncio
import json
import re

import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from oxillama.server.models import ServedModel
from tests.models.bert import changed
from tests.models.tiny import Shape, tiny
from tests.server.client import HI, Client
from tests.tokenizer.build import byte_level

CHAT, GENERATE = "/api/chat", "/api/generate"
SAID = "x-oxillama-left-out"
GREEDY = {"temperature": 0, "num_predict": 9}
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
COUNTS = ("prompt_eval_count", "eval_count")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")


def chat(client, messages=HI, **fields):
    return client.post(CHAT, {"model": "tiny", "messages": messages, **fields})


def generate(client, prompt="hi", **fields):
    return client.post(GENERATE, {"model": "tiny", "prompt": prompt, **fields})


def checked(last, n_prompt, n_answer):
    """The last part of an answer, without what is told of its tokens and times."""
    assert [last[name] for name in COUNTS] == [n_prompt, n_answer]
    assert all(isinstance(last[name], int) and last[name] >= 0 for name in TIMES)
    assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"] > 0
    assert TIME.fullmatch(last["created_at"])
    return {name: value for name, value in last.items() if name not in (*TIMES, *COUNTS, "created_at")}


def test_a_chat_is_that_of_the_engine(client, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0)
    answer = chat(client, stream=False, options=GREEDY)
    assert answer.headers["content-type"] == "application/json"
    assert checked(answer.json, alone.prompt_tokens, 9) == {
        "model": "tiny", "message": {"role": "assistant", "content": alone.text}, "done": True, "done_reason": "length",
    }  # fmt: skip
    whole = engine.chat(HI, temperature=0)
    ended = chat(client, stream=False, options={"temperature": 0}).json
    assert (ended["message"]["content"], ended["done_reason"]) == (whole.text, "stop")


def test_a_prompt_is_a_message_of_the_user(client, engine):
    messages = [{"role": "system", "content": "Be brief."}, *HI]
    for given, asked in (({}, HI), ({"system": "Be brief."}, messages)):
        alone = engine.chat(asked, max_tokens=9, temperature=0)
        answer = generate(client, stream=False, options=GREEDY, **given).json
        context = answer.pop("context")
        assert context[: alone.prompt_tokens] == engine.chat_tokens(asked)
        assert len(context) == alone.prompt_tokens + 9
        assert checked(answer, alone.prompt_tokens, 9) == {
            "model": "tiny", "response": alone.text, "done": True, "done_reason": "length",
        }  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_stream_is_the_default(client, path):
    asked = {"model": "tiny:latest", "messages": HI, "prompt": "hi", "options": GREEDY}
    asked.pop("prompt" if path == CHAT else "messages")
    whole = client.post(path, {**asked, "stream": False}).json
    *parts, last = client.post(path, asked).lines
    for part in parts:
        assert TIME.fullmatch(part.pop("created_at"))
        assert (part.pop("model"), part.pop("done")) == ("tiny:latest", False)
    name, empty = ("message", {"role": "assistant", "content": ""}) if path == CHAT else ("response", "")
    assert all(set(part) == {name} for part in parts)
    text = "".join(part[name]["content"] if path == CHAT else part[name] for part in parts)
    assert len(parts) > 4
    assert checked(last, whole["prompt_eval_count"], 9) == {
        **{key: value for key, value in whole.items() if key not in (*TIMES, *COUNTS, "created_at")}, name: empty,
    }  # fmt: skip
    assert text == (whole["message"]["content"] if path == CHAT else whole["response"])


def test_sampling_without_options_is_ollamas(client, configured, engine):
    own = ox.SamplerConfig(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0, repetition_penalty=1.0, seed=5)
    asked = {"stream": False, "options": {"seed": 5, "num_predict": 80}}
    alone = engine.chat(HI, sampler=own, max_tokens=80)
    assert chat(client, **asked).json["message"]["content"] == alone.text
    asked |= {"raw": True, "prompt": "Once"}
    plain = engine.generate("Once", sampler=own, max_tokens=80).text
    assert generate(client, **asked).json["response"] == plain
    of_file = engine.generate("Once", seed=5, max_tokens=80).text
    assert generate(configured(generation_config="file"), **asked).json["response"] == of_file
    greedy = engine.generate("Once", temperature=0, max_tokens=80).text
    assert generate(configured(default=("temperature=0",)), **asked).json["response"] == greedy
    assert len({plain, of_file, greedy}) == 3


@pytest.mark.parametrize(("options", "own"), [
    ({"temperature": 5, "top_k": 3, "seed": 1}, {"temperature": 5.0, "top_k": 3, "seed": 1}),
    ({"temperature": 1.5, "top_p": 0.5, "min_p": 0.01, "typical_p": 0.9, "seed": 2},
     {"temperature": 1.5, "top_p": 0.5, "min_p": 0.01, "typical_p": 0.9, "seed": 2}),
    ({"repeat_penalty": 1.9, "repeat_last_n": -1, "temperature": 0},
     {"repetition_penalty": 1.9, "repetition_penalty_window": 1024, "temperature": 0}),
    ({"presence_penalty": 3, "frequency_penalty": 3, "temperature": 0, "repeat_last_n": 5},
     {"presence_penalty": 3.0, "frequency_penalty": 3.0, "temperature": 0, "repetition_penalty_window": 5}),
    ({"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2, "seed": 4},
     {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2, "seed": 4}),
    ({"seed": 7.0, "top_k": 5.0}, {"seed": 7, "top_k": 5}),
    ({"top_k": -1, "seed": 3, "temperature": 2}, {"top_k": 0, "seed": 3, "temperature": 2.0}),
    ({"dry_multiplier": 5.0, "temperature": 0}, {"dry_multiplier": 5.0, "temperature": 0}),
    ({"repeat_penalty": 0, "temperature": 0}, {"temperature": 0}),
    ({"repetition_penalty": 1.9, "temperature": 0}, {"repetition_penalty": 1.9, "temperature": 0}),
])  # fmt: skip
def test_options_are_those_of_the_engine(client, engine, options, own):
    base = ox.SamplerConfig(temperature=0.8, top_k=40, top_p=0.9)
    sampler = ox.SamplerConfig(**{n: getattr(base, n) for n in ("temperature", "top_k", "top_p")} | own)
    alone = engine.generate("Once upon a time", sampler=sampler, max_tokens=40)
    asked = {"raw": True, "stream": False, "options": {**options, "num_predict": 40}}
    answer = generate(client, "Once upon a time", **asked)
    assert answer.json["response"] == alone.text
    assert SAID not in answer.headers


@pytest.mark.parametrize("n", [-1, -2, 0, None, 1 << 31])
def test_answers_without_a_limit(client, engine, n):
    alone = engine.chat(HI, temperature=0)
    for path in (chat, generate):
        answer = path(client, stream=False, options={"temperature": 0, "num_predict": n})
        assert (answer.json["eval_count"], answer.json["done_reason"]) == (len(alone.token_ids), "stop")
        assert answer.headers.get(SAID) == (None if n is None or n <= 0 else "options.num_predict")


def test_stop_strings(client, engine):
    text = engine.chat(HI, temperature=0).text
    for stop in (text[3:6], ["zzz", text[3:6]]):
        answer = chat(client, stream=False, options={"temperature": 0, "stop": stop}).json
        assert answer["message"]["content"] == text[: text.index(text[3:6])]
        assert answer["done_reason"] == "stop"


def test_a_raw_prompt_goes_to_the_model_as_it_is(client, engine):
    prompt = "<|user|>hi<|end|><|assistant|>"
    alone = engine.chat(HI, max_tokens=9, temperature=0)
    answer = generate(client, prompt, raw=True, stream=False, options=GREEDY).json
    assert (answer["response"], answer["prompt_eval_count"]) == (alone.text, alone.prompt_tokens)
    assert "context" not in answer
    for name, value in (("system", "x"), ("template", "{{ x }}"), ("context", [1])):
        refused = generate(client, raw=True, **{name: value})
        assert (refused.status, refused.error) == (400, "raw mode does not support template, system, or context")


def test_a_context_goes_on_as_the_conversation_does(client, engine):
    first = generate(client, "Tell me a story.", stream=False, system="Be brief.", options={"temperature": 0}).json
    assert first["done_reason"] == "stop"
    told = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."},
        {"role": "assistant", "content": first["response"]}, {"role": "user", "content": "Why?"},
    ]  # fmt: skip
    alone = engine.chat(told, temperature=0)
    for more in ({}, {"system": "Be brief."}):  # which the context has already
        second = generate(client, "Why?", context=first["context"], stream=False, options={"temperature": 0}, **more)
        assert (second.json["response"], second.json["prompt_eval_count"]) == (alone.text, alone.prompt_tokens)
        assert second.json["context"][: alone.prompt_tokens] == engine.chat_tokens(told)
    last = client.post(GENERATE, model="tiny", prompt="Why?", context=first["context"]).lines[-1]
    assert last["prompt_eval_count"] == alone.prompt_tokens
    for system in ("Shout.", "story"):  # of which the second one is in the context, but not the system's
        other = generate(client, "Why?", context=first["context"], system=system, stream=False, options=GREEDY)
        n = other.json["prompt_eval_count"]
        told = engine.tokenizer.decode(other.json["context"][len(first["context"]) : n])
        assert told.count(system) == 1


def test_a_context_without_room(client, engine):
    size = engine.context_size
    context = engine.chat_tokens(HI) + engine.tokenize("a cat " * size, add_special=False)
    context = context[: size - 4]
    answer = generate(client, "Why?", context=context, stream=False, options=GREEDY)
    assert answer.headers[SAID] == "context"
    assert answer.json["context"][:1] == context[:1]
    assert answer.json["prompt_eval_count"] == size - size // 4
    for client_, fields in (
        (client, {"truncate": False}),
        (Client(create_app({"tiny": engine}, ServerConfig(strict=True))), {}),
    ):
        refused = generate(client_, "Why?", context=context, stream=False, **fields)
        assert refused.status == 400
        assert "maximum context length" in refused.error


def test_turns_that_a_context_has_no_room_for(client, configured, engine):
    long = "A long message about a cat. " * 20
    told = [{"role": "system", "content": "Be brief."}]
    for i in range(12):
        told += [{"role": "user", "content": f"{i} {long}"}, {"role": "assistant", "content": "Yes."}]
    told += HI
    size = engine.context_size
    for options, room in ((GREEDY, 9), ({"temperature": 0}, size // 4), (GREEDY | {"num_predict": size}, size // 4)):
        answer = chat(client, told, stream=False, options=options)
        places = [place for place in answer.headers[SAID].split(", ") if place.startswith("messages")]
        n = len(places)
        assert places == [f"messages[{i}]" for i in range(1, n + 1)]
        kept = told[:1] + told[n + 1 :]
        assert kept[1]["role"] == "user"
        alone = engine.chat(kept, max_tokens=options.get("num_predict"), temperature=0)
        assert answer.json["message"]["content"] == alone.text
        assert alone.prompt_tokens <= size - room
        with_one_more = engine.chat_tokens(told[:1] + told[n - 1 :])
        assert len(with_one_more) > size - room
    for refused in (chat(client, told, truncate=False), chat(configured(strict=True), told)):
        assert refused.status == 400
        assert "maximum context length" in refused.error
    alone = chat(client, [{"role": "user", "content": long * 20}])
    assert alone.status == 400  # there is nothing to leave out
    last = [*told, {"role": "user", "content": "A cat. " * 220}]  # which leaves less than a quarter
    assert size * 3 // 4 < len(engine.chat_tokens([told[0], last[-1]])) < size
    answer = chat(client, last, stream=False, options={"temperature": 0})
    assert answer.json["prompt_eval_count"] == len(engine.chat_tokens([told[0], last[-1]]))


def test_calls_that_a_context_has_no_room_for(client, configured, engine):
    told = [{"role": "system", "content": "Be brief."}, *HI, {"role": "assistant", "content": "Yes?"}]
    told.append({"role": "user", "content": "Find the cat."})
    for i in range(12):
        call = {"id": f"c{i}", "type": "function", "function": {"name": "look", "arguments": {"at": i}}}
        told.append({"role": "assistant", "content": "", "tool_calls": [call]})
        told.append({"role": "tool", "tool_call_id": f"c{i}", "content": "There is no cat here. " * 20})
    answer = chat(client, told, stream=False, options=GREEDY)
    places = answer.headers[SAID].split(", ")
    n = len(places)
    assert places == [f"messages[{i}]" for i in (1, 2, *range(4, n + 2))]
    kept = [told[0], told[3], *told[n + 2 :]]
    assert kept[2]["role"] == "assistant"
    assert answer.json["prompt_eval_count"] == len(engine.chat_tokens(kept)) <= engine.context_size - 9
    assert len(engine.chat_tokens([told[0], told[3], *told[n:]])) > engine.context_size - 9
    assert chat(configured(strict=True), told).status == 400


@pytest.mark.parametrize(("format", "held"), [
    ("json", lambda value: isinstance(value, dict)),
    ({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]},
     lambda value: value["n"] in range(10)),
    ({"enum": ["a"]}, lambda value: value == "a"),
])  # fmt: skip
def test_a_format_is_held(client, format, held):
    asked = {"format": format, "stream": False, "options": {"num_predict": 300, "temperature": 0}}
    assert held(json.loads(chat(client, **asked).json["message"]["content"]))
    assert held(json.loads(generate(client, **asked).json["response"]))
    assert held(json.loads(generate(client, raw=True, **asked).json["response"]))


def test_no_format_is_the_empty_text(client, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0)
    assert chat(client, format="", stream=False, options=GREEDY).json["message"]["content"] == alone.text


def test_the_assistants_last_message_is_gone_on_with(client, engine):
    told = [*HI, {"role": "assistant", "content": "Well, the"}]
    alone = engine.chat(told, max_tokens=9, temperature=0, continue_final_message=True)
    assert chat(client, told, stream=False, options=GREEDY).json["message"]["content"] == alone.text


def test_log_probabilities(client, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0, logprobs=2)
    shown = [
        {"token": one.text, "logprob": one.logprob, "bytes": list(one.bytes),
         "top_logprobs": [{"token": t.text, "logprob": t.logprob, "bytes": list(t.bytes)} for t in one.top]}
        for one in alone.logprobs
    ]  # fmt: skip
    fields = {"logprobs": True, "top_logprobs": 2, "options": GREEDY}
    assert chat(client, stream=False, **fields).json["logprobs"] == shown
    assert [one for part in chat(client, **fields).lines for one in part.get("logprobs", ())] == shown
    assert generate(client, stream=False, **fields).json["logprobs"] == shown
    assert generate(client, raw=True, **fields).lines[0]["logprobs"][0]["top_logprobs"][1:]
    assert "logprobs" not in chat(client, stream=False, top_logprobs=2, options=GREEDY).json


def test_what_messages_may_have(client, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0).text
    for message in ({"role": "USER", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                    {"role": "user", "content": "hi", "images": [], "tool_calls": None, "thinking": None}):  # fmt: skip
        assert chat(client, [message], stream=False, options=GREEDY).json["message"]["content"] == alone


def test_pictures_of_a_prompt_are_refused(client):
    assert generate(client, images=["aGk="]).error == "images: pictures are not read"
    assert generate(client, images=[], options=GREEDY).status == 200


def test_a_gap(client, engine, tmp_path):
    refused = generate(client, "def f(", suffix=")", stream=False)
    assert refused.status == 400
    assert refused.error.startswith("suffix: the model's file names no fill-in-the-middle tokens")
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    vocabulary = byte_level(["q q"], marks)
    del vocabulary["general.architecture"]
    path = changed(tiny("llama", tmp_path, Shape(n_vocab=260)), vocabulary)
    with ox.load(path, num_threads=1, context_size=128) as coder:
        client = Client(create_app({"tiny": coder}, ServerConfig()))
        alone = coder.infill("def f(", "):", max_tokens=9, temperature=0)
        fields = {"stream": False, "options": GREEDY}
        for more in ({}, {"raw": True}, {"system": "x"}):
            answer = generate(client, "def f(", suffix="):", **fields, **more)
            assert (answer.json["response"], answer.json["prompt_eval_count"]) == (alone.text, alone.prompt_tokens)
            assert "context" not in answer.json
            assert answer.headers.get(SAID) == ("system" if "system" in more else None)
        assert generate(client, "", suffix="):", **fields).json["prompt_eval_count"] == 5
        shown = client.post("/api/show", model="tiny").json
        assert shown["capabilities"] == ["completion", "insert"]
        long = generate(client, "x = 1\n" * 200, suffix="y = 2\n" * 200, **fields)
        assert long.headers[SAID] == "prompt, suffix"
        assert 64 < long.json["prompt_eval_count"] <= 96  # with room for an answer
        assert generate(client, "x = 1\n" * 200, suffix="y", truncate=False).status == 400


@pytest.mark.parametrize(("template", "trusted", "said"), [
    ("{{ .System }} {{ .Prompt }}", True, "template: Go's templates are not run here"),
    ("{{ if .System }}x{{ end }}", True, "template: Go's templates are not run here"),
    ("{{- range .Messages }}x{{ end }}", False, "template: Go's templates are not run here"),
    ("{{ messages[0].content }}", False, "template is not taken from requests on this server"),
    ("{{ messages[0].content }}", True, None), ("", False, None),
])  # fmt: skip
def test_templates_of_requests(configured, engine, template, trusted, said):
    answer = generate(configured(trust_request_templates=trusted), template=template, stream=False, options=GREEDY)
    if said is None:
        own = {"chat_template": template} if template else {}
        assert answer.json["response"] == engine.chat(HI, max_tokens=9, temperature=0, **own).text
    else:
        assert (answer.status, answer.error.startswith(said)) == (400, True)


def test_models_load_and_leave(engine):
    loads = []

    def load():
        loads.append(True)
        return ox.load(num_threads=1, context_size=64)

    model = ServedModel("other", load=load, at_start=False)
    client = Client(create_app({"tiny": engine, "other": model}, ServerConfig()))
    empty = {"role": "assistant", "content": ""}
    for path, asked in ((CHAT, {"messages": []}), (GENERATE, {"prompt": ""}), (CHAT, {}), (GENERATE, {})):
        said = {"message": empty} if path == CHAT else {"response": ""}
        answer = client.post(path, {"model": "other", **asked}).json
        assert TIME.fullmatch(answer.pop("created_at"))
        assert answer == {"model": "other", **said, "done": True, "done_reason": "load"}
        assert model.state == "ready"
        answer = client.post(path, {"model": "other", "keep_alive": 0, **asked}).json
        assert (answer["done_reason"], model.state) == ("unload", "idle")
    assert len(loads) == 4
    generate = client.post(GENERATE, model="other", prompt="hi", keep_alive="0", options=GREEDY)
    assert generate.lines[-1]["load_duration"] > 0
    assert (model.state, len(loads)) == ("idle", 5)
    client.post(GENERATE, model="other", prompt="hi", options=GREEDY)
    assert (model.state, len(loads)) == ("ready", 6)  # loaded anew, it stays as the server was started
    assert client.post(GENERATE, model="other", keep_alive=0).json["done_reason"] == "unload"
    again = client.post(GENERATE, model="other", keep_alive=0)
    assert (again.json["done_reason"], len(loads)) == ("unload", 6)  # it isn't loaded for that


def test_a_model_leaves_after_an_error_too(engine):
    model = ServedModel("other", load=lambda: ox.load(num_threads=1, context_size=64), at_start=False)
    client = Client(create_app({"tiny": engine, "other": model}, ServerConfig()))

    async def main():
        body = {"model": "other", "messages": HI * 99, "truncate": False, "keep_alive": 0}
        answer = await client.acall("POST", CHAT, json.dumps(body).encode(), {})
        states = [model.state]
        while model.state == "ready":  # it leaves soon
            await asyncio.sleep(0.01)
        return answer.status, [*states, model.state]

    assert asyncio.run(asyncio.wait_for(main(), 60)) == (400, ["ready", "idle"])


def test_whose_models_stay(engine, tmp_path):
    """Where keys share a server, administrators alone say how long a model stays."""
    (tmp_path / "keys").write_text("ann:a-long-secret\n")
    (tmp_path / "admins").write_text("root:admin-secret\n")
    model = ServedModel("tiny", load=lambda: ox.load(num_threads=1))
    config = ServerConfig(api_key_file=str(tmp_path / "keys"), admin_key_file=str(tmp_path / "admins"))
    client = Client(create_app({"tiny": model}, config))
    asyncio.run(client.app.service.models.load_all())
    asked = {"model": "tiny", "messages": HI, "keep_alive": 0, "options": GREEDY}
    answer = client.post(CHAT, asked, {"authorization": "Bearer a-long-secret"})
    assert (answer.status, answer.headers[SAID], model.state) == (200, "keep_alive", "ready")
    answer = client.post(CHAT, asked, {"authorization": "Bearer admin-secret"})
    assert (answer.status, answer.headers.get(SAID), model.state) == (200, None, "idle")
    refused = client.post(CHAT, asked)
    assert (refused.status, refused.json) == (401, {"error": "a key is missing: send Authorization: Bearer KEY"})
