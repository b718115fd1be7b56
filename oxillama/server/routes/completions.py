"""Completions of OpenAI's API, with the log-probabilities of prompts that evaluations read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.core.results import Chunk, TokenLogprob
from oxillama.sampling import SamplerChain
from oxillama.server.answers import Choice, logprobs_of, number, prompt_logprobs_of, tops_of, usage_of
from oxillama.server.engine_options import limited, read_engine
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange, new_id
from oxillama.server.field_types import Values
from oxillama.server.fields import COMPLETIONS
from oxillama.server.generation import GenerationRun, GenerationSpec, Keywords, Texts, spec_of
from oxillama.server.json_pieces import Body
from oxillama.server.models import Chosen
from oxillama.server.respond import answered, choices_of
from oxillama.server.routes.chat import read_stream, read_stream_options, timings_of
from oxillama.server.sse import DONE, SSE, Event

__all__ = ["completions", "read_spec"]

DEFAULT_TOKENS = 16
MAX_CHOICES = 128  # of one request, over all its prompts


async def completions(exchange: Exchange) -> None:
    """POST /v1/completions"""
    await answered(exchange, COMPLETIONS, read_completion, CompletionDialect)


def read_prompts(given: Any) -> list[Any]:
    """The prompts of a request: one of text or ids, or a list of these. Raises ApiError for a mixture."""
    if isinstance(given, str):
        return [given]
    kinds = {type(one) for one in given}
    if len(kinds) > 1:
        raise bad_value("prompt", "prompt must be a text, a list of token ids, or a list of either")
    return [given] if kinds == {int} else list(given)


def read_completion(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationSpec:
    """Reads a request for completions. Raises ApiError."""
    return read_spec(values, exchange, chosen)


def read_spec(
    values: Values,
    exchange: Exchange,
    chosen: Chosen,
    names: Mapping[str, str] | None = None,
    chain: SamplerChain | None = None,
) -> GenerationSpec:
    """Makes a specification of the fields of completions. names, chain: of the specification. Raises ApiError."""
    if chosen.model.ready.engine.context.core.encoder:
        text = f"the model {chosen.name} predicts no next token: it is for embeddings alone"
        raise bad_value("model", text, "unsupported_parameter")
    shared, constraint = read_engine(values, exchange, chosen)
    own = _read_scores(values, exchange)
    read_stream(values)
    prompts = read_prompts(values["prompt"])
    n = read_n_choices(values, len(prompts), exchange)
    if "best_of" in values:
        own = {"logprobs": 0, **own}
    suffix, echo = values.get("suffix"), values.get("echo", False)
    if suffix is not None and (echo or not all(isinstance(p, str) for p in prompts)):
        raise bad_value("suffix", "suffix is for one text without echo")
    parse, add = values.get("parse_special", True), values.get("add_special_tokens", True)
    texts = Texts(tuple(prompts), suffix, echo, parse_special=parse, add_special=add)
    return spec_of(
        chosen, texts, {**shared, **own}, constraint, n=n, chain=chain, whole=not values.get("stream"), names=names
    )


def _read_scores(values: Values, exchange: Exchange) -> Keywords:
    """Keywords of log-probabilities and of the number of tokens, which go together. Raises ApiError."""
    most_logprobs = exchange.service.config.max_logprobs
    found: Keywords = {
        name: limited(name, values[name], most_logprobs, "--max-logprobs")
        for name in ("logprobs", "prompt_logprobs")
        if name in values
    }
    echo = values.get("echo", False)
    if echo and "logprobs" in values:
        found["prompt_logprobs"] = max(values["logprobs"], values.get("prompt_logprobs", 0))
    given = values.get("max_tokens", DEFAULT_TOKENS)
    most = None if given < 0 else min(given, 1 << 24)
    if most == 0 and not echo and "prompt_logprobs" not in values:
        raise bad_value("max_tokens", "max_tokens 0 is for echo or prompt_logprobs: without them there is no answer")
    found["max_tokens"] = most
    return {"prompt_logprobs": 0, **found} if most == 0 else found  # which is all that there is to compute


def read_n_choices(values: Values, n_prompts: int, exchange: Exchange) -> int:
    """Choices to compute for each prompt. Raises ApiError."""
    most = exchange.service.config.max_n
    n = limited("n", values.get("n", 1), most, "--max-n")
    best = limited("best_of", values.get("best_of", n), most, "--max-n")
    if best < n:
        raise bad_value("best_of", f"best_of must be at least n, which is {n}, not {best}")
    if best > n and values.get("stream"):
        raise bad_value("best_of", "best_of is not for streams: which choices are best is known at the end")
    if best * n_prompts > MAX_CHOICES:
        raise bad_value("prompt", f"prompt must have at most {MAX_CHOICES // best} texts with {best} choices each")
    return best


class LogprobsReader:
    """Log-probabilities of one choice in the form of completions, with the place of each token in the text."""

    def __init__(self, run: GenerationRun) -> None:
        self._stream = run.tokenizer.stream(skip_special=True)
        self._at = 0

    def read(self, ids: list[int], found: list[TokenLogprob | None], texts: list[str]) -> Body:
        """Entries of these tokens, which follow those before."""
        offsets = []
        for token in ids:
            offsets.append(self._at)
            self._at += len(self._stream.push(token))
        return {
            "tokens": texts,
            "token_logprobs": [None if one is None else number(one.logprob) for one in found],
            "top_logprobs": tops_of(found),
            "text_offset": offsets,
        }


@dataclass(frozen=True)
class Shown:
    """Shown parts of an answer. n: choices of each prompt, the likeliest ones."""

    n: int
    usage: bool
    usage_so_far: bool
    token_ids: bool
    timings: bool
    logprobs: bool
    prompt_logprobs: bool


def read_shown(values: Values) -> Shown:
    """Reads what a request wants to be shown. Raises ApiError for options of a stream without one."""
    streaming = read_stream_options(values)
    return Shown(
        n=values.get("n", 1),
        usage=bool(streaming.get("include_usage")),
        usage_so_far=bool(streaming.get("continuous_usage_stats")),
        token_ids=values.get("return_token_ids", False),
        timings=values.get("return_timings", False),
        logprobs="logprobs" in values,
        prompt_logprobs="prompt_logprobs" in values,
    )


class CompletionDialect:
    """Completions, and their chunks."""

    stream_format = SSE
    tail = DONE

    def __init__(self, run: GenerationRun, values: Values) -> None:
        self.run, self._shows = run, read_shown(values)
        self.choices = choices_of(run)
        self.each = len(run.requests) // len(run.prompts)
        self._readers = [LogprobsReader(run) for _ in self.choices]
        self._echoed: set[int] = set()
        self.head = {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": run.spec.chosen.name,
            "system_fingerprint": run.spec.chosen.model.fingerprint,
        }

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self.choices[index].add(chunk)

    # ---- a stream

    def begin(self) -> list[Event]:
        return []

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        choice = self.choices[index]
        choice.add(chunk)
        logprobs = self._logprobs(choice, chunk.token_ids, chunk.logprobs or [], chunk.finish_reason is not None)
        self._echoed.add(index)
        if not (chunk.text or chunk.finish_reason or chunk.token_ids):
            return []
        said: Body = {"index": index, "text": chunk.text, "logprobs": logprobs}
        said |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        if self._shows.token_ids:
            said["token_ids"] = chunk.token_ids
        event: Body = {**self.head, "choices": [said]}
        if self._shows.usage_so_far:
            event["usage"] = self._usage()
        return [(None, event)]

    def end(self) -> list[Event]:
        said = timings_of(self.run, self._shows.timings)
        if self._shows.usage:
            said["usage"] = self._usage()
        return [(None, {**self.head, "choices": [], **said})] if said else []

    def failed(self, error: ApiError) -> list[Event]:
        return [(None, error.openai())]

    def _usage(self) -> Body:
        return usage_of(self.run, self.choices)

    def _logprobs(self, choice: Choice, ids: list[int], found: list[TokenLogprob], ended: bool) -> Body | None:
        """Entries of a chunk's tokens; with echo, first those of the prompt, and last that of the end's token."""
        if not self._shows.logprobs:
            return None
        ids, entries = list(ids), list[TokenLogprob | None](found)
        texts = [one.text for one in entries if one is not None]
        if self.run.spec.echo:
            if choice.index not in self._echoed:
                prompt = self.run.prompts[choice.index // self.each]
                before = choice.prompt_logprobs or [None] * len(prompt)
                first = self.run.tokenizer.token_bytes(prompt[0]).decode("utf-8", "replace")
                ids, entries = prompt + ids, before + entries
                texts = [first if one is None else one.text for one in before] + texts
            if ended and choice.end is not None:
                ids, entries, texts = [*ids, choice.end.token_id], [*entries, choice.end], [*texts, choice.end.text]
        told = self._readers[choice.index].read(ids, entries, texts)
        if self._shows.token_ids:
            told["content"] = logprobs_of([one for one in entries if one is not None], ids=True)
        return told

    # ---- a whole answer

    def whole(self) -> Body:
        n = self._shows.n
        shown: list[Choice] = []
        for first in range(0, len(self.choices), self.each):
            group = self.choices[first : first + self.each]
            shown += sorted(group, key=mean_logprob, reverse=True)[:n] if n < self.each else group
        answer = {
            **self.head,
            "choices": [self._whole(choice, i) for i, choice in enumerate(shown)],
            "usage": self._usage(),
        }
        return answer | timings_of(self.run, self._shows.timings)

    def _whole(self, choice: Choice, index: int) -> Body:
        said: Body = {
            "index": index,
            "text": choice.text,
            "logprobs": self._logprobs(choice, choice.token_ids, choice.logprobs, True),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._shows.prompt_logprobs and choice.prompt_logprobs is not None:
            said["prompt_logprobs"] = prompt_logprobs_of(choice.prompt_logprobs)
        if self._shows.token_ids:
            said["token_ids"] = choice.token_ids
            said["prompt_token_ids"] = self.run.prompts[choice.index // self.each]
        return said


def mean_logprob(choice: Choice) -> float:
    """Mean log-probability of a choice, over its tokens, the one of its end included."""
    found = [one.logprob for one in (*choice.logprobs, choice.end) if one is not None]
    return sum(found) / len(found) if found else 0.0
