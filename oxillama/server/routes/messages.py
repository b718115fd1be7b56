"""Messages of Anthropic's API."""

from __future__ import annotations

import json
from typing import Any

from oxillama.chat.calls import read_argument_object
from oxillama.core.results import Chunk
from oxillama.server.answers import Choice, usage_of
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange, new_id
from oxillama.server.field_types import Message, Placed, Tool, Values
from oxillama.server.fields_messages import COUNT_TOKENS, MESSAGES
from oxillama.server.fields_sampling import OF_MESSAGES_API
from oxillama.server.generation import GenerationRun, GenerationSpec
from oxillama.server.json_pieces import Body
from oxillama.server.models import Chosen
from oxillama.server.reading import Reading
from oxillama.server.respond import answered, choices_of
from oxillama.server.routes.chat import read_translated
from oxillama.server.routes.responses import count_tokens
from oxillama.server.sse import Event, ServerSentEvents
from oxillama.server.translate import Translated, Turns, schema_format, text_of, tool_names

__all__ = ["count_message_tokens", "messages"]

NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "tool_choice.function": "tool_choice",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "reasoning_budget": "thinking.budget_tokens",
}
BILLING = "x-anthropic-billing-header"
_SAME = ("model", "stream", "thinking", *(field.name for field in OF_MESSAGES_API))
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


async def messages(exchange: Exchange) -> None:
    """POST /v1/messages"""
    await answered(exchange, MESSAGES, read_message, MessageDialect)


