"""Responses of OpenAI's API, of which none is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.core.results import Chunk
from oxillama.server.answers import Choice, Delta, logprob_of, usage_of
from oxillama.server.embedding_run import engine_errors
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange, new_id
from oxillama.server.field_types import Item, Tool, Values
from oxillama.server.fields_responses import ENCRYPTED, INPUT_TOKENS, LOGPROBS, RESPONSES
from oxillama.server.generation import GenerationRun, GenerationSpec
from oxillama.server.json_pieces import Body
from oxillama.server.models import Chosen
from oxillama.server.prompting import prompt_of
from oxillama.server.reading import Reading
from oxillama.server.respond import answered, choices_of
from oxillama.server.routes.chat import read_translated
from oxillama.server.shown_tokens import ContentTokens
from oxillama.server.sse import Event, ServerSentEvents
from oxillama.server.translate import (
    Offered,
    Translated,
    choice_names,
    of_items,
    read_chat_tools,
    renamed,
    sealed,
    tool_names,
)  # fmt: skip

__all__ = ["count_tokens", "input_tokens", "kept_response", "responses"]

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
    "tool_choice.custom": "tool_choice",
    "tool_choice.allowed_tools": "tool_choice",
}
# Items of calls: the field that grows, its event, and the beginning of ids.
CALLS = {
    "function_call": ("arguments", "function_call_arguments", "fc_"),
    "custom_tool_call": ("input", "custom_tool_call_input", "ctc_"),
}
_SAME = (
    "model", "stream", "top_logprobs", "parallel_tool_calls", "instructions", "include", "text", "reasoning", "input",
    "metadata", "tools", "tool_choice", "max_output_tokens",
)  # fmt: skip


async def responses(exchange: Exchange) -> None:
    """POST /v1/responses"""
    await answered(exchange, RESPONSES, read_response, ResponseDialect)


def read_response(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationSpec:
    """Reads a request of responses. Raises ApiError."""
    return read_translated(read_as_chat(values, exchange.reading), exchange, chosen)


async def input_tokens(exchange: Exchange) -> None:
    """POST /v1/responses/input_tokens"""
    values = await exchange.fields(INPUT_TOKENS)
    chosen = await exchange.service.models.use(values.get("model"))
    count = await count_tokens(exchange, lambda: read_as_chat(values, exchange.reading), chosen)
    await exchange.json({"object": "response.input_tokens", "input_tokens": count})


async def count_tokens(exchange: Exchange, translate: Callable[[], Translated], chosen: Chosen) -> int:
    """Tokens of the prompt of a conversation. Raises ApiError."""

    def count() -> int:
        chat = translate()
        exchange.reading.names = chat.names
        ids = renamed(lambda: engine_errors(lambda: prompt_of(chat.values, exchange, chosen), chosen), chat.names)
        return len(ids)

    with chosen.in_use():
        return await exchange.elsewhere(count)


async def kept_response(exchange: Exchange) -> None:
    """GET and DELETE /v1/responses/{id}"""
    text = f"there is no response {exchange.parameters['id']!r:.80}: none is kept"
    raise ApiError(404, "response_not_found", text, "id")


def read_as_chat(values: Values, reading: Reading) -> Translated:
    """The fields of chat completions that say the same."""
    chat = {name: value for name, value in values.items() if name not in _SAME}
    chat |= {name: values[name] for name in ("stream", "parallel_tool_calls") if name in values}
    offered = Offered(values.get("tools", []))
    turns = of_items(values["input"], values.get("instructions"), offered, reading)
    chat["messages"] = turns.whole()
    chat |= read_chat_tools(values, offered)
    if "max_output_tokens" in values:
        chat["max_completion_tokens"] = values["max_output_tokens"]
    if "effort" in values.get("reasoning", {}):
        chat["reasoning_effort"] = values["reasoning"]["effort"]
    form = values.get("text", {}).get("format", {"type": "text"})
    chat["response_format"] = {"type": form["type"]}
    if form["type"] == "json_schema":
        chat["response_format"]["json_schema"] = {"schema": form["schema"]}
    if LOGPROBS in values.get("include", ()):
        chat["logprobs"] = True
    if values.get("top_logprobs"):
        if "logprobs" not in chat:
            text = "top_logprobs needs include: ['message.output_text.logprobs']"
            raise bad_value("top_logprobs", text)
        chat["top_logprobs"] = values["top_logprobs"]
    names = tool_names(values.get("tools", [])) | choice_names(values.get("tool_choice"))
    return Translated(chat, {**turns.names, **names, **NAMES})


@dataclass(frozen=True)
class Repeated:
    """The fields of a request that its response repeats. temperature, top_p: None of a request that names none."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: Mapping[str, str]
    parallel_tool_calls: bool
    reasoning: Item
    temperature: float | None
    top_p: float | None
    text: Item
    tool_choice: str | Item
    tools: list[Tool]
    top_logprobs: int
    encrypted: bool


