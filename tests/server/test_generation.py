"""Specifications of generation: made once of a request's fields, which stay as they came, and prepared as often."""

import dataclasses

import pytest

from oxillama.core.options import TextOptions
from oxillama.server import respond
from oxillama.server.exchange import Exchange
from oxillama.server.generation import Constraint, Conversation, Texts, prepare
from tests.server.client import HI

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "f", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
OF_OLLAMA = {"model": "tiny", "stream": False, "options": {"temperature": 0, "num_predict": 4, "repeat_penalty": 0}}
# A request of each dialect with fields that are moved, renamed or left out.
REQUESTS = {
    "/v1/chat/completions": {
        "messages": HI, "max_completion_tokens": 4, "temperature": 0, "tools": TOOLS, "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}},
        "reasoning_effort": "high", "thinking": {"type": "disabled"}, "logprobs": True, "top_logprobs": 1,
        "chat_template_kwargs": {}, "prediction": {"type": "content", "content": [{"type": "text", "text": "a"}]},
    },
    "/v1/completions": {
        "prompt": ["a", "b"], "max_tokens": 4, "temperature": 0, "logit_bias": {"5": -100}, "best_of": 2,
        "structured_outputs": {"regex": "[ab]+"}, "seed": -1,
    },
    "/v1/messages": {
        "messages": HI, "max_tokens": 4, "temperature": 0, "system": [{"type": "text", "text": "s"}],
        "tools": [{"name": "f", "input_schema": PARAMETERS}], "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"},
    },
    "/v1/responses": {
        "input": "hi", "max_output_tokens": 16, "temperature": 0, "reasoning": {"effort": "none"},
        "tools": [{"type": "function", **FUNCTION}], "text": {"format": {"type": "json_object"}},
    },
    "/api/chat": {"messages": HI, "tools": TOOLS, "think": False, "format": "json", **OF_OLLAMA},
    "/api/generate": {"prompt": "hi", "context": [5, 6, 7], **OF_OLLAMA},
}  # fmt: skip


class Kept(dict):
    """An object of a request, which raises AssertionError when it is changed."""

    def _refuse(self, *given, **named):
        raise AssertionError("a field of the request is changed")

    __setitem__ = __delitem__ = __ior__ = pop = popitem = setdefault = update = clear = _refuse


def kept(value):
    if isinstance(value, dict):
        return Kept((name, kept(one)) for name, one in value.items())
    return type(value)(map(kept, value)) if type(value) is list else value


@pytest.fixture
def specs(monkeypatch):
    """The specifications that requests are read as, of which none may change a field."""
    found, fields = [], Exchange.fields

    async def unchanged(exchange, record):
        return kept(await fields(exchange, record))

    def noted(spec):
        found.append(spec)
        return prepare(spec)

    monkeypatch.setattr(Exchange, "fields", unchanged)
    monkeypatch.setattr(respond, "prepare", noted)
    monkeypatch.setattr("oxillama.server.ollama.conversations.prepare", noted)
    monkeypatch.setattr("oxillama.server.ollama.prompts.prepare", noted)
    return found


@pytest.mark.parametrize("path", REQUESTS)
def test_each_dialect_is_read_once_and_changes_no_field(path, configured, specs):
    answer = configured().post(path, REQUESTS[path])
    assert answer.status == 200, answer.body
    (spec,) = specs
    assert isinstance(spec.text, TextOptions)
    assert isinstance(spec.source, Texts if path == "/v1/completions" else Conversation)
    for part in (spec, spec.source, spec.constraint):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, dataclasses.fields(part)[0].name, None)


@pytest.mark.parametrize("path", REQUESTS)
def test_a_specification_is_prepared_alike_each_time(path, configured, specs):
    configured().post(path, REQUESTS[path])
    first, second = prepare(specs[0]), prepare(specs[0])
    assert first.prompts == second.prompts
    tools = [[request.options.tool_use for request in run.requests] for run in (first, second)]
    assert tools[0] == tools[1]


def test_fields_become_typed_parts(configured, specs):
    client = configured()
    client.post("/v1/chat/completions", REQUESTS["/v1/chat/completions"])
    client.post("/v1/completions", REQUESTS["/v1/completions"])
    chat, texts = specs
    assert chat.source.answer.tools == TOOLS
    assert (chat.source.answer.tool_choice, chat.subject, chat.whole) == ("required", "messages", True)
    assert chat.constraint == Constraint()  # the form of a text that there is not
    assert (chat.text.max_tokens, chat.text.logprobs, chat.text.n, chat.text.chain.config.temperature) == (4, 1, 1, 0)
    assert chat.names["max_tokens"] == "max_completion_tokens"
    assert texts.source == Texts(("a", "b"))
    assert texts.constraint == Constraint("structured_outputs.regex", "regex", "[ab]+")
    assert (texts.text.chain.config.regex, texts.text.n, texts.text.chain.config.seed) == ("[ab]+", 2, (1 << 64) - 1)


def test_options_that_exclude_each_other_name_the_fields_of_the_request(client):
    answer = client.post("/v1/completions", prompt="a", max_tokens=2, min_tokens=3)
    assert (answer.status, answer.error["param"]) == (400, "min_tokens")
    answer = client.post("/infill", input_prefix="a", input_suffix="b", n_predict=2, min_tokens=3)
    assert answer.status == 400
    answer = client.post("/v1/completions", prompt="a", num_speculative=2)
    assert (answer.status, answer.error["param"]) == (400, "num_speculative")


def test_the_alias_of_a_penalty_is_named_where_both_differ(client):
    answer = client.post("/v1/completions", prompt="a", repetition_penalty=1.5, repeat_penalty=1.2)
    text = "repeat_penalty and repetition_penalty are both given, with different values"
    assert (answer.status, answer.error["param"], answer.error["message"]) == (400, "repeat_penalty", text)
