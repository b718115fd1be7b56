"""Answers of Ollama's API: parts of a stream, one object a line, and whole ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oxillama._util.json_values import json_value
from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.core.results import Chunk
from oxillama.server.answers import logprob_of
from oxillama.server.errors import ApiError
from oxillama.server.field_types import Values
from oxillama.server.generation import GenerationRun
from oxillama.server.json_pieces import Body
from oxillama.server.ollama.names import nanoseconds, timestamp
from oxillama.server.respond import choices_of
from oxillama.server.sse import Event, JsonLines, as_json

__all__ = ["OllamaDialect", "Said", "as_message", "as_response", "idle_answer"]

# What a part, or a whole answer, has of text, reasoning and calls.
Said = Callable[[str, str, list[Body]], Body]


def as_message(text: str, thinking: str, calls: list[Body]) -> Body:
    """The fields of a chat's answer."""
    message: Body = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def as_response(text: str, thinking: str, calls: list[Body]) -> Body:
    """The fields of an answer to a prompt."""
    found: Body = {"response": text}
    return found | ({"thinking": thinking} if thinking else {}) | ({"tool_calls": calls} if calls else {})


def idle_answer(model: str, said: Said, reason: str) -> Body:
    """The answer to a request that asks for no text. reason: "load" or "unload"."""
    return {"model": model, "created_at": timestamp(), **said("", "", []), "done": True, "done_reason": reason}


def shown_call(call: ToolCall, index: int) -> Body:
    """A call with its arguments as an object."""
    function = {"index": index, "name": call.name, "arguments": json_value(call.arguments)}
    return {"id": call.id, "function": function}


@dataclass(frozen=True)
class Shown:
    """Shown parts of an answer. context: its tokens, for a request that goes on from it."""

    model: str
    logprobs: bool
    context: bool


def read_shown(values: Values, said: Said) -> Shown:
    """Reads what a request wants to be shown. said: of its answer."""
    context = said is as_response and not values.get("raw") and not values.get("suffix")
    return Shown(values["model"], bool(values.get("logprobs")), context)


class OllamaDialect:
    """An answer, and the parts of one: the last one has its reason, its tokens and its times.

    A call comes whole, in the part in which it ends. One that can't be read, or that the answer's end cut off, has no
    arguments that are an object: what was written of it is text.
    """

    tail = b""

    def __init__(self, run: GenerationRun, values: Values, said: Said, began: float, load: float) -> None:
        """began: when the request came, by `time.perf_counter`. load: seconds that it waited for its model."""
        self.run, self.choices = run, choices_of(run)
        self.stream_format = JsonLines(lambda: self._part("", "", [], []))
        self._said, self._began, self._load = said, began, load
        self._shows = read_shown(values, said)
        self._model = as_json(self._shows.model)
        self._calls: list[Body] = []
        self._unread: list[str] = []  # texts of calls that are no objects

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self.choices[index].add(chunk)
        self._take_calls(chunk)

    # ---- a stream

    def begin(self) -> list[Event]:
        return []

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        delta = self.choices[index].add(chunk)
        calls, unread = self._take_calls(chunk)
        logprobs = self._logprobs(chunk.logprobs or ())
        text = delta.text + unread
        if not (text or delta.reasoning or calls or logprobs):
            return []
        return [self._part(text, delta.reasoning, calls, logprobs)]

    def end(self) -> list[Event]:
        return [(None, self._last("", "", []))]

    def failed(self, error: ApiError) -> list[Event]:
        return [(None, error.ollama())]

    def _take_calls(self, chunk: Chunk) -> tuple[list[Body], str]:
        """The calls that end in a chunk, and the text of those that are no objects."""
        n_before = len(self._calls)
        unread = ""
        for call in chunk.tool_calls:
            if isinstance(call, ToolCall):
                self._calls.append(shown_call(call, len(self._calls)))
            elif isinstance(call, BrokenToolCall) and call.begun:
                unread += call.raw
        self._unread.append(unread)
        return self._calls[n_before:], unread

    def _logprobs(self, found: Any) -> list[Body]:
        return [logprob_of(one) for one in found] if self._shows.logprobs else []

    def _part(self, text: str, thinking: str, calls: list[Body], logprobs: list[Body]) -> Event:
        """A part of a stream, as JSON."""
        said = as_json(self._said(text, thinking, calls))[1:-1]
        more = f',"logprobs":{as_json(logprobs)}' if logprobs else ""
        return None, f'{{"model":{self._model},"created_at":"{timestamp()}",{said},"done":false{more}}}'

    # ---- a whole answer

    def whole(self) -> Body:
        choice = self.choices[0]
        answer = self._last(choice.text + "".join(self._unread), choice.reasoning, self._calls)
        logprobs = self._logprobs(choice.logprobs)
        return answer | ({"logprobs": logprobs} if logprobs else {})

    def _last(self, text: str, thinking: str, calls: list[Body]) -> Body:
        """The whole answer, or the last part of one."""
        choice = self.choices[0]
        timings = self.run.requests[0].clock.timings
        answer = {
            "model": self._shows.model,
            "created_at": timestamp(),
            **self._said(text, thinking, calls),
            "done": True,
            "done_reason": "length" if choice.reason == "length" else "stop",
        }
        if self._shows.context:
            answer["context"] = self.run.prompts[0] + choice.token_ids
        return answer | {
            "total_duration": nanoseconds(time.perf_counter() - self._began),
            "load_duration": nanoseconds(self._load),
            "prompt_eval_count": len(self.run.prompts[0]),
            "prompt_eval_duration": nanoseconds(timings.prefill_seconds),
            "eval_count": len(choice.token_ids),
            "eval_duration": nanoseconds(timings.decode_seconds),
        }
