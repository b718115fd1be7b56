"""Results as values that `json.dumps` takes, also with allow_nan=False."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from itertools import islice
from typing import Any

from oxillama._util.json_tree import JsonError, JsonTooMuch, JsonTree

__all__ = ["LARGE", "dumped", "fields_as_json", "json_value", "large_json", "loads_unique", "unique_keys"]

LARGE = 1 << 16  # characters of JSON text from which on other threads run while it is read
MOST = 1 << 62
DEPTH = 900  # of a large text
MANY = 4096  # parts of a value from which on it is written piece by piece


def json_value(value: Any) -> Any:
    """`value` in terms of None, bools, ints, floats, texts, lists and dicts.

    Bytes become lists of integers. Numbers that JSON doesn't have become None, such as minus infinity, the
    log-probability of an impossible token. An object with a `to_dict` becomes its result. Raises TypeError for other
    values.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return json_value(value.tolist())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def dumped(value: Any, **options: Any) -> str:
    """`json.dumps(value, **options)`. Of a large value its parts come one by one, while other threads run."""
    encoder = json.JSONEncoder(**options)
    if _is_large(value):
        with suppress(RecursionError):  # which takes more of the stack than all at once
            return "".join(encoder.iterencode(value))
    return encoder.encode(value)


def _is_large(value: Any) -> bool:
    """Whether a value has more than MANY parts."""
    todo, n = [value], 0
    while todo and n <= MANY:
        item = todo.pop()
        if isinstance(item, Mapping | list | tuple):
            n += len(item)
            todo += islice(item.values() if isinstance(item, Mapping) else item, MANY)
    return n > MANY


def fields_as_json(result: Any, *without: str) -> dict[str, Any]:
    """The fields of a dataclass by name, without those given."""
    return {f.name: json_value(getattr(result, f.name)) for f in fields(result) if f.name not in without}


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `object_pairs_hook`. Raises ValueError for a key that comes twice, of which one would be
    lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def loads_unique(text: str | bytes) -> Any:
    """`json.loads` with `unique_keys`; other threads run while a large text is read."""
    if isinstance(text, str) and len(text) > LARGE:
        try:
            return large_json(text).read()
        except (JsonError, JsonTooMuch, UnicodeEncodeError):
            pass  # what is wrong with it, or isn't, is for `json` to say
    return json.loads(text, object_pairs_hook=unique_keys)


def large_json(text: str) -> JsonTree:
    """Reader of a large text. Raises UnicodeEncodeError for one with halves of surrogate pairs."""
    return JsonTree(text.encode(), most_depth=DEPTH, most_parts=MOST, most_keys=MOST)
