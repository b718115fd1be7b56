"""Completions: text, and log-probabilities as evaluations read them."""

import math

import pytest

from tests.server.client import HI

COMPLETIONS = "/v1/completions"
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def test_a_text_is_that_of_the_engine(client, engine):
    for prompt in ("Once upon", engine.tokenize("Once upon")):
        answer = client.post(COMPLETIONS, prompt=prompt, max_tokens=9, seed=4).json
        alone = engine.generate(prompt, max_tokens=9, seed=4, **PLAIN)
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (alone.text, alone.finish_reason)
    assert client.post(COMPLETIONS, prompt="Once", temperature=0).json["usage"]["completion_tokens"] == 16


def test_several_prompts_with_several_choices(client, engine):
    prompts = ["Once", "The cat", "A"]
    answer = client.post(COMPLETIONS, prompt=prompts, n=2, max_tokens=5, seed=1).json
    alone = engine.generate(prompts, n=2, max_tokens=5, seed=1, **PLAIN)
    assert [c["text"] for c in answer["choices"]] == [c.text for group in alone for c in group]
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert answer["usage"]["prompt_tokens"] == sum(group[0].prompt_tokens for group in alone)
    assert answer["usage"]["completion_tokens"] == sum(len(c.token_ids) for group in alone for c in group)


def test_a_stream_is_the_answer_in_pieces(client):
    options = {"prompt": ["Once", "The cat"], "max_tokens": 8, "seed": 1, "logprobs": 1, "echo": True}
    whole = client.post(COMPLETIONS, options).json
    *events, done = [data for _, data in client.post(COMPLETIONS, options | {"stream": True}).events]
    assert done == "[DONE]"
    for choice in whole["choices"]:
        own = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        for name, entries in choice["logprobs"].items():
            assert [entry for c in own for entry in c["logprobs"][name]] == entries


def test_scores_of_a_prompt(client, engine):
    """What lm-eval asks for: the prompt's log-probabilities, and none or one token more."""
    ids = engine.tokenize("The cat sat on the mat.")
    alone = engine.generate(ids, max_tokens=1, temperature=0, logprobs=2, prompt_logprobs=2)
    expected = [None, *(one.logprob for one in alone.prompt_logprobs[1:])]
    scored = client.post(COMPLETIONS, prompt=ids, max_tokens=0, echo=True, logprobs=2).json
    found = scored["choices"][0]["logprobs"]
    assert found["token_logprobs"] == expected
    assert scored["usage"]["completion_tokens"] == 0
    assert scored["choices"][0]["finish_reason"] == "length"
    assert scored["choices"][0]["text"] == "The cat sat on the mat."
    one_more = client.post(COMPLETIONS, prompt=ids, max_tokens=1, echo=True, logprobs=2, temperature=0).json
    longer = one_more["choices"][0]["logprobs"]
    assert longer["token_logprobs"][:-1] == expected
    assert longer["top_logprobs"][:-1] == found["top_logprobs"]
    assert all(len(entries) == len(ids) + 1 for entries in longer.values())


def test_places_of_tokens_are_those_in_the_text(client):
    answer = client.post(
        COMPLETIONS, prompt="Once upon a time", max_tokens=5, echo=True, logprobs=0, temperature=0
    ).json
    (choice,) = answer["choices"]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    for token, offset in list(zip(tokens, offsets, strict=True))[1:]:
        assert choice["text"][offset : offset + len(token)] == token


def test_the_end_has_its_entry_with_echo(client, engine):
    """A generated token that ends the text counts, too."""
    prompt = engine.chat_tokens([{"role": "user", "content": "hi"}])
    whole = engine.generate(prompt, temperature=0, logprobs=0)
    assert whole.finish_reason == "stop"
    ids = prompt + whole.token_ids
    answer = client.post(COMPLETIONS, prompt=ids, max_tokens=1, temperature=0, echo=True, logprobs=1).json
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["token_logprobs"]) == len(ids) + 1
    assert choice["logprobs"]["token_logprobs"][-1] == pytest.approx(whole.end.logprob, abs=1e-12)


