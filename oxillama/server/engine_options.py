"""Keywords of the engine for the fields that dialects share: sampling, what a text must follow, drafts and adapters."""

from __future__ import annotations

import math
from typing import Any

from oxillama.core.prompts import check_length
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import ContextOverflowError
from oxillama.sampler_config import MAX_SEED
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Values
from oxillama.server.fields import CONSTRAINTS, FORMS, SERVING
from oxillama.server.fields_sampling import SAMPLING
from oxillama.server.generation import NO_CONSTRAINT, Constraint, Keywords
from oxillama.server.models import Chosen
from oxillama.server.reading import Reading
from oxillama.server.translate import text_parts

__all__ = ["limited", "read_constraint", "read_engine"]

ANY_OBJECT = {"type": "object", "additionalProperties": True}
# The fields that are keywords: those that have the engine's names first.
_KEYWORDS = sorted((one for one in (*SAMPLING, *CONSTRAINTS, *SERVING) if one.to), key=lambda one: one.name != one.to)
# Names that `structured_outputs` has for what a text must follow.
_STRUCTURED = {"json_schema": "json", "choices": "choice"}


def limited(name: str, value: int, most: int, flag: str) -> int:
    """A number within the server's own limit. Raises ApiError."""
    if value > most:
        raise bad_value(name, f"{name} must be at most {most} on this server ({flag}), not {value}")
    return value


def read_engine(values: Values, exchange: Exchange, chosen: Chosen) -> tuple[Keywords, Constraint]:
    """Keywords of the engine, but for the constraint of the text, and this one. Raises ApiError."""
    options = _read_sampling(values)
    constraint = read_constraint(values)
    config = exchange.service.config
    deadline = max(config.request_timeout - exchange.usage.queued, 1e-3)
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
    given = [Constraint(name, name, values[name]) for name in FORMS if name in values]
    structured = values.get("structured_outputs", {})
    given += [
        Constraint(f"structured_outputs.{name}", keyword, structured[name])
        for keyword in FORMS
        if (name := _STRUCTURED.get(keyword, keyword)) in structured
    ]
    form = values.get("response_format", {"type": "text"})
    if "schema" in form and form["type"] != "json_object":
        raise bad_value("response_format.schema", "response_format.schema is for the type json_object")
    if form["type"] != "text":
        given.append(Constraint("response_format", "json_schema", _read_schema(form)))
    if len(given) > 1:
        text = f"{given[0].field} and {given[1].field} are both given: a text can follow one of them"
        raise bad_value(given[1].field, text)
    return given[0] if given else NO_CONSTRAINT


def _read_schema(form: Values) -> object:
    """The schema of a `response_format` of JSON: of any object, or the one under the name of its type."""
    kind = form["type"]
    if kind == "json_object":
        return form.get("schema", ANY_OBJECT)
    if kind not in form:
        place = f"response_format.{kind}"
        raise bad_value(place, f"{place} is missing", "missing_parameter")
    return form[kind]["schema"]


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
    known = chosen.model.ready.engine.loras
    for i, (name, _) in enumerate(adapters):
        if name not in known:
            there = ", ".join(known) or "there is none"
            place = f"lora[{i}].name"
            raise bad_value(place, f"{place} must be a loaded adapter ({there}), not {name!r:.60}")
    if chosen.adapter is not None:
        if chosen.adapter not in known:
            raise ApiError(404, "model_not_found", f"the adapter {chosen.adapter!r:.80} was unloaded", "model")
        adapters.append((chosen.adapter, 1.0))
    return found | ({"lora": adapters} if adapters else {})


def _read_drafts(values: Values, reading: Reading, chosen: Chosen) -> Keywords:
    """Reads where draft tokens come from, and how many at a time."""
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
