"""Whether a model thinks, for how long, and what of it is shown, in each dialect."""

import pytest

from oxillama.errors import ConfigError
from oxillama.server import ServerConfig, create_app
from tests.server.client import HI

SWITCH = (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
ALWAYS = "<think>\n"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
OFF = {"type": "disabled"}


def template(opening):
    return (
        "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>"
        "\n\n{% endif %}{{ m.content }}[end]\n{% endfor %}{% if add_generation_prompt %}[assistant]" + opening
        + "{% endif %}"
    )  # fmt: skip


@pytest.fixture
def thinking(configured, tmp_path):
    """Makes a client of a server whose template has this opening."""

    def make(opening, **settings):
        path = tmp_path / "template.jinja"
        path.write_text(template(opening))
        return configured(chat_template=str(path), **settings)

    return make


def asked(client, path, thinking, **fields):
    """(reasoning, text, tokens of the prompt) of an answer."""
    given = {"temperature": 0, **({} if thinking is None else {"thinking": thinking}), **fields}
    if path == MESSAGES:
        answer = client.post(path, messages=HI, max_tokens=24, **given).json
        blocks = {block["type"]: block.get("thinking", block.get("text")) for block in answer["content"]}
        used = answer["usage"]
        n = used["input_tokens"] + used["cache_read_input_tokens"]
        return blocks.get("thinking", ""), blocks.get("text", ""), n
    if path == RESPONSES:
        answer = client.post(path, input="hi", max_output_tokens=24, **given).json
        reasoning = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "reasoning"]
        return "".join(reasoning), answer["output_text"], answer["usage"]["input_tokens"]
    answer = client.post(path, messages=HI, max_tokens=24, **given).json
    message = answer["choices"][0]["message"]
    return message.get("reasoning_content", ""), message["content"], answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_the_switch_of_a_template_is_set(thinking, engine, path):
    client = thinking(SWITCH)
    options = {"chat_template": template(SWITCH), "max_tokens": 24, "temperature": 0}
    for given, switch in ((OFF, False), ({"type": "enabled"}, True), ({"type": "adaptive"}, True), (None, None)):
        kwargs = {} if switch is None else {"template_kwargs": {"enable_thinking": switch}}
        alone = engine.chat(HI, **options, **kwargs)
        assert asked(client, path, given) == (alone.reasoning, alone.text, alone.prompt_tokens)
        assert bool(alone.reasoning) == (switch is not False)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_budget_ends_the_reasoning(thinking, engine, path):
    client = thinking(SWITCH)
    alone = engine.chat(HI, chat_template=template(SWITCH), max_tokens=24, temperature=0, reasoning_budget=5)
    assert alone.text
    assert asked(client, path, {"type": "enabled", "budget_tokens": 5})[:2] == (alone.reasoning, alone.text)
    if path != MESSAGES:
        assert asked(client, path, None, reasoning_budget=5)[:2] == (alone.reasoning, alone.text)


def test_a_model_that_always_thinks_has_it_ended_at_once(thinking, engine):
    client = thinking(ALWAYS)
    alone = engine.chat(HI, chat_template=template(ALWAYS), max_tokens=24, temperature=0, reasoning_budget=0)
    reasoning, text, _ = asked(client, MESSAGES, OFF)
    assert (reasoning, text) == (alone.reasoning, alone.text) == ("", alone.text)
    assert asked(client, MESSAGES, {"type": "enabled"})[0] != ""


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_no_effort_is_no_reasoning(thinking, path):
    client = thinking(SWITCH)
    none = {"reasoning_effort": "none"} if path == CHAT else {"reasoning": {"effort": "none"}}
    assert asked(client, path, None, **none) == asked(client, path, OFF)
    high = {"reasoning_effort": "high"} if path == CHAT else {"reasoning": {"effort": "high"}}
    name = "messages" if path == CHAT else "input"
    answer = client.post(path, {name: HI, **high})
    assert answer.headers["x-oxillama-left-out"] == ("reasoning_effort" if path == CHAT else "reasoning.effort")


def test_models_without_reasoning(client, engine):
    plain = engine.chat(HI, max_tokens=24, temperature=0).text
    for given in (OFF, {"type": "adaptive"}):
        assert asked(client, MESSAGES, given)[:2] == ("", plain)
    answer = client.post(MESSAGES, messages=HI, max_tokens=9, thinking={"type": "enabled", "budget_tokens": 9})
    assert answer.headers["x-oxillama-left-out"] == "thinking"


