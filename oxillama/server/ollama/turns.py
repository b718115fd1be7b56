"""Requests of Ollama's API as those of chat completions and of completions."""

from __future__ import annotations

from typing import Any

from oxillama.chat.calls import call_id
from oxillama.server.errors import bad_value
from oxillama.server.field_types import Item, Message, Placed, Values
from oxillama.server.fields_ollama import OPTIONS
from oxillama.server.models import Chosen
from oxillama.server.reading import Reading
from oxillama.server.translate import PART_SEPARATOR, Translated, schema_format, text_of

__all__ = ["begins_answer", "messages_of", "read_as_chat", "read_as_completion", "shortened", "turn_starts"]

DRAFTS = 32  # draft tokens at a time, at most
SYSTEM = ("system", "developer")
# Options that are no fields of sampling.
_OWN = ("num_predict", "num_ctx", "draft_num_predict")
_OPTION_NAMES = {field.name: f"options.{field.name}" for field in OPTIONS.fields if field.rule == "honour"}
NAMES = {
    **_OPTION_NAMES,
    "max_completion_tokens": "options.num_predict",
    "max_tokens": "options.num_predict",
    "num_speculative": "options.draft_num_predict",
    "response_format": "format",
    "reasoning_effort": "think",
    "reasoning_budget": "think",
    "thinking": "think",
    "chat_template": "template",
}
_ENGINE_NAMES = {field.to: field.name for field in OPTIONS.fields if field.to and field.to != field.name}


def read_as_chat(values: Values, messages: list[Message], chosen: Chosen, reading: Reading) -> Translated:
    """The fields of chat completions that say the same of these messages."""
    chat, names = read_shared(values, chosen, reading)
    chat["messages"] = messages
    if begins_answer(messages):
        chat["continue_final_message"] = True
    if "tools" in values:
        chat["tools"] = values["tools"]
        places = Placed.of("tools", values["tools"]).places
        names |= {f"tools[{i}]": place for i, place in enumerate(places) if place != f"tools[{i}]"}
    if values.get("logprobs"):
        chat |= {"logprobs": True, "top_logprobs": values.get("top_logprobs", 0)}
    if values.get("template"):
        chat["chat_template"] = values["template"]
    if "think" in values:
        chat |= thinking_of(values["think"])
    return Translated(chat, names)


def read_as_completion(values: Values, prompt: str, chosen: Chosen, reading: Reading) -> Translated:
    """The fields of completions that say the same of a prompt without a template."""
    given, names = read_shared(values, chosen, reading)
    given["prompt"] = prompt
    if values.get("suffix"):
        given["suffix"] = values["suffix"]
    if values.get("logprobs"):
        given["logprobs"] = values.get("top_logprobs", 0)
        names = {"logprobs": "top_logprobs", **names}
    if values.get("think"):
        reading.leave_out("think", "the prompt goes to the model without a template")
    return Translated(given, names)


def read_shared(values: Values, chosen: Chosen, reading: Reading) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads what both calls say alike, and names the fields that the request has for theirs."""
    options = values.get("options", {})
    found = {name: value for name, value in options.items() if name not in _OWN}
    if found.get("seed", 0) < 0:
        del found["seed"]
    if found.get("repeat_penalty") == 0:  # as some clients say that they want none
        found["repeat_penalty"] = 1.0
    size = chosen.model.ready.engine.context.factory.room
    if found.get("repeat_last_n", 0) < 0:
        found["repeat_last_n"] = size
    if options.get("num_predict", 0) > 0:
        found["max_tokens"] = options["num_predict"]
    if options.get("num_ctx", 0) > size:
        reading.leave_out("options.num_ctx", f"the context has {size} tokens: --context-size of the server says it")
    found |= drafts_of(options.get("draft_num_predict"), chosen, reading)
    form = values.get("format")
    if form == "json":
        found["response_format"] = {"type": "json_object"}
    elif isinstance(form, dict):
        found["response_format"] = schema_format(form)
    found["stream"] = values.get("stream", True)
    return found, {**NAMES, **{to: f"options.{name}" for to, name in _ENGINE_NAMES.items() if name in options}}


def drafts_of(wanted: int | None, chosen: Chosen, reading: Reading) -> dict[str, Any]:
    """Number of draft tokens wanted of the model's draft, if it has one."""
    if wanted is None or (not wanted and chosen.model.draft is None):
        return {}
    if chosen.model.draft is None:
        reading.leave_out("options.draft_num_predict", "the model has no draft: --draft of the server gives it one")
        return {}
    return {"num_speculative": min(wanted, DRAFTS)}


