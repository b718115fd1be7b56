"""A request for text as plain data, and back: sampler, what was said, and what its caller has not read yet."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from oxillama.checks import MAX_CONTEXT
from oxillama.engine.results import Chunk, FinishReason, TokenLogprob, Usage
from oxillama.engine.serving import ServingOptions
from oxillama.engine.tool_use import ToolUse
from oxillama.errors import OxiLlamaError, SnapshotDamagedError, SnapshotMismatchError
from oxillama.sampling import Sampler, SamplerChain
from oxillama.sampling.grammar.tools import BrokenToolCall, ToolCall, ToolFormat, find_format
from oxillama.snapshot.drafts import speculation_state
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.saved import Rows
from oxillama.snapshot.settings import chain_state, read_chain

if TYPE_CHECKING:
    from oxillama.engine.logprobs import Scores
    from oxillama.engine.request import Request
    from oxillama.engine.stream import TextRequest

__all__ = [
    "check_given",
    "deadline_state",
    "read_chunks",
    "read_sampler",
    "read_serving",
    "read_tool_use",
    "sampler_state",
    "text_state",
]

REASONS = (*get_args(FinishReason), None)


def sampler_state(sampler: Sampler) -> tuple[dict[str, Any], dict[str, Rows]]:
    """A sampler at work, without its tokens."""
    data, grammar = sampler.state(), sampler.memory.grammar
    state = chain_state(sampler.chain) | {
        "n_prompt": data["n_prompt"],
        "rng": data["rng"],
        "mu": data["mu"],
        "n_processors": len(sampler.processors),
        "grammar_steps": None if grammar is None else len(grammar.state()),
    }
    marks = {"rng": np.array([m[0] for m in data["marks"]], np.uint64), "mu": np.array([m[1] for m in data["marks"]])}
    return state, {name: Rows.whole(values) for name, values in marks.items()}


def read_sampler(given: Fields, tensors: Mapping[str, Rows], tokens: list[int]) -> dict[str, Any]:
    """What `Sampler.from_state` takes. Raises SnapshotDamagedError for arrays that are missing."""
    n_prompt, marks = given.integer("n_prompt", 0, len(tokens)), []
    for name in ("rng", "mu"):
        if name not in tensors or len(tensors[name].data) != len(tokens) - n_prompt + 1:
            raise SnapshotDamagedError(
                f"array {name} must have {len(tokens) - n_prompt + 1} numbers, one for each token"
            )
        marks.append(tensors[name].array.tolist())
    rng, mu = given.integer("rng", 1, (1 << 64) - 1), given.number("mu")
    pairs = [list(pair) for pair in zip(*marks, strict=True)]
    return {"tokens": tokens, "n_prompt": n_prompt, "rng": rng, "mu": mu, "marks": pairs}


def deadline_state(request: Request) -> dict[str, Any]:
    """Seconds until the deadline; one that counts from the first step does so again if there was none yet."""
    if request.time_limit < math.inf and not request.started_at:
        return {"seconds_left": request.time_limit, "deadline_from": "start"}
    left = request.sequence.deadline - time.perf_counter()
    return {"seconds_left": None if math.isinf(left) else max(left, 1e-9)}


def read_serving(given: Fields) -> ServingOptions:
    """Raises ConfigError for values out of range."""
    left = None if given.get("seconds_left") is None else given.number("seconds_left")
    since: Any = given.maybe_text("deadline_from")
    return ServingOptions(given.integer("priority"), left, since, cache_prompt=False, lora=())


def text_state(request: TextRequest, unread: Iterable[Chunk]) -> dict[str, Any]:
    """All but tokens and sampler."""
    options, sequence = request.options, request.sequence
    assert options is not None
    return {
        **request.progress(),
        "finished": request.finish_reason,
        "stops": list(options.stops),
        "ignore_eos": options.ignore_eos,
        "n_criteria": len(options.criteria),
        "priority": sequence.priority,
        **deadline_state(request),
        "logprobs": options.logprobs,
        "prompt_logprobs": options.prompt_logprobs,
        "scores": None if request.scores is None else _scores_state(request.scores),
        "n_cached": sequence.n_cached,
        "speculation": speculation_state(request.speculation),
        "tools": None if options.tool_use is None else _tools_state(options.tool_use),
        "unread": [_chunk_state(chunk) for chunk in unread],
    }


# ---- log-probabilities


def _logprob(p: TokenLogprob) -> list[Any]:
    """[id, logprob or null for minus infinity, and the same of the likeliest]."""
    value = None if math.isinf(p.logprob) else p.logprob
    return [p.token_id, value, *([[_logprob(t) for t in p.top]] if p.top else [])]


def _logprobs(found: Iterable[TokenLogprob | None] | None) -> list[Any] | None:
    return None if found is None else [None if p is None else _logprob(p) for p in found]


def _scores_state(scores: Scores) -> dict[str, Any]:
    return {"tokens": _logprobs(scores.tokens), "prompt": _logprobs(scores.prompt)}


class LogprobReader:
    """Log-probabilities out of JSON; what tokens stand for is looked up."""

    def __init__(self, label: str, token_bytes: Any) -> None:
        self._label, self._token_bytes = label, token_bytes

    def one(self, given: Any, most: int = 3) -> TokenLogprob:
        """most: items that it can have; those of `top` have none of their own."""
        top = given[2] if isinstance(given, list) and len(given) == 3 and isinstance(given[2], list) else []
        if not isinstance(given, list) or not 2 <= len(given) <= most or type(given[0]) is not int:
            raise SnapshotDamagedError(f"{self._label}: {given!r:.60} is no log-probability")
        value = Fields({"logprob": given[1]}, self._label).number("logprob") if given[1] is not None else -math.inf
        try:
            raw = self._token_bytes(given[0])
        except OxiLlamaError as error:
            raise SnapshotDamagedError(f"{self._label}: {error}") from None
        return TokenLogprob(given[0], value, raw, tuple(self.one(item, 2) for item in top))

    def many(self, given: Fields, name: str) -> list[Any] | None:
        if given.get(name) is None:
            return None
        return [None if item is None else self.one(item) for item in given.items_of(name)]


# ---- calls of tools


def _tools_state(use: ToolUse) -> dict[str, Any]:
    tools = None if use.tools is None else list(use.tools)
    form = asdict(find_format(use.format, None))
    return {"format": form, "first_id": use.first_id, "tools": tools, "choice": use.choice}


def read_tool_use(given: Fields | None, label: str) -> ToolUse | None:
    """Raises SnapshotDamagedError for what can't be."""
    if given is None:
        return None
    try:
        form = ToolFormat(**given.sub("format"))
        tools = None if given.get("tools") is None else [json.loads(tool) for tool in given.texts("tools")]
        return ToolUse(form, given.integer("first_id"), tools, given.text("choice"))
    except (OxiLlamaError, TypeError, ValueError, RecursionError) as error:
        raise SnapshotDamagedError(f"{label}: calls of tools: {error}") from None


