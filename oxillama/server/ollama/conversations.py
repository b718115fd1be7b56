"""Conversations of Ollama's API: what they ask for, and the turns that a context has no room for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from oxillama.chat.format import ChatFormat
from oxillama.core.chat import template_for
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Message, Values
from oxillama.server.generation import GenerationRun, GenerationSpec, prepare
from oxillama.server.models import Chosen
from oxillama.server.ollama.names import read_name
from oxillama.server.ollama.turns import messages_of, read_as_chat, shortened, turn_starts
from oxillama.server.routes.chat import read_translated

__all__ = ["ROOM", "TOO_LONG", "has_template", "prepared_chat", "read_messages", "read_truncate"]

TOO_LONG = "context_length_exceeded"
ROOM = 4  # the answer has this part of a context that is too small for what it answers


def prepared_chat(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationRun:
    """The run of a conversation. Without room for all of it, the first turns are left out, as few as can be, so that
    there is room for `num_predict` tokens of the answer, or for a quarter of the context where that is less.

    Raises ApiError, also where `truncate` says that nothing is to be left out.
    """
    check_chats(values, exchange, chosen)
    messages, reading, warnings = read_turns(values), exchange.reading, list(exchange.warnings)

    def run_from(start: int) -> GenerationRun:
        exchange.warnings = list(warnings)
        kept = shortened(messages, start)
        return prepare(read_messages(values, kept, exchange, chosen, moved(kept.places)))

    try:
        return run_from(0)
    except ApiError as error:
        starts = turn_starts(messages)
        if error.code != TOO_LONG or not starts or not read_truncate(values) or reading.strict:
            raise
        size, wanted = chosen.model.ready.engine.context_size, read_most(values)
    room = min(wanted, size // ROOM) if wanted > 0 else size // ROOM
    start, run = first_fitting(starts, run_from, size - room)
    names, reading.names = reading.names, {}
    kept_places = set(shortened(messages, start).places)
    for i in range(start):
        if (place := f"messages[{i}]") not in kept_places:
            reading.leave_out(place, label="messages")
    reading.names = names
    return run


def read_turns(values: Values) -> list[Message]:
    """Reads the messages of a conversation."""
    return messages_of(values["messages"])


def read_truncate(values: Values) -> bool:
    """Reads whether what has no room may be left out."""
    return bool(values.get("truncate", True))


def read_most(values: Values) -> int:
    """Reads how many tokens an answer has at most; 0 and below: as many as there is room for."""
    return int(values.get("options", {}).get("num_predict", 0))


def first_fitting(starts: list[int], run_from: Callable[[int], GenerationRun], most: int) -> tuple[int, GenerationRun]:
    """The first of these places from which a conversation has so many tokens at most, and its run; else the last one.

    Raises what that raises.
    """
    low, high, found = 0, len(starts) - 1, None
    while low <= high:
        middle = (low + high) // 2
        try:
            run = run_from(starts[middle])
        except ApiError as error:
            if error.code != TOO_LONG:
                raise
            low = middle + 1
            continue
        if len(run.prompts[0]) <= most:
            found, high = (starts[middle], run), middle - 1
        else:
            low = middle + 1
    return found or (starts[-1], run_from(starts[-1]))


def moved(places: list[str]) -> dict[str, str]:
    """The places of messages before which others were left out."""
    return {f"messages[{i}]": place for i, place in enumerate(places) if place != f"messages[{i}]"}


def read_messages(
    values: Values,
    messages: list[Message],
    exchange: Exchange,
    chosen: Chosen,
    names: Mapping[str, str],
) -> GenerationSpec:
    """Reads what these messages ask for. names: the places that the request has for theirs. Raises ApiError."""
    if values.get("think") == "max" and is_harmony(exchange, chosen):
        values = {**values, "think": "high"}  # which is the most that it was trained for
    translated = read_as_chat(values, messages, chosen, exchange.reading)
    translated = replace(translated, names={**names, **translated.names})
    return read_translated(translated, exchange, chosen, chosen.model.ollama_chain)


def is_harmony(exchange: Exchange, chosen: Chosen) -> bool:
    tokenizer = chosen.model.ready.engine.tokenizer
    return ChatFormat.of_template(template_for(tokenizer, None, exchange.service.models.template)).harmony


def has_template(exchange: Exchange, chosen: Chosen) -> bool:
    return bool(exchange.service.models.template or chosen.model.ready.engine.tokenizer.chat_template)


def check_chats(values: Values, exchange: Exchange, chosen: Chosen) -> None:
    """Raises ApiError, in Ollama's words, for a model that can't be talked to."""
    if chosen.model.ready.engine.context.core.encoder:
        raise bad_value("model", f'"{read_name(values)}" does not support chat', "unsupported_parameter")
    if not has_template(exchange, chosen):
        text = f'"{read_name(values)}" does not support chat: it has no chat template'
        raise bad_value("model", text, "unsupported_parameter")