def thinking_of(wanted: bool | str) -> dict[str, Any]:
    """Whether, and how much, the model is to think."""
    if isinstance(wanted, str):
        return {"thinking": {"type": "adaptive"}, "reasoning_effort": wanted}
    return {"thinking": {"type": "enabled" if wanted else "disabled"}}


def messages_of(given: list[Message]) -> list[Message]:
    """Messages of chat completions. Results of tools, which have the tool's name, get the id of their call."""
    found: list[Message] = []
    open_calls: list[tuple[str, str]] = []  # (id, name) of those without a result
    n_calls = 0
    for message in given:
        made: Message = {"role": message["role"], "content": message.get("content", "")}
        if message.get("thinking") and message["role"] == "assistant":
            made["reasoning_content"] = message["thinking"]
        if message["role"] == "tool":
            made |= _result(message, open_calls)
            if message.get("images"):  # the text that stands for them
                made["content"] = PART_SEPARATOR.join(filter(None, (text_of(made["content"]), message["images"])))
        elif message.get("name"):
            made["name"] = message["name"]
        if message.get("tool_calls"):
            calls = [_call(call, n_calls + i) for i, call in enumerate(message["tool_calls"])]
            n_calls += len(calls)
            open_calls = [(call["id"], call["function"]["name"]) for call in calls]
            made["tool_calls"] = calls
        found.append(made)
    return found


def _call(call: Item, number: int) -> Item:
    own = call["function"]
    function = {"name": own["name"], "arguments": own.get("arguments", {})}
    return {"id": call.get("id") or call_id(number), "type": "function", "function": function}


def _result(message: Item, open_calls: list[tuple[str, str]]) -> dict[str, str]:
    """Id and name of the call whose result a message is: by its id, by its tool's name, or the first that has none."""
    name = message.get("tool_name") or message.get("name") or ""
    given = message.get("tool_call_id")
    known = [one for one in open_calls if one[0] == given] or [one for one in open_calls if one[1] == name]
    if not known and not name:
        known = open_calls[:1]
    if known:
        open_calls.remove(known[0])
    found = {"tool_call_id": given or (known[0][0] if known else call_id(0))}
    name = name or (known[0][1] if known else "")
    return found | ({"name": name} if name else {})


def begins_answer(messages: list[Message]) -> bool:
    """Whether the assistant has begun the last message, which the answer goes on from."""
    last = messages[-1]
    said = last["content"] or "reasoning_content" in last
    return last["role"] == "assistant" and not last.get("tool_calls") and bool(said)


def turn_starts(messages: list[Message]) -> list[int]:
    """Places at which a conversation can begin that has no room for its first turns: at later messages of the user, and
    at later ones of the assistant behind the last of these."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    last = users[-1] if users else -1
    answers = [i for i, message in enumerate(messages) if i > last and message["role"] == "assistant"]
    return users[1:] + answers[1:]


def shortened(messages: list[Message], start: int) -> Placed:
    """The messages from `start` on, with those of the system before it, and the last one of the user; each knows its
    place."""
    asked = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=start)
    kept = [i for i, message in enumerate(messages) if i >= start or i == asked or message["role"] in SYSTEM]
    return Placed((f"messages[{i}]", messages[i]) for i in kept)


def read_raw(values: Values) -> None:
    """Raises ApiError, in Ollama's words, for what a raw prompt has no place for."""
    if values.get("template") or values.get("system") or values.get("context"):
        raise bad_value("raw", "raw mode does not support template, system, or context")