def read_message(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationSpec:
    """Reads a request of Anthropic's messages. Raises ApiError."""
    return read_translated(read_as_chat(values, exchange.reading), exchange, chosen)


async def count_message_tokens(exchange: Exchange) -> None:
    """POST /v1/messages/count_tokens"""
    values = await exchange.fields(COUNT_TOKENS)
    chosen = await exchange.read_model(values)
    count = await count_tokens(exchange, lambda: read_as_chat(values, exchange.reading), chosen)
    await exchange.json({"input_tokens": count})


def _is_begun(messages: list[Message]) -> bool:
    """Whether the assistant has begun the last message, which the answer goes on from."""
    last = messages[-1] if messages else {}
    said = last.get("content") or "reasoning_content" in last
    return last.get("role") == "assistant" and not last.get("tool_calls") and bool(said)


def read_as_chat(values: Values, reading: Reading) -> Translated:
    """The fields of chat completions that say the same."""
    chat: Body = {name: values[name] for name in _SAME if name in values}
    turns = read_turns(values, reading)
    chat["messages"] = turns.whole()
    if _is_begun(chat["messages"]):
        chat["continue_final_message"] = True
    if "max_tokens" in values:
        chat["max_completion_tokens"] = values["max_tokens"]
    if values.get("stop_sequences"):
        chat["stop"] = values["stop_sequences"]
    if "tools" in values:
        chat["tools"] = [{"type": "function", "function": function_of(tool)} for tool in values["tools"]]
    choice = values.get("tool_choice")
    if choice is not None:
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = _CHOICES.get(choice["type"], named)
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use", False)
    wanted = values.get("output_config", {})
    if "effort" in wanted:
        chat["reasoning_effort"] = wanted["effort"]
    form, names = wanted.get("format"), NAMES
    if "output_format" in values:
        if form is not None and form != values["output_format"]:
            raise bad_value("output_format", "output_format and output_config.format are both given: give the latter")
        if form is None:
            form, names = values["output_format"], {**NAMES, "response_format": "output_format"}
    if form is not None:
        chat["response_format"] = schema_format(form["schema"])
    return Translated(chat, {**turns.names, **tool_names(values.get("tools", []), "input_schema"), **names})


def function_of(tool: Tool) -> Tool:
    """A tool as chat completions describe it."""
    own: Tool = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {**own, "parameters": tool["input_schema"]}


def unbilled(system: Any, reading: Reading) -> Any:
    """A system message without the line that Claude Code writes for the bill, which is said.

    The line differs in each conversation, or in each request, and stands before everything else: behind it the prefix
    cache would find nothing.
    """
    if isinstance(system, str):
        kept = _after_billing(system, "system", reading)
        return system if kept is None else kept
    found = []
    for place, block in zip(Placed.of("system", system).places, system, strict=True):
        kept = _after_billing(block["text"], f"{place}.text", reading)
        if kept is None:
            found.append(block)
        elif kept:
            found.append({**block, "text": kept})
    return found


def _after_billing(text: str, place: str, reading: Reading) -> str | None:
    """Text that follows the line for the bill; None for a text without one."""
    if not text.startswith(f"{BILLING}:"):
        return None
    reading.say(f"{place}={BILLING}", BILLING)
    return text.partition("\n")[2]


def read_turns(values: Values, reading: Reading) -> Turns:
    """Messages of chat completions: results of tools come as messages of their own, before what the user says."""
    turns = Turns()
    if "system" in values:
        system = unbilled(values["system"], reading)
        if system or not values["system"]:
            turns.say("system", text_of(system), "system")
    for i, message in enumerate(values["messages"]):
        place = f"messages[{i}]"
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                text = text_of(block.get("content", ""))
                turns.give(block["tool_use_id"], f"Error: {text}" if block.get("is_error") else text, place)
            elif block["type"] == "thinking":
                turns.think(block["thinking"], place)
        texts = [block for block in blocks if block["type"] == "text"]
        if texts or not blocks:
            turns.say(message["role"], text_of(texts), place)
        for block in blocks:
            if block["type"] == "tool_use":
                arguments = json.dumps(block["input"], ensure_ascii=False)
                turns.call(block["id"], "function", {"name": block["name"], "arguments": arguments}, place)
    return turns


class MessageDialect:
    """A message, and its events: blocks that follow one another, each opened, filled and closed."""

    stream_format = ServerSentEvents(b'event: ping\ndata: {"type": "ping"}\n\n')
    tail = b""

    def __init__(self, run: GenerationRun, values: Values) -> None:
        self.run = run
        self.choices: list[Choice] = choices_of(run, read_most_calls(values))
        self.id = new_id("msg_")
        self.content: list[Body] = []
        self._is_open = False
        self._shows_thinking = read_shows_thinking(values)

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self.step(index, chunk)

    def begin(self) -> list[Event]:
        return [event("message_start", message=self._message(None)), event("ping")]

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        delta = self.choices[index].add(chunk)
        events: list[Event] = []
        if delta.reasoning:
            events += self._to("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if self._shows_thinking:
                self.content[-1]["thinking"] += delta.reasoning
                events.append(self._delta(type="thinking_delta", thinking=delta.reasoning))
        if delta.text:
            events += self._to("text", {"type": "text", "text": ""})
            self.content[-1]["text"] += delta.text
            events.append(self._delta(type="text_delta", text=delta.text))
        for call in delta.calls:
            if call.name is not None:
                events += self._to(None, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            if call.arguments:
                events.append(self._delta(type="input_json_delta", partial_json=call.arguments))
        return events

    def end(self) -> list[Event]:
        said = self._message(self._reason)
        delta = {"stop_reason": said["stop_reason"], "stop_sequence": said["stop_sequence"]}
        return [*self._close(), event("message_delta", delta=delta, usage=said["usage"]), event("message_stop")]

    def failed(self, error: ApiError) -> list[Event]:
        return [("error", error.anthropic(self.id))]

    def whole(self) -> Body:
        calls = iter(self.choices[0].calls)
        for block in self.content:
            if block["type"] == "tool_use":
                block["input"] = as_object(next(calls).arguments)
        return self._message(self._reason)

    @property
    def _reason(self) -> str:
        choice = self.choices[0]
        if choice.reason == "length":
            return "max_tokens"
        if choice.finish_reason == "tool_calls":
            return "tool_use"
        return "stop_sequence" if isinstance(choice.stop_reason, str) else "end_turn"

    def _message(self, reason: str | None) -> Body:
        stop = self.choices[0].stop_reason if reason == "stop_sequence" else None
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.run.spec.chosen.name,
            "content": [dict(block) for block in self.content], "stop_reason": reason, "stop_sequence": stop,
            "usage": message_usage(self.run, self.choices),
        }  # fmt: skip

    def _to(self, kind: str | None, block: Body) -> list[Event]:
        """Events that open a block, unless one of this kind is open."""
        if self._is_open and self.content[-1]["type"] == kind:
            return []
        events = self._close()
        self.content.append(block)
        self._is_open = True
        return [*events, event("content_block_start", index=len(self.content) - 1, content_block=dict(block))]

    def _close(self) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        return [event("content_block_stop", index=len(self.content) - 1)]

    def _delta(self, **said: Any) -> Event:
        return event("content_block_delta", index=len(self.content) - 1, delta=said)


def event(kind: str, **said: Any) -> Event:
    return kind, {"type": kind, **said}


def read_most_calls(values: Values) -> int | None:
    """Number of calls that are wanted at most."""
    return 1 if values.get("tool_choice", {}).get("disable_parallel_tool_use") else None


def read_shows_thinking(values: Values) -> bool:
    """Whether thinking is shown, and not only counted."""
    shown: bool = values.get("thinking", {}).get("display") != "omitted"
    return shown


def as_object(arguments: str) -> Body:
    """Arguments as an object; those that were cut off, or that no client can read, are none."""
    try:
        return read_argument_object(arguments)
    except ValueError:
        return {}


def message_usage(run: GenerationRun, choices: list[Choice]) -> Body:
    """Tokens, under the names that messages have for them."""
    used = usage_of(run, choices)
    cached = used["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": used["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": used["completion_tokens"],
    }
