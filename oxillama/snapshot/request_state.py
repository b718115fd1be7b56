"""State of a generation request as JSON, and back."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from blake3 import blake3

from oxillama._util.checks import MAX_CONTEXT
from oxillama._util.json_fields import Fields
from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.chat.message import ToolCallDelta
from oxillama.config import EngineConfig, SamplerConfig, field_names
from oxillama.core.answer_options import tools_state
from oxillama.core.draft_options import MAX_DRAFTS, NO_DRAFTS, DraftOptions, Speculation
from oxillama.core.options import ServingOptions
from oxillama.core.results import Chunk, FinishReason, TokenLogprob, Usage
from oxillama.drafts.draft import Draft
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import MAX_NGRAM, PromptLookup
from oxillama.errors import (
    ConfigError,
    OxiLlamaError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.sampler_config import MAX_TOKEN
from oxillama.sampling import Sampler, SamplerChain
from oxillama.sampling.stages import STAGES
from oxillama.snapshot.format.reader import ArrayRows
from oxillama.text_settings import MAX_SPECULATIVE

if TYPE_CHECKING:
    from oxillama.core.generation_request import GenerationRequest
    from oxillama.core.logprobs import LogprobRecorder
    from oxillama.core.request import Request
    from oxillama.speculative.draft_model import DraftModel

__all__ = [
    "chain_state",
    "check_given",
    "check_same",
    "config_fields",
    "config_state",
    "deadline_state",
    "described",
    "model_of",
    "plain",
    "read_chain",
    "read_chunks",
    "read_config",
    "read_draft_options",
    "read_drafts",
    "read_ends",
    "read_sampler",
    "read_serving",
    "read_stop_ids",
    "remade",
    "sampler_state",
    "speculation_state",
    "text_state",
]

# Not among the settings: the source of the model is a field of its own.
SOURCES = ("model_path", "tokenizer_path")
# Fields of a sampler that a file leaves out have these values, whatever the defaults of `SamplerConfig` are by then.
LEFT_OUT = SamplerConfig.original()


def plain(name: str, value: Any) -> Any:
    """A setting as JSON. Raises SnapshotError for a value that JSON can't represent."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(f"{name}[{key!r}]", item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise SnapshotError(f"{name}={value} can't be saved: only finite numbers can")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SnapshotError(f"{name} can't be saved: it is of type {type(value).__name__}")


def config_state(config: EngineConfig) -> dict[str, Any]:
    """All settings but the source of the model."""
    return {name: plain(name, getattr(config, name)) for name in field_names(EngineConfig) if name not in SOURCES}


def config_fields(given: Fields, label: str) -> dict[str, Any]:
    """Keywords of `EngineConfig`. Raises SnapshotFormatError for one that this version doesn't know."""
    known = [name for name in field_names(EngineConfig) if name not in SOURCES]
    for name in given:
        if name not in known:
            raise SnapshotFormatError(f"{label}: the setting {name!r} is not known to this version of oxillama")
    return dict(given)


def config_of(state: Mapping[str, Any]) -> SamplerConfig:
    """Settings of a sampler. Raises ConfigError, and TypeError for an unknown one."""
    values = {"schema_mode": "full", **state}  # the only mode of files older than this setting
    biases = values.get("logit_bias")
    if isinstance(biases, dict):
        values["logit_bias"] = {int(token): -math.inf if bias is None else bias for token, bias in biases.items()}
    return replace(LEFT_OUT, **values)


def sampler_config_state(config: SamplerConfig) -> dict[str, Any]:
    """The inverse of `config_of`: only the settings that differ from `LEFT_OUT`."""
    state = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if value == getattr(LEFT_OUT, field.name):
            continue
        if field.name == "logit_bias":
            value = {str(token): None if bias == -math.inf else bias for token, bias in value.items()}
        state[field.name] = plain(field.name, value)
    return state


