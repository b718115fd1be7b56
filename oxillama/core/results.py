"""Results: completions, chunks, hypotheses and their timings."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from oxillama._util.json_values import fields_as_json
from oxillama._util.notebook import html_table, html_text, probability_bars
from oxillama._util.pickling import stays_here
from oxillama._util.slots import SlotsMaker
from oxillama.chat.calls import AnyToolCall, BrokenToolCall, ToolCall
from oxillama.chat.message import ChatMessage, ToolCallDelta
from oxillama.drafts.draft import SpecStats

__all__ = [
    "BatchFailure",
    "BeamHypothesis",
    "CancelToken",
    "Chunk",
    "Completion",
    "FinishReason",
    "Timings",
    "TokenLogprob",
    "Usage",
]

FinishReason = Literal["stop", "length", "cancelled", "deadline"]


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock seconds of one request, waiting for its turn included.

    time_to_first_token: from the call to the first token; prefill_seconds: the part of it since its prompt began to be
    computed; decode_seconds: from the first token to the last.
    """

    time_to_first_token: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The seconds by name."""
        return fields_as_json(self)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    prompt_tokens: of its prompt. completion_tokens: those generated, without the end-of-generation token.
    cached_tokens: those of the prompt that were computed before the request began: found in the prefix cache, or kept
        by its conversation. What it computed itself and had to compute again, after preemption, does not count. Of n
        completions of one prompt, each says what the prompt found.
    reasoning_tokens: those of the completion that are reasoning, with its marks.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> dict[str, Any]:
        """prompt_tokens, completion_tokens, total_tokens, cached_tokens and reasoning_tokens."""
        return {**fields_as_json(self), "total_tokens": self.total_tokens}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a token in its place, by the model alone: before penalties, temperature, cuts and grammar.

    logprob: natural logarithm of its probability, the log-softmax of the model's row of logits; -inf if impossible.
    bytes: what the token stands for, maybe a part of a character. top: the likeliest tokens in this place, as many as
    were asked for, the likeliest first and the lower id among equals; itself only if it is one of them.
    """

    token_id: int
    logprob: float
    bytes: bytes
    top: tuple["TokenLogprob", ...] = ()

    @property
    def text(self) -> str:
        """The bytes as text; U+FFFD in place of parts of characters."""
        return self.bytes.decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        """token_id, text, logprob (None: minus infinity), bytes as integers, and top."""
        return {**fields_as_json(self), "text": self.text}


def _is_unsent(call: AnyToolCall) -> bool:
    """Whether no piece of a call has been sent: its name could not be read."""
    return isinstance(call, BrokenToolCall) and not call.begun


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a running completion. Only the last one has a finish_reason; its text may be empty.

    text: whole characters; never part of a stop string that is cut off. token_ids: the tokens since the last chunk.
    logprobs: of these tokens, one each; None if not asked for. prompt_logprobs: as in `Completion`, in the first chunk.
    index: of n completions, which one it continues. tool_calls: calls of tools that end here, after the text.
    stop_reason, end, usage, warnings: as in `Completion`, in the last chunk. reasoning: more of it, before the text.
    tool_call_deltas: more of calls that are being written, after the text. raw: as in `Completion`.
    """

    text: str
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    index: int = 0
    tool_calls: list[AnyToolCall] = field(default_factory=list)
    stop_reason: str | int | None = None
    end: TokenLogprob | None = None
    usage: Usage | None = field(default=None, compare=False)
    reasoning: str = ""
    tool_call_deltas: list[ToolCallDelta] = field(default_factory=list)
    raw: str = ""
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, in the form that `Completion.to_dict` has it."""
        return fields_as_json(self)

    def to_openai(self, *, role: bool = False, **fields: Any) -> list[dict[str, Any]]:
        """The chunk as OpenAI's clients get it: "chat.completion.chunk" objects, one for each part.

        A call's first piece has its id and name and no arguments, the others arguments alone; the last object of a
        completion has an empty delta and the finish_reason. role: begin with the role, as the first chunk of a
        completion is to. fields: what else each has, such as id, created and model.
        """
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}] if role else []
        if self.reasoning:
            deltas.append({"reasoning_content": self.reasoning})
        if self.text:
            deltas.append({"content": self.text})
        deltas += [{"tool_calls": [piece.to_dict()]} for piece in self.tool_call_deltas]
        deltas += [{"content": call.raw} for call in self.tool_calls if _is_unsent(call)]
        found = [self._choice(delta, None) for delta in deltas]
        if self.finish_reason is not None:
            found.append(self._choice({}, self.finish_reason))
        return [{**fields, "object": "chat.completion.chunk", "choices": [choice]} for choice in found]

    def _choice(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "finish_reason": reason}


