"""Pages of the server: one to try a model, and the description of its API."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from pathlib import Path

from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Field
from oxillama.server.routes import ROUTES, Endpoint
from oxillama.server.tables import openapi, shown_path

__all__ = ["pages_of"]

HTML = "text/html; charset=utf-8"
RUNNING = b"Ollama is running"  # clients of Ollama's API compare it


@cache
def page() -> tuple[bytes, str]:
    """The page at /, and the policy by which a browser runs its own script alone."""
    body = (Path(__file__).parent / "page.html").read_text()
    script = re.search(r"<script>(.*?)</script>", body, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'"
    return body.encode(), f"{policy}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


async def root(exchange: Exchange) -> None:
    """GET /: the page for browsers; for clients that want no HTML the line by which they know Ollama's API."""
    config, accepted = exchange.service.config, exchange.headers.get("accept", "*/*")
    wants_page = "text/html" in accepted or (not config.ollama and "*/*" in accepted)
    if not wants_page or (config.ollama and not config.ui):
        await exchange.answer(RUNNING, "text/plain; charset=utf-8")
        return
    if not config.ui:
        raise ApiError(404, "unknown_url", "there is no page: the server was started with --no-ui")
    body, policy = page()
    await exchange.answer(body, HTML, headers={"content-security-policy": policy, "cache-control": "no-cache"})


async def description(exchange: Exchange) -> None:
    """GET /openapi.json"""
    await exchange.answer(json.dumps(openapi(), ensure_ascii=False).encode(), "application/json")


async def manual(exchange: Exchange) -> None:
    """GET /docs: the paths and fields of the API, as a page."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    await exchange.answer(manual_page(), HTML, headers={"content-security-policy": policy})


@cache
def manual_page() -> bytes:
    """One section for each path."""
    parts = []
    for endpoint in ROUTES:
        path = html.escape(shown_path(endpoint))
        parts.append(f"<h2><code>{endpoint.method} {path}</code></h2><p>{html.escape(endpoint.text)}</p>")
        if endpoint.record is not None:
            parts.append(f"<table>{''.join(map(row_of, endpoint.record.fields))}</table>")
    style = "body{font:15px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}td{padding:0 .8rem .2rem 0}"
    head = f"<!doctype html><meta charset=utf-8><title>oxillama</title><style>{style}</style><h1>oxillama</h1>"
    return (head + "".join(parts)).encode()


def row_of(field: Field) -> str:
    """A field in a table."""
    name, text = html.escape(field.name), html.escape(field.text)
    return f"<tr><td><code>{name}</code>{' *' if field.required else ''}<td>{field.rule}<td>{text}"


def pages_of(config: ServerConfig) -> list[Endpoint]:
    """The routes of the pages that a server has."""
    found = [Endpoint("GET", "/", root, "a page to try a model")]
    if config.docs:
        found.append(Endpoint("GET", "/openapi.json", description, "this API in OpenAPI"))
        found.append(Endpoint("GET", "/docs", manual, "the same as a page"))
    return found