def test_the_best_choices_by_their_mean(client):
    options = {"prompt": "Once", "max_tokens": 6, "seed": 2}
    every = client.post(COMPLETIONS, options | {"n": 4, "logprobs": 0}).json["choices"]
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in every]
    best = client.post(COMPLETIONS, options | {"n": 2, "best_of": 4}).json
    order = sorted(range(4), key=lambda i: means[i], reverse=True)[:2]
    assert [c["text"] for c in best["choices"]] == [every[i]["text"] for i in order]
    assert [c["index"] for c in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 24


def test_log_probabilities_have_the_ids_of_their_tokens(client, engine):
    asked = {"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "logprobs": 2}
    alone = engine.generate("Once upon", max_tokens=3, temperature=0, logprobs=2)
    found = client.post(COMPLETIONS, {**asked, "return_token_ids": True}).json["choices"][0]["logprobs"]["content"]
    assert [(one["id"], one["logprob"]) for one in found] == [(one.token_id, one.logprob) for one in alone.logprobs]
    assert [[top["id"] for top in one["top_logprobs"]] for one in found] == [
        [top.token_id for top in one.top] for one in alone.logprobs
    ]
    assert "content" not in client.post(COMPLETIONS, asked).json["choices"][0]["logprobs"]


def test_log_probabilities_of_prompts_in_the_form_of_vllm(client, engine):
    answer = client.post(COMPLETIONS, prompt="Once upon", max_tokens=1, prompt_logprobs=2, return_token_ids=True).json
    (choice,) = answer["choices"]
    ids = choice["prompt_token_ids"]
    assert ids == engine.tokenize("Once upon")
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    for token, entry in zip(ids[1:], rest, strict=True):
        assert math.isfinite(entry[str(token)]["logprob"])
        assert sorted(one["rank"] for one in entry.values() if one["rank"]) == [1, 2]


def test_control_tokens_are_read_unless_the_request_says_no(client, engine):
    end = engine.tokenizer.id_to_token(next(iter(engine.tokenizer.eog_ids)))
    for parse, special in ((True, True), (False, False)):
        answer = client.post(
            COMPLETIONS, prompt=f"a{end}b", max_tokens=1, parse_special=parse, return_token_ids=True
        ).json
        ids = answer["choices"][0]["prompt_token_ids"]
        assert ids == engine.tokenize(f"a{end}b", parse_special=parse)
        assert (engine.tokenizer.token_to_id(end) in ids) == special


@pytest.mark.parametrize(("fields", "param"), [
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": [99999999]}, "prompt[0]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": "a", "best_of": 3, "n": 4}, "best_of"),
    ({"prompt": "a", "best_of": 3, "stream": True}, "best_of"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "suffix": "b", "echo": True}, "suffix"),
])  # fmt: skip
def test_what_is_refused(client, fields, param):
    answer = client.post(COMPLETIONS, fields)
    assert (answer.status, answer.error["param"]) == (400, param)


def test_an_empty_prompt_is_the_token_of_the_beginning(client, engine):
    answer = client.post(COMPLETIONS, prompt="", max_tokens=3, temperature=0).json
    assert answer["choices"][0]["text"] == engine.generate([engine.tokenizer.bos_id], max_tokens=3, temperature=0).text
    assert client.post(COMPLETIONS, prompt="", add_special_tokens=False).error["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_that_are_control_tokens(client, engine, stream):
    """In every dialect that takes stop strings: they end the text where the token comes, and are the reason."""
    stop, (token,) = "<|user|>", engine.tokenize("<|user|>", add_special=False, parse_special=True)
    options = {"logit_bias": {str(token): 14.0}, "max_tokens": 24, "seed": 1, "stream": stream, "ignore_eos": True}
    own = {"logit_bias": {token: 14.0}, "max_tokens": 24, "seed": 1, "ignore_eos": True}
    alone = engine.generate("Once", stop=[stop], **own, **PLAIN)
    assert (alone.finish_reason, alone.stop_reason) == ("stop", stop)
    for path, prompt in ((COMPLETIONS, {"prompt": "Once"}), ("/v1/chat/completions", {"messages": HI})):
        answer = client.post(path, **prompt, **options, stop=[stop, "zz"])
        found = [data for _, data in answer.events if data != "[DONE]"] if stream else [answer.json]
        last = found[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
        if path == COMPLETIONS:
            assert "".join(data["choices"][0]["text"] for data in found) == alone.text
    end = "<|end|>"  # which ends the model's own answers too
    answer = client.post(
        "/v1/messages", messages=HI, max_tokens=400, stop_sequences=[end], temperature=0, stream=stream
    )
    said = next(d["delta"] for n, d in answer.events if n == "message_delta") if stream else answer.json
    assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", end)
    alone = engine.chat(HI, temperature=0)
    assert engine.tokenizer.id_to_token(alone.stop_reason) == end