def chain_state(chain: SamplerChain) -> dict[str, Any]:
    """A chain: its settings with all fields, and its stages by name, null for a function of the caller's own."""
    names = {stage: name for name, stage in STAGES.items()}
    everything = {f.name: getattr(chain.config, f.name) for f in fields(chain.config)}
    return {
        "config": sampler_config_state(chain.config) | {n: v for n, v in everything.items() if n in ALWAYS},
        "stages": [names.get(stage) for stage in chain.stages],
    }


# These are in the file in any case.
ALWAYS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "repetition_penalty_window", "seed", "schema_mode",
)  # fmt: skip


def read_chain(given: Fields, label: str, own: SamplerChain | None) -> SamplerChain:
    """The inverse of `chain_state`; `own` has the caller's own functions, where there are any.

    Raises SnapshotMismatchError if functions are needed and not given, SnapshotDamagedError for invalid settings.
    """
    config = read_config(given.sub("config"), label)
    stages = given.items_of("stages")
    if None in stages or own is not None:
        if own is None or len(own.stages) != len(stages):
            raise SnapshotMismatchError(
                f"{label}: its sampler has {len(stages)} stages, some of them functions that no file can hold: give "
                "sampler=, a SamplerChain of the same stages"
            )
        names = {stage: name for name, stage in STAGES.items()}
        for i, (stage, name) in enumerate(zip(own.stages, stages, strict=True)):
            if names.get(stage) != name:
                raise SnapshotMismatchError(f"{label}: stage {i} of its sampler is {name or 'a function'}, not {stage}")
        return own.with_config(config)
    try:
        return SamplerChain(stages, config)
    except ConfigError as error:
        raise SnapshotDamagedError(f"{label}: {error}") from None


def read_config(given: Fields, label: str) -> SamplerConfig:
    """Settings of a sampler. Raises SnapshotDamagedError for invalid ones."""
    try:
        return config_of(given)
    except (ConfigError, TypeError, ValueError) as error:
        raise SnapshotDamagedError(f"{label}: settings of its sampler: {error}") from None


# Settings of a draft model that change its draft tokens.
DECISIVE = ("kv_type", "rope", "overrides")

log = logging.getLogger("oxillama")


# ---- capture


def described(draft: str | Draft) -> dict[str, Any]:
    """State that identifies a draft, as far as it can be identified."""
    if isinstance(draft, str):
        draft = PromptLookup() if draft == "lookup" else GrammarDraft()
    if type(draft) is PromptLookup:
        texts = json.dumps(draft.texts).encode() if draft.texts else None
        digest = None if texts is None else blake3(texts).hexdigest()
        return {"kind": "lookup", "min_ngram": draft.min_ngram, "max_ngram": draft.max_ngram, "texts": digest}
    if type(draft) is GrammarDraft:
        return {"kind": "grammar"}
    model = model_of(draft)
    if model is not None and model.identity is not None:
        config = config_state(model.config)
        return {
            "kind": "model", "fingerprint": model.identity.fingerprint.state(), "reach": model.reach,
            "config": {name: config[name] for name in DECISIVE},
        }  # fmt: skip
    return {"kind": "object", "type": f"{type(draft).__module__}.{type(draft).__qualname__}"}


def model_of(draft: Any) -> DraftModel | None:
    """The draft model of a draft; None if it has none."""
    from oxillama.speculative.async_draft import SpeculativeDecoder
    from oxillama.speculative.draft_model import DraftModel

    if type(draft) is SpeculativeDecoder:  # its draft tokens are those of its model
        return draft.model
    return draft if type(draft) is DraftModel else None


def speculation_state(speculation: Speculation | None) -> dict[str, Any] | None:
    """State of a request's speculation; None if it has no draft (any more)."""
    if speculation is None or not speculation.drafts:
        return None
    state = {
        "num_speculative": speculation.k,
        "acceptance": speculation.acceptance,
        "adaptive": speculation.adaptive,
        "drafts": [described(draft) for draft in speculation.drafts],
    }
    begun = speculation.n_begun if speculation.round is None else speculation.round.n_used
    return state | ({"n_begun": begun} if begun else {})


# ---- in