def read_repeated(values: Values) -> Repeated:
    """Fields of a request, as the response says it again."""
    return Repeated(
        instructions=values.get("instructions"),
        max_output_tokens=values.get("max_output_tokens"),
        metadata=values.get("metadata", {}),
        parallel_tool_calls=values.get("parallel_tool_calls", True),
        reasoning=values.get("reasoning") or {"effort": None, "summary": None},
        temperature=values.get("temperature"),
        top_p=values.get("top_p"),
        text={"format": {"type": "text"}, **values.get("text", {})},
        tool_choice=values.get("tool_choice", "auto"),
        tools=values.get("tools", []),
        top_logprobs=values.get("top_logprobs", 0),
        encrypted=ENCRYPTED in values.get("include", ()),
    )


class ResponseDialect:
    """A response, and its events: items that follow one another, each opened, filled and closed."""

    tail = b""

    def __init__(self, run: GenerationRun, values: Values) -> None:
        self.run, self._asked = run, read_repeated(values)
        self.stream_format = ServerSentEvents(lambda: self._event("keepalive"))
        most_calls = None if self._asked.parallel_tool_calls else 1
        self._offered = Offered(self._asked.tools)
        self.choices: list[Choice] = choices_of(run, most_calls, self._offered.custom)
        self._tokens = ContentTokens(run.tokenizer.token_bytes)
        self.id, self.created = new_id("resp_"), int(time.time())
        self.output: list[Body] = []
        self._is_open = False
        self._n = 0

    # ---- events

    def begin(self) -> list[Event]:
        body = self._response("in_progress")
        return [self._event(f"response.{name}", response=body) for name in ("created", "in_progress")]

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        delta = self.choices[index].add(chunk)
        logprobs = self._logprobs(chunk, delta)
        events: list[Event] = []
        if delta.reasoning:
            item, opened = self._item("reasoning")
            events += opened
            item["content"][0]["text"] += delta.reasoning
            events.append(self._part_event("response.reasoning_text.delta", delta=delta.reasoning))
        if delta.text or logprobs:
            item, opened = self._item("message")
            events += opened
            item["content"][0]["text"] += delta.text
            item["content"][0]["logprobs"] += logprobs
            events.append(self._part_event("response.output_text.delta", delta=delta.text, logprobs=logprobs))
        for call in delta.calls:
            if call.name is not None:
                events += self._close("completed")
                kind = "custom_tool_call" if call.index in self.choices[index].reader.inputs else "function_call"
                said, _, prefix = CALLS[kind]
                events += self._open({
                    "type": kind, "id": new_id(prefix), "call_id": call.id, **self._offered.own(call.name), said: "",
                    "status": "in_progress",
                })  # fmt: skip
            if call.arguments:
                said, event, _ = CALLS[self.output[-1]["type"]]
                self.output[-1][said] += call.arguments
                events.append(self._item_event(f"response.{event}.delta", delta=call.arguments))
        if delta.cut:
            events += self._close("incomplete")
        return events

    def _logprobs(self, chunk: Chunk, delta: Delta) -> list[Body]:
        """Log-probabilities of the content's tokens, where they are asked for."""
        if chunk.logprobs is None:
            return []
        return [logprob_of(one) for _, one in self._tokens.read(chunk, delta) if one is not None]

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self.step(index, chunk)

    def end(self) -> list[Event]:
        status = self._status
        events = self._finish(status)
        return [*events, self._event(f"response.{status}", response=self._response(status))]

    def failed(self, error: ApiError) -> list[Event]:
        body = self._response("failed") | {"error": {"code": "server_error", "message": error.message}}
        return [self._event("response.failed", response=body)]

    def whole(self) -> Body:
        self._finish(self._status)
        return self._response(self._status)

    def _finish(self, status: str) -> list[Event]:
        """Closes the last item; of an answer without any, an empty message."""
        events = [] if self.output else self._item("message")[1]
        return events + self._close(status)

    @property
    def _status(self) -> str:
        return "incomplete" if self.choices[0].reason == "length" else "completed"

    # ---- items

    def _item(self, kind: str) -> tuple[Body, list[Event]]:
        """The open item, if it is of this kind, or a new one after it."""
        if self._is_open and self.output[-1]["type"] == kind:
            return self.output[-1], []
        events = self._close("completed")
        part: Body
        item: Body
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"type": kind, "id": new_id("msg_"), "role": "assistant", "status": "in_progress", "content": []}
        else:
            part = {"type": "reasoning_text", "text": ""}
            item = {"type": kind, "id": new_id("rs_"), "summary": [], "status": "in_progress", "content": []}
        events += self._open(item)
        item["content"] = [part]
        events.append(self._part_event("response.content_part.added", part=part))
        return item, events

    def _open(self, item: Body) -> list[Event]:
        self.output.append(item)
        self._is_open = True
        return [self._event("response.output_item.added", output_index=len(self.output) - 1, item=item)]

    def _close(self, status: str) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self.output[-1]
        item["status"] = status
        events: list[Event] = []
        if item["type"] in CALLS:
            said, event, _ = CALLS[item["type"]]
            named = {"name": item["name"]} if item["type"] == "function_call" else {}
            events.append(self._item_event(f"response.{event}.done", **named, **{said: item[said]}))
        else:
            (part,) = item["content"]
            if item["type"] == "reasoning" and self._asked.encrypted:
                item["encrypted_content"] = sealed(part["text"])
            whole = {"text": part["text"]} | ({"logprobs": part["logprobs"]} if item["type"] == "message" else {})
            name = "output_text" if item["type"] == "message" else "reasoning_text"
            events.append(self._part_event(f"response.{name}.done", **whole))
            events.append(self._part_event("response.content_part.done", part=part))
        return [*events, self._event("response.output_item.done", output_index=len(self.output) - 1, item=item)]

    def _part_event(self, kind: str, **said: Any) -> Event:
        return self._item_event(kind, content_index=0, **said)

    def _item_event(self, kind: str, **said: Any) -> Event:
        return self._event(kind, item_id=self.output[-1]["id"], output_index=len(self.output) - 1, **said)

    def _event(self, kind: str, **said: Any) -> Event:
        """An event with what is in it now: items change later."""
        number, self._n = self._n, self._n + 1
        return kind, {"type": kind, "sequence_number": number, **{name: copied(one) for name, one in said.items()}}

    def _response(self, status: str) -> Body:
        asked, run = self._asked, self.run
        ended = status in ("completed", "incomplete")
        chain = run.spec.chosen.model.chain
        assert chain is not None
        config = chain.config
        texts = [part["text"] for item in self.output if item["type"] == "message" for part in item["content"]]
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id, "object": "response", "created_at": self.created,
            "completed_at": int(time.time()) if ended else None, "status": status, "error": None,
            "incomplete_details": incomplete, "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens, "metadata": asked.metadata,
            "model": run.spec.chosen.name, "output": copied(self.output), "output_text": "".join(texts),
            "parallel_tool_calls": asked.parallel_tool_calls, "previous_response_id": None,
            "reasoning": asked.reasoning, "store": False,
            "temperature": config.temperature if asked.temperature is None else asked.temperature,
            "top_p": config.top_p if asked.top_p is None else asked.top_p, "text": asked.text, "background": False,
            "tool_choice": asked.tool_choice, "tools": asked.tools, "top_logprobs": asked.top_logprobs,
            "truncation": "disabled", "usage": response_usage(run, self.choices) if ended else None,
        }  # fmt: skip


def copied(value: Any) -> Any:
    """A copy of lists and objects, as deep as items go."""
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def response_usage(run: GenerationRun, choices: list[Choice]) -> Body:
    """Tokens, under the names that responses have for them."""
    used = usage_of(run, choices)
    cached = used["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": used["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": used["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": used["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": used["total_tokens"],
    }
