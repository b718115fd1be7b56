"""Scores of given texts: log-probabilities of continuations of a prompt, and perplexities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int, check_keywords
from oxillama._util.json_values import fields_as_json
from oxillama.core.context import EngineContext
from oxillama.core.logprobs import LogprobComputer
from oxillama.core.options import ServingOptions
from oxillama.core.prompts import read_prompt, read_prompts
from oxillama.core.request import Request, ResultQueue, Want
from oxillama.core.results import FinishReason
from oxillama.errors import ConfigError, ContextOverflowError
from oxillama.lora import LoraSet, check_wanted
from oxillama.scheduling.sequence import Sequence

__all__ = ["ContinuationScore", "Perplexity", "PerplexityOptions", "ScoreOptions", "perplexity_of", "scores_of"]

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


def scores_of(
    context: EngineContext, prompt: Any, continuations: Any, options: Mapping[str, Any]
) -> list[ContinuationScore]:
    """The result of `Engine.score`."""
    check_keywords("score", options, ("prompt", "continuations", *ScoreOptions.__annotations__))
    context.core.check_continues()
    loras = context.loras.select(check_wanted("lora", options.get("lora")))
    single, named = read_prompts("continuations", continuations)
    if single:
        raise ConfigError("continuations must be a list of texts, or of lists of token ids, not one of them")
    given = context.factory.fitting("prompt", read_prompt("prompt", prompt, "score continues"))
    texts = [continuation_ids(context, given, name, text) for name, text in named]
    found: list[ContinuationScore] = []
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        leader, requests, outbox = scoring_requests(context, given, part, loras)
        context.core.run([leader, *requests], outbox)
        found += [
            ContinuationScore(start + i, tuple(ids), tuple(request.logprobs), request.greedy)
            for i, (ids, request) in enumerate(zip(part, requests, strict=True))
        ]
    return found


def continuation_ids(context: EngineContext, given: list[int], name: str, text: Any) -> list[int]:
    """Token ids of a continuation, which begin no text. Raises ConfigError if there are none, ContextOverflowError."""
    tokenizer, size = context.tokenizer, context.context_size
    ids = text
    if isinstance(text, str):
        ids = tokenizer.encode(text, add_special=False, continuation=True)
        if not ids:
            raise ConfigError(f"{name} is empty: give text, or at least one token")
    ids = context.factory.ids(name, ids)
    if len(given) + len(ids) > size:
        text = f"{name} has {len(ids)} tokens, the prompt {len(given)}, and context_size is {size}: shorten one of them"
        raise ContextOverflowError(text, len(given) + len(ids))
    return ids


def scoring_requests(
    context: EngineContext, given: list[int], texts: SequenceOf[list[int]], loras: LoraSet
) -> tuple[PromptRequest, list[ScoringRequest], ResultQueue]:
    """Requests for a prompt and for each of its continuations, which wait for it and go on from its blocks."""
    outbox = ResultQueue(1 + len(texts))
    fields = ServingOptions().of_sequence(context.factory.kv_type, loras)
    leader = PromptRequest(Sequence(given, len(given), **fields), outbox, loras=loras)
    requests = []
    for i, ids in enumerate(texts, 1):
        sequence = Sequence(given + ids, len(given) + len(ids), **fields)
        scorer = context.factory.scorer
        requests.append(ScoringRequest(sequence, outbox, scorer, len(given), index=i, leader=leader, loras=loras))
    return leader, requests, outbox


def perplexity_of(context: EngineContext, text: Any, options: Mapping[str, Any]) -> Perplexity:
    """The result of `Engine.perplexity`.

    window: tokens that are computed together at most, with the one that begins a text, if the model has it; None: those
        of the context.
    stride: tokens between the beginnings of windows, of which each scores those that the window before lacks; None: the
        window, so that no token is computed twice.
    """
    check_keywords("perplexity", options, ("text", *PerplexityOptions.__annotations__))
    context.core.check_continues()
    loras = context.loras.select(check_wanted("lora", options.get("lora")))
    size, window, stride = context.context_size, options.get("window"), options.get("stride")
    begin, ids = whole_ids(context, read_prompt("text", text, "perplexity is of"))
    window = size if window is None else check_int("window", window, len(begin) + 1, size)
    room = window - len(begin)
    stride = room if stride is None else check_int("stride", stride, 1, room)
    if len(ids) < 2 - len(begin):
        raise ConfigError("text is a single token, which nothing predicts: give more")
    logprobs: list[float] = []
    parts = list(windows(begin, ids, room, stride))
    for start in range(0, len(parts), TOGETHER):
        group = parts[start : start + TOGETHER]
        outbox = ResultQueue(len(group))
        requests = [
            ScoringRequest(
                Sequence(tokens, len(tokens), weights=loras.key), outbox, context.factory.scorer, n_given, index=i,
                loras=loras,
            )
            for i, (tokens, n_given) in enumerate(group)
        ]  # fmt: skip
        context.core.run(requests, outbox)
        for request in requests:
            logprobs += request.logprobs
    return summed(logprobs)


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
    squares = math.fsum((-one - mean) ** 2 for one in logprobs)
    error = math.sqrt(squares / (n - 1) / n) if n > 1 else 0.0
    value = math.exp(mean) if mean < 700 else math.inf
    return Perplexity(value, value * error if error else 0.0, mean, n)
