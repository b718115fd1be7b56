"""What a text may be, as settings: a grammar, a schema, a pattern or a list of texts."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from oxillama.errors import ConfigError

__all__ = ["CONSTRAINTS", "SCHEMA_MODES", "JsonSchema", "SchemaMode", "checked_constraints"]

JsonSchema = Mapping[str, Any] | bool | str
SchemaMode = Literal["generate", "full"]
SCHEMA_MODES = ("generate", "full")

CONSTRAINTS = ("grammar", "json_schema", "regex", "choices")


def checked_constraints(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of these names in the form in which they are kept, which can't be changed: texts, and a tuple.

    Raises ConfigError for values of another type, and if more than one is given.
    """
    named = [name for name in CONSTRAINTS if given[name] is not None]
    if len(named) > 1:
        raise ConfigError(
            f"{named[0]} and {named[1]} are both given: a text can follow one of {', '.join(CONSTRAINTS)}"
        )
    return {name: _CHECKS[name](given[name]) for name in named}


def _grammar(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"grammar must be GBNF as a str or None, not {value!r:.60}")
    return value


def _regex(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"regex must be a pattern as a str or None, not {value!r:.60}")
    return value


def _choices(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"choices must be a list of texts or None, not {value!r:.60}")
    texts = tuple(value)
    if not texts:
        raise ConfigError("choices must hold at least one text, not an empty list")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"choices[{i}] must be a str, not {text!r:.60}")
    return texts


def _json_schema(value: Any) -> str:
    """The schema as JSON text: order counts in it, and nobody can change it later."""
    try:
        if isinstance(value, str):
            text, value = value, json.loads(value)
        else:
            text = json.dumps(value, allow_nan=False)
            _check_keys(value)
    except RecursionError:
        raise ConfigError("json_schema nests too deeply") from None
    except (TypeError, ValueError) as error:
        remedy = f"; give {value.__name__}.model_json_schema()" if hasattr(value, "model_json_schema") else ""
        raise ConfigError(f"json_schema must be a schema as a dict, a bool or JSON text: {error}{remedy}") from None
    if not isinstance(value, Mapping | bool):
        raise ConfigError(f"json_schema must be an object, true or false, not {text:.60}")
    return text


def _check_keys(value: Any) -> None:
    """json.dumps makes texts of other keys."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise TypeError(f"keys are str, not {key!r:.60}")
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item


_CHECKS = {"grammar": _grammar, "json_schema": _json_schema, "regex": _regex, "choices": _choices}