def read_drafts(given: Fields | None, own: Any, label: str) -> DraftOptions:
    """Drafts of a resumed request: `own` if that is given, else those that can be made again from the file.

    With acceptance="rejection" the text depends on the draft tokens: a missing draft, or another one, is an error then.
    Raises ConfigError for what is no draft, SnapshotMismatchError, SnapshotDamagedError.
    """
    mine = own if isinstance(own, DraftOptions) else DraftOptions(draft=own)
    if given is None:  # saved without a draft: nothing may depend on draft tokens now
        return DraftOptions(draft=mine.draft, num_speculative=mine.num_speculative) if mine.draft else NO_DRAFTS
    options, saved = read_draft_options(given, label), descriptions(given, label)
    names = ", ".join(name_of(one) for one in saved)
    if own is not None:
        if options["acceptance"] == "rejection":
            check_all(mine.draft, saved, label)
        return DraftOptions(draft=mine.draft, **options)
    found = [remade(one) for one in saved]
    if None in found and options["acceptance"] == "rejection":
        raise SnapshotMismatchError(
            f"{label}: with acceptance='rejection' its text depends on the draft tokens of its drafts "
            f"({names}), of which some can't be made again from the file: give draft=, the same as before"
        )
    if None in found:
        log.warning("%s: not all of its drafts (%s) can be made again: give draft= to go on drafting", label, names)
    drafts = [draft for draft in found if draft is not None]
    return DraftOptions(draft=drafts, **options) if drafts else NO_DRAFTS


def read_draft_options(given: Fields, label: str) -> dict[str, Any]:
    """All of `DraftOptions` but the draft. Raises SnapshotDamagedError."""
    options: dict[str, Any] = {
        "num_speculative": given.integer("num_speculative", 0, MAX_SPECULATIVE),
        "acceptance": given.text("acceptance"),
        "adaptive": given.flag("adaptive"),
    }
    if options["acceptance"] == "rejection":  # older versions let it be adaptive
        options["adaptive"] = False
    try:
        DraftOptions(**options)
    except ConfigError as error:
        raise SnapshotDamagedError(f"{label}: {error}") from None
    return options


def descriptions(given: Fields, label: str) -> list[Fields]:
    """Descriptions of the drafts. Raises SnapshotDamagedError."""
    found = given.items_of("drafts")
    if not 0 < len(found) <= MAX_DRAFTS or not all(isinstance(one, dict) for one in found):
        raise given.wrong("drafts", f"a list of 1 to {MAX_DRAFTS} objects")
    return [Fields(one, f"{label}: drafts[{i}]") for i, one in enumerate(found)]


def name_of(one: Fields) -> str:
    return one.text("type" if one.text("kind") == "object" else "kind")


def remade(one: Fields) -> Draft | None:
    """The draft of a description; None if the description can't make it. Raises SnapshotDamagedError."""
    kind = one.text("kind")
    if kind == "lookup" and one.maybe_text("texts") is None:
        least = one.integer("min_ngram", 1, MAX_NGRAM)
        return PromptLookup(one.integer("max_ngram", least, MAX_NGRAM), least)
    return GrammarDraft() if kind == "grammar" else None


def check_all(drafts: tuple[str | Draft, ...], saved: list[Fields], label: str) -> None:
    """Raises SnapshotMismatchError unless drafts are the saved ones."""
    if len(drafts) != len(saved):
        raise SnapshotMismatchError(f"{label}: it was made with {len(saved)} drafts, and {len(drafts)} are given")
    for draft, one in zip(drafts, saved, strict=True):
        check_same(draft, one, label)


def check_same(draft: str | Draft, one: Fields, label: str) -> None:
    """Raises SnapshotMismatchError, which names the difference, unless a draft is the saved one."""
    mine = described(draft)
    if one.text("kind") == mine["kind"] == "model":
        fingerprint = ModelFingerprint.read(Fields(mine["fingerprint"], "draft"))
        ModelFingerprint.read(one.sub("fingerprint")).check(fingerprint, f"{label}: its draft", "draft")
        one = Fields(dict(one) | {"fingerprint": mine["fingerprint"]}, label)  # but for the file's time
    for name, value in mine.items():
        if one.get(name) != value:
            raise SnapshotMismatchError(
                f"{label}: its draft has {name}={shown(one.get(name))}, and the one that is given {shown(value)}: give "
                "the same as before"
            )