# Of the values of all fields, and of a chunk that is nothing but more text: a stream has one for each token, and each
# request the counts.
new_chunk, new_usage = SlotsMaker(Chunk), SlotsMaker(Usage)
new_text = SlotsMaker(Chunk, "text", "token_ids", "index")


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished completion; str() gives its text. Two are equal if they say the same, however they were served.

    text: without prompt, end-of-generation tokens and, unless `include_stop` keeps them, stop strings and the tokens of
        `stop_token_ids`.
    token_ids: every token that was generated, also those that a stop string cut from the text; without the
        token that ended it, unless `include_stop` keeps that.
    finish_reason: "stop" (the model, a stop string or one of `stop_token_ids` ended it), "length" (max_tokens or the
        context's end), "cancelled" (by its token, or since its stream was left) or "deadline" (its time was over).
    prompt_tokens: length of the prompt in tokens.
    logprobs: of each token of token_ids; None if not asked for.
    index: place of the prompt in the list or batch that it was given in.
    prompt_logprobs: of each token of the prompt, None in the place of the first, which nothing predicts; fewer if it
        was cancelled before. None if not asked for.
    tool_calls: calls of tools, in order; those that can't be read are of type `BrokenToolCall`. The text is without
        them, and the `offset` of each says where it stood.
    speculation: what drafting did; None without a draft.
    stop_reason: what ended the text where finish_reason is "stop": the stop string, or the id of the token. Of stop
        strings that begin in the same place it is the shortest. One that is the token's text comes before its id.
    end: log-probability of the token that ended the text and is not in token_ids; None if there is none, or without
        logprobs.
    cached_tokens, reasoning_tokens: see `Usage`.
    reasoning: what the model thought before its answer, without the marks around it; "" for nothing.
    raw: the text as the model wrote it, with reasoning and calls and all marks; "" where nothing was to be divided, and
        `text` is all.
    warnings: what of the options couldn't be done, such as tools whose arguments no grammar can hold to their schema.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: list[TokenLogprob] | None = None
    timings: Timings = field(default_factory=Timings, compare=False)
    index: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    tool_calls: list[AnyToolCall] = field(default_factory=list)
    speculation: SpecStats | None = field(default=None, compare=False)
    stop_reason: str | int | None = None
    end: TokenLogprob | None = None
    cached_tokens: int = field(default=0, compare=False)
    reasoning: str = ""
    reasoning_tokens: int = 0
    raw: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def usage(self) -> Usage:
        """Numbers of tokens that the completion took."""
        return Usage(self.prompt_tokens, len(self.token_ids), self.cached_tokens, self.reasoning_tokens)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message for the next turn, with its calls and its reasoning as chat templates want them."""
        return self._message.to_message()

    @property
    def _message(self) -> ChatMessage:
        return ChatMessage(self.reasoning, self.text, self.tool_calls)

    def to_openai(self, **fields: Any) -> dict[str, Any]:
        """The completion as OpenAI's clients get it: a "chat.completion" object with one choice.

        The message has `reasoning_content` beside `content` and `tool_calls`, whose arguments are JSON text; a call
        that can't be read stays in the content. finish_reason is "tool_calls" where the model ended with calls.
        fields: what else the object has, such as id, created and model.
        """
        called = any(isinstance(call, ToolCall) for call in self.tool_calls)
        reason = "tool_calls" if called and self.finish_reason == "stop" else self.finish_reason
        choice = {"index": self.index, "message": self._message.to_openai(), "finish_reason": reason}
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.token_ids),
            "total_tokens": self.usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }
        return {**fields, "object": "chat.completion", "choices": [choice], "usage": usage}

    def to_dict(self) -> dict[str, Any]:
        """The completion as `json.dumps` takes it, also with allow_nan=False.

        Keys: text, token_ids, finish_reason, stop_reason, index, tool_calls, reasoning, raw, warnings, usage, timings;
        logprobs, prompt_logprobs, end and speculation, None where they were not asked for. Each is what the `to_dict`
        of its value gives; a log-probability of minus infinity is None.
        """
        without = ("prompt_tokens", "cached_tokens", "reasoning_tokens")
        return {**fields_as_json(self, *without), "usage": self.usage.to_dict()}

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """A table for notebooks: the text, how it ended, tokens and times; with log-probabilities, their picture."""
        return html_table(_shown(self))


def _shown(completion: Completion) -> Iterator[tuple[str, str]]:
    """Rows of a completion's table."""
    yield "text", html_text(completion.text)
    if completion.reasoning:
        yield "reasoning", html_text(completion.reasoning)
    if completion.tool_calls:
        yield "calls", "".join(html_text(call.raw) for call in completion.tool_calls)
    reason = completion.finish_reason
    yield "ended by", html_text(reason if completion.stop_reason is None else f"{reason}: {completion.stop_reason!r}")
    usage, times = completion.usage, completion.timings
    yield "tokens", f"{usage.prompt_tokens} ({usage.cached_tokens} cached) + {usage.completion_tokens}"
    speed = (usage.completion_tokens - 1) / times.decode_seconds if times.decode_seconds else 0.0
    after = f", then {speed:.1f} tokens/s" if speed > 0 else ""
    yield "time", f"{times.time_to_first_token:.3f} s to the first token{after}"
    if completion.logprobs:
        yield "probability", probability_bars([(token.text, token.logprob) for token in completion.logprobs])


@dataclass(frozen=True, slots=True)
class BeamHypothesis:
    """A result of `beam_search`; str() gives its text.

    text: without prompt and end-of-generation token. token_ids: the same, in tokens. score: what results are sorted by;
    see `BeamSearchConfig`. finish_reason: "stop" (the model ended it), "length", "cancelled" or "deadline"; None of one
    that still grows (`beam_rounds`). logprob: sum of the tokens' log-probabilities, with that of the end.
    """

    text: str
    token_ids: list[int]
    score: float
    finish_reason: FinishReason | None
    logprob: float

    def to_dict(self) -> dict[str, Any]:
        """Every field by name; a score or log-probability of minus infinity is None."""
        return fields_as_json(self)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """Failure of one prompt in a batch, in the place of its completion: the prompt's index, and the error."""

    index: int
    error: Exception

    def to_dict(self) -> dict[str, Any]:
        """index, and error as {"type": name of its class, "message": its text}."""
        return {"index": self.index, "error": {"type": type(self.error).__name__, "message": str(self.error)}}


class CancelToken:
    """Stops the requests that it was given to, from any thread, within one token; also inside a long prompt.

    With a draft, within the tokens of one step.
    """

    __slots__ = ("_event",)
    __reduce_ex__ = stays_here(
        "it works within one process; give a deadline, or make a token there and cancel it from that process"
    )

    def __init__(self) -> None:
        self._event = threading.Event()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def cancel(self) -> None:
        """Asks to stop. Calling it again does nothing."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def __repr__(self) -> str:
        return f"<CancelToken {'cancelled' if self.cancelled else 'active'}>"
