"""API keys, and the hosts and origins that requests may name."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from oxillama._util.checks import check_int, nearest
from oxillama._util.text_files import read_setting
from oxillama.errors import ConfigError
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError
from oxillama.server.peers import peer_name

__all__ = [
    "ANYONE",
    "Key",
    "Keys",
    "anyone",
    "check_host",
    "check_origin",
    "cors_headers",
    "given_key",
    "is_loopback",
    "keys_of",
    "read_keys",
]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
LIMITS = {"max_concurrent": (1, 1 << 20), "tpm": (1, 1 << 40)}


@dataclass(frozen=True)
class Key:
    """A caller. max_concurrent: requests at a time; tpm: tokens a minute, prompts included; None: no limit.

    is_admin: whether it is an administrator's. peer: address of a caller without a key.
    """

    name: str
    max_concurrent: int | None = None
    tpm: int | None = None
    is_admin: bool = False
    peer: str = ""

    @property
    def owner(self) -> str:
        """Owner whose requests share places, threads and steps: a key, or an address where there is no key."""
        return f"admin {self.name}" if self.is_admin else f"peer {self.peer}" if self.peer else f"key {self.name}"


ANYONE = Key("-")  # of a server without keys, over a Unix socket


def anyone(address: str) -> Key:
    """The caller without a key at an address."""
    return Key("-", peer=peer_name(address)) if address else ANYONE


class Keys:
    """Keys by their SHA-256. All are compared with what is given, each in constant time."""

    def __init__(self, known: Mapping[bytes, Key]) -> None:
        self._known = dict(known)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, given: str | None) -> Key | None:
        """The key that was given, None if there is no such one."""
        if given is None:
            return None
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        found = None
        for known, key in self._known.items():  # to the end, so that the time says nothing of which one it was
            if hmac.compare_digest(known, digest):
                found = key
        return found


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_keys(path: str) -> dict[bytes, Key]:
    """Keys of a file, a line each: NAME:KEY, and limits. Raises ConfigError, which names the line and never a key."""
    try:
        lines = read_setting(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {path} can't be read: {error}") from None
    found: dict[bytes, Key] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"{path}, line {number}"
        name, colon, key = words[0].partition(":")
        if not colon or not re.fullmatch(r"[\w.-]{1,64}", name) or len(key) < 8:
            raise ConfigError(f"{place} must be NAME:KEY, with a key of at least 8 characters, and limits")
        if digest_of(key) in found or any(name == other.name for other in found.values()):
            raise ConfigError(f"{place}: this name or key came before")
        limits = _limits(place, words[1:])
        found[digest_of(key)] = Key(name, limits.get("max_concurrent"), limits.get("tpm"))
    if not found:
        raise ConfigError(f"the key file {path} has no keys")
    return found


def _limits(place: str, words: list[str]) -> dict[str, int]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in LIMITS or not equals or not value.isdecimal():
            near = nearest(name, LIMITS) or "max_concurrent"
            raise ConfigError(f"{place} must have limits such as max_concurrent=4 or tpm=60000 (did you mean {near}?)")
        found[name] = check_int(f"{place}: {name}", int(value), *LIMITS[name])
    return found


def keys_of(config: ServerConfig) -> tuple[Keys, Keys]:
    """Keys of users, and of administrators. Raises ConfigError."""
    users = read_keys(config.api_key_file) if config.api_key_file else {}
    if config.api_key:
        users[digest_of(config.api_key)] = Key("default")
    admins = read_keys(config.admin_key_file) if config.admin_key_file else {}
    return Keys(users), Keys({digest: replace(key, is_admin=True) for digest, key in admins.items()})


def given_key(headers: Mapping[str, str]) -> str | None:
    """The key of a request: `Authorization: Bearer KEY`, or `x-api-key`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else headers.get("x-api-key")


def host_of(value: str) -> str:
    """The name in a Host header or an address, without its port."""
    return (urlsplit(f"//{value}").hostname or "") if value else ""


def is_loopback(config: ServerConfig) -> bool:
    """Whether only programs of this machine can connect."""
    return config.uds is not None or config.host in LOOPBACK


def check_host(headers: Mapping[str, str], config: ServerConfig) -> None:
    """Raises ApiError for a name that isn't ours: the name of another site may lead here (DNS rebinding)."""
    try:
        host = host_of(headers.get("host", ""))
    except ValueError:
        host = "?"
    if host and host not in LOOPBACK and host not in config.allowed_host and host != config.host:
        text = f"Host {host!r:.80} is not this server's: start it with --allowed-host {host:.80}"
        raise ApiError(403, "host_not_allowed", text)


def check_origin(headers: Mapping[str, str], config: ServerConfig) -> str | None:
    """The web site that a request comes from, if it may call this server. Raises ApiError for another one."""
    origin = headers.get("origin")
    if origin is None or origin in config.cors_origin:
        return origin
    try:
        own = bool(headers.get("host")) and urlsplit(origin).netloc == headers["host"]
    except ValueError:
        own = False
    if own:
        return None
    text = f"Origin {origin!r:.80} may not call this server: start it with --cors-origin {origin:.80}"
    raise ApiError(403, "origin_not_allowed", text)


def cors_headers(headers: Mapping[str, str], method: str, config: ServerConfig) -> dict[str, str]:
    """Headers that let a page of another site that is configured read the answer."""
    origin = headers.get("origin")
    if origin is None or origin not in config.cors_origin:
        return {"vary": "Origin"} if config.cors_origin else {}
    found = {"access-control-allow-origin": origin, "vary": "Origin", "access-control-expose-headers": "*"}
    if method == "OPTIONS":
        wanted = headers.get("access-control-request-headers", "")
        found["access-control-allow-methods"] = "GET, POST, DELETE"
        found["access-control-max-age"] = "600"
        if wanted:
            found["access-control-allow-headers"] = wanted
    return found