def shown(value: Any) -> str:
    return f"{value!r:.80}"


REASONS = (*get_args(FinishReason), None)


def sampler_state(sampler: Sampler) -> tuple[dict[str, Any], dict[str, ArrayRows]]:
    """State of a sampler, without its tokens."""
    data, grammar = sampler.state(), sampler.memory.grammar
    state = chain_state(sampler.chain) | {
        "n_prompt": data["n_prompt"],
        "rng": data["rng"],
        "mu": data["mu"],
        "n_processors": len(sampler.processors),
        "grammar_steps": None if grammar is None else len(grammar.state()),
    }
    marks = {"rng": np.array([m[0] for m in data["marks"]], np.uint64), "mu": np.array([m[1] for m in data["marks"]])}
    return state, {name: ArrayRows.whole(values) for name, values in marks.items()}


def read_sampler(given: Fields, tensors: Mapping[str, ArrayRows], tokens: list[int]) -> dict[str, Any]:
    """The argument of `SamplerState.restore`. Raises SnapshotDamagedError for missing arrays."""
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
    """Seconds until the deadline. A deadline that counts from the first step, not yet run, does so again."""
    if request.time_limit < math.inf and not request.clock.started_at:
        return {"seconds_left": request.time_limit, "deadline_from": "start"}
    left = request.sequence.deadline - time.perf_counter()
    return {"seconds_left": None if math.isinf(left) else max(left, 1e-9)}


def read_serving(given: Fields) -> ServingOptions:
    """Raises ConfigError for values out of range."""
    left = None if given.get("seconds_left") is None else given.number("seconds_left")
    since: Any = given.maybe_text("deadline_from")
    return ServingOptions(given.integer("priority"), left, since, cache_prompt=False, lora=())


def read_stop_ids(given: Fields) -> tuple[int, ...]:
    """`stop_token_ids`, which are left out where there are none. Raises SnapshotDamagedError for what is no id."""
    found = given.items_of("stop_token_ids") if "stop_token_ids" in given else []
    if not all(type(token) is int and 0 <= token <= MAX_TOKEN for token in found):
        raise given.wrong("stop_token_ids", f"token ids, 0 to {MAX_TOKEN}")
    return tuple(found)


