"""Prompts of Ollama's generate: behind a template or without one, and behind the tokens of a conversation so far."""

from __future__ import annotations

import re
from dataclasses import replace

from oxillama.core.chat import chat_ids
from oxillama.core.options import PromptOptions
from oxillama.core.prompts import check_length, check_tokens
from oxillama.errors import ChatTemplateError, UnsupportedModelError
from oxillama.server.embedding_run import engine_errors
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Message, Values
from oxillama.server.generation import Conversation, GenerationRun, GenerationSpec, Texts, prepare
from oxillama.server.models import Chosen
from oxillama.server.ollama.conversations import ROOM, TOO_LONG, has_template, read_messages
from oxillama.server.ollama.turns import read_as_completion, read_raw
from oxillama.server.reading import Reading
from oxillama.server.routes.completions import read_spec as read_completion
from oxillama.server.routes.infill import Gap, infill_prompt
from oxillama.server.translate import renamed
from oxillama.tokenizer import Tokenizer

__all__ = ["following", "prepared_generate"]

# A conversation by which it is seen how a template goes on after an answer.
_BEFORE = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
_ANY = ("question", "answer")  # two texts of a user, which begin differently
# Go's templates name fields that begin with a dot, and have words of their own within these braces.
_GO = re.compile(r"\{\{-?\s*(?:[.$]|(?:if|range|with|else|end|template|block)\b)")


