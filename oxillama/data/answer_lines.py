"""Lines of output of a request job, which are the same bytes whenever they are computed.

What a server says of the moment of an answer is left out of them: ids are made of the request, times are 0, and tokens
that were found in the cache, or guessed by a draft, which depend on what was computed before, count for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from oxillama.errors import ConfigError

__all__ = ["answer_line", "check_line"]

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LETTERS = 24  # of an id, after what says of what it is
TIMES = ("created", "created_at", "completed_at")
GUESSED = ("accepted_prediction_tokens", "rejected_prediction_tokens")


def answer_line(seed: str, custom_id: str, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a request. seed: what the answer depends on beside `custom_id`, of which its ids are made."""
    ids = _ids(f"{seed}\n{custom_id}")
    line_id, request_id = f"batch_req_{next(ids)}", f"req_{next(ids)}"
    response = {"status_code": status, "request_id": request_id, "body": _settled(body, ids)}
    return {"id": line_id, "custom_id": custom_id, "response": response, "error": None}


def check_line(line: Any) -> None:
    """Raises ConfigError for what is no line of output."""
    try:
        status, body = line["response"]["status_code"], line["response"]["body"]
        sound = isinstance(line["custom_id"], str) and type(status) is int and isinstance(body, dict)
        sound = sound and (status < 400 or isinstance(body.get("error"), dict | None))
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise ConfigError("a row is an answer, with its custom_id, status_code and body")


def _ids(seed: str) -> Iterator[str]:
    """Ids without an end, the same for a seed."""
    n = 0
    while True:
        digest = hashlib.blake2b(f"{n}\n{seed}".encode("utf-8", "surrogatepass"), digest_size=2 * ID_LETTERS).digest()
        words = (int.from_bytes(digest[i : i + 2], "big") for i in range(0, len(digest), 2))
        yield "".join(LETTERS[word % len(LETTERS)] for word in words)
        n += 1


def _settled(body: Mapping[str, Any], ids: Iterator[str]) -> dict[str, Any]:
    """The body of an answer without what is of its moment."""
    found = _renamed(body, ids)
    for name in TIMES:
        if isinstance(found.get(name), int | float):
            found[name] = 0
    if isinstance(output := found.get("output"), list):
        found["output"] = [_renamed(item, ids) if isinstance(item, Mapping) else item for item in output]
    if isinstance(usage := found.get("usage"), Mapping):
        found["usage"] = _usage(usage)
    return found


def _renamed(item: Mapping[str, Any], ids: Iterator[str]) -> dict[str, Any]:
    """An object with another id of the same kind, if it has one."""
    found = dict(item)
    if isinstance(id := found.get("id"), str):
        found["id"] = id[: -ID_LETTERS or None] + next(ids)
    return found


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: part for name, part in usage.items() if name != "prompt_tokens_details"}  # those of the cache
    if isinstance(details := found.get("input_tokens_details"), Mapping):  # which a response must have
        found["input_tokens_details"] = {**details, "cached_tokens": 0}
    if isinstance(details := found.get("completion_tokens_details"), Mapping):
        found["completion_tokens_details"] = {**details, **dict.fromkeys(GUESSED, 0)}
    return found
