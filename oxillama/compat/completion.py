"""Completions as dicts: one call of `create_completion`, checked, computed by the engine, and written in its form."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oxillama._util.checks import check_bool, check_int
from oxillama.compat.keywords import REQUIRED, Keyword
from oxillama.compat.model import LlamaLike
from oxillama.compat.sampling import (
    CRITERIA,
    CUTS,
    FOR_TEXTS,
    MIROSTAT,
    OCCURRENCES,
    REPEAT,
    SEED,
    TEMPERATURE,
    TOP_K,
    Criterion,
    engine_processors,
    sampler_config,
)
from oxillama.config import MAX_CONTEXT
from oxillama.core.answer_options import ToolUse
from oxillama.core.prompts import plain
from oxillama.core.results import Chunk, Completion, TokenLogprob
from oxillama.errors import ConfigError, ContextOverflowError, UnsupportedModelError

__all__ = ["COMPLETION", "Ask", "Piece", "as_dict", "chunk_dicts", "computed", "read_ask", "shown", "stream_of"]

# In the order of the replaced package.
COMPLETION: tuple[Keyword, ...] = (
    Keyword("prompt", REQUIRED, "honoured", "text or token ids, or a list of these, which is computed together"),
    Keyword("suffix", None, "honoured", "with models that were trained for fill-in-the-middle"),
    Keyword("max_tokens", 16, "honoured", "None, 0 or less: up to the context's end"),
    TEMPERATURE,
    *CUTS,
    Keyword("logprobs", None, "honoured", "needs `logits_all=True`, as there"),
    Keyword("echo", False, "honoured", ""),
    Keyword("stop", [], "honoured", "a string or a list"),
    *OCCURRENCES,
    REPEAT,
    TOP_K,
    Keyword("stream", False, "honoured", "of one prompt"),
    SEED,
    *MIROSTAT,
    Keyword("model", None, "honoured", "the name in the answer"),
    CRITERIA,
    *FOR_TEXTS,
)


@dataclass
class Ask:
    """A call, checked: what the engine is to compute, and how the answer is written.

    prompts: token ids. texts: of each, what stands before the answer with `echo`. options: of `Engine.generate`.
    """

    llama: LlamaLike
    prompts: list[list[int]]
    texts: list[str]
    options: dict[str, Any]
    model: str
    echo: bool
    stream: bool
    criterion: Criterion | None
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}


def read_ask(llama: LlamaLike, options: Mapping[str, Any], tool_use: ToolUse | None = None) -> Ask:
    """Checks a call. Raises ConfigError, which names the keyword; ContextOverflowError for too long a prompt."""
    single, prompts, texts = _prompts(llama, options["prompt"], options["suffix"])
    for ids in prompts:
        if len(ids) >= llama.n_ctx():
            raise ContextOverflowError(f"Requested tokens ({len(ids)}) exceed context window of {llama.n_ctx()}")
    stream, echo = check_bool("stream", options["stream"]), check_bool("echo", options["echo"])
    if stream and not single:
        raise ConfigError("stream must be False for a list of prompts")
    found: dict[str, Any] = {
        "sampler": sampler_config(dict(options), llama.penalty_window, llama.next_seed(options["seed"])),
        "stop": options["stop"],
        "max_tokens": _max_tokens(options["max_tokens"]),
        "logits_processors": engine_processors(options["logits_processor"]),
        **llama.draft_options(),
    }
    criteria = options["stopping_criteria"]
    if criteria is not None and not single:
        raise ConfigError("stopping_criteria must be None for a list of prompts")
    criterion = None if criteria is None else Criterion(criteria)
    if criterion is not None:
        found["stopping_criteria"] = criterion
    if tool_use is not None:
        found["tool_use"] = tool_use
    if options["logprobs"] is not None:
        found["logprobs"] = check_int("logprobs", options["logprobs"], 0, 1024)
        if not llama.logits_all:
            raise ConfigError("logprobs is not supported for models created with logits_all=False")
        if echo:
            found["prompt_logprobs"] = found["logprobs"]
    model = llama.model_path if options["model"] is None else options["model"]
    return Ask(llama, prompts, texts, found, model, echo, stream, criterion)


def _max_tokens(given: Any) -> int | None:
    if given is None:
        return None
    number = check_int("max_tokens", given, -(1 << 62), 1 << 62)
    return min(number, MAX_CONTEXT) if number > 0 else None


def _prompts(llama: LlamaLike, prompt: Any, suffix: Any) -> tuple[bool, list[list[int]], list[str]]:
    """Whether there is one prompt; token ids and text of each."""
    prompt = plain("prompt", prompt)
    single = isinstance(prompt, str) or not (isinstance(prompt, Sequence) and prompt and _is_prompt(prompt[0]))
    given = [prompt] if single else list(prompt)
    if suffix is not None:
        if not isinstance(suffix, str) or not all(isinstance(text, str) for text in given):
            raise ConfigError("suffix must be a str, with a prompt that is one")
        engine, first = llama.engine, llama.spm_infill
        try:
            return single, [engine.infill_tokens(t, suffix, suffix_first=first) for t in given], given
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"suffix must be None: {error}") from None
    ids = [_ids(llama, one) for one in given]
    texts = [one if isinstance(one, str) else llama.vocabulary.decode(one, skip_special=True) for one in given]
    return single, ids, texts


def _is_prompt(value: Any) -> bool:
    """Whether this is text or token ids, rather than one token's id, of whatever type."""
    return isinstance(value, str) or hasattr(value, "__len__")