def read_ends(given: Fields, eog_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that end a text. Raises SnapshotDamagedError."""
    return frozenset((*(() if given.flag("ignore_eos") else eog_ids), *read_stop_ids(given)))


def text_state(request: GenerationRequest, unread: Iterable[Chunk]) -> dict[str, Any]:
    """State of a request, without its tokens and sampler."""
    options, sequence = request.options, request.sequence
    assert options is not None
    return {
        **request.progress(),
        "finished": request.finish_reason,
        "stops": list(options.stop),
        "ignore_eos": options.ignore_eos,
        "n_criteria": len(options.stopping_criteria),
        "priority": sequence.priority,
        **deadline_state(request),
        "logprobs": options.logprobs,
        "prompt_logprobs": options.prompt_logprobs,
        "scores": None if request.scores is None else _scores_state(request.scores),
        "n_cached": sequence.n_cached,
        "speculation": speculation_state(request.speculation),
        "tools": None if options.tool_use is None else tools_state(options.tool_use),
        "unread": [_chunk_state(chunk) for chunk in unread],
        **({"stop_token_ids": list(options.stop_token_ids)} if options.stop_token_ids else {}),
        **({"include_stop": True} if options.include_stop else {}),
    }


# ---- log-probabilities


def _logprob(p: TokenLogprob) -> list[Any]:
    """[id, logprob or null for minus infinity, and the same for the likeliest tokens]."""
    value = None if math.isinf(p.logprob) else p.logprob
    return [p.token_id, value, *([[_logprob(t) for t in p.top]] if p.top else [])]


def _logprobs(found: Iterable[TokenLogprob | None] | None) -> list[Any] | None:
    return None if found is None else [None if p is None else _logprob(p) for p in found]


def _scores_state(scores: LogprobRecorder) -> dict[str, Any]:
    return {"tokens": _logprobs(scores.tokens), "prompt": _logprobs(scores.prompt)}


class LogprobReader:
    """Reader of log-probabilities in JSON; the bytes of tokens are looked up."""

    def __init__(self, label: str, token_bytes: Any) -> None:
        self._label, self._token_bytes = label, token_bytes

    def one(self, given: Any, most: int = 3) -> TokenLogprob:
        """most: number of items that it can have; the likeliest tokens have no `top` of their own."""
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
        **({"reasoning": chunk.reasoning} if chunk.reasoning else {}),
        **({"deltas": [asdict(delta) for delta in chunk.tool_call_deltas]} if chunk.tool_call_deltas else {}),
        **({"raw": chunk.raw} if chunk.raw else {}),
        **({} if chunk.finish_reason is None else _end_state(chunk)),
    }


def _end_state(chunk: Chunk) -> dict[str, Any]:
    """The fields that only the last chunk has."""
    usage, end = chunk.usage, None if chunk.end is None else _logprob(chunk.end)
    counts = None if usage is None else [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens]
    if counts is not None and usage is not None and usage.reasoning_tokens:
        counts.append(usage.reasoning_tokens)
    warned = {"warnings": chunk.warnings} if chunk.warnings else {}
    return {"stop_reason": chunk.stop_reason, "end": end, "usage": counts, **warned}


def read_chunks(given: Fields, reader: LogprobReader, label: str) -> list[Chunk]:
    """Chunks that the caller has not read. Raises SnapshotDamagedError."""
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
        chunk = _with_parts(chunk, f)
        found.append(chunk if reason is None else _with_end(chunk, f, reader))
    return found


def _with_parts(chunk: Chunk, f: Fields) -> Chunk:
    """The chunk with what it has of reasoning, of calls that are being written, and of the text that was divided."""
    found: dict[str, Any] = {name: f.text(name) for name in ("reasoning", "raw") if name in f}
    if "deltas" in f:
        found["tool_call_deltas"] = [_read_delta(delta, f) for delta in f.items_of("deltas")]
    return replace(chunk, **found) if found else chunk


def _read_delta(given: Any, f: Fields) -> ToolCallDelta:
    try:
        return ToolCallDelta(**given)
    except TypeError:
        raise f.wrong("deltas", "pieces of calls of tools") from None


def _with_end(chunk: Chunk, f: Fields, reader: LogprobReader) -> Chunk:
    """The inverse of `_end_state`."""
    stop, end = f.get("stop_reason"), f.get("end")
    if stop is not None and type(stop) not in (str, int):
        raise f.wrong("stop_reason", "a stop string or the id of a token")
    counts = f.get("usage")
    n = 4 if isinstance(counts, list) and len(counts) == 4 else 3
    usage = None if counts is None else Usage(*f.integers("usage", n))
    warnings = f.texts("warnings") if "warnings" in f else []
    return replace(
        chunk, stop_reason=stop, end=None if end is None else reader.one(end), usage=usage, warnings=warnings
    )


def _read_call(given: Any, f: Fields) -> ToolCall | BrokenToolCall:
    try:
        return BrokenToolCall(**given) if "error" in given else ToolCall(**given)
    except TypeError:
        raise f.wrong("calls", "calls of tools") from None


def check_given(name: str, wanted: int | None, n_given: int, label: str) -> None:
    """Raises SnapshotMismatchError unless as many functions are given as were saved; older files don't record it."""
    if (wanted or 0) != n_given:
        raise SnapshotMismatchError(
            f"{label}: it was made with {wanted or 0} {name}, functions that no file can hold: give the same again, "
            f"not {n_given}"
        )


def read_chain_of(given: Fields, label: str, own: SamplerChain | None, n_processors: int) -> SamplerChain:
    """The chain of a saved sampler. Raises SnapshotMismatchError unless its functions are given again."""
    check_given("logits_processors", given.integer("n_processors"), n_processors, label)
    return read_chain(given, label, own)
