"""Answers: chunks of choices folded into whole ones, tool calls and reasoning as clients want them, and usage."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

from oxillama.chat.calls import BrokenToolCall
from oxillama.chat.message import ToolCallDelta
from oxillama.core.results import Chunk, TokenLogprob, Usage
from oxillama.server.custom import InputReader
from oxillama.server.generation import GenerationRun
from oxillama.server.json_pieces import Body, Rows

__all__ = [
    "Choice",
    "Delta",
    "DeltaReader",
    "logprob_of",
    "logprobs_of",
    "number",
    "prompt_logprobs_of",
    "tops_of",
    "usage_of",
]

IMPOSSIBLE = -9999.0  # in place of minus infinity, which JSON lacks


@dataclass
class Delta:
    """Change of a choice by a chunk. cut: its last call ends here, before its end."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    cut: bool = False


class DeltaReader:
    """Turns the chunks of one choice into deltas: the one place where calls and reasoning are read from chunks.

    most_calls: calls beyond so many are left out. custom: names of the tools whose arguments are the text of their
    input. inputs: readers of this text, by the place of the call.
    """

    def __init__(self, most_calls: int | None = None, custom: Collection[str] = ()) -> None:
        self._most, self._custom = most_calls, custom
        self.inputs: dict[int, InputReader] = {}
        self._places: dict[int, int] = {}  # of calls whose name could be read, among themselves
        self.broken = False  # whether a call that was begun can't be read to its end

    def read(self, chunk: Chunk) -> Delta:
        """The delta of the next chunk. A call whose name can't be read is text, or nothing where `length` cut it."""
        delta = Delta(chunk.text, chunk.reasoning)
        for piece in chunk.tool_call_deltas:
            place = self._places.setdefault(piece.index, len(self._places))
            if self._most is None or place < self._most:
                delta.calls += self._shown(replace(piece, index=place))
        for call in chunk.tool_calls:
            if isinstance(call, BrokenToolCall):
                self.broken = self.broken or call.begun
                delta.cut = call.begun and (self._most is None or len(self._places) <= self._most)
                is_cut = chunk.finish_reason == "length" and not call.complete
                delta.text += "" if call.begun or is_cut else call.raw
        return delta

    def _shown(self, piece: ToolCallDelta) -> list[ToolCallDelta]:
        """A piece as it is shown: of a custom tool, with the text that it adds to the input, or not at all."""
        if piece.name in self._custom:
            self.inputs[piece.index] = InputReader()
        if (reader := self.inputs.get(piece.index)) is None:
            return [piece]
        text = reader.read(piece.arguments)
        return [replace(piece, arguments=text)] if text or piece.name is not None else []


@dataclass
class Called:
    """A whole tool call, with its arguments as JSON text; of a custom tool, its input."""

    id: str
    name: str
    arguments: str = ""
    custom: bool = False


@dataclass
class Choice:
    """One choice of an answer, as far as it is known. stop_ids: tokens that the request wants it to end with."""

    index: int
    reader: DeltaReader = field(default_factory=DeltaReader)
    stop_ids: Collection[int] = ()
    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    reason: str | None = None
    stop_reason: str | int | None = None
    end: TokenLogprob | None = None
    usage: Usage | None = None

    def add(self, chunk: Chunk) -> Delta:
        """Takes the next chunk, and says what it adds."""
        delta = self.reader.read(chunk)
        if delta.text:
            self.texts.append(delta.text)
        if delta.reasoning:
            self.reasonings.append(delta.reasoning)
        for piece in delta.calls:
            if piece.name is not None:
                self.calls.append(Called(piece.id or "", piece.name, custom=piece.index in self.reader.inputs))
            self.calls[piece.index].arguments += piece.arguments
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs or ()
        if chunk.prompt_logprobs is not None:
            self.prompt_logprobs = chunk.prompt_logprobs
        if chunk.finish_reason is not None:
            self.reason = chunk.finish_reason
            if isinstance(chunk.stop_reason, str) or chunk.stop_reason in self.stop_ids:  # not for the model's own end
                self.stop_reason = chunk.stop_reason
            self.end, self.usage = chunk.end, chunk.usage
        return delta

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasonings)

    @property
    def finish_reason(self) -> str | None:
        """Finish reason by OpenAI's name."""
        called = self.calls and not self.reader.broken
        return "tool_calls" if called and self.reason == "stop" else self.reason


def usage_of(run: GenerationRun, choices: list[Choice]) -> Body:
    """Tokens of an answer, or of a stream so far: prompts once each, completions all."""
    prompt = sum(map(len, run.prompts))
    leaders = run.requests[:: max(len(run.requests) // len(run.prompts), 1)]
    cached = sum(request.sequence.n_cached or 0 for request in leaders)
    completion = sum(len(choice.token_ids) for choice in choices)
    found = [request.speculation.stats() for request in run.requests if request.speculation]
    drafted, accepted = sum(s.drafted for s in found), sum(s.accepted for s in found)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.usage.reasoning_tokens for choice in choices if choice.usage),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE


def logprob_of(one: TokenLogprob, top: bool = True, ids: bool = False) -> Body:
    """A token's log-probability in the form of chat completions, with its id as llama-server names it (`ids`)."""
    found: Body = {"id": one.token_id} if ids else {}
    found |= {"token": one.text, "logprob": number(one.logprob), "bytes": list(one.bytes)}
    return found | ({"top_logprobs": [logprob_of(other, False, ids) for other in one.top]} if top else {})


def tops_of(found: list[TokenLogprob | None]) -> Rows:
    """The likeliest tokens of each place in the form of completions."""
    return Rows(found, lambda one: None if one is None else _top_of(one))


def _top_of(one: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens in the form of completions. Of tokens with the same text, the likeliest stays."""
    found: dict[str, float] = {}
    for other in one.top:
        found.setdefault(other.text, number(other.logprob))
    return found


def logprobs_of(found: list[TokenLogprob], ids: bool = False) -> Rows:
    """Log-probabilities of tokens in the form of chat completions. ids: with those of the tokens."""
    return Rows(found, partial(logprob_of, ids=ids))


def prompt_logprobs_of(found: list[TokenLogprob | None]) -> Rows:
    """Log-probabilities of a prompt in vLLM's form: by token id; the rank of those among the likeliest."""
    return Rows(found, lambda one: None if one is None else _ranked(one))


def _ranked(one: TokenLogprob) -> Body:
    ranked: dict[int, tuple[int | None, TokenLogprob]] = {t.token_id: (rank, t) for rank, t in enumerate(one.top, 1)}
    ranked = {one.token_id: ranked.get(one.token_id, (None, one)), **ranked}
    return {
        str(token): {"logprob": number(t.logprob), "rank": rank, "decoded_token": t.text}
        for token, (rank, t) in ranked.items()
    }