def _ids(llama: LlamaLike, prompt: Any) -> list[int]:
    ids = llama.prompt_ids(prompt) if isinstance(prompt, str) else llama.checked_ids("prompt", prompt)
    if ids:
        return ids
    bos = llama.vocabulary.bos_id
    if bos is None:
        raise ConfigError("prompt must not be empty: this model has no token that begins a text")
    return [bos]


# ---- whole answers


def computed(ask: Ask) -> list[Completion]:
    """The completions of all prompts, computed together. What a stopping criterion cut off is not in them."""
    found: list[Completion] = ask.llama.engine.generate(ask.prompts, **ask.options)
    ask.llama.keep_bounds()
    return [_without_last(ask, one) if ask.criterion is not None and ask.criterion.met else one for one in found]


def _without_last(ask: Ask, completion: Completion) -> Completion:
    ids = completion.token_ids[:-1]
    logprobs = None if completion.logprobs is None else completion.logprobs[:-1]
    return replace(completion, token_ids=ids, text=_continued(ask, ids), logprobs=logprobs)


def _continued(ask: Ask, ids: list[int]) -> str:
    return ask.llama.vocabulary.decode(ids, skip_special=True, continuation=True)


def as_dict(ask: Ask, completions: list[Completion]) -> dict[str, Any]:
    """The answer in the replaced package's form; several prompts give as many choices."""
    choices = []
    for i, (completion, text) in enumerate(zip(completions, ask.texts, strict=True)):
        logprobs = None
        if completion.logprobs is not None:
            entries: list[TokenLogprob | None] = list(completion.logprobs)
            if ask.echo:
                entries = _prompt_entries(ask, i, completion) + entries
            logprobs = logprobs_dict(entries, 0 if ask.echo else len(text), _first(ask, i))
        choices.append(
            {
                "text": text + completion.text if ask.echo else completion.text,
                "index": i,
                "logprobs": logprobs,
                "finish_reason": completion.finish_reason,
            }
        )
    n_prompt, n_text = sum(len(ids) for ids in ask.prompts), sum(len(c.token_ids) for c in completions)
    usage = {"prompt_tokens": n_prompt, "completion_tokens": n_text, "total_tokens": n_prompt + n_text}
    return {**ask.head(), "choices": choices, "usage": usage}


def _begins(ask: Ask, i: int) -> bool:
    """Whether the i-th prompt begins with BOS, which `echo` leaves out."""
    return ask.prompts[i][0] == ask.llama.vocabulary.bos_id


