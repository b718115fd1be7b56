"""Keywords of the engine for the fields that dialects share: sampling, what a text must follow, drafts and adapters."""

from __future__ import annotations

import math
from typing import Any

from oxillama.config import SamplingOptions
from oxillama.core.prompts import check_length
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import ContextOverflowError
from oxillama.sampler_config import MAX_SEED
from oxillama.server.errors import bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Values
from oxillama.server.fields import SAMPLING, SERVING
from oxillama.server.generation import NO_CONSTRAINT, Constraint, Keywords
from oxillama.server.models import Chosen
from oxillama.server.reading import Reading
from oxillama.server.translate import text_parts

__all__ = ["limited", "read_constraint", "read_engine"]

ANY_OBJECT = {"type": "object", "additionalProperties": True}
# The fields that are keywords: those that have the engine's names first.
_KEYWORDS = sorted((one for one in (*SAMPLING, *SERVING) if one.to), key=lambda one: one.name != one.to)
# Fields of a request, and of `structured_outputs`, that say what a text must follow: the engine's keyword of each.
_FORMS = {"json_schema": "json_schema", "regex": "regex", "choices": "choices", "grammar": "grammar"}
_STRUCTURED = {"json": "json_schema", "regex": "regex", "choice": "choices", "grammar": "grammar"}


def limited(name: str, value: int, most: int, flag: str) -> int:
    """A number within the server's own limit. Raises ApiError."""
    if value > most:
        raise bad_value(name, f"{name} must be at most {most} on this server ({flag}), not {value}")
    return value


def read_engine(values: Values, exchange: Exchange, chosen: Chosen) -> tuple[Keywords, Constraint]:
    """Keywords of the engine, but for the constraint of the text, and this one. Raises ApiError."""
    options = _read_sampling(values)
    constraint = read_constraint(values)
    if "schema_mode" in values and "schema_mode" in SamplingOptions.__annotations__:
        options["schema_mode"] = values["schema_mode"]
    config = exchange.service.config
    deadline = max(config.request_timeout - exchange.tally.queued, 1e-3)
    serving = _read_serving(values, exchange, chosen)
    return {**options, "deadline": deadline, **serving, **_read_drafts(values, exchange.reading, chosen)}, constraint


def _read_sampling(values: Values) -> Keywords:
    """The fields that are keywords as they stand. Raises ApiError for two with different values."""
    options: Keywords = {}
    for one in _KEYWORDS:
        if one.name in values:
            value = _as_engine(one.name, values[one.name])
            if options.get(one.to, value) != value:
                raise bad_value(one.name, f"{one.name} and {one.to} are both given, with different values")
            options[one.to] = value
    return options


def _as_engine(name: str, value: Any) -> Any:
    if name == "top_k":
        return max(value, 0)
    if name == "seed":
        return value & MAX_SEED
    if name == "logit_bias":
        return {token: -math.inf if bias <= -100 else bias for token, bias in value.items()}
    return value


def read_constraint(values: Values) -> Constraint:
    """Reads the constraint of the text. Raises ApiError."""
    given = [Constraint(name, keyword, values[name]) for name, keyword in _FORMS.items() if name in values]
    structured = values.get("structured_outputs", {})
    given += [
        Constraint(f"structured_outputs.{name}", keyword, structured[name])
        for name, keyword in _STRUCTURED.items()
        if name in structured
    ]
    form = values.get("response_format", {"type": "text"})
    if "schema" in form and form["type"] != "json_object":
        raise bad_value("response_format.schema", "response_format.schema is for the type json_object")
    if form["type"] == "json_object":
        given.append(Constraint("response_format", "json_schema", form.get("schema", ANY_OBJECT)))
    elif form["type"] == "json_schema":
        if "json_schema" not in form:
            place = "response_format.json_schema"
            raise bad_value(place, f"{place} is missing", "missing_parameter")
        given.append(Constraint("response_format", "json_schema", form["json_schema"]["schema"]))
    if len(given) > 1:
        text = f"{given[0].field} and {given[1].field} are both given: a text can follow one of them"
        raise bad_value(given[1].field, text)
    return given[0] if given else NO_CONSTRAINT


def _read_serving(values: Values, exchange: Exchange, chosen: Chosen) -> Keywords:
    """Priority, isolation of the prefix cache, and adapters. Raises ApiError."""
    found: Keywords = {}
    if priority := values.get("priority", 0):
        if not exchange.service.config.allow_priority:
            raise bad_value("priority", "priority must be 0 on this server (--allow-priority), not "
                            f"{priority}", "unsupported_parameter")  # fmt: skip
        found["priority"] = max(-priority, 0)
    found["cache_salt"] = exchange.service.salt_of(exchange.key.name, values.get("cache_salt"))
    adapters = [(one["name"], one.get("scale", 1.0)) for one in values.get("lora", ())]
    if chosen.adapter is not None:
        adapters.append((chosen.adapter, 1.0))
    known = chosen.model.ready.engine.loras
    for i, (name, _) in enumerate(adapters):
        if name not in known:
            there = ", ".join(known) or "there is none"
            place = f"lora[{i}].name"
            raise bad_value(place, f"{place} must be a loaded adapter ({there}), not {name!r:.60}")
    return found | ({"lora": adapters} if adapters else {})


def _read_drafts(values: Values, reading: Reading, chosen: Chosen) -> Keywords:
    """Options of drafting: sources of draft tokens, and their number at a time."""
    found: Keywords = {}
    if "prediction" in values:
        texts = text_parts(values["prediction"]["content"])
        found["draft"] = PromptLookup(texts=_predicted(texts, chosen, reading))
    elif "draft" not in values and chosen.model.draft is not None:
        found["draft"] = chosen.model.draft
        if chosen.model.num_speculative is not None:
            found["num_speculative"] = chosen.model.num_speculative
    elif values.get("draft", "off") != "off":
        found["draft"] = values["draft"]
    if "num_speculative" in values:
        found["num_speculative"] = values["num_speculative"]
    return found


def _predicted(texts: list[str], chosen: Chosen, reading: Reading) -> list[list[int]]:
    """Tokens of the texts that an answer may repeat; those that it has no room for are left out, and not tokenised."""
    engine = chosen.model.ready.engine
    name, left = "prediction.content", engine.context_size
    ids: list[list[int]] = []
    for text in texts:
        try:
            check_length(engine.tokenizer, name, text, left)
        except ContextOverflowError:
            found = None
        else:
            found = engine.tokenizer.encode(text, add_special=False)
        if found is None or len(found) > left:
            reading.leave_out(name, f"it has more tokens than the context, {engine.context_size}")
            break
        ids.append(found)
        left -= len(found)
    return ids