def prepared_generate(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationRun:
    """The run of a prompt: as a message of the user, or as it is. Raises ApiError."""
    if chosen.model.ready.engine.context.core.encoder:
        raise bad_value("model", f'"{values["model"]}" does not support generate', "unsupported_parameter")
    if values.get("raw"):
        read_raw(values)
    template = values.get("template")
    if template and _GO.search(template):
        text = "template: Go's templates are not run here: give raw with the whole prompt, or a Jinja template"
        raise bad_value("template", text, "unsupported_parameter")
    is_bare = not template and not has_template(exchange, chosen)
    if values.get("suffix"):
        return prepared_gap(values, exchange, chosen)
    if values.get("raw") or is_bare:
        return prepare(read_plain(values, exchange, chosen))
    return prepare(read_prompt(values, exchange, chosen))


def prepared_gap(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationRun:
    """The run of a text with a gap. What has no room is left out at the ends that are far from the gap.

    Raises ApiError, also where `truncate` says that nothing is to be left out.
    """
    spec, engine = read_plain(values, exchange, chosen), chosen.model.ready.engine
    try:
        return prepare(spec)
    except ApiError as error:
        if error.code != TOO_LONG or not values.get("truncate", True) or exchange.reading.strict:
            raise
    around = Gap(values.get("prompt", ""), values["suffix"])
    try:
        ids, cut = infill_prompt(engine.tokenizer, around, engine.context.factory.room)
    except UnsupportedModelError as error:
        raise bad_value("suffix", f"suffix: {error}", "unsupported_parameter") from None
    for own, name in (("input_prefix", "prompt"), ("input_suffix", "suffix")):
        if own in cut:
            exchange.reading.leave_out(name)
    return prepare(replace(spec, source=Texts((ids,))))


def read_plain(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationSpec:
    """Reads a prompt without a template: a raw one, one with a gap, or for a base model. Raises ApiError."""
    prompt, gap = values.get("prompt", ""), bool(values.get("suffix"))
    for name in ("system", "template", "context"):
        if gap and values.get(name):
            exchange.reading.leave_out(name, "a text with a gap has no place for it")
    if values.get("system") and not gap:
        prompt = f"{values['system']}\n\n{prompt}"
    translated = read_as_completion(values, prompt, chosen, exchange.reading)
    exchange.reading.names = names = translated.names
    given = {"max_tokens": -1, **translated.values, "parse_special": bool(values.get("raw"))}
    chain = chosen.model.ollama_chain
    spec = renamed(lambda: read_completion(given, exchange, chosen, names, chain), names)
    if not values.get("context") or gap:
        return spec
    ids = behind_context(prompt, bool(values.get("raw")), values, exchange.reading, chosen)
    return replace(spec, source=Texts((ids,), parse_special=bool(values.get("raw"))))


def behind_context(prompt: str, special: bool, values: Values, reading: Reading, chosen: Chosen) -> list[int]:
    """Tokens of a conversation so far, with a text behind it. special: control tokens of the text are read as such."""
    engine, before = chosen.model.ready.engine, checked_context(values, chosen)
    check_length(engine.tokenizer, "prompt", prompt, engine.context_size, parse_special=special)
    ids = engine.tokenizer.encode(prompt, add_special=False, parse_special=special)
    return following(before, ids, values, reading, chosen)


def read_prompt(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationSpec:
    """Reads a prompt as a message of the user, maybe behind a conversation so far. Raises ApiError."""
    said = [(role, name) for role, name in (("system", "system"), ("user", "prompt")) if values.get(name)]
    messages: list[Message] = [{"role": role, "content": values[name]} for role, name in said]
    if not values.get("context"):
        names = {f"messages[{i}]": name for i, (_, name) in enumerate(said)}
        return read_messages(values, messages, exchange, chosen, names)
    tokenizer, before = chosen.model.ready.engine.tokenizer, checked_context(values, chosen)

    def read(first: int) -> tuple[GenerationSpec, Conversation]:
        names = {f"messages[{i + len(_BEFORE)}]": name for i, (_, name) in enumerate(said[first:])}
        spec = read_messages(values, [*_BEFORE, *messages[first:]], exchange, chosen, names)
        assert isinstance(spec.source, Conversation)
        return spec, spec.source

    spec, source = read(0)
    if messages[0]["role"] == "system" and begins_with(before, messages[0], source.prompt, tokenizer):
        spec, source = read(1)
        messages = messages[1:]

    def behind(ids: list[int]) -> list[int]:
        after = continuation(ids, messages, source.prompt, tokenizer)
        return following(before, after, values, exchange.reading, chosen)

    return replace(spec, source=replace(source, behind=behind))


def begins_with(before: list[int], system: Message, options: PromptOptions, tokenizer: Tokenizer) -> bool:
    """Whether a conversation so far, as tokens, begins with a message of the system."""
    first, second = (chat_ids(tokenizer, [system, {"role": "user", "content": text}], options) for text in _ANY)
    n = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return before[:n] == first[:n]


def continuation(ids: list[int], messages: list[Message], options: PromptOptions, tokenizer: Tokenizer) -> list[int]:
    """Tokens of messages after an answer, with what ends it. ids: of `_BEFORE` with the messages behind it."""
    try:
        head = chat_ids(tokenizer, _BEFORE, {**options, "continue_final_message": True})
    except ChatTemplateError:
        head = []
    if head and ids[: len(head)] == head:
        return ids[len(head) :]
    alone = chat_ids(tokenizer, messages, options)
    return alone[alone[:1] == [tokenizer.bos_id] :]


def checked_context(values: Values, chosen: Chosen) -> list[int]:
    """The tokens of the conversation so far. Raises ApiError for those that the model doesn't have."""
    n_vocab = chosen.model.ready.engine.tokenizer.n_vocab
    return engine_errors(lambda: check_tokens("context", values["context"], n_vocab), chosen)


def following(before: list[int], ids: list[int], values: Values, reading: Reading, chosen: Chosen) -> list[int]:
    """Tokens of a conversation so far and what follows it. Without room for them, its oldest part is left out, so that
    a quarter of the context is there for the answer; unless `truncate` says otherwise."""
    engine = chosen.model.ready.engine
    size = engine.context.factory.room
    if len(before) + len(ids) < size or not values.get("truncate", True) or reading.strict:
        return before + ids
    reading.leave_out("context", label="context")
    first = before[: before[:1] == [engine.tokenizer.bos_id]]
    room = max(size - size // ROOM - len(ids) - len(first), 0)
    return first + before[len(before) - room :] + ids