def _first(ask: Ask, i: int) -> str:
    """The first token that `echo` shows, whose log-probability is null."""
    ids = ask.prompts[i][1:] if _begins(ask, i) else ask.prompts[i]
    return ask.llama.vocabulary.decode(ids[:1], continuation=True) if ask.echo and ids else ""


def _prompt_entries(ask: Ask, i: int, completion: Completion) -> list[TokenLogprob | None]:
    entries = list(completion.prompt_logprobs or [])[1 if _begins(ask, i) else 0 :]
    return [None, *entries[1:]] if entries else []


def logprobs_dict(entries: Sequence[TokenLogprob | None], offset: int, first: str = "") -> dict[str, list[Any]]:
    """tokens, text_offset, token_logprobs and top_logprobs. first: text of an entry that is None."""
    found: dict[str, list[Any]] = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
    for entry in entries:
        text = first if entry is None else shown(entry)
        found["tokens"].append(text)
        found["text_offset"].append(offset)
        found["token_logprobs"].append(None if entry is None else entry.logprob)
        found["top_logprobs"].append(None if entry is None else _top(entry))
        offset += len(text)
    return found


def shown(entry: TokenLogprob) -> str:
    """Text of a token, without parts of characters."""
    return entry.bytes.decode("utf-8", "ignore")


def _top(entry: TokenLogprob) -> dict[str, float]:
    """text -> log-probability of the likeliest, and of the token itself; of equal texts, that of the likelier."""
    found: dict[str, float] = {}
    for one in (*entry.top, entry):
        found.setdefault(shown(one), one.logprob)
    return found


# ---- streams

# Text, log-probabilities, and the chunk that they are of.
Piece = tuple[str, list[TokenLogprob] | None, Chunk]


def stream_of(ask: Ask) -> Iterator[Piece]:
    """(text, log-probabilities, chunk) as they come; what a stopping criterion cut off is not in them.

    The request begins at once, so that what is wrong with it is raised by the call.
    """
    return _pieces(ask, ask.llama.engine.stream(ask.prompts[0], **ask.options))


def _pieces(ask: Ask, chunks: Any) -> Iterator[Piece]:
    try:
        if ask.criterion is None:
            for chunk in chunks:
                yield chunk.text, chunk.logprobs, chunk
        else:
            yield from _behind(ask, ask.criterion, chunks)
    finally:
        chunks.close()
        ask.llama.keep_bounds()


def _behind(ask: Ask, criterion: Criterion, chunks: Any) -> Iterator[Piece]:
    """The pieces one chunk late: its last token may turn out not to be part of the text."""
    held: Chunk | None = None
    text, ids = "", []
    for chunk in chunks:
        ids += chunk.token_ids
        if chunk.finish_reason is not None and criterion.met:
            logprobs = None if chunk.logprobs is None else [*((held and held.logprobs) or ()), *chunk.logprobs][:-1]
            yield _continued(ask, ids[:-1])[len(text) :], logprobs, chunk
            return
        if held is not None:
            yield held.text, held.logprobs, held
            text += held.text
        held = chunk
    if held is not None:
        yield held.text, held.logprobs, held


def chunk_dicts(ask: Ask) -> Iterator[dict[str, Any]]:
    """A stream of answers in the replaced package's form; the last has a finish_reason and no text."""
    return _chunk_dicts(ask, stream_of(ask), len(ask.texts[0]))


def _chunk_dicts(ask: Ask, pieces: Iterator[Piece], offset: int) -> Iterator[dict[str, Any]]:
    for text, logprobs, chunk in pieces:
        if text or logprobs:
            found = None if logprobs is None else logprobs_dict(logprobs, offset)
            yield _chunk(ask, text, found, None)
            offset += len(text)
        if chunk.finish_reason is not None:
            yield _chunk(ask, "", None, chunk.finish_reason)


def _chunk(ask: Ask, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
    return {**ask.head(), "choices": [choice]}