# ---- chunks


def _chunk_state(chunk: Chunk) -> dict[str, Any]:
    return {
        "text": chunk.text,
        "ids": chunk.token_ids,
        "reason": chunk.finish_reason,
        "index": chunk.index,
        "logprobs": _logprobs(chunk.logprobs),
        "prompt_logprobs": _logprobs(chunk.prompt_logprobs),
        "calls": [asdict(call) for call in chunk.tool_calls],
        **({} if chunk.finish_reason is None else _end_state(chunk)),
    }


def _end_state(chunk: Chunk) -> dict[str, Any]:
    """What the last chunk alone has."""
    usage, end = chunk.usage, None if chunk.end is None else _logprob(chunk.end)
    counts = None if usage is None else [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens]
    return {"stop_reason": chunk.stop_reason, "end": end, "usage": counts}


def read_chunks(given: Fields, reader: LogprobReader, label: str) -> list[Chunk]:
    """Chunks that nobody has read. Raises SnapshotDamagedError."""
    found = []
    for i, item in enumerate(given.items_of("unread")):
        if not isinstance(item, dict):
            raise given.wrong("unread", "a list of objects")
        f = Fields(item, f"{label}: unread[{i}]")
        ids, reason = f.items_of("ids"), f.get("reason")
        if reason not in REASONS or not all(type(token) is int for token in ids):
            raise f.wrong("reason", "a reason to finish")
        calls = [_read_call(call, f) for call in f.items_of("calls")]
        logprobs, prompt = reader.many(f, "logprobs"), reader.many(f, "prompt_logprobs")
        chunk = Chunk(f.text("text"), ids, reason, logprobs, prompt, f.integer("index", 0, MAX_CONTEXT), calls)
        found.append(chunk if reason is None else _with_end(chunk, f, reader))
    return found


def _with_end(chunk: Chunk, f: Fields, reader: LogprobReader) -> Chunk:
    """The opposite of `_end_state`."""
    stop, end = f.get("stop_reason"), f.get("end")
    if stop is not None and type(stop) not in (str, int):
        raise f.wrong("stop_reason", "a stop string or the id of a token")
    usage = None if f.get("usage") is None else Usage(*f.integers("usage", 3))
    return replace(chunk, stop_reason=stop, end=None if end is None else reader.one(end), usage=usage)


def _read_call(given: Any, f: Fields) -> ToolCall | BrokenToolCall:
    try:
        return BrokenToolCall(**given) if "error" in given else ToolCall(**given)
    except TypeError:
        raise f.wrong("calls", "calls of tools") from None


def check_given(name: str, wanted: int | None, n_given: int, label: str) -> None:
    """Raises SnapshotMismatchError unless as many functions are given as there were; older files don't say."""
    if (wanted or 0) != n_given:
        raise SnapshotMismatchError(
            f"{label}: it was made with {wanted or 0} {name}, functions that no file can hold: give the same again, "
            f"not {n_given}"
        )


def read_chain_of(given: Fields, label: str, own: SamplerChain | None, n_processors: int) -> SamplerChain:
    """The chain of a saved sampler. Raises SnapshotMismatchError unless its functions are given again."""
    check_given("logits_processors", given.integer("n_processors"), n_processors, label)
    return read_chain(given, label, own)
