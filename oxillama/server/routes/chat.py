"""Chat completions of OpenAI's API."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.chat.message import ToolCallDelta
from oxillama.core.results import Chunk
from oxillama.sampling import SamplerChain
from oxillama.server.answers import Called, Choice, Delta, logprobs_of, prompt_logprobs_of, usage_of
from oxillama.server.custom import custom_names
from oxillama.server.engine_options import limited, read_engine
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange, new_id
from oxillama.server.field_types import Message, Values
from oxillama.server.fields import CHAT
from oxillama.server.generation import NO_CONSTRAINT, Constraint, GenerationRun, GenerationSpec, Keywords, spec_of
from oxillama.server.json_pieces import Body
from oxillama.server.models import Chosen
from oxillama.server.prompting import read_conversation, requires_calls
from oxillama.server.respond import answered, choices_of
from oxillama.server.shown_tokens import AnswerTokens, Token
from oxillama.server.sse import DONE, SSE, Event, as_json
from oxillama.server.translate import Translated, read_moved_tools, renamed

__all__ = ["chat_completions", "read_stream", "read_stream_options", "read_translated", "timings_of"]

ROLE = as_json({"role": "assistant", "content": ""})  # the first delta of a stream


async def chat_completions(exchange: Exchange) -> None:
    """POST /v1/chat/completions"""
    await answered(exchange, CHAT, read_chat, ChatDialect)


def read_chat(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationSpec:
    """Reads a request for a chat completion, with tools at their places in it. Raises ApiError."""
    names = read_moved_tools(values)
    if "max_completion_tokens" in values and "max_tokens" not in values:
        names["max_tokens"] = "max_completion_tokens"
    return read_translated(Translated(values, names), exchange, chosen)


def read_translated(
    translated: Translated, exchange: Exchange, chosen: Chosen, chain: SamplerChain | None = None
) -> GenerationSpec:
    """Reads a request of another dialect. chain: the sampling without options; None: the model's.

    Raises ApiError, which names the request's own fields.
    """
    names = translated.names
    exchange.reading.names = names
    return renamed(lambda: read_spec(translated.values, exchange, chosen, names, chain), names)


def read_spec(
    values: Values, exchange: Exchange, chosen: Chosen, names: Mapping[str, str], chain: SamplerChain | None
) -> GenerationSpec:
    """Makes a specification of the fields of chat completions. Raises ApiError."""
    config = exchange.service.config
    shared, constraint = read_engine(values, exchange, chosen)
    own = _read_logprobs(values, config.max_logprobs)
    own["max_tokens"] = read_most_tokens(values)
    conversation = read_conversation(values, exchange, chosen, shared["cache_salt"])
    if constraint.field == "response_format" and requires_calls(conversation.answer.tool_choice):
        _check_form(constraint, shared["cache_salt"], chosen)
        constraint = NO_CONSTRAINT
    read_stream(values)
    n = limited("n", values.get("n", 1), config.max_n, "--max-n")
    whole = not values.get("stream")
    return spec_of(
        chosen, conversation, {**shared, **own}, constraint, n=n, chain=chain, whole=whole, names=names
    )  # fmt: skip


def _read_logprobs(values: Values, most: int) -> Keywords:
    """Keywords of log-probabilities. most: how many of the likeliest tokens there may be. Raises ApiError."""
    for name in ("top_logprobs", "prompt_logprobs"):
        limited(name, values.get(name, 0), most, "--max-logprobs")
    found = {"prompt_logprobs": values["prompt_logprobs"]} if "prompt_logprobs" in values else {}
    if values.get("logprobs"):
        return {**found, "logprobs": values.get("top_logprobs", 0)}
    if values.get("top_logprobs"):
        raise bad_value("top_logprobs", "top_logprobs needs logprobs: give it as true")
    return found


def _check_form(constraint: Constraint, salt: str | None, chosen: Chosen) -> None:
    """Raises ApiError for a wrong form of the text, which is left out of an answer that is calls alone.

    Clients give both (instructor's RESPONSES_TOOLS, for one): the form holds for what is said, which is nothing.
    """
    factory = chosen.model.ready.engine.context.factory
    if fault := factory.fault("json_schema", json.dumps(constraint.value), salt):
        raise bad_value("response_format", f"response_format: {fault}", "invalid_json_schema")


def read_most_tokens(values: Values) -> int | None:
    """Number of tokens that are wanted at most; None for no limit. Raises ApiError if two fields disagree."""
    old, new = values.get("max_tokens"), values.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise bad_value("max_tokens", f"max_tokens is {old} and max_completion_tokens is {new}: give one of them")
    found = old if new is None else new
    return None if found is None or found < 0 else min(found, 1 << 24)


def read_stream(values: Values) -> None:
    """Raises ApiError for what is for streams alone, or for whole answers alone."""
    read_stream_options(values)
    if values.get("stream") and "prompt_logprobs" in values:
        raise bad_value("prompt_logprobs", "prompt_logprobs are not for stream=true")


def read_stream_options(values: Values) -> Mapping[str, Any]:
    """The options of a stream. Raises ApiError for those of none."""
    found: Mapping[str, Any] = values.get("stream_options", {})
    if found and not values.get("stream"):
        raise bad_value("stream_options", "stream_options are for stream=true")
    return found


@dataclass(frozen=True)
class Shown:
    """Shown parts of an answer. most_calls: calls beyond so many are left out. custom: names of custom tools."""

    stream: bool
    usage: bool
    usage_so_far: bool
    token_ids: bool
    timings: bool
    logprobs: bool
    prompt_logprobs: bool
    reasoning: bool
    most_calls: int | None
    custom: frozenset[str]


def read_shown(values: Values) -> Shown:
    """Reads what a request wants to be shown. Raises ApiError for options of a stream without one."""
    streaming = read_stream_options(values)
    return Shown(
        stream=bool(values.get("stream")),
        usage=bool(streaming.get("include_usage")),
        usage_so_far=bool(streaming.get("continuous_usage_stats")),
        token_ids=values.get("return_token_ids", False),
        timings=values.get("return_timings", False),
        logprobs=bool(values.get("logprobs")),
        prompt_logprobs="prompt_logprobs" in values,
        reasoning=values.get("include_reasoning", True),
        most_calls=1 if values.get("parallel_tool_calls") is False else None,
        custom=custom_names(values.get("tools", [])),
    )


class ChatDialect:
    """Chat completions, and their chunks."""

    stream_format = SSE
    tail = DONE

    def __init__(self, run: GenerationRun, values: Values) -> None:
        self.run, self._shows = run, read_shown(values)
        self.choices = choices_of(run, self._shows.most_calls, self._shows.custom)
        token_bytes = run.tokenizer.token_bytes
        self._tokens = [AnswerTokens(token_bytes, whole=self._shows.reasoning) for _ in self.choices]
        self._told: list[list[Token]] = [[] for _ in self.choices]  # those of whole answers
        self._begun = ""  # JSON of an event of a stream, up to its choices
        self.head = {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion.chunk" if self._shows.stream else "chat.completion",
            "created": int(time.time()),
            "model": run.spec.chosen.name,
            "system_fingerprint": run.spec.chosen.model.fingerprint,
        }

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self._told[index] += self._shown(self.choices[index], chunk)
        self.choices[index].add(chunk)

    def _shown(self, choice: Choice, chunk: Chunk) -> list[Token]:
        """Tokens that are shown with a chunk; without reasoning, those behind it."""
        if not (self._shows.logprobs or self._shows.token_ids):
            return []
        return self._tokens[choice.index].read(chunk)

    # ---- a stream

    def begin(self) -> list[Event]:
        self._begun = as_json(self.head)[:-1] + ","
        more: Body = {"prompt_token_ids": self.run.prompts[0]} if self._shows.token_ids else {}
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
        said = timings_of(self.run, self._shows.timings)
        if self._shows.usage:
            said["usage"] = usage_of(self.run, self.choices)
        return [(None, {**self.head, "choices": [], **said})] if said else []

    def failed(self, error: ApiError) -> list[Event]:
        return [(None, error.openai())]

    def _deltas(self, choice: Choice, delta: Delta) -> list[str]:
        """JSON of the parts of a delta."""
        deltas = []
        if delta.reasoning and self._shows.reasoning:
            deltas.append(f'{{"reasoning_content":{as_json(delta.reasoning)}}}')
        if delta.text:
            deltas.append(f'{{"content":{as_json(delta.text)}}}')
        for call in delta.calls:
            said = custom_piece(call) if call.index in choice.reader.inputs else call.to_dict()
            deltas.append(as_json({"tool_calls": [said]}))
        return deltas

    def _said_of(self, tokens: list[Token]) -> Body:
        """The last fields of a choice that tell of these tokens."""
        if not tokens:
            return {}
        said = {"logprobs": self._logprobs(tokens), "finish_reason": None}
        return said | ({"token_ids": [token for token, _ in tokens]} if self._shows.token_ids else {})

    def _logprobs(self, tokens: list[Token]) -> Body | None:
        if not self._shows.logprobs:
            return None
        return {
            "content": logprobs_of([one for _, one in tokens if one is not None], self._shows.token_ids),
            "refusal": None,
        }

    def _event(self, choice: Choice, delta: str, said: Body | None = None, **more: Any) -> Event:
        """An event of one choice. delta: its JSON. said, more: the last fields of the choice, and of the event."""
        if self._shows.usage_so_far:
            more["usage"] = usage_of(self.run, self.choices)
        rest = as_json(said)[1:] if said else '"logprobs":null,"finish_reason":null}'
        end = f",{as_json(more)[1:]}" if more else "}"
        return None, f'{self._begun}"choices":[{{"index":{choice.index},"delta":{delta},{rest}]{end}'

    # ---- a whole answer

    def whole(self) -> Body:
        answer: Body = {
            **self.head,
            "choices": [self._whole(choice) for choice in self.choices],
            "usage": usage_of(self.run, self.choices),
        }
        if self._shows.token_ids:
            answer["prompt_token_ids"] = self.run.prompts[0]
        prompt = self.choices[0].prompt_logprobs
        if self._shows.prompt_logprobs and prompt is not None:
            answer["prompt_logprobs"] = prompt_logprobs_of(prompt)
        return answer | timings_of(self.run, self._shows.timings)

    def _whole(self, choice: Choice) -> Body:
        message: Message = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning and self._shows.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = list(map(whole_call, choice.calls))
        tokens = self._told[choice.index]
        said = {"index": choice.index, "message": message, "logprobs": self._logprobs(tokens)}
        said |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return said | ({"token_ids": [token for token, _ in tokens]} if self._shows.token_ids else {})


def whole_call(call: Called) -> Body:
    """A call of an answer."""
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def custom_piece(piece: ToolCallDelta) -> Body:
    """A piece of a call of a custom tool."""
    if piece.name is None:
        return {"index": piece.index, "custom": {"input": piece.arguments}}
    own = {"name": piece.name, "input": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "custom", "custom": own}


def timings_of(run: GenerationRun, wanted: bool) -> Body:
    """The seconds of each choice, where they are asked for."""
    if not wanted:
        return {}
    return {"oxillama": {"timings": [request.clock.timings.to_dict() for request in run.requests]}}