def test_omitted_thinking_is_not_shown(thinking):
    client = thinking(SWITCH)
    shown = asked(client, MESSAGES, {"type": "enabled", "budget_tokens": 5})
    hidden = {"type": "enabled", "budget_tokens": 5, "display": "omitted"}
    assert asked(client, MESSAGES, hidden) == ("", *shown[1:])
    events = client.post(MESSAGES, messages=HI, max_tokens=24, temperature=0, thinking=hidden, stream=True).events
    kinds = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert set(kinds) == {"text_delta"}


def test_tokens_of_reasoning_are_hidden_with_it(thinking):
    client = thinking(SWITCH)
    fields = {"max_tokens": 24, "temperature": 0, "reasoning_budget": 5, "logprobs": True, "return_token_ids": True}
    shown = client.post(CHAT, messages=HI, **fields).json["choices"][0]
    answer = client.post(CHAT, messages=HI, include_reasoning=False, **fields).json
    hidden = answer["choices"][0]
    assert "reasoning_content" not in hidden["message"]
    texts = [one["token"] for one in hidden["logprobs"]["content"]]
    assert "".join(texts) == hidden["message"]["content"] == shown["message"]["content"] != ""
    n = len(hidden["token_ids"])
    assert hidden["token_ids"] == shown["token_ids"][-n:]
    assert n == len(texts) < len(shown["token_ids"]) == answer["usage"]["completion_tokens"]
    events = client.post(CHAT, messages=HI, include_reasoning=False, stream=True, **fields).events
    parts = [data["choices"][0] for _, data in events if data != "[DONE]"]
    assert [token for part in parts for token in part.get("token_ids", ())] == hidden["token_ids"]
    entries = [one for part in parts for one in (part["logprobs"] or {"content": []})["content"]]
    assert entries == hidden["logprobs"]["content"]


def test_log_probabilities_of_responses_are_those_of_the_text(thinking):
    client = thinking(SWITCH)
    fields = {"max_output_tokens": 24, "temperature": 0, "reasoning_budget": 5}
    answer = client.post(RESPONSES, input="hi", include=["message.output_text.logprobs"], **fields).json
    part = answer["output"][1]["content"][0]
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"] != ""


def test_contradictions_are_refused(thinking):
    client = thinking(SWITCH)
    error = client.post(CHAT, messages=HI, thinking=OFF, chat_template_kwargs={"enable_thinking": True}).error
    assert error["param"] == "thinking.type"
    error = client.post(CHAT, messages=HI, thinking={"type": "enabled", "budget_tokens": 5}, reasoning_budget=6).error
    assert error["param"] == "reasoning_budget"


def test_marks_that_the_server_is_told(configured, engine, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<hm>{% endif %}"
    )
    client = configured(chat_template=str(path), reasoning_format="<hm> </hm>")
    assert asked(client, CHAT, None)[1] == ""
    assert asked(client, CHAT, None, reasoning_budget=5)[1] != ""
    none = configured(chat_template=str(path), reasoning_format="none")
    assert asked(none, CHAT, None)[0] == ""
    with pytest.raises(ConfigError, match=r"^reasoning_format must be none, or two marks"):
        create_app(engine, ServerConfig(reasoning_format="<hm>"))


def test_prompts_are_counted_as_they_are_made(thinking):
    client = thinking(SWITCH)
    for given in (None, OFF):
        extra = {} if given is None else {"thinking": given}
        n = asked(client, CHAT, given)[2]
        assert client.post("/tokenize", messages=HI, **extra).json["count"] == n
        assert client.post(f"{MESSAGES}/count_tokens", messages=HI, **extra).json == {"input_tokens": n}
        assert client.post(f"{RESPONSES}/input_tokens", input="hi", **extra).json["input_tokens"] == n
    off = {"enable_thinking": False}
    assert client.post("/tokenize", messages=HI, chat_template_kwargs=off).json["count"] == n
    assert client.post("/tokenize", prompt="hi", chat_template_kwargs=off).error["param"] == "chat_template_kwargs"
    assert client.post("/tokenize", messages=HI, add_special_tokens=True).error["param"] == "add_special_tokens"


@pytest.mark.parametrize("opening", [SWITCH, ALWAYS])
@pytest.mark.parametrize("off", [{"thinking": OFF}, {"reasoning_effort": "none"}])
def test_a_budget_of_reasoning_that_is_off(thinking, opening, off):
    client = thinking(opening)
    answer = client.post(CHAT, messages=HI, max_tokens=4, reasoning_budget=7, **off)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "reasoning_budget", "invalid_value")
    assert client.post(CHAT, messages=HI, max_tokens=4, reasoning_budget=0, **off).status == 200
