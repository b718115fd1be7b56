"""Turns of an answer: completions of a prompt that grows, and their parts as dicts of a chat, whole or streamed."""

from __future__ import annotations

import random
import string
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from oxillama.compat import completion
from oxillama.compat.chat import Answer
from oxillama.compat.model import LlamaLike

__all__ = ["CallIds", "Part", "Turns", "random_id", "written"]


class Part(NamedTuple):
    """More of an answer: content, the name of a function that is called, or more of its arguments."""

    kind: str
    text: str


Parts = Iterator[Part]
CallIds = Callable[[int, str, str], str]  # (number of the call, its name, id of the answer) -> id of the call


def random_id(number: int, name: str, answer: str) -> str:
    """An id as OpenAI's API has them."""
    return "call_" + "".join(random.choices(string.ascii_letters + string.digits, k=24))


class Turns:
    """Completions of one answer, with the options of one call.

    grammar: of those that are not held to another. finish_reason: of the last one. ended_by: the text of
    `stop` that ended it, "" for another end.
    """

    def __init__(self, llama: LlamaLike, options: Mapping[str, Any], grammar: Any = None) -> None:
        self.llama = llama
        self.options = {k.name: options[k.name] for k in completion.COMPLETION if k.name in options}
        given = options["stop"]
        self.options |= {"suffix": None, "echo": False, "stopping_criteria": None, "logprobs": None, "stream": True}
        self.options["grammar"] = grammar
        self.options["stop"] = [given] if isinstance(given, str) else list(given or [])
        self.id = f"cmpl-{uuid.uuid4()}"
        self.created = int(time.time())
        self.model = llama.model_path if options["model"] is None else options["model"]
        self.finish_reason, self.ended_by = "stop", ""
        self.n_prompt = self.n_text = 0

    def pieces(self, prompt: str, stop: Sequence[str] = (), **changes: Any) -> Iterator[str]:
        """The text of a completion as it comes. stop: texts that end it, also those of control tokens. changes: options
        in the place of the call's. Raises what `create_completion` raises."""
        stops = [*self.options["stop"], *stop]
        ask = completion.read_ask(self.llama, {**self.options, "prompt": prompt, "stop": stops, **changes})
        tokens = _control_tokens(self.llama, stop)
        if tokens:
            ask.options["stop_token_ids"] = list(tokens)
        self.n_prompt += len(ask.prompts[0])
        for text, _, chunk in completion.stream_of(ask):
            self.n_text += len(chunk.token_ids)
            if chunk.finish_reason is not None:
                self.finish_reason = chunk.finish_reason
                reason = chunk.stop_reason
                ended_by = tokens.get(reason, "") if isinstance(reason, int) else reason or ""
                self.ended_by = ended_by if ended_by in stop else ""
            if text:
                yield text

    def text(self, prompt: str, stop: Sequence[str] = (), **changes: Any) -> str:
        """A whole completion."""
        return "".join(self.pieces(prompt, stop, **changes))

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of all completions."""
        n_prompt, n_text = self.n_prompt, self.n_text
        return {"prompt_tokens": n_prompt, "completion_tokens": n_text, "total_tokens": n_prompt + n_text}


def _control_tokens(llama: LlamaLike, texts: Sequence[str]) -> dict[int, str]:
    """id -> text of those that are one token of the model, which has no text of its own where it is a control token."""
    encoded = ((llama.vocabulary.encode(text, False, True), text) for text in texts)
    return {ids[0]: text for ids, text in encoded if len(ids) == 1 and llama.vocabulary.is_special(ids[0])}


def written(turns: Turns, parts: Parts, *, stream: bool, fields: Sequence[str], ids: CallIds = random_id) -> Answer:
    """The parts as a "chat.completion" dict, or an iterator of "chat.completion.chunk" ones.

    fields: where calls are, "tool_calls", "function_call" for the first alone, or both.
    """
    return _chunks(turns, parts, fields, ids) if stream else _whole(turns, parts, fields, ids)


def _whole(turns: Turns, parts: Parts, fields: Sequence[str], ids: CallIds) -> dict[str, Any]:
    content, calls = "", list[dict[str, str]]()
    for kind, text in parts:
        if kind == "content":
            content += text
        elif kind == "call":
            calls.append({"name": text, "arguments": ""})
        else:
            calls[-1]["arguments"] += text
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if calls and "function_call" in fields:
        message["function_call"] = dict(calls[0])
    if calls and "tool_calls" in fields:
        message["tool_calls"] = [
            {"id": ids(i, call["name"], turns.id), "type": "function", "function": call} for i, call in enumerate(calls)
        ]
    reason = "tool_calls" if calls else turns.finish_reason
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    head = {"id": "chat" + turns.id, "object": "chat.completion", "created": turns.created, "model": turns.model}
    return {**head, "choices": [choice], "usage": turns.usage}


def _chunks(turns: Turns, parts: Parts, fields: Sequence[str], ids: CallIds) -> Iterator[dict[str, Any]]:
    n_calls, id = 0, ""
    yield _chunk(turns, {"role": "assistant", "content": ""})
    for kind, text in parts:
        if kind == "content":
            yield _chunk(turns, {"content": text})
            continue
        if kind == "call":
            id, n_calls = ids(n_calls, text, turns.id), n_calls + 1
        function = {"name": text, "arguments": ""} if kind == "call" else {"name": None, "arguments": text}
        delta: dict[str, Any] = {"role": None, "content": None}
        if "tool_calls" in fields:
            delta["tool_calls"] = [{"index": n_calls - 1, "id": id, "type": "function", "function": function}]
        if "function_call" in fields and n_calls == 1:
            delta["function_call"] = dict(function)
        yield _chunk(turns, delta)
    if n_calls:
        nothing = {"role": None, "content": None, "function_call": None, "tool_calls": None}
        yield _chunk(turns, nothing, "tool_calls" if "tool_calls" in fields else "function_call")
    else:
        yield _chunk(turns, {}, turns.finish_reason)


def _chunk(turns: Turns, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    head = {"id": "chat" + turns.id, "model": turns.model, "created": turns.created, "object": "chat.completion.chunk"}
    return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]}
