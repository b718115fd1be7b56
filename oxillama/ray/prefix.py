"""Beginnings of prompts, by which a request finds the replica that has computed them, and the order of replicas."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ForwardedRequest", "prompt_of", "ranked"]

KEY_LENGTH = 1024  # characters, some 256 tokens: a shorter beginning is computed again sooner than it is missed
PROMPT_LENGTH = 16 << 10
BALANCE = 2.0
# Fields that hold the prompt, in the order in which a model reads them.
_OPENING = ("instructions", "system")
_PROMPTS = ("messages", "input", "prompt", "query", "text_1")


@dataclass(frozen=True)
class ForwardedRequest:
    """A request on its way to a replica: what ASGI knows of it, and its body.

    prompt: text of the prompt, cut at `PROMPT_LENGTH` characters, for routers that compare prompts; never empty, as
    Ray's PrefixCacheAffinityRouter needs it, which looks for an attribute of this name. key: equal for requests that
    are to meet at one replica.
    """

    scope: Mapping[str, Any]
    body: bytes
    prompt: str
    key: str


def prompt_of(fields: Mapping[str, Any]) -> tuple[str, str]:
    """(text of the prompt, key) of the fields of a request; two empty texts where there is none.

    The key of a conversation is its beginning up to the first message of its user, so that all of its turns have the
    same, and conversations that share a system prompt alone are spread over replicas, each of which computes it once.
    Of another prompt it is the beginning. `prompt_cache_key` stands for it where a request has one.
    """
    parts, opening = [text_of(fields.get(name)) for name in _OPENING], True
    key = list(parts)
    for value in (fields.get(name) for name in _PROMPTS):
        for item in value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]:
            parts.append(text_of(item))
            if opening:
                key.append(parts[-1][:KEY_LENGTH])
                opening = isinstance(item, dict) and item.get("role") in ("system", "developer")
        opening = opening or value is None
    given = fields.get("prompt_cache_key")
    return "\n".join(filter(None, parts))[:PROMPT_LENGTH], given if isinstance(given, str) else "\n".join(key).strip()


def text_of(value: Any) -> str:
    """The text in a prompt, a message or a list of these; other values are left out."""
    if isinstance(value, str):
        return value[:PROMPT_LENGTH]
    if isinstance(value, dict):
        return text_of(value.get("content", value.get("text")))
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return " ".join(map(str, value[:KEY_LENGTH]))
        return "".join(map(text_of, value[:KEY_LENGTH]))[:PROMPT_LENGTH]
    return ""


def ranked(key: str, loads: Mapping[str, int]) -> list[str]:
    """Names of replicas in the order in which a request tries them. loads: requests that each has under way.

    The order of a key is that of hashes of key and name (rendezvous hashing: a replica that comes or goes moves its own
    keys alone). Those with more than `BALANCE` times the mean load come last, the least loaded first, so that a
    beginning that all requests have is on as many replicas as its load needs (consistent hashing with bounded loads,
    Mirrokni, Thorup and Zadimoghaddam 2016).
    """
    order = sorted(loads, key=lambda name: hashlib.blake2b(f"{name}\n{key}".encode("utf-8", "replace")).digest())
    most = math.ceil(BALANCE * (sum(loads.values()) + 1) / max(1, len(loads)))
    return [n for n in order if loads[n] < most] + sorted((n for n in order if loads[n] >= most), key=loads.__getitem__)
