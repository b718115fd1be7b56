"""Fields of sampling in all dialects: settings of the engine, and what a dialect bounds or names otherwise."""

from __future__ import annotations

import re
from typing import NamedTuple

from oxillama._util.settings import Setting, settings_of
from oxillama.config import MAX_CONTEXT
from oxillama.core.options import ChatOptions, StreamOptions
from oxillama.sampler_config import CONSTRAINTS, MAX_SEED, MAX_TOKEN, SamplerConfig
from oxillama.server.errors import bad_value
from oxillama.server.field_types import (
    Boolean,
    Choice,
    Either,
    Field,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Number,
    Only,
    Text,
    Whole,
)

__all__ = [
    "BIG",
    "IDS",
    "KNOWN",
    "MAX_STOP",
    "OF_MESSAGES_API",
    "OF_OLLAMA",
    "SAMPLING",
    "engine",
    "of_setting",
    "refused",
]

# Keywords of the engine that this process has: a field that needs another one is refused by name.
KEYWORDS = {*StreamOptions.__annotations__, *ChatOptions.__annotations__}
KNOWN = settings_of(SamplerConfig)
MAX_BIASES = 1024
MAX_STOPS, MAX_STOP = 16, 256
BIG = 1e30


def refused(name: str, remedy: str = "", *values: object) -> Field:
    """A field that is refused by name, but for values that ask for nothing."""
    return Field(name, Only(values, remedy), remedy or "not supported", "refuse")


def engine(name: str, kind: Kind, text: str, to: str = "") -> Field:
    """A field that is a keyword of the engine; refused where the engine doesn't have it."""
    keyword = to or name
    if keyword in KEYWORDS:
        return Field(name, kind, text, to=keyword)
    return refused(name, "the engine of this version can't do it")


def of_setting(one: Setting) -> Field:
    """A field that is a setting of the engine, with its range and its meaning."""
    kind: Kind
    if one.choices:
        kind = Choice(one.choices)
    elif one.item is not None:
        kind = ListOf(Integer(0, MAX_TOKEN) if one.item is int else Text(1, MAX_STOP), MAX_BIASES)
    elif one.kind == "int":
        kind = Integer(int(one.least), int(one.most))
    elif one.kind == "float":
        kind = Number(one.least, min(one.most, BIG), one.above)
    else:
        kind = Boolean() if one.kind == "bool" else Text()
    return Field(one.name, kind, one.brief, to=one.name)


def token_key(place: str, key: str) -> int:
    """The token id that a key of `logit_bias` is."""
    if not re.fullmatch(r"\d{1,10}", key) or int(key) > MAX_TOKEN:
        raise bad_value(place, f"{place} must have token ids as keys, not {key!r:.60}")
    return int(key)


class Bounds(NamedTuple):
    """A setting as a dialect has it. kind: None for the engine's. text: its meaning; one that begins with ";" goes on
    with the engine's."""

    kind: Kind | None = None
    text: str = ";"

    def field(self, name: str) -> Field:
        """The field of the setting of this name."""
        one = KNOWN[name]
        text = f"{one.brief}{self.text}".rstrip(";") if self.text.startswith(";") else self.text
        return engine(name, of_setting(one).kind if self.kind is None else self.kind, text)


class Dialects(NamedTuple):
    """A setting in OpenAI's API, in Anthropic's, if it has it, and in Ollama's, if it isn't as in the first."""

    chat: Bounds
    messages: Bounds | None = None
    ollama: Bounds | None = None


IDS = ListOf(Integer(0, MAX_TOKEN), MAX_CONTEXT, 1)
STRINGS = ListOf(Text(1, MAX_STOP), MAX_STOPS)
_SEED = -(1 << 63), MAX_SEED
_KEEP = "the k likeliest tokens; 0 and -1 keep all"
# Ollama's ranges are wider than those of OpenAI's API.
DIALECTS = {
    "temperature": Dialects(
        Bounds(Number(0, 2, lenient_most=1e6), "; default 1"),
        Bounds(Number(0, 1, lenient_most=1e6), "; default 1"),
        Bounds(Number(0, 1e6), "; default 0.8"),
    ),
    "top_p": Dialects(Bounds(None, "; default 1"), Bounds(), Bounds(None, "; default 0.9")),
    "frequency_penalty": Dialects(Bounds(Number(-2, 2, lenient_most=1000)), ollama=Bounds()),
    "presence_penalty": Dialects(Bounds(Number(-2, 2, lenient_most=1000)), ollama=Bounds()),
    "top_k": Dialects(
        Bounds(Integer(-1, MAX_TOKEN), _KEEP),
        Bounds(Integer(0, 1 << 30)),
        Bounds(Whole(-1, MAX_TOKEN), f"{_KEEP}; default 40"),
    ),
    "dry_sequence_breakers": Dialects(
        Bounds(ListOf(Text(1, MAX_STOP), 256), "strings that no repetition reaches across")
    ),
    "seed": Dialects(
        Bounds(Integer(*_SEED), "; choice i has seed + i"),
        ollama=Bounds(Whole(*_SEED), "; below 0: another one each time"),
    ),
    "logit_bias": Dialects(
        Bounds(MapOf(Number(-100, 100), MAX_BIASES, token_key), "token id to what its logit gets; -100 bans")
    ),
    "allowed_token_ids": Dialects(Bounds(IDS)),
    "mirostat": Dialects(Bounds(), ollama=Bounds(Whole(0, 2))),
}
# What texts follow has tables of its own.
_REST = (one for name, one in KNOWN.items() if name not in DIALECTS and one.group != CONSTRAINTS[0])
SAMPLING = (
    *(row.chat.field(name) for name, row in DIALECTS.items()),
    Field("stop", Either({"string": Text(1, MAX_STOP), "array": STRINGS}), "strings that end the text", to="stop"),
    engine("stop_token_ids", ListOf(Integer(0, MAX_TOKEN), MAX_BIASES), "tokens that end the text"),
    engine("ignore_eos", Boolean(), "go on when the model wants to end"),
    engine("include_stop_str_in_output", Boolean(), "leave the stop string in the text", "include_stop"),
    *map(of_setting, _REST),
    engine("repeat_penalty", Number(0, BIG, above=True), "`repetition_penalty`", "repetition_penalty"),
    engine("repeat_last_n", Integer(0, MAX_CONTEXT), "`repetition_penalty_window`", "repetition_penalty_window"),
)
OF_MESSAGES_API = tuple(row.messages.field(name) for name, row in DIALECTS.items() if row.messages is not None)
_OF_OLLAMA = {name: row.ollama.field(name) for name, row in DIALECTS.items() if row.ollama is not None} | {
    "repeat_penalty": engine(
        "repeat_penalty", Number(0, BIG), "divides the logits of recent tokens; 1, the default, and 0 are none",
        "repetition_penalty",
    ),
    "repeat_last_n": engine(
        "repeat_last_n", Whole(-1, MAX_CONTEXT), "tokens that penalties look back; -1: all; default 64",
        "repetition_penalty_window",
    ),
}  # fmt: skip
OF_OLLAMA = tuple(_OF_OLLAMA.get(field.name, field) for field in SAMPLING)
