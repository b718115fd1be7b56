"""Scores of given texts: log-probabilities of continuations of a prompt, and perplexities."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int, check_keywords
from oxillama._util.json_values import fields_as_json
from oxillama.core.context import EngineContext
from oxillama.core.logprobs import LogprobComputer
from oxillama.core.options import ServingOptions
from oxillama.core.prompts import read_prompt, read_prompts
from oxillama.core.request import Bell, Request, ResultQueue, Want
from oxillama.core.results import FinishReason
from oxillama.errors import ConfigError, ContextOverflowError
from oxillama.lora import check_wanted
from oxillama.scheduling.sequence import Sequence

__all__ = [
    "ContinuationScore",
    "Continuations",
    "Perplexity",
    "PerplexityOptions",
    "ScoreOptions",
    "ScoringJob",
    "Windows",
    "perplexity_of",
    "scores_of",
]

T = TypeVar("T")
TOGETHER = 64  # continuations that are computed at a time, from one prompt


class ScoreOptions(TypedDict, total=False):
    """Keywords of `Engine.score` beside the prompt and its continuations."""

    lora: Any


class PerplexityOptions(TypedDict, total=False):
    """Keywords of `Engine.perplexity` beside the text."""

    window: int | None
    stride: int | None
    lora: Any


@dataclass(frozen=True)
class ContinuationScore:
    """Log-probability of a continuation of a prompt.

    index: its place in the list that was given. logprob: natural logarithm of its probability, the sum of `logprobs`,
    one for each of `tokens`. greedy: whether each token is the likeliest in its place, the lowest id of equal ones.
    """

    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def logprob(self) -> float:
        return math.fsum(self.logprobs)

    def to_dict(self) -> dict[str, Any]:
        """All fields and `logprob`, in the form that `json.dumps` takes."""
        return {**fields_as_json(self), "logprob": self.logprob}


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a text: exp of the mean of -log p over the tokens that are scored.

    value: the perplexity. error: its standard error, `value` times that of the mean; 0 for a single token. n_tokens: of
    those scored. mean: of -log p, in nats for each token.
    """

    value: float
    error: float
    mean: float
    n_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """All fields, in the form that `json.dumps` takes."""
        return fields_as_json(self)


class PromptRequest(Request):
    """A prompt that is computed for those that follow."""

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        return "stop"


class ScoringRequest(Request):
    """Log-probabilities of the tokens of a sequence behind its first `n_given`."""

    want: Want = "all"

    def __init__(
        self, sequence: Sequence, outbox: ResultQueue, scorer: LogprobComputer, n_given: int, **options: Any
    ) -> None:
        super().__init__(sequence, outbox, **options)
        sequence.every_row, sequence.most_cached = True, n_given
        self._scorer, self._n_given = scorer, n_given
        self.logprobs: list[float] = []
        self.greedy = True

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        tokens, end = self.sequence.tokens, self.sequence.n_computed
        if not end:  # the last row of the prompt's own request
            self._add(rows[-1], tokens[self._n_given])
        else:
            first = end - len(rows)
            while (place := self._n_given + len(self.logprobs)) <= min(end, len(tokens) - 1):
                self._add(rows[place - 1 - first], tokens[place])
        return "stop" if len(self.logprobs) == len(tokens) - self._n_given else None

    def _add(self, row: NDArray[np.float32], token: int) -> None:
        self.logprobs.append(self._scorer.score(row, token, 0).logprob)
        self.greedy = self.greedy and int(np.argmax(row)) == token


class ScoringJob(ABC, Generic[T]):
    """Texts of one call that are scored a part at a time, so that they are no more requests than may wait."""

    def __init__(self, context: EngineContext, lora: Any) -> None:
        context.core.check_continues()
        self.context, self.found = context, list[ScoringRequest]()
        self.loras = context.loras.select(check_wanted("lora", lora))
        self.together = max(1, min(TOGETHER, context.core.scheduler.max_waiting - 1))

    def parts(self, bell: Bell | None = None) -> Iterator[tuple[list[Request], ResultQueue]]:
        """Requests of each part, and their outbox: to be finished before the next one."""
        for start in range(0, self.n_texts, self.together):
            scored = range(start, min(start + self.together, self.n_texts))
            outbox = ResultQueue(self.n_before + len(scored), bell)
            requests = self.requests(scored, outbox)
            self.found += [request for request in requests if isinstance(request, ScoringRequest)]
            yield requests, outbox

    def run(self) -> T:
        """Computes all of them in the calling thread."""
        for requests, outbox in self.parts():
            self.context.core.run(requests, outbox)
        return self.result()

    n_before = 0  # requests of a part before those that score

    @property
    @abstractmethod
    def n_texts(self) -> int:
        """Number of requests that score."""

    @abstractmethod
    def requests(self, scored: range, outbox: ResultQueue) -> list[Request]:
        """Requests of a part."""

    @abstractmethod
    def result(self) -> T:
        """Result of the call, when all are finished."""


