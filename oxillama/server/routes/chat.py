"""Chat completions of OpenAI's API."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oxillama.chat.message import ToolCallDelta
from oxillama.core.results import Chunk
from oxillama.server.answers import Called, Choice, Delta, logprobs_of, prompt_logprobs_of, usage_of
from oxillama.server.asks import Ask, Run, engine_options, limited
from oxillama.server.custom import custom_names
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange, new_id
from oxillama.server.fields import CHAT, SERVING
from oxillama.server.generating import answered, choices_of
from oxillama.server.models import Chosen
from oxillama.server.prompting import conversation, requires_calls
from oxillama.server.shown_tokens import AnswerTokens, Token
from oxillama.server.sse import DONE, SSE, Event, as_json
from oxillama.server.turns import Translated, moved_tools, renamed

__all__ = ["chat_completions", "check_stream", "read_ask", "read_translated", "stream_options", "timings_of"]

ROLE = as_json({"role": "assistant", "content": ""})  # the first delta of a stream
_ENGINE = [field for field in CHAT.fields if field.to and field not in SERVING]


async def chat_completions(exchange: Exchange) -> None:
    """POST /v1/chat/completions"""
    await answered(exchange, CHAT, read_chat, ChatDialect)


def read_ask(values: Mapping[str, Any], exchange: Exchange, chosen: Chosen) -> Ask:
    """Reads a request of chat completions. Raises ApiError."""
    config = exchange.service.config
    options, constraint = engine_options(values, exchange, chosen)
    for field in _ENGINE:
        if field.name in values:
            options.setdefault(field.to, values[field.name])
    for name in ("top_logprobs", "prompt_logprobs"):
        limited(name, values.get(name, 0), config.max_logprobs, "--max-logprobs")
    if values.get("logprobs"):
        options["logprobs"] = values.get("top_logprobs", 0)
    else:
        options.pop("logprobs", None)
        if values.get("top_logprobs"):
            raise bad_value("top_logprobs", "top_logprobs needs logprobs: give it as true")
    options["max_tokens"] = most_tokens(values)
    messages = conversation(values, options, exchange, chosen)
    if constraint == "response_format" and requires_calls(options):
        _leave_out_form(options, chosen)
        constraint = ""
    check_stream(values)
    n = limited("n", values.get("n", 1), config.max_n, "--max-n")
    return Ask(chosen, options, messages, n=n, whole=not values.get("stream"), constraint=constraint)


def _leave_out_form(options: dict[str, Any], chosen: Chosen) -> None:
    """Takes the form of the text out of `options`, of an answer that is calls alone. Raises ApiError for a wrong one.

    Clients give both (instructor's RESPONSES_TOOLS, for one): the form holds for what is said, which is nothing.
    """
    factory = chosen.model.ready.engine.context.factory
    fault = factory.fault("json_schema", json.dumps(options.pop("json_schema")), options.get("cache_salt"))
    if fault:
        raise bad_value("response_format", f"response_format: {fault}", "invalid_json_schema")


def read_chat(values: Mapping[str, Any], exchange: Exchange, chosen: Chosen) -> Ask:
    """Reads a request of chat completions, with tools at their places in it. Raises ApiError."""
    names = moved_tools(values)
    if "max_completion_tokens" in values and "max_tokens" not in values:
        names["max_tokens"] = "max_completion_tokens"
    return read_translated(Translated(dict(values), names), exchange, chosen)


def read_translated(translated: Translated, exchange: Exchange, chosen: Chosen) -> Ask:
    """Reads a request of another dialect. Raises ApiError, which names the request's own fields."""
    exchange.reading.names = translated.names
    ask = renamed(lambda: read_ask(translated.values, exchange, chosen), translated.names)
    return replace(ask, names=translated.names)


def most_tokens(values: Mapping[str, Any]) -> int | None:
    """Number of tokens that are wanted at most; None for no limit. Raises ApiError if two fields say different
    things."""
    old, new = values.get("max_tokens"), values.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise bad_value("max_tokens", f"max_tokens is {old} and max_completion_tokens is {new}: give one of them")
    found = old if new is None else new
    return None if found is None or found < 0 else min(found, 1 << 24)


def check_stream(values: Mapping[str, Any]) -> None:
    """Raises ApiError for what is for streams alone, or for whole answers alone."""
    stream_options(values)
    if values.get("stream") and "prompt_logprobs" in values:
        raise bad_value("prompt_logprobs", "prompt_logprobs are not for stream=true")


def stream_options(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a stream. Raises ApiError for those of none."""
    found: Mapping[str, Any] = values.get("stream_options", {})
    if found and not values.get("stream"):
        raise bad_value("stream_options", "stream_options are for stream=true")
    return found


class ChatDialect:
    """Chat completions, and their chunks."""

    stream_format = SSE
    tail = DONE

    def __init__(self, run: Run, values: Mapping[str, Any]) -> None:
        self.run, self.values = run, values
        most_calls = 1 if values.get("parallel_tool_calls") is False else None
        self.choices = choices_of(run, most_calls, custom_names(values.get("tools", [])))
        self.streaming = stream_options(values)
        self.shows_ids = values.get("return_token_ids", False)
        self.shows_logprobs = bool(values.get("logprobs"))
        self.shows_reasoning = values.get("include_reasoning", True)
        token_bytes = run.tokenizer.token_bytes
        self._tokens = [AnswerTokens(token_bytes, whole=self.shows_reasoning) for _ in self.choices]
        self._told: list[list[Token]] = [[] for _ in self.choices]  # those of whole answers
        self._begun = ""  # JSON of an event of a stream, up to its choices
        self.head = {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion.chunk" if values.get("stream") else "chat.completion",
            "created": int(time.time()),
            "model": run.ask.chosen.name,
            "system_fingerprint": run.ask.chosen.model.fingerprint,
        }

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self._told[index] += self._shown(self.choices[index], chunk)
        self.choices[index].add(chunk)

    def _shown(self, choice: Choice, chunk: Chunk) -> list[Token]:
        """Tokens that are shown with a chunk; without reasoning, those behind it."""
        if not (self.shows_logprobs or self.shows_ids):
            return []
        return self._tokens[choice.index].read(chunk)

    # ---- a stream

    def begin(self) -> list[Event]:
        self._begun = as_json(self.head)[:-1] + ","
        more: dict[str, Any] = {"prompt_token_ids": self.run.prompts[0]} if self.shows_ids else {}
        return [self._event(choice, ROLE, **more) for choice in self.choices]

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        choice = self.choices[index]
        shown = self._shown(choice, chunk)
        deltas = self._deltas(choice, choice.add(chunk))
        said = self._said_of(shown)
        if said and not deltas:
            deltas = ["{}"]
        events = [self._event(choice, delta) for delta in deltas[:-1]]
        events += [self._event(choice, delta, said) for delta in deltas[-1:]]
        if chunk.finish_reason is not None:
            ended = {"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
            events.append(self._event(choice, "{}", ended))
        return events

    def end(self) -> list[Event]:
        said = timings_of(self.run, self.values)
        if self.streaming.get("include_usage"):
            said["usage"] = usage_of(self.run, self.choices)
        return [(None, {**self.head, "choices": [], **said})] if said else []

    def failed(self, error: ApiError) -> list[Event]:
        return [(None, error.openai())]

    def _deltas(self, choice: Choice, delta: Delta) -> list[str]:
        """JSON of the parts of a delta."""
        deltas = []
        if delta.reasoning and self.shows_reasoning:
            deltas.append(f'{{"reasoning_content":{as_json(delta.reasoning)}}}')
        if delta.text:
            deltas.append(f'{{"content":{as_json(delta.text)}}}')
        for call in delta.calls:
            said = custom_piece(call) if call.index in choice.reader.inputs else call.to_dict()
            deltas.append(as_json({"tool_calls": [said]}))
        return deltas

    def _said_of(self, tokens: list[Token]) -> dict[str, Any]:
        """The last fields of a choice that tell of these tokens."""
        if not tokens:
            return {}
        said = {"logprobs": self._logprobs(tokens), "finish_reason": None}
        return said | ({"token_ids": [token for token, _ in tokens]} if self.shows_ids else {})

    def _logprobs(self, tokens: list[Token]) -> dict[str, Any] | None:
        if not self.shows_logprobs:
            return None
        return {"content": logprobs_of([one for _, one in tokens if one is not None]), "refusal": None}

    def _event(self, choice: Choice, delta: str, said: dict[str, Any] | None = None, **more: Any) -> Event:
        """An event of one choice. delta: its JSON. said, more: the last fields of the choice, and of the event."""
        if self.streaming.get("continuous_usage_stats"):
            more["usage"] = usage_of(self.run, self.choices)
        rest = as_json(said)[1:] if said else '"logprobs":null,"finish_reason":null}'
        end = f",{as_json(more)[1:]}" if more else "}"
        return None, f'{self._begun}"choices":[{{"index":{choice.index},"delta":{delta},{rest}]{end}'

    # ---- a whole answer

    def whole(self) -> dict[str, Any]:
        answer: dict[str, Any] = {
            **self.head,
            "choices": [self._whole(choice) for choice in self.choices],
            "usage": usage_of(self.run, self.choices),
        }
        if self.shows_ids:
            answer["prompt_token_ids"] = self.run.prompts[0]
        prompt = self.choices[0].prompt_logprobs
        if "prompt_logprobs" in self.values and prompt is not None:
            answer["prompt_logprobs"] = prompt_logprobs_of(prompt)
        return answer | timings_of(self.run, self.values)

    def _whole(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning and self.shows_reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = list(map(whole_call, choice.calls))
        tokens = self._told[choice.index]
        said = {"index": choice.index, "message": message, "logprobs": self._logprobs(tokens)}
        said |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return said | ({"token_ids": [token for token, _ in tokens]} if self.shows_ids else {})


def whole_call(call: Called) -> dict[str, Any]:
    """A call of an answer."""
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def custom_piece(piece: ToolCallDelta) -> dict[str, Any]:
    """A piece of a call of a custom tool."""
    if piece.name is None:
        return {"index": piece.index, "custom": {"input": piece.arguments}}
    own = {"name": piece.name, "input": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "custom", "custom": own}


def timings_of(run: Run, values: Mapping[str, Any]) -> dict[str, Any]:
    """The seconds of each choice, where they are asked for."""
    if not values.get("return_timings"):
        return {}
    return {"oxillama": {"timings": [request.clock.timings.to_dict() for request in run.requests]}}
