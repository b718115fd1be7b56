"""Access: what is let in, and the line in the log for each request that ended."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from oxillama.server.auth import check_host, check_origin, given_key, is_loopback
from oxillama.server.errors import ApiError, headers_too_large, too_many_connections
from oxillama.server.exchange import METHODS, Exchange
from oxillama.server.json_pieces import Body

__all__ = ["ALIVE", "admit", "note"]

log = logging.getLogger("oxillama.access")

OPEN = ("/health", "/v1/health", "/ready", "/openapi.json", "/docs", "/")  # without a key
FILES = "/page/"  # of the page at /, likewise
ADMIN = ("/admin/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
ALIVE = ("/health", "/v1/health", "/ready", "/metrics", "/version")  # while the server ends, too
MAX_HEADERS = 100


def admit(exchange: Exchange) -> None:
    """Checks what the headers of a request say. Raises ApiError."""
    service, headers, path = exchange.service, exchange.headers, exchange.path
    _check_headers(exchange)
    if service.forwarded.number(exchange.forwarded_as) > service.config.max_peer_connections:
        raise too_many_connections("this address")
    if not service.keys and is_loopback(service.config) and service.config.uds is None:
        check_host(headers, service.config)
    check_origin(headers, service.config)
    if exchange.method != "OPTIONS":
        _check_key(exchange, path)
    if service.draining and path not in ALIVE:
        raise ApiError(503, "draining", "the server ends", headers={"Retry-After": "5", "Connection": "close"})


def _check_headers(exchange: Exchange) -> None:
    """Checks number and size, also of headers that came in one piece, and those of a server that doesn't look; and that
    no proxy in front can take another part of what came for the body (RFC 9112, section 6.3), as h11 allows."""
    given, most = exchange.scope["headers"], exchange.service.config.max_headers
    if len(given) > MAX_HEADERS:
        raise ApiError(431, "too_many_headers", f"a request may have {MAX_HEADERS} headers")
    if "content-length" in exchange.headers and "transfer-encoding" in exchange.headers:
        text = "a request has Content-Length or Transfer-Encoding, not both"
        raise ApiError(400, "invalid_http", text, headers={"Connection": "close"})
    line = len(exchange.method) + len(exchange.scope.get("raw_path") or exchange.path) + len("  HTTP/1.1\r\n")
    query = exchange.scope.get("query_string", b"")
    size = line + (len(query) + 1 if query else 0) + sum(len(name) + len(value) + 4 for name, value in given) + 2
    if size > most:
        raise headers_too_large(most)


def _check_key(exchange: Exchange, path: str) -> None:
    service, given = exchange.service, given_key(exchange.headers)
    if path.startswith(ADMIN):
        _check_admin(exchange, given)
    elif (
        path in OPEN
        or path.startswith(FILES)
        or (path == "/metrics" and service.config.public_metrics)
        or not (service.keys or service.admins)
    ):
        return
    elif (key := service.keys.find(given)) is not None:
        exchange.key = key
    elif (admin := service.admins.find(given)) is not None:
        exchange.key, exchange.is_admin = admin, True
    elif service.keys:
        text = "a key is missing: send Authorization: Bearer KEY" if given is None else "the key is not known"
        raise ApiError(401, "invalid_api_key", text, headers={"WWW-Authenticate": "Bearer"})


def _check_admin(exchange: Exchange, given: str | None) -> None:
    service = exchange.service
    admin = service.admins.find(given)
    if admin is not None:
        exchange.key, exchange.is_admin = admin, True
        return
    if given is None and (service.keys or service.admins):
        raise ApiError(401, "invalid_api_key", "a key is missing", headers={"WWW-Authenticate": "Bearer"})
    remedy = "" if service.admins else ": start the server with --admin-key-file"
    raise ApiError(403, "admin_only", f"this needs the key of an administrator{remedy}")


def note(exchange: Exchange) -> int:
    """Counts a request that ended, and logs its line. Returns its status, 499 of a client that left."""
    service = exchange.service
    seconds = time.perf_counter() - exchange.began
    usage, status = exchange.usage, 499 if exchange.gone else exchange.status
    method = exchange.method if exchange.method in METHODS else "other"  # a client could make up any number of them
    for metrics in service.counts(exchange.key):
        metrics.disconnects += exchange.gone
        metrics.ended(exchange.route, method, status, seconds)
        for kind, n in (("prompt", usage.prompt_tokens), ("completion", usage.completion_tokens)):
            if n:
                metrics.used(exchange.key.name, kind, n)
    if not log.isEnabledFor(logging.INFO):
        return status
    line: Body = {
        "id": exchange.id, "key": exchange.key.name, "method": exchange.method, "path": exchange.path,
        "status": status,
        "model": usage.model, "prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens, "queue_ms": round(usage.queued * 1e3, 2),
        "ttft_ms": None if usage.first_token is None else round(usage.first_token * 1e3, 2),
        "total_ms": round(seconds * 1e3, 2), "finish_reason": usage.finish_reason, "bytes": exchange.n_bytes,
    }  # fmt: skip
    if service.config.log_content and usage.content is not None:
        line["content"] = usage.content
    log.info("%s", shown(line, service.config.log_format))
    return status


def shown(line: Mapping[str, Any], form: str) -> str:
    """A line of the access log."""
    if form == "json":
        return json.dumps(line, ensure_ascii=True)
    pairs = ((name, json.dumps(value) if needs_quotes(value) else value) for name, value in line.items())
    return " ".join(f"{name}={value}" for name, value in pairs if value is not None)


def needs_quotes(value: object) -> bool:
    """Whether a value could be read as more than one, or as more than one line."""
    return isinstance(value, str) and not (value.isascii() and value.isprintable() and " " not in value)