class Continuations(ScoringJob[list[ContinuationScore]]):
    """Continuations of one prompt. A prompt that is computed once for each part is in the prefix cache after the
    first."""

    n_before = 1

    def __init__(self, context: EngineContext, prompt: Any, continuations: Any, options: Mapping[str, Any]) -> None:
        check_keywords("score", options, ("prompt", "continuations", *ScoreOptions.__annotations__))
        super().__init__(context, options.get("lora"))
        single, named = read_prompts("continuations", continuations)
        if single:
            raise ConfigError("continuations must be a list of texts, or of lists of token ids, not one of them")
        self._given = context.factory.fitting("prompt", read_prompt("prompt", prompt, "score continues"))
        self._texts = [continuation_ids(context, self._given, name, text) for name, text in named]

    @property
    def n_texts(self) -> int:
        return len(self._texts)

    def requests(self, scored: range, outbox: ResultQueue) -> list[Request]:
        given, factory = self._given, self.context.factory
        fields = ServingOptions().of_sequence(factory.kv_type, self.loras)
        leader = PromptRequest(Sequence(given, len(given), **fields), outbox, loras=self.loras)
        found: list[Request] = [leader]
        for i in scored:
            sequence = Sequence(given + self._texts[i], len(given) + len(self._texts[i]), **fields)
            of = {"index": len(found), "leader": leader, "loras": self.loras}
            found.append(ScoringRequest(sequence, outbox, factory.scorer, len(given), **of))
        return found

    def result(self) -> list[ContinuationScore]:
        return [
            ContinuationScore(i, tuple(ids), tuple(request.logprobs), request.greedy)
            for i, (ids, request) in enumerate(zip(self._texts, self.found, strict=True))
        ]


class Windows(ScoringJob[Perplexity]):
    """Windows of a text of any length."""

    def __init__(self, context: EngineContext, text: Any, options: Mapping[str, Any]) -> None:
        check_keywords("perplexity", options, ("text", *PerplexityOptions.__annotations__))
        super().__init__(context, options.get("lora"))
        begin, ids = whole_ids(context, read_prompt("text", text, "perplexity is of"))
        size, window, stride = context.context_size, options.get("window"), options.get("stride")
        window = size if window is None else check_int("window", window, len(begin) + 1, size)
        room = window - len(begin)
        stride = room if stride is None else check_int("stride", stride, 1, room)
        self._windows = list(windows(begin, ids, room, stride))
        if not self._windows:
            raise ConfigError("text has no token that another one stands before: give more, or a larger window")

    @property
    def n_texts(self) -> int:
        return len(self._windows)

    def requests(self, scored: range, outbox: ResultQueue) -> list[Request]:
        found: list[Request] = []
        for i in scored:
            tokens, n_given = self._windows[i]
            sequence = Sequence(tokens, len(tokens), weights=self.loras.key)
            of = {"index": len(found), "loras": self.loras}
            found.append(ScoringRequest(sequence, outbox, self.context.factory.scorer, n_given, **of))
        return found

    def result(self) -> Perplexity:
        return summed([logprob for request in self.found for logprob in request.logprobs])


def scores_of(
    context: EngineContext, prompt: Any, continuations: Any, options: Mapping[str, Any]
) -> list[ContinuationScore]:
    """The result of `Engine.score`.

    A continuation begins no text: " Lily" is one of "a girl named". Its tokens are those of itself, whatever stands
    before. lora: adapters, as for `generate`.
    """
    return Continuations(context, prompt, continuations, options).run()


def perplexity_of(context: EngineContext, text: Any, options: Mapping[str, Any]) -> Perplexity:
    """The result of `Engine.perplexity`.

    window: tokens that are computed together at most, with the one that begins a text, if the model has it; None: those
        of the context. The first token of a window without that one is not scored.
    stride: tokens between the beginnings of windows, of which each scores those that the window before lacks; None: the
        window, so that no token is computed twice.
    lora: adapters, as for `generate`.
    """
    return Windows(context, text, options).run()


def continuation_ids(context: EngineContext, given: list[int], name: str, text: Any) -> list[int]:
    """Token ids of a continuation, which begin no text. Raises ConfigError if there are none, ContextOverflowError."""
    ids = text
    if isinstance(text, str):
        ids = context.tokenizer.encode(text, add_special=False, continuation=True)
        if not ids:
            raise ConfigError(f"{name} is empty: give text, or at least one token")
    ids, size = context.factory.ids(name, ids), context.context_size
    if len(given) + len(ids) > size:
        text = f"{name} has {len(ids)} tokens, the prompt {len(given)}, and context_size is {size}: shorten one of them"
        raise ContextOverflowError(text, len(given) + len(ids))
    return ids


def whole_ids(context: EngineContext, text: Any) -> tuple[list[int], list[int]]:
    """Token ids that begin a text, and its own, which may be more than the context has."""
    if not isinstance(text, str):
        return [], context.factory.ids("text", text)
    tokenizer = context.tokenizer
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ids = tokenizer.encode(text, add_special=False)
    if not ids:
        raise ConfigError("text is empty: give at least one token")
    return begin, ids


def windows(begin: list[int], ids: list[int], room: int, stride: int) -> Iterator[tuple[list[int], int]]:
    """Tokens of each window of a text, and how many of them are not scored there."""
    end = 0  # of what is scored
    for start in range(0, len(ids), stride):
        tokens = ids[start : start + room]
        n_given = max(1, len(begin) + end - start)
        if len(begin) + len(tokens) > n_given:
            yield begin + tokens, n_given
        end = start + len(tokens)
        if end == len(ids):
            return


def summed(logprobs: list[float]) -> Perplexity:
    """The perplexity of tokens with these log-probabilities."""
    n = len(logprobs)
    mean = -math.fsum(logprobs) / n
    if mean == math.inf:
        return Perplexity(mean, 0.0, mean, n)
    squares = math.fsum((-one - mean) ** 2 for one in logprobs)
    error = math.sqrt(squares / (n - 1) / n) if n > 1 else 0.0
    value = math.exp(mean) if mean < 700 else math.inf
    return Perplexity(value, value * error if error else 0.0, mean, n)
